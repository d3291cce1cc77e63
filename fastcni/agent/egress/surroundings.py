"""Describe the network for egress addresses: the nodes, the next hops to them, and the ranges inside the cluster."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

from fastcni.agent.contract import pair
from fastcni.agent.egress.routes import NextHop
from fastcni.agent.policy.objects import Block
from fastcni.agent.policy.ranges import of_blocks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from fastcni.agent.contract import NetworkConf, Node, Route
    from fastcni.agent.policy.state import Range

# Link-local, multicast and broadcast addresses: no packet to them leaves the cluster. In clouds, each node answers at
# 169.254.169.254
LOCAL = [Block((ip_address(address).packed, prefix)) for address, prefix in (
    ("169.254.0.0", 16), ("224.0.0.0", 4), ("255.255.255.255", 32), ("fe80::", 10), ("ff00::", 8))]
FAMILIES = {4: 4, 16: 6}                # {length of an address in bytes: family}


class Surroundings:
    """The nodes and address ranges of the cluster. inside: the ranges of pods, nodes and LOCAL; packets to them do not
    get an egress address. foreign: the ranges of other nodes' pods."""

    def __init__(self, conf: NetworkConf, me: Node, nodes: Collection[Node], routes: Iterable[Route]) -> None:
        self.me, self.nodes = me, {node.name: node for node in (*nodes, me)}
        self._routes = {route.destination: route for route in routes}
        networks = [family.network for family in conf.families.values()]
        publics = [Block((address.packed, address.max_prefixlen))
                   for node in self.nodes.values() for address in node.public.values()]
        self.inside = ranges([*(Block(pair(network)) for network in networks), *publics, *LOCAL])
        self.foreign = ranges([Block(pair(network), tuple(
            pair(subnet) for subnet in me.subnets.values() if subnet.version == network.version))
            for network in networks])

    def is_mine(self, pod: bytes) -> bool:
        """Return whether a pod's address is in a subnet of this node."""
        return any(ip_address(pod) in subnet for subnet in self.me.subnets.values())

    def hop(self, name: str, length: int) -> NextHop | None:
        """Return the next hop to the node `name` for addresses of `length` bytes; None without a route or gateway."""
        node = self.nodes.get(name)
        subnet = node.subnets.get(FAMILIES[length]) if node else None
        route = self._routes.get(subnet) if subnet else None
        return NextHop(route.link, route.gateway.packed, route.onlink) if route and route.gateway else None


def ranges(blocks: Collection[Block]) -> list[Range]:
    return [each for length in FAMILIES for each in of_blocks(blocks, length)]
