"""A link of the host that is lent to a pod: the way there and the way back.

In the pod its alias (ip-link(8)) is the name that it has on the host. The Go plugin does the same, so that each gives
back what the other has lent.
"""

from fastcni._netlink import Batch
from fastcni.kernel import netns, rtnl, wire
from fastcni.kit.links import find
from fastcni.kit.links.pod import Pod
from fastcni.spec import errors
from fastcni.spec.config import check_ifname
from fastcni.spec.errors import CniError


class Side:
    """The host or the pod: its route socket, a descriptor of its namespace, and what to say of a name taken there."""

    __slots__ = ("sock", "fd", "taken")

    def __init__(self, sock, fd, taken):
        self.sock, self.fd, self.taken = sock, fd, taken


def sides(req, pod):
    """(the host's Side, the pod's Side)"""
    home = pod.home
    if home is None:
        home = req.fds["home"] = netns.open_own()
    return (Side(pod.host, home, "the host has an interface of that name; the device stays in the pod, and DEL can be "
                                 "repeated when the name is free"),
            Side(pod.inside, pod.netns_fd, "the pod has an interface of that name; was it added before?"))


def lend(req, pod, undo, link, name):
    """Move a Link of the host into the pod as CNI_IFNAME, down: the Link there. `name` is for its way back.

    Its addresses and routes are gone then. Raises CniError where the pod has a link of that name, NetlinkError for what
    else the kernel refuses.
    """
    host, inside = sides(req, pod)
    check_free(inside, link, req.ifname)
    undo(put_back, req.ifname, host, inside, link, name)
    move(link, host, inside, req.ifname, name)
    return find.new_link(pod.inside, req.ifname)


def put_back(ifname, host, inside, link, name):
    """The way back of lend(): the link is as `link` says."""
    lent = find.link(inside.sock, ifname)
    if lent and lent.alias == name:
        check_free(host, lent, link.name)
        move(lent, inside, host, link.name, link.alias)
    found = find.link(host.sock, link.name)
    if found:                           # else nobody has it any more
        mac = link.address if link.address != found.address else None   # some drivers take none, not even the same
        wire.exchange(host.sock, rtnl.set_link(Batch(), found.index, up=link.up, address=mac, master=link.master,
                                               what=f'failed to restore "{link.name}"'))


def give_back(req, mac):
    """DEL: what was lent moves back to the host, down, under its name there, with `mac` (bytes) if there is one.

    What is gone is fine, and a link that does not know its name stays. Raises CniError where the host has that name.
    """
    if req.netns_gone():
        return
    pod = Pod(req)
    link = find.link(pod.inside, req.ifname)
    if link is None:
        return
    name = name_on_host(link)
    if not name:
        req.warn(f'failed to find original ifname for "{link.name}" (alias is not set): it stays in the pod')
        return
    host, inside = sides(req, pod)
    check_free(host, link, name)
    if mac:
        batch = rtnl.set_link(Batch(), link.index, up=False)    # many drivers take a MAC only then
        wire.exchange(inside.sock, rtnl.set_link(batch, link.index, address=mac,
                                                 what=f'failed to restore the MAC of "{link.name}"'))
    move(link, inside, host, name, "")


def name_on_host(link):
    """The name that a lent Link has on the host; "" where its alias cannot be one: the pod may have changed it."""
    try:
        check_ifname(link.alias)
    except CniError:
        return ""
    return link.alias if link.alias.isprintable() else ""


def check_free(side, link, name):
    """Raises CniError where the side has a link of that name; one that has not moved keeps its addresses."""
    if find.link(side.sock, name):
        raise CniError(errors.INTERNAL, f'failed to rename host device "{link.name}" to "{name}": File exists',
                       side.taken)


def move(link, here, there, name, alias):
    """Move a Link to the other Side, down, as `name` and with `alias`. Raises NetlinkError; then it is where it was."""
    try:
        wire.exchange(here.sock, rtnl.move_link(Batch(), link.index, there.fd, name, alias,
                                                what=f'failed to move link "{link.name}"'))
    except wire.NetlinkError:
        # Somebody may have taken the name since check_free(): then it has moved, but is still called as before.
        strayed = find.link(there.sock, link.name) if not find.link(here.sock, link.name) else None
        if strayed:
            wire.exchange(there.sock, rtnl.move_link(Batch(), strayed.index, here.fd, link.name, link.alias))
        raise
