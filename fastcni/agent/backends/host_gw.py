"""Connect nodes by host-gw: packets to another node's pods are routed to that node, unchanged. All nodes must be on one
network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.backends.keys import chosen_families, read_keys
from fastcni.agent.contract import ConfigurationError, Node, Route, State

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from fastcni.agent.contract import NetworkConf, Underlay

KEYS = {"MTU": 0}


class HostGw:
    """The host-gw backend (contract.Backend)."""

    name = "host-gw"

    def __init__(self, conf: NetworkConf, underlay: Underlay, directory: str, publishes: bool) -> None:
        self.keys, self.underlay = read_keys(conf.backend, KEYS), underlay
        self.families = chosen_families(conf, underlay)
        for family in self.families:
            if underlay.public[family] != underlay.addresses[family]:
                raise ConfigurationError(f'Backend host-gw: "{underlay.name}" does not have the public IP '
                                         f"{underlay.public[family]}, and other nodes need it as a gateway")

    def data(self) -> Mapping[int, Mapping[str, Any]]:
        return {}

    def mtu(self) -> int:
        return self.keys["MTU"] or self.underlay.mtu

    def state(self, me: Node, others: Collection[Node]) -> State:
        routes, skipped = set(), {}
        for node in others:
            for family in self.families:
                if family not in node.subnets:
                    continue
                if node.backend != self.name:
                    skipped[node.name] = f'its backend is "{node.backend}"'
                elif route := direct_route(self.underlay, node, family):
                    routes.add(route)
                else:
                    skipped[node.name] = f"its public IPv{family} address {node.public.get(family)} is not on a " \
                                         f'network of "{self.underlay.name}"'
        return State(routes=frozenset(routes), skipped=skipped)


def direct_route(underlay: Underlay, node: Node, family: int) -> Route | None:
    """Return the route to the node's subnet if the node's public address is on the underlay's network; otherwise
    None."""
    public = node.public.get(family)
    if public is None or family not in underlay.prefixes or public not in underlay.prefixes[family]:
        return None
    return Route(underlay.name, node.subnets[family], public)
