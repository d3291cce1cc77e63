"""Read the nodes, blocks and holders of addresses in a store, for people.

This module only reads the store; node/cluster/repair.py changes it.
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
    IPClaim,
    Node,
    Use,
)
from fastcni.node.attachments.documents import moment

if TYPE_CHECKING:
    from fastcni.kit.ipam.cluster.contract import Store

Key = tuple[str, str]           # space, cidr
USED = "used"                   # state of a Holder: the block's node has reported that a pod has the address


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of an address.

    block: the CIDR of the block that contains the address. state: USED, or the state of an IP claim (HELD, KEPT,
    ASKED, REFUSED). container, ifname, pod ("namespace/name"), network: "" if unknown. since: Unix time of the ADD.
    written: Unix time of the node's report; 0.0 for a claim. ip_claim: the claim's record in the store. reason: why the
    claim was REFUSED.
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
    ip_claim: IPClaim | None = None

    @property
    def owner(self) -> str:
        """Return the pod as text; if it is unknown, the interface and the container."""
        attached = f"{self.ifname or 'an interface'} of container {self.container[:12]}" if self.container else ""
        return f"pod {self.pod}" if self.pod else attached or "an unknown owner"


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A block with the holders of its addresses, sorted by address. reported: whether the holders are known, because
    the block's node has reported them, or the block is this node's or shared."""

    block: Block
    holders: tuple[Holder, ...] = ()
    reported: bool = True

    @property
    def size(self) -> int:
        """Return the number of addresses in the block, including addresses outside of all ranges."""
        return ipaddress.ip_network(self.block.cidr).num_addresses

    @property
    def held(self) -> int:
        """Return how many addresses of the block are held by a pod or kept for a pod."""
        return sum(it.state != REFUSED for it in self.holders)


@dataclass(frozen=True, slots=True)
class Survey:
    """The content of a store. nodes: {name: node}. blocks: sorted by space and address. grids: the block sizes, {space:
    {"4": 26, "6": 122}}."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    blocks: tuple[HeldBlock, ...] = ()
    grids: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def spaces(self) -> list[str]:
        """Return the names of the address spaces that have blocks."""
        return sorted({it.block.space for it in self.blocks})

    def of_node(self, name: str) -> list[HeldBlock]:
        """Return the blocks of a node."""
        return [it for it in self.blocks if it.block.node == name]


def survey(store: Store, space: str = "", here: Mapping[Key, Sequence[Holder]] | None = None) -> Survey:
    """Read the nodes, blocks, IP claims and nodes' reports. space: an address space; "" for all spaces.

    here: {(space, cidr): holders} of this node's blocks, from its own files, which are newer than its report. Raises
    Away. The survey makes several reads, so a change between two reads may show in one of them, or in neither.
    """
    nodes = {node.name: node for node in store.nodes()}
    blocks = store.blocks(space)
    known: dict[Key, dict[str, Holder]] = {(block.space, block.cidr): {} for block in blocks if block.state == SHARED}
    known |= reports(nodes, blocks, store.uses(space))
    known |= {key: by_address(found) for key, found in (here or {}).items()}
    ip_claims: dict[Key, dict[str, Holder]] = defaultdict(dict)
    for ip_claim in store.ip_claims(space):
        ip_claims[ip_claim.space, ip_claim.block][ip_claim.address] = of_ip_claim(ip_claim)
    spaces = sorted({block.space for block in blocks})
    held = [HeldBlock(block, in_order({**known.get(key, {}), **ip_claims[key]}), key in known)
            for block in blocks for key in [(block.space, block.cidr)]]
    return Survey(nodes, tuple(held), {name: store.grid(name, {}) for name in spaces})


def reports(nodes: Mapping[str, Node], blocks: Iterable[Block],
            uses: Iterable[Use]) -> dict[Key, dict[str, Holder]]:
    """Return {(space, cidr): {address: holder}} from the nodes' reports.

    A report is valid while the block belongs to the reporting node, and if the node made the report in its last known
    boot, because a reboot ends all pods of a node.
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
    """Return the holders in the order of their addresses."""
    return tuple(sorted(found.values(), key=lambda it: int(ipaddress.ip_address(it.address))))


