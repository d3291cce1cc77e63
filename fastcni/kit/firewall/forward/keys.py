"""Read the keys of the firewall plugin, and choose the backends that accept a pod's traffic and enforce its
ingressPolicy."""

from __future__ import annotations

from fastcni.kit.call import names
from fastcni.kit.call.conf import ENDINGS, keys_of
from fastcni.kit.call.undo import every
from fastcni.kit.firewall import backends
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.config import check_ifname, shown
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.firewall.contract import Forward, Ingress

POLICIES = ("open", "same-bridge", "isolated")
FLUSHED = "was the firewall flushed?"
LATER = ("this firewall began to filter after the pod was added, and may drop its packets; `fastcni restore` lets the "
         "pod through")


class Conf:
    """The keys of the firewall plugin, and the parts of prevResult that it needs.

    backend: "" for the backend that filters on this host, None if the key is invalid in a DEL; admin_chain: the
    administrator's chain; zone: firewalld's zone; policy: ingressPolicy, "" for open; previous: prevResult or None;
    ips: the packed addresses in prevResult; bridge: the name of prevResult's first interface, "" without a policy.
    """

    __slots__ = ("backend", "admin_chain", "zone", "policy", "previous", "ips", "bridge")

    backend: str | None
    admin_chain: str
    zone: str
    policy: str
    previous: dict[str, Any] | None
    ips: list[bytes]
    bridge: str

    @property
    def isolated(self) -> bool:
        return self.policy == "isolated"

    @property
    def ports(self) -> list[str]:
        """Return the names of the pod's bridge ports: in prevResult, the host's interfaces between the bridge and the
        pod's interface. Interfaces after the pod's are those of chained plugins, such as bandwidth.
        """
        interfaces = (self.previous or {}).get("interfaces", ())
        inside = next((place for place, it in enumerate(interfaces) if it.get("sandbox")), len(interfaces))
        return list(dict.fromkeys(it["name"] for it in interfaces[1:inside]))


# Reading the keys ---------------------------------------------------------------------------------

def read(req: Request) -> Conf:
    """Read the configuration. Raises CniError 7. For DEL and GC, only warn of an invalid configuration."""
    try:
        return _read_strictly(req)
    except CniError as e:
        if req.command not in ENDINGS:
            raise
        req.warn(f"{e.msg}; each backend is searched for the rules of ADD")
        return _read_leniently(req)


def _read_leniently(req: Request) -> Conf:
    """Read only the keys that DEL needs."""
    from fastcni.kit.firewall.masquerade.keys import prev_addresses

    conf = Conf()
    conf.zone = keys_of(req).text("firewalldZone") or "trusted"
    conf.backend, conf.policy, conf.previous, conf.admin_chain = None, "", None, names.ADMIN_CHAIN
    conf.ips = list(prev_addresses(req))
    return conf


def _read_strictly(req: Request) -> Conf:
    keys, conf = req.conf, Conf()
    conf.backend = keys.text("backend")
    known = backends.TABLE["forward"]
    if conf.backend not in known:
        if conf.backend:
            req.warn(f"unknown backend {shown(conf.backend)} is ignored; the backends are {', '.join(known)}")
        conf.backend = ""
    conf.zone = keys.text("firewalldZone") or "trusted"
    conf.admin_chain = names.read_chain(keys, "iptablesAdminChainName", names.ADMIN_CHAIN)
    conf.policy = keys.text("ingressPolicy") or "open"
    if conf.policy not in POLICIES:
        raise errors.bad_config(f'unknown ingress policy: "{conf.policy}"',
                                f"ingressPolicy is one of {', '.join(POLICIES)}")
    conf.previous = results.read_prev_result(keys, req.version)
    conf.ips = list(dict.fromkeys(packed for packed, _ in results.ips_of(conf.previous or {})))
    conf.policy = "" if conf.policy == "open" else conf.policy
    conf.bridge = _read_bridge(conf) if conf.policy and conf.previous else ""
    return conf


