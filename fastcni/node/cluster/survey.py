"""Cluster-wide addresses for people: what a store says of its nodes, its blocks and the holders of addresses.

It changes nothing; node/cluster/repair.py does.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastcni.kit.ipam.cluster.contract import (
    ACTIVE,
    ASKED,
    KEPT,
    QUARANTINE,
    REFUSED,
    SHARED,
    Block,
    Node,
    Single,
    Use,
)
from fastcni.node.attachments.documents import moment

if TYPE_CHECKING:
    from fastcni.kit.ipam.cluster.contract import Store

Key = tuple[str, str]           # space, cidr
USED = "used"                   # a Holder's state: given out of a node's block, as that node reported


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has an address.

    block: the CIDR that the address is in. state: USED, or that of a Single (HELD, KEPT, ASKED, REFUSED). container,
    ifname, pod ("namespace/name"), network: "" if unknown. since: unix time of the ADD. written: unix time of the
    node's report, 0.0 for a Single: this is the store's own record, `single`. reason: why a Single was REFUSED.
    """

    space: str
    address: str
    block: str
    state: str
    node: str = ""
    container: str = ""
    ifname: str = ""
    pod: str = ""
    network: str = ""
    since: float = 0.0
    written: float = 0.0
    reason: str = ""
    single: Single | None = None

    @property
    def owner(self) -> str:
        """The pod, else interface and container, as text."""
        attached = f"{self.ifname or 'an interface'} of container {self.container[:12]}" if self.container else ""
        return f"pod {self.pod}" if self.pod else attached or "an unknown owner"


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A block with the holders of its addresses, by address. reported: whether these are known: its node has reported
    them, it is this node's, or it is shared."""

    block: Block
    holders: tuple[Holder, ...] = ()
    reported: bool = True

    @property
    def size(self) -> int:
        """The number of its addresses, also of those that no range gives."""
        return ipaddress.ip_network(self.block.cidr).num_addresses

    @property
    def held(self) -> int:
        """How many of its addresses a pod has, or are kept for one."""
        return sum(it.state != REFUSED for it in self.holders)


@dataclass(frozen=True, slots=True)
class Survey:
    """What a store has. nodes: by name. blocks: by space and address. grids: {space: {"4": 26, "6": 122}}."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    blocks: tuple[HeldBlock, ...] = ()
    grids: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def spaces(self) -> list[str]:
        """The names of spaces that have blocks."""
        return sorted({it.block.space for it in self.blocks})

    def of_node(self, name: str) -> list[HeldBlock]:
        """The blocks of a node."""
        return [it for it in self.blocks if it.block.node == name]


def survey(store: Store, space: str = "", here: Mapping[Key, Sequence[Holder]] | None = None) -> Survey:
    """Read nodes, blocks, addresses claimed one by one, and the nodes' reports. All spaces without one.

    here: the holders in blocks of this node by its own files, {(space, cidr): holders}; they are newer than its report.
    Raises Away. These are several reads: a change between two of them may show once, or not.
    """
    nodes = {node.name: node for node in store.nodes()}
    blocks = store.blocks(space)
    known: dict[Key, dict[str, Holder]] = {(block.space, block.cidr): {} for block in blocks if block.state == SHARED}
    known |= reports(nodes, blocks, store.uses(space))
    known |= {key: by_address(found) for key, found in (here or {}).items()}
    singles: dict[Key, dict[str, Holder]] = defaultdict(dict)
    for single in store.singles(space):
        singles[single.space, single.block][single.address] = of_single(single)
    spaces = sorted({block.space for block in blocks})
    held = [HeldBlock(block, in_order({**known.get(key, {}), **singles[key]}), key in known)
            for block in blocks for key in [(block.space, block.cidr)]]
    return Survey(nodes, tuple(held), {name: store.grid(name, {}) for name in spaces})


def reports(nodes: Mapping[str, Node], blocks: Iterable[Block],
            uses: Iterable[Use]) -> dict[Key, dict[str, Holder]]:
    """{(space, cidr): {address: holder}} of the nodes' reports.

    A report counts while the block is that node's, and if it is of the node's last known boot: at a reboot all pods of
    a node end.
    """
    owners = {(block.space, block.cidr): block.node for block in blocks}
    found = {}
    for use in uses:
        key, node = (use.space, use.cidr), nodes.get(use.node)
        if owners.get(key) == use.node and (node is None or not use.boot_id or use.boot_id == node.boot_id):
            found[key] = by_address(reported(use))
    return found


def by_address(found: Iterable[Holder]) -> dict[str, Holder]:
    return {it.address: it for it in found}


def in_order(found: Mapping[str, Holder]) -> tuple[Holder, ...]:
    """The holders by address."""
    return tuple(sorted(found.values(), key=lambda it: int(ipaddress.ip_address(it.address))))


def reported(use: Use) -> Iterator[Holder]:
    """Yield the holders in a node's report."""
    for it in use.holders or ():
        yield Holder(use.space, it["address"], use.cidr, USED, use.node, it.get("container", ""), it.get("ifname", ""),
                     it.get("pod", ""), it.get("network", ""), it.get("since") or 0.0, use.written or 0.0)


