"""DEL's link: CNI_IFNAME in the pod, deleted with the other end of its pair."""

from fastcni.kit.links import announced, find, pairs
from fastcni.kit.links.pod import Pod


def pod_link(req, *, list_addresses=False):
    """DEL's link: delete CNI_IFNAME in the pod; gone is fine. Returns packed addresses: those that it had, if asked to
    list them, and those that it was given, as far as they are known.

    The host end is what is deleted, where we can be sure that it is the other end of the pair: then nothing of
    ours holds the pod's namespace while the kernel frees the links.
    """
    if req.netns_gone():
        return [], []
    if pair := pairs.recall(req):
        req.close()
        announced.delete(req, pair.index, pair.name)
        return pair.ips, pair.ips
    pod = Pod(req)
    link = find.link(pod.inside, req.ifname)
    if link is None:
        return [], []
    found = [item.packed for item in find.addresses(pod.inside, link.index)] if list_addresses else []
    other = find.link(pod.host, index=link.peer) if link.kind == "veth" and link.peer_elsewhere and link.peer else None
    if other and other.kind == "veth" and other.peer == link.index and other.peer_elsewhere:
        req.close()
        announced.delete(req, other.index, other.name)
    else:
        with pod.enter():
            watcher = announced.open_watcher()
        req.close()
        announced.delete(req, link.index, link.name, watcher)
    return found, []
