"""Accept pods' traffic by firewalld: add each pod's addresses, over D-Bus, as sources of one of firewalld's zones.

kit/firewall/owners.py records the attachment of each source. firewalld keeps the sources until it is reloaded or
restarted.
"""

from __future__ import annotations

from fastcni.kernel import dbus, nft, nft_rules
from fastcni.kit.firewall import iptables, rulesets
from fastcni.kit.firewall.owners import OwnerRecords, release
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.firewall.elements import Store
    from fastcni.kit.firewall.forward.keys import Conf

TABLE = "firewalld"             # firewalld's own nftables table
IPTABLES_CHAIN = "INPUT_ZONES"  # in table filter, if firewalld uses iptables
NAME, OBJECT = "org.fedoraproject.FirewallD1", "/org/fedoraproject/FirewallD1"
TIMEOUT_S = 10.0                # limit for all calls of one request
# The names of firewalld's errors for the removal of a source that the zone does not have. ZONE_CONFLICT: another zone
# has the source.
NOT_THERE = ("UNKNOWN_SOURCE", "ZONE_CONFLICT", "INVALID_ZONE")


def stores() -> list[Store]:
    return [records()]


def records() -> OwnerRecords:
    return OwnerRecords("firewalld-sources")


def source(packed: bytes) -> str:
    """Return the text of an address in the reference plugins' form for firewalld: with prefix length."""
    return addresses.cidr_text(packed, 8 * len(packed))


class Absent(CniError):
    """The error if firewalld is not running, and so has no sources of fastcni."""


class Firewalld:
    """A connection to firewalld, a context manager. Raises Absent, and CniError 11 if the bus or firewalld does not
    answer."""

    def __init__(self, req: Request) -> None:
        self.bus = answered("the system bus", lambda: dbus.Bus(dbus.system_bus(req.env), TIMEOUT_S))

    def __enter__(self) -> Firewalld:
        return self

    def __exit__(self, *_: object) -> None:
        self.bus.close()

    def call(self, interface: str, method: str, *texts: str) -> Any:
        """Return the result of a method. Raises dbus.Refused."""
        return answered("firewalld", lambda: self.bus.call(NAME, OBJECT, interface, method, *texts))

    def ask(self, method: str, zone: str, packed: bytes) -> tuple[Any, str]:
        """Call a method of firewalld with a zone and an address as source. Return (result, "") or (None, the name of
        firewalld's error).
        """
        try:
            return self.call(f"{NAME}.zone", method, zone, source(packed))[0], ""
        except dbus.Refused as e:
            return None, str(e)


def answered(peer: str, ask: Callable[[], Any]) -> Any:
    """Return ask(). Raise a D-Bus error as a CniError."""
    try:
        return ask()
    except TimeoutError:
        raise CniError(errors.TRY_AGAIN_LATER, f"{peer} did not answer within {TIMEOUT_S:g} s",
                       "check systemctl status dbus firewalld, and firewall-cmd --state") from None
    except dbus.Gone as e:
        raise Absent(errors.PLUGIN_NOT_AVAILABLE, f"firewalld is not running: {e}",
                     'systemctl start firewalld, or choose another "backend"') from None
    except ModuleNotFoundError as e:
        raise CniError(errors.INTERNAL, f"cannot call firewalld: no module {e.name}",
                       "pip install jeepney, and then `fastcni install` again") from None


def filters(req: Request) -> bool:
    """Return whether firewalld is running. The bus answers within 0.2 ms. Raises CniError 11 if the bus does not
    answer."""
    try:
        return answered("the system bus", lambda: dbus.has_owner(dbus.system_bus(req.env), NAME, TIMEOUT_S))
    except Absent:
        return False


def uses_nftables(req: Request) -> bool:
    """Return whether firewalld uses nftables, that is, whether firewalld's table exists. Otherwise firewalld uses
    iptables."""
    return rulesets.has_table(req.mode, nft.NFPROTO_INET, TABLE)


