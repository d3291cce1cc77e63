"""Use the pod's link in the pod's network namespace: find the link, set it up, open its sockets, set and remove its
address.

The daemon keeps no descriptor of a pod's namespace, and keeps a socket only during an exchange, because a descriptor or
a socket keeps a deleted pod's namespace alive.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from errno import EADDRNOTAVAIL, EEXIST, ENODEV, ENOENT

from fastcni._netlink import Batch
from fastcni.dhcp.client import LinkGone
from fastcni.kernel import netns, presence, rtnl, uapi, wire
from fastcni.kernel.sockets import packet_sockets
from fastcni.kit.links import change, configure, find
from fastcni.spec.address import ip_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from socket import socket
    from typing import Any

    from fastcni.dhcp.lease import Lease, Owner
    from fastcni.kernel.rtnl import Link

ETHERNET_BYTES = 6
TICK_S = 0.01                   # the longest tick of the clock for file times (CONFIG_HZ=100)


class NamespaceUnseen(OSError):
    """This process sees no namespace at the path of the pod's namespace."""


def presence_of(owner: Owner, since: float, root: str = "") -> str:
    """Return the state of the pod's namespace, ALIVE, GONE or UNKNOWN, see kernel/presence.py. since: the unix time
    when the namespace was last seen."""
    path = root + owner.netns
    state, _ = presence.state_of(path, since)
    return presence.GONE if state == presence.ALIVE and inode_of(path) not in (0, owner.inode) else state


def seen_now() -> float:
    """Return the unix time that the kernel would give to a file written now: the time of the clock's last tick."""
    return time.time() - TICK_S


def unix_time(boottime: float) -> float:
    """Convert a time of CLOCK_BOOTTIME to unix time, so that callers can compare it with the times of files."""
    return seen_now() - time.clock_gettime(time.CLOCK_BOOTTIME) + boottime


def inode_of(path: str) -> int:
    """Return the inode of the network namespace at a path, 0 if this process sees no namespace at that path."""
    try:
        found = os.stat(path)
        return found.st_ino if found.st_dev == os.stat(netns.OWN).st_dev else 0
    except OSError:
        return 0


@contextmanager
def inside(owner: Owner, root: str, home: int) -> Iterator[None]:
    """Run the body in the pod's namespace. root: the prefix of the namespace's path; home: a descriptor of the daemon's
    namespace.

    Raises LinkGone if the path is now another namespace. Raises NamespaceUnseen if this process sees no namespace at
    the path; the pod may still exist, see presence_of(). Raises OSError, netns.Lost.
    """
    try:
        fd = netns.open_path(root + owner.netns)
    except (FileNotFoundError, NotADirectoryError, netns.NotNamespace):
        raise NamespaceUnseen(ENOENT, f'error looking up "{owner.ifname}": no namespace at {owner.netns}') from None
    try:
        if os.fstat(fd).st_ino != owner.inode:
            raise LinkGone(f'error looking up "{owner.ifname}": {owner.netns} is another namespace now')
        with netns.inside(fd, home):
            yield
    finally:
        os.close(fd)


def find_link(sock: wire.Socket, ifname: str, mac: bytes = b"") -> Link:
    """Return the pod's link `ifname`. Raises LinkGone if the link does not exist, is not Ethernet, or has another MAC
    than `mac`."""
    link = find.link(sock, ifname)
    if link is None or (mac and link.address != mac):
        raise LinkGone(f'error looking up "{ifname}": Link not found')
    if len(link.address) != ETHERNET_BYTES:
        raise LinkGone(f'"{ifname}" is no Ethernet link, and DHCP needs one')
    return link


def look_up(owner: Owner, root: str, home: int, mac: bytes = b"") -> Link:
    """Return the pod's link, and set it up if it is down. Raises the errors of inside() and find_link()."""
    with inside(owner, root, home):
        return usable_link(owner.ifname, mac)


