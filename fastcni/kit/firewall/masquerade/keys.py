"""Read the keys of ipMasq and choose its backend. ipMasq gives traffic of a pod that leaves the pod's subnet the node's
address."""

from __future__ import annotations

from fastcni.kit.call.undo import every
from fastcni.kit.firewall import backends
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.firewall import contract
    from fastcni.spec.config import Section


class Masquerade:
    """The keys ipMasq and ipMasqBackend of bridge and ptp. wanted: the value of ipMasq. iptables: whether iptables is
    the backend."""

    __slots__ = ("wanted", "iptables")

    def __init__(self, conf: Section, *, ending: bool = False) -> None:
        """`ending`: the command is DEL or GC, which search every backend. Raises CniError 7."""
        self.wanted = conf.flag("ipMasq")
        backend = "" if ending else conf.text("ipMasqBackend")
        if backend and backend not in backends.TABLE["masquerade"]:
            raise CniError(errors.INVALID_CONFIG, f'unknown ipmasq backend "{backend}"',
                           "ipMasqBackend is nftables (the default) or iptables")
        self.iptables = backend == "iptables"

    def add(self, req: Request, result: dict[str, Any], undo: Undo) -> None:
        """Masquerade every address of `result`, if the network asks for it. Raises CniError, NetlinkError."""
        if not self.wanted:
            return
        backend, ips = self._backend(), results.ips_of(result)
        undo(backend.delete, req, {packed for packed, _ in ips}, ())
        backend.add(req, ips)

    def restore(self, req: Request, previous: dict[str, Any]) -> None:
        """Add the missing elements and rules."""
        if self.wanted:
            self._backend().restore(req, results.ips_of(previous))

    def _backend(self) -> contract.Masquerade:
        return backends.load("masquerade", "iptables" if self.iptables else "nftables")

    def delete(self, req: Request, found: Collection[bytes], given: Collection[bytes]) -> None:
        """Remove the masquerade of ADD, in either backend, of fastcni and of the reference plugin.

        found, given: packed addresses as remove.pod_link() returns them. The addresses of prevResult count, too: a pod
        can delete addresses from its link.
        """
        if self.wanted:
            given = prev_addresses(req).union(given)
            every(*((backend.delete, req, given, found) for backend in backends.load_all("masquerade")))

    def gc(self, req: Request) -> None:
        """Remove the masquerade of attachments of this network that are no longer valid."""
        if self.wanted:
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