def add(req: Request, conf: Conf) -> None:
    """Make the addresses sources of the zone. If firewalld rejects an address, the rollback, delete(), removes the
    sources that add() has added."""
    records().add(req, records().items(conf.ips))
    add_sources(req, conf)


def restore(req: Request, conf: Conf) -> None:
    """Add the missing records and rules. Raises CniError 11 if another attachment now has one of the addresses."""
    records().restore(req, records().items(conf.ips))
    add_sources(req, conf)


def add_sources(req: Request, conf: Conf) -> None:
    with Firewalld(req) as firewalld:
        for packed in conf.ips:
            _, refused = firewalld.ask("addSource", conf.zone, packed)
            if refused and not refused.startswith("ZONE_ALREADY_SET"):
                raise CniError(errors.INTERNAL,
                               f"failed to add the address {source(packed)} to {conf.zone} zone: {refused}",
                               "firewall-cmd --get-zones names the zones, --get-active-zones says what is in them")


def delete(req: Request, conf: Conf) -> None:
    """Remove the sources that an ADD of fastcni or of the reference plugin added. A missing source is no error.

    Remove the addresses that have a record of the attachment. For addresses without a record, the kernel's rules show
    whether they may be sources of firewalld. So a DEL without a source to remove does not call D-Bus.
    """
    possible = conf.ips if conf.backend in (None, "", "firewalld") else []
    ips, recorded = records().to_delete(req, possible)
    own = {packed for _, packed in recorded}
    others = [packed for packed in ips if packed not in own]
    remove(req, conf.zone, [*own, *(may_have(req, others) if others else ())], recorded)


def may_have(req: Request, ips: list[bytes]) -> Sequence[bytes]:
    """Return the addresses in `ips` that may be sources of firewalld.

    If firewalld uses nftables, its rules in the kernel name the sources. If firewalld uses iptables, any address may be
    a source. If neither firewalld's table nor its chain exists, firewalld is not running or has just started, and has
    no sources.
    """
    if not uses_nftables(req):
        return ips if iptables.has_chain(req, IPTABLES_CHAIN, "filter", shared=True, recent=True) else ()
    rules = rulesets.rules_of(req.mode.firewall, nft.NFPROTO_INET, TABLE)
    return [packed for packed in ips if any(nft_rules.mentions(payload, packed) for payload in rules)]


def gc(req: Request, conf: Conf) -> None:
    stale = records().stale(req)
    release(req, "firewalld", remove(req, conf.zone, [packed for _, packed, _ in stale], stale))


def remove(req: Request, zone: str, ips: Sequence[bytes], recorded: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
    """Remove the sources of addresses, then their records. Return these records.

    If firewalld refuses to remove a source, keep the source's record for GC.
    """
    if not recorded and not (ips and filters(req)):
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
        kept.clear()                    # firewalld does not run, so no source remains
    gone = [record for record in recorded if record[1] not in kept]
    records().remove(req, gone)
    return gone


def recorded(req: Request, conf: Conf) -> bool:
    """Return whether the owner records show that ADD used this backend for the attachment."""
    return records().knows(req, conf.ips)


def missing(req: Request, conf: Conf) -> str:
    """For CHECK: return the first missing rule or element as text, or ""."""
    with Firewalld(req) as firewalld:
        for packed in conf.ips:
            present, refused = firewalld.ask("querySource", conf.zone, packed)
            if not present:
                return f"firewalld's zone {conf.zone} lacks the source {source(packed)}{refused and f' ({refused})'}"
    return ""


def status(req: Request) -> None:
    """For STATUS: raise CniError 50 if firewalld is not running or has failed, 11 if it does not answer."""
    with Firewalld(req) as firewalld:
        (_, state), = firewalld.call("org.freedesktop.DBus.Properties", "Get", NAME, "state")
    if state != "RUNNING":
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"the state of firewalld is {state}",
                       "the reason is in firewalld's log: journalctl -u firewalld")
