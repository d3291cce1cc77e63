"""Implement the option ipMasq of bridge and ptp: replace the source address of a pod's packets to other subnets by the
node's address."""

from __future__ import annotations

from fastcni.kit.call.undo import every
from fastcni.kit.firewall import backends
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec import result as results

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, Protocol

    from fastcni.kit.call.pod import PodLink
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.firewall import contract
    from fastcni.spec.config import Section

    class Conf(Protocol):
        masquerade: Masquerade


class Masquerade:
    """The keys ipMasq and ipMasqBackend of bridge and ptp. wanted: the value of ipMasq. iptables: whether iptables is
    the backend."""

    __slots__ = ("wanted", "iptables")

    def __init__(self, conf: Section, *, ending: bool = False) -> None:
        """Read the keys. ending: the command is DEL or GC, which search every backend. Raises CniError 7."""
        self.wanted = conf.flag("ipMasq")
        backend = "" if ending else conf.text("ipMasqBackend")
        if backend and backend not in backends.TABLE["masquerade"]:
            raise errors.bad_config(f'unknown ipmasq backend "{backend}"',
                                    "ipMasqBackend is nftables (the default) or iptables")
        self.iptables = backend == "iptables"

    def backend(self) -> contract.Masquerade:
        return backends.load("masquerade", "iptables" if self.iptables else "nftables")


def add(req: Request, conf: Conf, link: PodLink, undo: Undo) -> None:
    """Masquerade every address of the pod. Raises CniError, NetlinkError."""
    backend = conf.masquerade.backend()
    undo(backend.delete, req, {packed for packed, _ in link.ips}, ())
    backend.add(req, link.ips)


def restore(req: Request, conf: Conf, previous: dict[str, Any]) -> None:
    """Add the missing elements and rules."""
    conf.masquerade.backend().restore(req, results.ips_of(previous))


def delete(req: Request, conf: Conf, found: Collection[bytes], given: Collection[bytes]) -> None:
    """Remove the masquerade that ADD of fastcni or of the reference plugin added, in both backends.

    Search also for the addresses of prevResult, because a pod can delete addresses from its link.
    """
    given = prev_addresses(req).union(given)
    every(*((backend.delete, req, given, found) for backend in backends.load_all("masquerade")))


def gc(req: Request, conf: Conf) -> None:
    """Remove the masquerade of attachments of this network that are no longer valid."""
    every(*((backend.gc, req) for backend in backends.load_all("masquerade")))


def prev_addresses(req: Request) -> set[bytes]:
    """For DEL: return the packed addresses in prevResult. An invalid address is a warning."""
    found = set()
    previous = req.conf.raw("prevResult")
    ips = previous.get("ips") if isinstance(previous, dict) else None
    for ip in ips if isinstance(ips, list) else ():
        try:
            found.add(addresses.read_cidr(ip["address"])[0])
        except (ValueError, KeyError, TypeError, AttributeError):
            req.warn(f"prevResult.ips has {ip!r}, which is not an address")
    return found
