"""Read the keys of the portmap plugin, and choose the backend of its mappings."""

from __future__ import annotations

from fastcni.kit.call import chained, names
from fastcni.kit.call.undo import every
from fastcni.kit.firewall import backends, port_mappings
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.config import shown
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.firewall.contract import Localnet, Portmap
    from fastcni.kit.firewall.port_mappings import Mapping
    from fastcni.spec.config import Section

CONDITIONS = {4: "conditionsV4", 16: "conditionsV6"}          # keys: address length in bytes
MARK_BIT = 13                   # the reference plugin's default


class Conf:
    """The keys of the portmap plugin, and the parts of prevResult that it needs.

    mappings: a Mapping for each port; snat, masq_all, mark_bit: the keys snat, masqAll, markMasqBit; iptables: whether
    iptables is the backend; set_mark_chain: externalSetMarkChain ("": fastcni's own chain); conditions: {length of an
    address: [words of iptables(8)]}; previous: prevResult or None; pod: {length: (packed, prefix)}, the pod's first
    address of each family.
    """

    __slots__ = ("mappings", "snat", "masq_all", "iptables", "mark_bit", "set_mark_chain", "conditions", "previous",
                 "pod")

    mappings: list[Mapping]
    snat: bool
    masq_all: bool
    iptables: bool
    mark_bit: int
    set_mark_chain: str
    conditions: dict[int, list[str]]
    previous: dict[str, Any] | None
    pod: dict[int, tuple[bytes, int]]

    def mappings_for(self, length: int) -> list[Mapping]:
        """Return the mappings of one family, in the configuration's order."""
        return [mapping for mapping in self.mappings if length in mapping.lengths]

    @property
    def maps_ports(self) -> bool:
        """Return whether the configuration has a mapping and the pod an address for it."""
        return bool(self.mappings and self.pod)

    @property
    def needs_localnet(self) -> bool:
        """Return whether a mapping includes 127.0.0.1."""
        return self.snat and 4 in self.pod and any(
            not mapping.host_ip or mapping.host_ip[:1] == b"\x7f" for mapping in self.mappings_for(4))


# Reading the keys ---------------------------------------------------------------------------------

def read(req: Request) -> Conf:
    """Read the configuration. Raises CniError 7."""
    keys, conf = req.conf, Conf()
    conf.snat, conf.masq_all = keys.flag("snat", default=True), keys.flag("masqAll")
    _read_backend(keys, conf)
    conf.mappings = port_mappings.read(keys)
    conf.previous, conf.pod = results.read_prev_result(keys, req.version), {}
    previous = conf.previous or {}
    for ip in previous.get("ips", ()):
        if chained.in_pod(previous, ip, req.ifname):
            packed, prefix = addresses.read_cidr(ip["address"])
            conf.pod.setdefault(len(packed), (packed, prefix))
    return conf


def read_leniently(req: Request) -> Conf:
    """Read the configuration for DEL and GC. An invalid configuration cannot be that of the ADD, so return a Conf with
    which delete() searches all backends for the mappings."""
    try:
        return read(req)
    except CniError as e:
        req.warn(f"{e.msg}; each backend is searched for the rules of ADD")
        conf = Conf()
        conf.mappings, conf.pod, conf.iptables = [], {}, True
        return conf


def _read_backend(keys: Section, conf: Conf) -> None:
    """Read `backend` and the keys that only one backend has."""
    conf.mark_bit = keys.integer("markMasqBit", default=MARK_BIT)
    if keys.text("externalSetMarkChain") and keys.has("markMasqBit"):
        raise errors.bad_config("Cannot specify externalSetMarkChain and markMasqBit")
    if not 0 <= conf.mark_bit <= 31:
        raise errors.bad_config("MasqMarkBit must be between 0 and 31", f"markMasqBit is {conf.mark_bit}")
    conf.set_mark_chain = names.read_chain(keys, "externalSetMarkChain")
    conf.conditions = {length: _read_words(keys, key) for length, key in CONDITIONS.items()}
    specific: dict[str, list[str]] = {
        "iptables": ["externalSetMarkChain"] if conf.set_mark_chain else [], "nftables": []}
    for length, words in conf.conditions.items():
        if words:
            specific["iptables" if words[0][0] in "-!" else "nftables"].append(CONDITIONS[length])
    backend = keys.text("backend") or ("iptables" if specific["iptables"] else "nftables")
    if backend not in specific:
        raise errors.bad_config(f'unrecognized backend "{backend}"', "backend is nftables (the default) or iptables")
    conf.iptables = backend == "iptables"
    other = "nftables" if conf.iptables else "iptables"
    if specific[other]:
        raise errors.bad_config(f"{backend} backend was requested but configuration contains "
                                f"{other}-specific options [{' '.join(specific[other])}]")
    for key in specific["nftables"]:
        raise CniError(errors.UNSUPPORTED_FIELD,
                       f"{key} {shown(keys.texts(key))} cannot be used with the nftables backend",
                       'this backend takes no words of nft(8); use "backend": "iptables" and words of iptables(8), as '
                       '["-s", "192.0.2.0/24"]')


def _read_words(keys: Section, key: str) -> list[str]:
    words = keys.texts(key)
    if not all(word and word.isprintable() for word in words):
        raise keys.wrong(key, f"expected printable words, got {shown(words)}")
    return words


# The commands -------------------------------------------------------------------------------------

def backend_of(conf: Conf) -> Portmap:
    return backends.load("portmap", "iptables" if conf.iptables else "nftables")


def add(req: Request, conf: Conf, undo: Undo) -> None:
    """Map the ports. Delete older flows to these ports, so that the next packets of these flows go to the pod."""
    from fastcni.kit.firewall import port_flows

    backend = backend_of(conf)
    undo(backend.delete, req, conf)
    backend.add(req, conf)
    port_flows.after_add(req, conf)
    if not req.caller_listens:
        port_mappings.warn_of_processes(req, conf.mappings, conf.pod)


def restore(req: Request, conf: Conf) -> None:
    """Add the missing rules and elements of add() and allow_localhost()."""
    backend_of(conf).restore(req, conf)
    if conf.needs_localnet:
        _localnet().guard(req)


def allow_localhost(req: Request, conf: Conf) -> None:
    """Let processes of the node reach the mapped ports by 127.0.0.1."""
    _localnet().enable(req, conf.pod[4][0])


def _localnet() -> Localnet:
    return backends.load("localnet", "nftables")


def delete(req: Request, conf: Conf) -> None:
    """Remove the mappings that ADD of fastcni or of the reference plugin made, in both backends."""
    every(*((_delete, backend, req, conf) for backend in backends.load_all("portmap")))


def _delete(backend: Portmap, req: Request, conf: Conf) -> None:
    if backend.delete(req, conf):       # if this pod had no mapping, the flows are another pod's
        from fastcni.kit.firewall import port_flows

        port_flows.after_delete(req, conf)


def missing(req: Request, conf: Conf) -> str:
    """For CHECK: return the first missing rule or element as text, or ""."""
    text = backend_of(conf).missing(req, conf)
    if text and not conf.iptables:
        # ADD may have used iptables, if the configuration has changed since ADD.
        iptables: Portmap = backends.load("portmap", "iptables")
        if iptables.present(req):
            return iptables.missing(req, conf)
    return text


def gc(req: Request) -> None:
    """Remove the mappings of attachments of the network that are no longer valid, in either backend."""
    every(*((backend.gc, req) for backend in backends.load_all("portmap")))


def status(req: Request, conf: Conf) -> None:
    """For STATUS: raise CniError 50 if the backend cannot be used."""
    backend_of(conf).status(req)
