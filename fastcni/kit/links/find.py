"""Read links and their addresses from the kernel. No function of this module changes a link."""

from __future__ import annotations

from errno import ENODEV

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni.kernel.rtnl import Address, Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.mode import Mode
    from fastcni.kit.call.pod import Pod
    from fastcni.kit.call.request import Request

FAMILIES = (uapi.AF_INET, uapi.AF_INET6)


def link(sock: Socket, name: str | None = None, *, index: int = 0) -> Link | None:
    """Return the link with this name, or with this index. None if no such link exists, or if `name` is no valid link
    name."""
    if name and ("\0" in name or len(name.encode("utf-8", "replace")) >= uapi.ALTIFNAMSIZ):
        return None
    return rtnl.first_link(wire.exchange(sock, rtnl.get_link(Batch(), name=name, index=index), (ENODEV,)))


def new_link(sock: Socket, name: str) -> Link:
    """Return the link that the caller has just made. Raises CniError 11 if another program has deleted it."""
    found = link(sock, name)
    if found is None:
        raise CniError(errors.TRY_AGAIN_LATER, f'link "{name}" has vanished', "does another program delete links?")
    return found


def pod_link(pod: Pod, name: str, message: str) -> Link:
    """Return the link with this name in the pod. Raises CniError with `message` if the pod has no such link."""
    found = link(pod.inside, name)
    if found is None:
        raise CniError(errors.INTERNAL, message)
    return found


def host_link(mode: Mode, name: str) -> Link | None:
    """Return the host's link with this name, from the mode's cache if the cache is up to date. None: no link has this
    name."""
    return mode.recall(("link", name), lambda: link(mode.route, name))


def host_end(req: Request, named: list[str]) -> int:
    """Return the index of the host end of the pod's veth pair. named: names of links, one of which may be the host end.
    If the mode has no record of the pair, return 0 unless exactly one of the names belongs to a veth."""
    pair = req.mode.find_pair(req)
    if pair and pair.name in named:
        return pair.index
    found = [link(req.mode.route, name) for name in named if len(name.encode()) < uapi.IFNAMSIZ]
    veths = [each.index for each in found if each and each.kind == "veth"]
    return veths[0] if len(veths) == 1 else 0


def all_links(sock: Socket) -> list[Link]:
    """Return every link of the socket's namespace, without counters."""
    found = wire.dump(sock, uapi.RTM_GETLINK, rtnl.ifinfomsg(), "list links",
                      lambda batch: batch.u32(uapi.IFLA_EXT_MASK, uapi.RTEXT_FILTER_SKIP_STATS))
    return [rtnl.read_link(payload) for _, payload in found]


def addresses(sock: Socket, index: int, families: Iterable[int] = FAMILIES) -> list[Address]:
    """Return the addresses of a link, global and link-local, in the kernel's order; [] if the link no longer exists."""
    found = []
    for family in families:
        try:
            messages = wire.dump(sock, uapi.RTM_GETADDR, rtnl.ifaddrmsg(family, 0, index),
                                 f"list addresses of link {index}")
        except wire.NetlinkError as e:
            if e.errno != ENODEV:
                raise
            return []
        for kind, payload in messages:
            if kind == uapi.RTM_NEWADDR:
                item = rtnl.Address(payload)
                if item.index == index:         # a kernel without strict checking lists the addresses of all links
                    found.append(item)
    return found


def port_count(sock: Socket, bridge: Link) -> int:
    """Return the number of links whose master is this bridge or VRF."""
    found = wire.dump(sock, uapi.RTM_GETLINK, rtnl.ifinfomsg(), "list bridge ports",
                      lambda batch: batch.u32(uapi.IFLA_MASTER, bridge.index))
    return sum(rtnl.read_link(payload).master == bridge.index for _, payload in found)
