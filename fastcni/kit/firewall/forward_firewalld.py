"""firewall by firewalld: a pod's addresses are sources of one of firewalld's zones, told to it over D-Bus.

Whose an address is these sources do not say: kit/firewall/owners.py does. They last until firewalld is reloaded or
restarted.
"""

from fastcni.kernel import dbus, nft, wire
from fastcni.kit.firewall import elements, forward_nftables
from fastcni.kit.firewall.owners import Notes, release
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TABLE = "firewalld"             # of nftables: firewalld's own
NAME, OBJECT = "org.fedoraproject.FirewallD1", "/org/fedoraproject/FirewallD1"
LIMIT = 10.0                    # seconds for what one request has to say to firewalld
# Words that its refusals to remove begin with. A conflict: somebody has moved it to another zone.
NOT_THERE = ("UNKNOWN_SOURCE", "ZONE_CONFLICT", "INVALID_ZONE")


def stores():
    return [notes()]


def notes():
    return Notes("firewalld-sources")


def source(packed):
    """An address as the reference plugins name it to firewalld."""
    return addresses.cidr_text(packed, 8 * len(packed))


class Absent(CniError):
    """firewalld is not there, so nothing of ours is in it."""


class Firewalld:
    """`with` it firewalld can be asked. Raises Absent, and CniError 11 where somebody hangs."""

    def __init__(self, req):
        self.bus = said("the system bus", lambda: dbus.Bus(dbus.system_bus(req.env), LIMIT))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bus.close()

    def call(self, interface, method, *texts):
        """What a method returns. Raises dbus.Refused."""
        return said("firewalld", lambda: self.bus.call(NAME, OBJECT, interface, method, *texts))

    def ask(self, method, zone, packed):
        """Call a method about an address as a source of a zone: what it returns, and "", or why firewalld refuses."""
        try:
            return self.call(f"{NAME}.zone", method, zone, source(packed))[0], ""
        except dbus.Refused as e:
            return None, str(e)


def said(who, ask):
    try:
        return ask()
    except TimeoutError:
        raise CniError(errors.TRY_AGAIN_LATER, f"{who} did not answer within {LIMIT:g} s",
                       "look at systemctl status dbus firewalld, and at firewall-cmd --state") from None
    except dbus.Gone as e:
        raise Absent(errors.PLUGIN_NOT_AVAILABLE, f"firewalld is not there: {e}",
                     'systemctl start firewalld, or choose another "backend"') from None
    except ModuleNotFoundError as e:
        raise CniError(errors.INTERNAL, f"firewalld cannot be asked: no module {e.name}",
                       "pip install jeepney, and then `fastcni install` again") from None


def filters(req):
    """Is firewalld there? The bus says so within 0.2 ms. Raises CniError 11 where it hangs."""
    try:
        return said("the system bus", lambda: dbus.has_owner(dbus.system_bus(req.env), NAME, LIMIT))
    except Absent:
        return False


def add(req, conf):
    """Make the addresses sources of the zone. What was made before one is refused, delete() takes back."""
    notes().add(req, notes().items(conf.ips))
    add_sources(req, conf)


def restore(req, conf):
    """The same, but for addresses that are another attachment's by now: CniError 11."""
    notes().restore(req, notes().items(conf.ips))
    add_sources(req, conf)


def add_sources(req, conf):
    with Firewalld(req) as firewalld:
        for packed in conf.ips:
            _, refused = firewalld.ask("addSource", conf.zone, packed)
            if refused and not refused.startswith("ZONE_ALREADY_SET"):
                raise CniError(errors.INTERNAL,
                               f"failed to add the address {source(packed)} to {conf.zone} zone: {refused}",
                               "firewall-cmd --get-zones names the zones, --get-active-zones says what is in them")


def delete(req, conf):
    """Remove what ADD did, also by the reference plugin. Gone is fine.

    firewalld is asked about addresses that are noted as the pod's. Of the others its own rules say whether it has
    them: a DEL neither waits for a bus nor fails by it for what is not there.
    """
    possible = conf.ips if conf.backend in (None, "", "firewalld") else []
    ips, noted = notes().to_take_back(req, possible)
    own = {packed for _, packed in noted}
    others = [packed for packed in ips if packed not in own]
    take_back(req, conf.zone, [*own, *(may_have(req, conf, others) if others else ())], noted)


def may_have(req, conf, ips):
    """Those of the addresses that may be sources. The kernel shows the rules about them, where nftables is firewalld's
    backend; with its other one, iptables, they may all be, but for those of a pod that nftables lets through."""
    if not elements.has_table(req.mode, nft.NFPROTO_INET, TABLE):
        return () if forward_nftables.knows(req, conf) else ips
    rules = [payload for _, payload in wire.dump(req.mode.firewall, nft.NFT_MSG_GETRULE, nft.nfgenmsg(nft.NFPROTO_INET),
                                                 f"list rules of {TABLE}", nft.rules_of(TABLE))]
    return [packed for packed in ips if any(packed in payload for payload in rules)]


def gc(req, conf):
    lost = notes().lost(req)
    release(req, "firewalld", take_back(req, conf.zone, [packed for _, packed, _ in lost], lost))


def take_back(req, zone, ips, noted):
    """Remove the sources of addresses, then their notes, which are returned. What firewalld refuses to remove stays
    noted, for GC."""
    if not noted and not (ips and filters(req)):
        return ()
    kept = set()
    try:
        with Firewalld(req) as firewalld:
            for packed in ips:
                _, refused = firewalld.ask("removeSource", zone, packed)
                if refused and not refused.startswith(NOT_THERE):
                    kept.add(packed)
                    req.warn(f"failed to remove the address {source(packed)} from {zone} zone: {refused}")
    except Absent:
        kept.clear()                    # it has gone with all its sources
    gone = [note for note in noted if note[1] not in kept]
    notes().remove(req, gone)
    return gone


def missing(req, conf):
    """For CHECK: what is not there, in words, or "" where all is."""
    with Firewalld(req) as firewalld:
        for packed in conf.ips:
            there, refused = firewalld.ask("querySource", conf.zone, packed)
            if not there:
                return f"firewalld's zone {conf.zone} lacks the source {source(packed)}{refused and f' ({refused})'}"
    return ""


def status(req):
    """Raises CniError 50 where firewalld is not there or has failed, 11 where it hangs."""
    with Firewalld(req) as firewalld:
        (_, state), = firewalld.call("org.freedesktop.DBus.Properties", "Get", NAME, "state")
    if state != "RUNNING":
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"the state of firewalld is {state}",
                       "its log says why: journalctl -u firewalld")