def _read_bridge(conf: Conf) -> str:
    interfaces = (conf.previous or {}).get("interfaces", ())
    if not interfaces:
        raise errors.bad_config(f'interface needs to be set for ingress policy "{conf.policy}", make '
                                'sure to chain "firewall" plugin with "bridge"')
    if not interfaces[0]["name"]:
        raise errors.bad_config("got empty bridge name")
    for it in interfaces:
        try:
            check_ifname(it["name"])
        except CniError as e:
            raise errors.bad_config(f"prevResult.interfaces: {shown(it['name'])}: {e.msg}") from None
    return interfaces[0]["name"]


# The commands -------------------------------------------------------------------------------------

def backends_of(req: Request, conf: Conf) -> list[Forward]:
    """Return the configured backend. If none is configured, return each backend that filters the packets that this host
    forwards; nftables if no backend does.

    A packet has to pass the chains of firewalld and the chains of iptables. If firewalld itself uses iptables, fastcni
    adds no rules of iptables: they would accept pods' packets before firewalld's zones decide.
    """
    if conf.backend:
        return [backends.load("forward", conf.backend)]
    firewalld, by_iptables = backends.load("forward", "firewalld"), backends.load("forward", "iptables")
    if not firewalld.filters(req):
        return [by_iptables if by_iptables.filters(req) else backends.load("forward", "nftables")]
    return [firewalld, by_iptables] if firewalld.uses_nftables(req) and by_iptables.filters(req) else [firewalld]


def policies_of(found: list[Forward]) -> Ingress:
    """Return the backend that enforces ingressPolicy together with the backends `found`."""
    uses_iptables = found[0] is backends.load("forward", "iptables")
    return backends.load("ingress", "iptables" if uses_iptables else "nftables")


def add(req: Request, conf: Conf, undo: Undo) -> None:
    """Accept the pod's traffic, and enforce the ingress policy of the pod's bridge."""
    found = backends_of(req, conf)
    undo(delete, req, conf)
    for backend in found:
        backend.add(req, conf)
    if conf.policy:
        policies_of(found).add(req, conf)


def restore(req: Request, conf: Conf) -> None:
    """Add the missing rules and elements, also for a firewall that began to filter after ADD."""
    found = backends_of(req, conf)
    for backend in found:
        backend.restore(req, conf)
    if conf.policy:
        policies_of(found).restore(req, conf)


def delete(req: Request, conf: Conf) -> None:
    """Remove the rules and elements that ADD of fastcni or of the reference plugin added, in every backend."""
    every(*((backend.delete, req, conf) for subject in ("ingress", "forward")
            for backend in backends.load_all(subject)))


def missing(req: Request, conf: Conf) -> tuple[str, str]:
    """For CHECK: return (the first missing rule or element, advice for the user), or ("", "")."""
    found = backends_of(req, conf)
    for backend in found:
        if text := backend.missing(req, conf):
            return text, LATER if came_later(req, conf, backend) else FLUSHED
    return (policies_of(found).missing(req, conf) if conf.policy else ""), FLUSHED


def came_later(req: Request, conf: Conf, backend: Forward) -> bool:
    """Return whether the backend's firewall began to filter after ADD, that is, whether ADD recorded the pod only for
    another backend."""
    return not backend.recorded(req, conf) and any(it.recorded(req, conf) for it in backends.load_all("forward"))


def gc(req: Request, conf: Conf) -> None:
    """Remove the rules of attachments that are no longer valid, and the policies of bridges that no longer exist."""
    every(*((backend.gc, req, conf) for backend in backends.load_all("forward")),
          *((backend.gc, req) for backend in backends.load_all("ingress")))


def status(req: Request, conf: Conf) -> None:
    """For STATUS: raise CniError 50 if the backend cannot be used."""
    for backend in backends_of(req, conf):
        backend.status(req)
