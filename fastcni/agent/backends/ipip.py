"""Connect nodes by ipip: packets to other nodes' pods are sent inside IPv4 packets (RFC 2003). IPv4 only.

The outer header takes 20 bytes; packets are not encrypted. One link, flannel.ipip, reaches all nodes: the gateway of a
route is the other node's public address. With DirectRouting, a node on the same network gets a route without a tunnel.

Keys of Backend: DirectRouting (default false), MTU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.backends.host_gw import direct_route
from fastcni.agent.backends.keys import chosen_families, read_keys
from fastcni.agent.contract import ConfigurationError, Link, Node, Route, State

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from fastcni.agent.contract import NetworkConf, Underlay

KEYS = {"DirectRouting": False, "MTU": 0}
NAME = "flannel.ipip"
OVERHEAD = 20                   # the outer IPv4 header


class Ipip:
    """The ipip backend (contract.Backend)."""

    name = "ipip"

    def __init__(self, conf: NetworkConf, underlay: Underlay, directory: str, publishes: bool) -> None:
        self.keys, self.underlay = read_keys(conf.backend, KEYS), underlay
        if chosen_families(conf, underlay) != [4]:
            raise ConfigurationError("Backend ipip supports only IPv4, but the network has IPv6; vxlan supports both")

    def data(self) -> Mapping[int, Mapping[str, Any]]:
        return {}

    def mtu(self) -> int:
        return self.keys["MTU"] or self.underlay.mtu - OVERHEAD

    def state(self, me: Node, others: Collection[Node]) -> State:
        routes, skipped = set(), {}
        for node in others:
            if node.backend != self.name:
                skipped[node.name] = f'its backend is "{node.backend}"'
            elif 4 not in node.public or 4 not in node.subnets:
                skipped[node.name] = "it has no IPv4 subnet or public address"
            elif self.keys["DirectRouting"] and (route := direct_route(self.underlay, node, 4)):
                routes.add(route)
            else:
                routes.add(Route(NAME, node.subnets[4], node.public[4], onlink=True))
        link = Link(NAME, "ipip", self.mtu(), settings={"local": self.underlay.addresses[4]},
                    addresses=(f"{me.subnets[4].network_address}/32",))
        return State((link,), routes=frozenset(routes), skipped=skipped)