def reported(use: Use) -> Iterator[Holder]:
    """Yield the holders of addresses that a node has reported to the store: `use.holders`."""
    for it in use.holders or ():
        yield Holder(use.space, it["address"], use.cidr, USED, use.node, it.get("container", ""), it.get("ifname", ""),
                     it.get("pod", ""), it.get("network", ""), it.get("since") or 0.0, use.written or 0.0)


def of_ip_claim(ip_claim: IPClaim) -> Holder:
    """Return the holder of an address that has an IP claim."""
    return Holder(ip_claim.space, ip_claim.address, ip_claim.block, ip_claim.state, ip_claim.node, ip_claim.container,
                  ip_claim.ifname, ip_claim.pod, ip_claim.network, ip_claim.since or 0.0, 0.0, ip_claim.reason,
                  ip_claim)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an address in an address space. held: its block, None if no node has claimed the block. holder: None
    if no holder is known. node: the holder's node, otherwise the block's node, otherwise None."""

    space: str
    address: str
    held: HeldBlock | None = None
    holder: Holder | None = None
    node: Node | None = None

    @property
    def state(self) -> str:
        """Return the holder's state. Without a holder, return "free", "quarantine", "unknown" (no report) or
        "unclaimed" (no block)."""
        if self.holder:
            return self.holder.state
        if self.held is None:
            return "unclaimed"
        if self.held.block.state == QUARANTINE:
            return QUARANTINE
        return "free" if self.held.reported else "unknown"


def places_of(found: Survey, ip: str, space: str = "") -> list[Place]:
    """Return the Place of an address in each address space that has a block for the address. Raises ValueError if the
    address is invalid."""
    address = ipaddress.ip_address(ip)
    return [place_in(found, it, str(address)) for it in found.blocks
            if space in ("", it.block.space) and address in ipaddress.ip_network(it.block.cidr)]


def place_in(found: Survey, held: HeldBlock, ip: str) -> Place:
    """Return the Place of an address in a block."""
    holder = next((it for it in held.holders if it.address == ip), None)
    node = found.nodes.get(holder.node if holder else held.block.node)
    return Place(held.block.space, ip, held, holder, node)


def sentence(place: Place, times: bool = True) -> str:
    """Return one sentence about an address, by the data in the store. times: include since when a pod has it."""
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


def holder_sentence(holder: Holder, times: bool = True) -> str:
    """Return one sentence about the holder of an address. times: include since when the holder has the address."""
    since = f" since {moment(holder.since)}" if holder.since and times else ""
    node = f"on node {holder.node or 'unknown'}"
    on = f"{holder.owner} {node}"
    return {KEPT: f"{holder.address} is kept for the next {holder.owner}, which had it last, {node}",
            ASKED: f"{holder.address} is asked for by {on}{since}; its block is another node's",
            REFUSED: f"{holder.address} was refused to {on}: {holder.reason or 'another pod has it'}",
            }.get(holder.state, f"{holder.address} is held by {on}{since}")


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with its numbers. blocks: number of blocks. held: number of addresses that pods hold. free: number of
    addresses in active blocks that no pod holds. quarantine: number of such addresses in quarantined blocks. reported:
    whether the store has the node's report for each of its blocks."""

    node: Node
    blocks: int
    held: int
    free: int
    quarantine: int
    reported: bool


def node_views(found: Survey) -> list[NodeView]:
    """Return all nodes, sorted by name. An address in a shared block counts for the node that has claimed the
    address."""
    return [node_view(found, node) for _, node in sorted(found.nodes.items())]


def node_view(found: Survey, node: Node) -> NodeView:
    """Return one node with its numbers."""
    own = found.of_node(node.name)
    shared = sum(holder.node == node.name and holder.state != REFUSED for it in found.blocks
                 if it.block.state == SHARED for holder in it.holders)
    free = sum(it.size - it.held for it in own if it.block.state == ACTIVE)
    return NodeView(node, len(own), sum(it.held for it in own) + shared, free,
                    sum(it.size - it.held for it in own if it.block.state == QUARANTINE),
                    all(it.reported for it in own))
