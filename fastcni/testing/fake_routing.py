"""Model addresses, routes and routing rules for tests."""

from __future__ import annotations

import struct
from errno import EADDRNOTAVAIL, EEXIST, ENODEV, ENOENT, ESRCH
from typing import TYPE_CHECKING, Any

from fastcni._netlink import attributes
from fastcni.kernel import uapi
from fastcni.testing.fake_messages import Refused, Replies, attr, number, u32

if TYPE_CHECKING:
    from fastcni.testing.fake_links import Link

MESSAGES = (uapi.RTM_NEWADDR, uapi.RTM_DELADDR, uapi.RTM_GETADDR, uapi.RTM_NEWROUTE, uapi.RTM_DELROUTE,
            uapi.RTM_GETROUTE, uapi.RTM_NEWRULE, uapi.RTM_DELRULE, uapi.RTM_GETRULE)
LENGTHS = {uapi.AF_INET: 4, uapi.AF_INET6: 16}


def encoded_route(family: int, index: int, dst: bytes, prefix: int, gateway: bytes, table: int) -> bytes:
    """Return the rtmsg of a route that the kernel itself adds: scope universe (0), unicast (1) (linux/rtnetlink.h)."""
    data = bytes((family, prefix, 0, 0, table, uapi.RTPROT_KERNEL, 0, 1)) + bytes(4) + attr(uapi.RTA_OIF, u32(index))
    data += attr(uapi.RTA_DST, dst) if prefix else b""
    return data + (attr(uapi.RTA_GATEWAY, gateway) if gateway else b"")


class Routing:
    """The model of routing. addresses: [(namespace, index, packed address, prefix length)]. routes: [(namespace, index,
    packed destination, prefix length, packed gateway)]; a route that is not in the main table has its table as the
    sixth item. rules: [(namespace, payload of RTM_NEWRULE)]."""

    links: dict[str, dict[int, Link]]

    def __init__(self) -> None:
        self.addresses: list[Any] = []
        self.routes: list[Any] = []
        self.rules: list[tuple[str, bytes]] = []
        self.payloads: dict[Any, bytes] = {}            # {item of routes: the payload of its RTM_NEWROUTE}

    def serve_routing(self, where: str, kind: int, flags: int, payload: bytes) -> Replies:
        length = LENGTHS[payload[0]]
        if kind == uapi.RTM_GETADDR:
            return [(uapi.RTM_NEWADDR, struct.pack("=BBBBI", payload[0], prefix, uapi.IFA_F_PERMANENT, 0, index)
                     + attr(uapi.IFA_ADDRESS, packed) + attr(uapi.IFA_LOCAL, packed))
                    for namespace, index, packed, prefix in self.addresses
                    if namespace == where and len(packed) == length]
        if kind == uapi.RTM_GETROUTE:
            return [(uapi.RTM_NEWROUTE, self.payloads[route]) for route in self.routes
                    if route[0] == where and len(route[2]) == length]
        if kind == uapi.RTM_GETRULE:
            return [(uapi.RTM_NEWRULE, rule) for namespace, rule in self.rules
                    if namespace == where and rule[0] == payload[0]]
        if kind in (uapi.RTM_NEWADDR, uapi.RTM_DELADDR):
            self.change_address(where, kind, payload)
        elif kind in (uapi.RTM_NEWROUTE, uapi.RTM_DELROUTE):
            self.change_route(where, kind, flags, payload)
        else:
            self.change_rule(where, kind, payload)
        return []

    def change_address(self, where: str, kind: int, payload: bytes) -> None:
        index, packed, prefix = number(payload[4:8]), attributes(payload, 8)[uapi.IFA_LOCAL], payload[1]
        item = (where, index, packed, prefix)
        if index not in self.links[where]:
            raise Refused(ENODEV)
        if kind == uapi.RTM_NEWADDR:
            if item in self.addresses:
                raise Refused(EEXIST)
            self.addresses.append(item)
            self.add_subnet(item, uapi.RT_TABLE_MAIN)
            return
        if item not in self.addresses:
            raise Refused(EADDRNOTAVAIL)
        self.addresses.remove(item)
        subnet = subnet_of(item)
        self.routes = [one for one in self.routes if one[:5] != subnet]

    def add_subnet(self, address: tuple[str, int, bytes, int], table: int) -> None:
        """Add the route to an address's subnet, as the kernel does when the address is added."""
        _, index, packed, prefix = address
        if prefix < 8 * len(packed):
            subnet = subnet_of(address)
            route = subnet if table == uapi.RT_TABLE_MAIN else (*subnet, table)
            family = uapi.AF_INET if len(packed) == 4 else uapi.AF_INET6
            self.payloads[route] = encoded_route(family, index, subnet[2], prefix, b"", table)
            self.routes.append(route)

    def change_route(self, where: str, kind: int, flags: int, payload: bytes) -> None:
        found = attributes(payload, 12)
        index, table = number(found[uapi.RTA_OIF]), number(found.get(uapi.RTA_TABLE, b"")) or payload[4]
        item: tuple[Any, ...] = (where, index, found.get(uapi.RTA_DST, bytes(LENGTHS[payload[0]])), payload[1],
                                 found.get(uapi.RTA_GATEWAY, b""))
        item = item if table == uapi.RT_TABLE_MAIN else (*item, table)
        if index not in self.links[where]:
            raise Refused(ENODEV)
        if kind == uapi.RTM_DELROUTE:
            if item not in self.routes:
                raise Refused(ESRCH)
            self.routes.remove(item)
            return
        if item in self.routes:
            if not flags & (uapi.NLM_F_REPLACE | uapi.NLM_F_APPEND):
                raise Refused(EEXIST)
            self.routes.remove(item)
        self.payloads[item] = payload
        self.routes.append(item)

    def change_rule(self, where: str, kind: int, payload: bytes) -> None:
        if kind == uapi.RTM_NEWRULE:
            if (where, payload) in self.rules:
                raise Refused(EEXIST)
            self.rules.append((where, payload))
        elif (where, payload) in self.rules:
            self.rules.remove((where, payload))
        else:
            raise Refused(ENOENT)

    def change_table(self, where: str, index: int, table: int) -> None:
        """Change the routes of a link that has joined or left a VRF. The kernel sets the link down and up, and then
        adds only the routes to its subnets again. table: the new routing table."""
        self.forget(where, index, addresses=False)
        for address in self.addresses:
            if address[:2] == (where, index):
                self.add_subnet(address, table)

    def forget(self, where: str, index: int, *, addresses: bool = True) -> None:
        """Delete the routes of a link and, unless `addresses` is false, its addresses."""
        self.routes = [item for item in self.routes if item[:2] != (where, index)]
        if addresses:
            self.addresses = [item for item in self.addresses if item[:2] != (where, index)]


def subnet_of(address: tuple[str, int, bytes, int]) -> tuple[str, int, bytes, int, bytes]:
    """Return the route to an address's subnet, as an item of Routing.routes."""
    where, index, packed, prefix = address
    bits = 8 * len(packed) - prefix
    return where, index, (int.from_bytes(packed, "big") >> bits << bits).to_bytes(len(packed), "big"), prefix, b""
