"""The pod's veth pair. *host* is the end in the caller's namespace, *inside* the one in the pod's."""

import posix
from errno import EEXIST

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, wire
from fastcni.kit.links import change, find
from fastcni.spec import errors
from fastcni.spec.errors import CniError

NAME_TRIES = 10                 # as the reference: four random bytes rarely collide


def random_mac():
    """A locally administered unicast MAC. Chosen here, it need not be asked for, and udev leaves it alone."""
    raw = bytearray(posix.urandom(6))
    raw[0] = raw[0] & 0xFE | 0x02
    return bytes(raw)


def random_name():
    return f"veth{posix.urandom(4).hex()}"


def add(req, pod, undo, *, mtu=0, master=0, mac=None, ipv6=True):
    """A veth pair, the host end up: (host Link, inside Link). One request, its echo tells both indexes.

    Without ipv6 the host end has none; before its peer is up it has sent nothing yet. Raises CniError when the pod
    has an interface of that name, NetlinkError for what else the kernel refuses.
    """
    host_mac, inside_mac = random_mac(), mac or random_mac()
    for _ in range(NAME_TRIES):
        name = random_name()
        batch = rtnl.new_veth(Batch(), name, req.ifname, pod.netns_fd, host_mac=host_mac, peer_mac=inside_mac,
                              mtu=mtu, master=master, what="failed to make veth pair")
        try:
            with undo.request(change.delete_by_name, pod.host, name):
                host = rtnl.first_link(wire.exchange(pod.host, batch))
        except wire.NetlinkError as e:
            if e.errno != EEXIST:
                raise
            if find.link(pod.host, name):
                continue                # the random name is taken: another one
            raise CniError(errors.INTERNAL, f'container veth name ("{req.ifname}") peer provided ("{name}") '
                           'already exists') from e
        host = host or find.new_link(pod.host, name)     # Linux before 6.2 does not echo
        req.host.offer_ipv6(name, *(("accept_ra", "0") if ipv6 else ("disable_ipv6", "1")))
        inside = rtnl.Link()
        inside.name, inside.index, inside.address = req.ifname, host.peer, inside_mac
        return host, inside
    raise CniError(errors.INTERNAL, f"failed to make veth pair: {NAME_TRIES} random names were all taken")
