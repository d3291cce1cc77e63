"""Choose free subnets for a node, and skip nodes whose subnets are invalid."""

from __future__ import annotations

import random
from ipaddress import ip_network
from typing import TYPE_CHECKING

from fastcni.agent.contract import NoSubnetLeft

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from fastcni.agent.contract import Family, NetworkConf, Node, Prefix

CANDIDATES = 100        # a node takes a random one of the first 100 free subnets, so that two joins seldom collide


def choose(conf: NetworkConf, former: Mapping[int, Prefix],
           taken: Collection[Mapping[int, Prefix]]) -> dict[int, Prefix]:
    """Return {family: a free subnet}. former: the node's previous subnets, chosen again if they are free. taken: the
    subnets of each record. Raises NoSubnetLeft."""
    return {number: choose_one(family, former.get(number), [each[number] for each in taken if number in each])
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
    """Return whether the network's configuration allows this subnet for a node."""
    return subnet.prefixlen == family.length and \
        int(family.first.network_address) <= int(subnet.network_address) <= int(family.last.network_address)


def overlap(first: Mapping[int, Prefix], second: Mapping[int, Prefix]) -> bool:
    """Return whether the subnets of two nodes have an address in common."""
    return any(subnet.overlaps(second[family]) for family, subnet in first.items() if family in second)


def usable(conf: NetworkConf, me: Node, nodes: Collection[Node]) -> tuple[list[Node], dict[str, str]]:
    """Return (the other nodes that are used, {name of a skipped node: the reason}). A node is skipped if its subnet is
    not in the network or overlaps another node's, because a damaged record must not attract packets to other
    destinations. If this node and another node have the same subnet, this node keeps it; of two other nodes, the first
    by name. A record with this node's address is an old record of this node and is skipped: a tunnel to it would
    lead back to this node.
    """
    skipped: dict[str, str] = {}
    others = sorted((node for node in nodes if node.name != me.name), key=lambda node: node.name)
    for node in others:
        if own := next((address for family, address in node.public.items() if me.public.get(family) == address), None):
            skipped[node.name] = f"it has this node's address {own}: a former record of this node"
        for number, subnet in node.subnets.items():
            family = conf.families.get(number)
            if family and not within(subnet, family.network):
                skipped[node.name] = f"its subnet {subnet} is not in {family.network}"
    for number in conf.families:
        spans = sorted((int(node.subnets[number].network_address), int(node.subnets[number].broadcast_address), at)
                       for at, node in enumerate([me, *others]) if number in node.subnets and node.name not in skipped)
        last_end, last = -1, 0
        for start, end, at in spans:
            if start <= last_end:
                loser, winner = max(at, last), min(at, last)
                skipped[others[loser - 1].name] = f"node {[me, *others][winner].name} has its subnet, too"
                if winner == last:
                    continue
            last_end, last = end, at
    return [node for node in others if node.name not in skipped], skipped


def within(subnet: Prefix, network: Prefix) -> bool:
    return subnet.version == network.version and int(network.network_address) <= int(subnet.network_address) and \
        int(subnet.broadcast_address) <= int(network.broadcast_address)


def free(family: Family, taken: Collection[Prefix]) -> Iterator[Prefix]:
    """Yield the free subnets, lowest first. taken: subnets of any prefix length, because SubnetLen may have changed."""
    host_bits = family.network.max_prefixlen - family.length
    spans = sorted((int(each.network_address) >> host_bits, int(each.broadcast_address) >> host_bits)
                   for each in taken)
    number, last = (int(each.network_address) >> host_bits for each in (family.first, family.last))
    size = family.network.max_prefixlen // 8
    for low, high in [*spans, (last + 1, last + 1)]:
        for at in range(number, min(low, last + 1)):
            yield ip_network(((at << host_bits).to_bytes(size, "big"), family.length))
        number = max(number, high + 1)
