"""Delete the pod's link for DEL: CNI_IFNAME and, for a veth pair, its host end."""

from __future__ import annotations

from fastcni.kernel import uapi
from fastcni.kit.call import deletion
from fastcni.kit.call.pod import Pod
from fastcni.kit.links import announced, change, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kit.call.request import Request


def pod_link(req: Request, *, list_addresses: bool = False) -> tuple[list[bytes], list[bytes]]:
    """Delete CNI_IFNAME in the pod. No error if the link or the namespace no longer exists. The loopback link stays,
    because no ADD makes it.

    Returns two lists of packed addresses: the addresses that the link had, [] unless `list_addresses`; and the
    addresses that ADD gave the link, [] if unknown.

    If the link's peer is certainly on the host, this function deletes the pair by its host end. So this process needs
    no open descriptor of the pod's namespace while the kernel frees the links.
    """
    if req.netns_gone():
        return [], []
    if pair := req.mode.take_pair(req):
        req.close()
        req.mode.delete_links((pair.index, pair.name), *req.take_links())
        return pair.ips, pair.ips
    pod = Pod(req)
    link = find.link(pod.inside, req.ifname)
    if link is None:
        change.delete_by_name(pod.inside, unfinished(req.ifname))
        return [], []
    if link.flags & uapi.IFF_LOOPBACK:
        return [], []
    found = [item.packed for item in find.addresses(pod.inside, link.index)] if list_addresses else []
    other = find.link(pod.host, index=link.peer) if link.kind == "veth" and link.peer_elsewhere and link.peer else None
    if other and other.kind == "veth" and other.peer == link.index and other.peer_elsewhere:
        req.close()
        req.mode.delete_links((other.index, other.name), *req.take_links())
    else:
        with pod.enter():
            watcher = announced.open_watcher()
        req.close()
        deletion.delete(watcher, req.mode.send_deletion, (link.index, link.name))
    return found, []


def unfinished(ifname: str) -> str:
    """Return the name that a link has in the pod until its ADD renames it. A killed ADD leaves a link of that name."""
    return f"fcni.{ifname[-10:]}"
