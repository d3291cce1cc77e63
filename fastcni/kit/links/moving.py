"""Move a link of the host into a pod, and back when the pod ends.

In the pod the link's alias (ip-link(8)) is its name on the host. The reference plugin sets the same alias, so
fastcni and the reference plugin can move back each other's links.
"""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import netns, rtnl, wire
from fastcni.kit.call.pod import Pod
from fastcni.kit.links import change, find
from fastcni.spec import errors
from fastcni.spec.config import check_ifname
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo


class Side:
    """A network namespace, the host's or the pod's. sock: its route socket. open: a function that returns its
    descriptor. taken: the details of the error if another link has the wanted name."""

    __slots__ = ("sock", "open", "taken")

    def __init__(self, sock: Socket, open_fd: Callable[[], int], taken: str) -> None:
        self.sock, self.open, self.taken = sock, open_fd, taken


def sides(req: Request, pod: Pod) -> tuple[Side, Side]:
    """Return (the host, the pod)."""
    home = pod.home
    if home is None:
        home = req.fds["home"] = netns.open_own()
    return (Side(pod.host, lambda: home, "the host has an interface of that name; the device stays in the pod, and DEL "
                                         "can be repeated when the name is free"),
            Side(pod.inside, req.open_netns, "the pod has an interface of that name; was it added before?"))


def move_into_pod(req: Request, pod: Pod, undo: Undo, link: Link, name: str) -> Link:
    """Move a link of the host into the pod as CNI_IFNAME, and return its Link in the pod. The move sets the link down
    and removes its addresses.

    name: the link's name when it moves back. Raises CniError if the pod has a link named CNI_IFNAME, NetlinkError for
    any other kernel error.
    """
    host, inside = sides(req, pod)
    check_free(inside, link, req.ifname)
    undo(roll_back, req.ifname, host, inside, link, name)
    move(link, host, inside, req.ifname, name)
    return find.new_link(pod.inside, req.ifname)


def roll_back(ifname: str, host: Side, inside: Side, link: Link, name: str) -> None:
    """Undo move_into_pod(): move the link back to the host, with the name, MAC, master and state of `link`."""
    moved = find.link(inside.sock, ifname)
    if moved and moved.alias == name:
        check_free(host, moved, link.name)
        move(moved, inside, host, link.name, link.alias)
    found = find.link(host.sock, link.name)
    if found:                           # if not found, another program has deleted the link
        mac = link.address if link.address != found.address else None   # some drivers reject even an unchanged MAC
        change.link(host.sock, found.index, up=link.up, address=mac, master=link.master,
                    what=f'failed to restore "{link.name}"')


def move_back(req: Request, mac: bytes | None) -> None:
    """For DEL: move CNI_IFNAME back to the host, where the link gets its previous name, and `mac` if `mac` is not None.

    No error if the link or the namespace no longer exists. A link whose alias is no valid name stays in the pod, with a
    warning. Raises CniError if the host has a link of that name.
    """
    if req.netns_gone():
        return
    pod = Pod(req)
    link = find.link(pod.inside, req.ifname)
    if link is None:
        return
    name = name_on_host(link)
    if not name:
        req.warn(f'failed to find original ifname for "{link.name}" (alias is not set): the link stays in the pod')
        return
    host, inside = sides(req, pod)
    check_free(host, link, name)
    if mac:
        batch = rtnl.set_link(Batch(), link.index, up=False)    # many drivers take a MAC only while the link is down
        wire.exchange(inside.sock, rtnl.set_link(batch, link.index, address=mac,
                                                 what=f'failed to restore the MAC of "{link.name}"'))
    move(link, inside, host, name, "")


def name_on_host(link: Link) -> str:
    """Return the alias of a link in the pod, which is the link's name on the host. Return "" if the alias is no valid
    name: the pod can change the alias."""
    try:
        check_ifname(link.alias)
    except CniError:
        return ""
    return link.alias if link.alias.isprintable() else ""


def check_free(side: Side, link: Link, name: str) -> None:
    """Raise CniError if the side's namespace has a link of that name. Call check_free() before the move, because the
    move removes the link's addresses."""
    if find.link(side.sock, name):
        raise CniError(errors.INTERNAL, f'failed to rename host device "{link.name}" to "{name}": File exists',
                       side.taken)


def move(link: Link, here: Side, there: Side, name: str, alias: str) -> None:
    """Move a link from the namespace `here` to `there`, where the link is down and has `name` and `alias`. After a
    NetlinkError the link is still in `here`."""
    try:
        wire.exchange(here.sock, rtnl.move_link(Batch(), link.index, there.open(), name, alias,
                                                what=f'failed to move link "{link.name}"'))
    except wire.NetlinkError:
        # If another program has taken the name since check_free(), the link has moved without its new name.
        strayed = find.link(there.sock, link.name) if not find.link(here.sock, link.name) else None
        if strayed:
            wire.exchange(there.sock, rtnl.move_link(Batch(), strayed.index, here.open(), link.name, link.alias))
        raise
