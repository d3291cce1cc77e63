"""Make a host outside of the node: a namespace behind a veth link, with an address of each family."""

from __future__ import annotations

import os
from collections.abc import Iterable

from fastcni._netlink import Batch
from fastcni._rtnetlink import rtmsg
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.links import find
from fastcni.selftest import namespaces, sockets
from fastcni.selftest.check import Failed
from fastcni.spec import address as addresses

INSIDE = "eth0"                 # the name of the outside host's link
# A network for measurements (RFC 2544) and a local network (RFC 4193). Each run takes four addresses of both networks.
NETWORKS = (addresses.read_ip("198.18.0.0"), addresses.read_ip("fd5f:2544::"))
PLACES, STEP = 1 << 14, 4


class Outside:
    """A host outside of the node: a namespace and its veth link to the node.

    link: the name of the node's end. node: the addresses of the node's end, {4 or 6: text}. host: the addresses of the
    outside host. namespace: a descriptor. server: the server on the outside host. Raises OSError.
    """

    def __init__(self) -> None:
        self.link = f"fcst{os.getpid()}"
        self.namespace = namespaces.new()
        self.node: dict[int, str] = {}
        self.host: dict[int, str] = {}
        try:
            self._connect()
            self.server = sockets.Server(self.namespace)
        except BaseException:
            os.close(self.namespace)
            raise

    def close(self) -> None:
        """Remove the namespace and the veth link."""
        self.server.close()
        os.close(self.namespace)
        with wire.open_socket() as sock:
            wire.attempt(sock, rtnl.del_link(Batch(), name=self.link))      # the kernel may have deleted it already

    def _connect(self) -> None:
        with wire.open_socket() as sock, namespaces.call(self.namespace, wire.open_socket) as inside:
            place = free_place(sock)
            wire.exchange(sock, rtnl.new_veth(Batch(), self.link, INSIDE, self.namespace, host_mac=mac(1),
                                              peer_mac=mac(2)))
            for end, name, number, known in ((sock, self.link, 1, self.node), (inside, INSIDE, 2, self.host)):
                link = find.new_link(end, name)
                wire.exchange(end, rtnl.set_link(Batch(), link.index, up=True))
                for network in NETWORKS:
                    packed = addresses.plus(network, STEP * place + number)
                    _, refused = wire.attempt(end, rtnl.new_address(
                        Batch(), link.index, packed, 8 * len(packed) - 2, nodad=len(packed) == 16))
                    if not refused:             # without IPv6, the kernel refuses the IPv6 address
                        known[4 if len(packed) == 4 else 6] = addresses.ip_text(packed)

    def route_to(self, packed_ips: Iterable[bytes]) -> None:
        """Add routes by which the outside host answers pods whose addresses the node does not masquerade."""
        with namespaces.call(self.namespace, wire.open_socket) as sock:
            index = find.new_link(sock, INSIDE).index
            for packed in packed_ips:
                if node := self.node.get(4 if len(packed) == 4 else 6):
                    wire.attempt(sock, rtnl.route(Batch(), packed, 8 * len(packed), index=index,
                                                  gateway=addresses.read_ip(node)))


def mac(number: int) -> bytes:
    """Return a locally administered MAC that no other run on this node has."""
    return bytes((0x02, 0xFC)) + os.getpid().to_bytes(3, "big")[-3:] + bytes((number,))


def free_place(sock: wire.Socket) -> int:
    """Return the number of a free block of four addresses in NETWORKS. A block is free if no route of the node, except
    a default route, leads to its addresses. Raises Failed."""
    used = [route for family in (uapi.AF_INET, uapi.AF_INET6) for _, payload in wire.dump(
        sock, uapi.RTM_GETROUTE, rtmsg(family, 0), "list routes")
        if (route := rtnl.read_route(payload)) and route.prefix]
    for place in (os.getpid() % PLACES, *range(PLACES)):
        first = [addresses.plus(network, STEP * place) for network in NETWORKS]
        if not any(overlaps(route, packed) for packed in first for route in used):
            return place
    raise Failed("the node's routes", "198.18.0.0/16 is in use: no four addresses of it are free", "ip route")


def overlaps(route: rtnl.Route, packed: bytes) -> bool:
    """Return whether a route leads to one of the four addresses that begin with `packed`."""
    if len(route.dst) != len(packed):
        return False
    prefix = min(route.prefix, 8 * len(packed) - 2)
    return addresses.network(route.dst, prefix) == addresses.network(packed, prefix)
