"""Make the pod's veth pair. *host* is its end in the caller's namespace, *inside* its end in the pod."""

from __future__ import annotations

import posix
from errno import EEXIST

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, wire
from fastcni.kit.links import change, find
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kernel.rtnl import Link
    from fastcni.kit.call.pod import Pod
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

MAC_PREFIX = b"\x0a\x58"        # in a MAC, the IPv4 address follows these bytes, as in ovs-cni and ovn-kubernetes
NAME_TRIES = 10                 # as in the reference plugin; names of four random bytes rarely collide


def random_mac(raw: bytes = b"") -> bytes:
    """Return a locally administered unicast MAC of six random bytes, or of the six bytes `raw`. With a MAC from fastcni
    there is no need to read the kernel's choice, and udev does not change the MAC."""
    raw = raw or posix.urandom(6)
    return bytes((raw[0] & 0xFE | 0x02,)) + raw[1:]


def random_name(raw: bytes = b"") -> str:
    """Return a name of four random bytes, or of `raw`, in the form of the reference plugins: veth1a2b3c4d."""
    return f"veth{(raw or posix.urandom(4)).hex()}"


def mac_of(result: dict[str, Any]) -> bytes | None:
    """Return the MAC that is derived from the first IPv4 address of a result, None without an IPv4 address. So the next
    pod with the address has the same MAC, and other pods' neighbour tables stay correct."""
    packed = next((packed for packed in results.packed_ips(result) if len(packed) == 4), None)
    return MAC_PREFIX + packed if packed else None


def add(req: Request, pod: Pod, undo: Undo, *, mtu: int = 0, master: int = 0, mac: bytes | None = None,
        ipv6: bool = True) -> tuple[Link, Link]:
    """Make a veth pair and return (host, inside). The host end is up. master: the index of the host end's bridge, 0:
    none.

    The kernel echoes the request with the indexes of both ends. If ipv6 is false, disable IPv6 on the host
    end. The host end has sent no packet before, because a veth's end cannot send until its peer is up. Raises CniError
    if the pod has an interface of that name, NetlinkError for any other kernel error.
    """
    for _ in range(NAME_TRIES):
        random = posix.urandom(16)          # random bytes for the name and both MACs, by one system call
        name, host_mac, inside_mac = random_name(random[:4]), random_mac(random[4:10]), mac or random_mac(random[10:])
        batch = rtnl.new_veth(Batch(), name, req.ifname, pod.netns_fd, host_mac=host_mac, peer_mac=inside_mac,
                              mtu=mtu, master=master, what="failed to make veth pair")
        try:
            with undo.request(change.delete_by_name, pod.host, name):
                host = rtnl.first_link(wire.exchange(pod.host, batch))
        except wire.NetlinkError as e:
            if e.errno != EEXIST:
                raise
            if find.link(pod.host, name):
                continue                # another link has the random name: try again
            raise CniError(errors.INTERNAL, f'container veth name ("{req.ifname}") peer provided ("{name}") '
                           'already exists') from e
        host = host or find.new_link(pod.host, name)    # Linux before 6.2 does not echo the request
        req.mode.offer_ipv6(name, *(("accept_ra", "0") if ipv6 else ("disable_ipv6", "1")))
        inside = rtnl.Link()
        inside.name, inside.index, inside.address = req.ifname, host.peer, inside_mac
        return host, inside
    raise CniError(errors.INTERNAL, f"failed to make veth pair: {NAME_TRIES} random names were all taken")