def usable_link(ifname: str, mac: bytes = b"") -> Link:
    with wire.open_socket() as sock:
        link = find_link(sock, ifname, mac)
        if not link.up:
            change.link(sock, link.index, up=True, what=f'failed to set "{ifname}" UP')
        return link


def has_address(link: Link, packed: bytes) -> bool:
    """Return whether a link of this namespace has an IPv4 address. bind(2) cannot check this: it accepts any address if
    the namespace has no address, or if the sysctl ip_nonlocal_bind is set. Raises OSError."""
    with wire.open_socket() as sock:
        return any(found.packed == packed for found in find.addresses(sock, link.index, (uapi.AF_INET,)))


def listen(owner: Owner, root: str, home: int, xid: int, lease: Lease | None = None) -> tuple[socket, Link, bool]:
    """Return (a packet socket for the answers to the transaction `xid`, the link, whether the link has the lease's
    address). Raises the errors of look_up()."""
    with inside(owner, root, home):
        link = usable_link(owner.ifname)
        configured = lease is not None and has_address(link, lease.address)
        return packet_sockets.open_dhcp(owner.ifname, xid), link, configured       # type: ignore[return-value]


def listen_arp(owner: Owner, root: str, home: int) -> socket:
    """Open a packet socket that receives ARP on the pod's link. Raises the errors of inside()."""
    with inside(owner, root, home):
        return packet_sockets.open_arp(owner.ifname)        # type: ignore[return-value]


def listen_from_address(owner: Owner, root: str, home: int, mac: bytes, xid: int,
                        lease: Lease) -> tuple[socket, socket]:
    """Return (a packet socket for the answers, a UDP socket at the lease's address to send from). Answers arrive at the
    packet socket, because a server broadcasts a NAK, which the UDP socket would not receive. The UDP socket also keeps
    the kernel from answering the server with "port unreachable". Raises the errors of look_up(); OSError if the link
    does not have the address."""
    with inside(owner, root, home):
        if not has_address(usable_link(owner.ifname, mac), lease.address):
            raise OSError(EADDRNOTAVAIL, os.strerror(EADDRNOTAVAIL))
        sender = packet_sockets.open_udp(owner.ifname, ip_text(lease.address))
        try:
            return packet_sockets.open_dhcp(owner.ifname, xid), sender         # type: ignore[return-value]
        except BaseException:
            sender.close()
            raise


def assign(owner: Owner, root: str, home: int, lease: Lease, result: dict[str, Any]) -> None:
    """Set the address and the routes of a result on the pod's link. An existing address or route is no error. Raises
    the errors of look_up()."""
    with inside(owner, root, home), wire.open_socket() as sock:
        link = find_link(sock, owner.ifname, lease.mac)
        batch = rtnl.new_address(Batch(), link.index, lease.address, lease.prefix,
                                 broadcast=configure.broadcast(lease.address, lease.prefix), what="add the address")
        rtnl.set_link(batch, link.index, up=True)
        gateways = configure.first_gateways(result)
        for route in result.get("routes", ()):
            configure.add_route(batch, link, route, gateways)
        raise_first(batch, sock, EEXIST)


def unassign(owner: Owner, root: str, home: int, lease: Lease) -> None:
    """Remove the lease's address from the pod's link; the kernel removes the routes of the address. Raises the errors
    of inside()."""
    with inside(owner, root, home), wire.open_socket() as sock:
        link = find_link(sock, owner.ifname, lease.mac)
        batch = rtnl.del_address(Batch(), link.index, lease.address, lease.prefix, what="delete the address")
        raise_first(batch, sock, EADDRNOTAVAIL, ENODEV)


def raise_first(batch: Batch, sock: wire.Socket, *fine: int) -> None:
    """Send the batch. Raises the first error whose errno is not in `fine`."""
    for refused in wire.attempt(sock, batch)[1]:
        if refused.errno not in fine:
            raise refused
