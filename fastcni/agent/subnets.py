"""Choose the subnets of a node."""

from __future__ import annotations

import random
from ipaddress import ip_network
from typing import TYPE_CHECKING

from fastcni.agent.contract import NoSubnetLeft

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from fastcni.agent.contract import Family, NetworkConf, Node, Prefix

CANDIDATES = 100        # one of the first so many free subnets is taken: nodes that join at once seldom meet


def choose(conf: NetworkConf, former: Mapping[int, Prefix], nodes: Collection[Node]) -> dict[int, Prefix]:
    """Return a free subnet for each family: the node's former one if it is free. Raises NoSubnetLeft."""
    return {number: choose_one(family, former.get(number), [node.subnets[number] for node in nodes
                                                           if number in node.subnets])
            for number, family in conf.families.items()}


def choose_one(family: Family, former: Prefix | None, taken: Collection[Prefix]) -> Prefix:
    if former is not None and fits(family, former) and not any(former.overlaps(other) for other in taken):
        return former
    found = []
    for subnet in free(family, taken):
        found.append(subnet)
        if len(found) == CANDIDATES:
            break
    if not found:
        raise NoSubnetLeft(f"{family.network} has no free subnet /{family.length}: {len(taken)} are taken")
    return random.choice(found)


def fits(family: Family, subnet: Prefix) -> bool:
    """Whether the network's configuration allows a node this subnet."""
    return subnet.prefixlen == family.length and \
        int(family.first.network_address) <= int(subnet.network_address) <= int(family.last.network_address)


def overlap(one: Node, two: Node) -> bool:
    """Whether two nodes have an address in common."""
    return any(subnet.overlaps(two.subnets[family]) for family, subnet in one.subnets.items() if family in two.subnets)


def free(family: Family, taken: Collection[Prefix]) -> Iterator[Prefix]:
    """The free subnets, lowest first. What is taken may have another length, if the configuration was changed."""
    host_bits = family.network.max_prefixlen - family.length
    spans = sorted((int(each.network_address) >> host_bits, int(each.broadcast_address) >> host_bits)
                   for each in taken)
    number, last = (int(each.network_address) >> host_bits for each in (family.first, family.last))
    size = family.network.max_prefixlen // 8
    for low, high in [*spans, (last + 1, last + 1)]:
        for at in range(number, min(low, last + 1)):
            yield ip_network(((at << host_bits).to_bytes(size, "big"), family.length))
        number = max(number, high + 1)