def of_single(single: Single) -> Holder:
    """The holder of an address that is claimed by itself."""
    return Holder(single.space, single.address, single.block, single.state, single.node, single.container,
                  single.ifname, single.pod, single.network, single.since or 0.0, 0.0, single.reason, single)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an address is in a space. held: the block with it, None if no node has claimed that yet. holder: None if
    nobody is known to have it. node: of the holder, else of the block; None if there is none."""

    space: str
    address: str
    held: HeldBlock | None = None
    holder: Holder | None = None
    node: Node | None = None

    @property
    def state(self) -> str:
        """The holder's state; else "free", "quarantine", "unknown" without a report, or "unclaimed" without a block."""
        if self.holder:
            return self.holder.state
        if self.held is None:
            return "unclaimed"
        if self.held.block.state == QUARANTINE:
            return QUARANTINE
        return "free" if self.held.reported else "unknown"


def places_of(found: Survey, ip: str, space: str = "") -> list[Place]:
    """Where an address is, in each space that has a block for it. Raises ValueError if it is no address."""
    address = ipaddress.ip_address(ip)
    return [place_in(found, it, str(address)) for it in found.blocks
            if space in ("", it.block.space) and address in ipaddress.ip_network(it.block.cidr)]


def place_in(found: Survey, held: HeldBlock, ip: str) -> Place:
    """Where an address is in a block."""
    holder = next((it for it in held.holders if it.address == ip), None)
    node = found.nodes.get(holder.node if holder else held.block.node)
    return Place(held.block.space, ip, held, holder, node)


def sentence(place: Place, times: bool = True) -> str:
    """What the store knows of an address, as one sentence. times: also since when."""
    if place.holder:
        return holder_sentence(place.holder, times)
    if place.held is None:
        return f"{place.address} is not given: no node has claimed its block"
    block = place.held.block
    if block.state == SHARED:
        return f"{place.address} is free: in a shared block each address is claimed by itself"
    if block.state == QUARANTINE:
        return f"{place.address} is in quarantine with its block: node {block.node} was declared dead"
    if not place.held.reported:
        return f"{place.address} is in a block of node {block.node}, which has not reported who has its addresses"
    return f"{place.address} is free, as far as node {block.node} has reported; only that node gives it"


def holder_sentence(it: Holder, times: bool = True) -> str:
    """Who has an address, as one sentence."""
    since = f" since {moment(it.since)}" if it.since and times else ""
    on = f"{it.owner} on node {it.node or 'unknown'}"
    return {KEPT: f"{it.address} is kept for the next {it.owner}, which had it last, on node {it.node or 'unknown'}",
            ASKED: f"{it.address} is asked for by {on}{since}; its block is another node's",
            REFUSED: f"{it.address} was refused to {on}: {it.reason or 'another pod has it'}",
            }.get(it.state, f"{it.address} is held by {on}{since}")


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node, and how much it has. blocks: the number of its blocks. held: of addresses that pods hold. free: of
    addresses in active blocks that no pod holds; quarantine: of those in quarantined blocks. reported: the store has
    the node's report for each block."""

    node: Node
    blocks: int
    held: int
    free: int
    quarantine: int
    reported: bool


def node_views(found: Survey) -> list[NodeView]:
    """All nodes by name. An address claimed in a shared block is held by the node that claimed it."""
    return [node_view(found, node) for _, node in sorted(found.nodes.items())]


def node_view(found: Survey, node: Node) -> NodeView:
    """One node with its blocks."""
    own = found.of_node(node.name)
    shared = sum(holder.node == node.name and holder.state != REFUSED for it in found.blocks
                 if it.block.state == SHARED for holder in it.holders)
    free = sum(it.size - it.held for it in own if it.block.state == ACTIVE)
    return NodeView(node, len(own), sum(it.held for it in own) + shared, free,
                    sum(it.size - it.held for it in own if it.block.state == QUARANTINE),
                    all(it.reported for it in own))
