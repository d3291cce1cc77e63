"""Import the addresses that whereabouts has allocated, so that fastcni allocates none of them again.

    make_plan   compares the addresses with the store, and returns the necessary changes, without making them
    apply       shares the blocks and claims the addresses

Each block with such an address becomes SHARED, and the address becomes an IP claim (class IPClaim) of the pod's node.
whereabouts allocates the first free address of a range, so its next addresses are in these blocks or in the following
blocks. So the following blocks become SHARED, too, and no node claims them. A second import takes over the addresses
that whereabouts has allocated since the first import.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastcni.kit.ipam.cluster.contract import HELD, IMPORTED, REFUSED, SHARED, Block, Changed, IPClaim, Node, Taken
from fastcni.node.cluster.survey import Survey
from fastcni.node.cluster.whereabouts import Address, Given, Net, Source, ranges_of, read_given

if TYPE_CHECKING:
    from fastcni.kit.ipam.cluster.contract import Store

Key = tuple[str, str]                   # space, address or cidr


@dataclass(slots=True)
class Plan:
    """The changes of an import. blocks: (space, cidr) of each block to share. ip_claims: new claims. known: number of
    addresses that an earlier import has claimed. gone: addresses of pods that no longer exist, which the import leaves
    out. ended: claims of an earlier import whose pods no longer exist, which apply() releases. conflicts: texts about
    addresses that cannot be imported.
    """

    blocks: list[Key] = field(default_factory=list)
    ip_claims: list[IPClaim] = field(default_factory=list)
    known: int = 0
    gone: list[Given] = field(default_factory=list)
    ended: list[IPClaim] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class There:
    """The content of the store: blocks, IP claims, and the block sizes {space: {"4": 26, "6": 122}}."""

    blocks: Mapping[Key, Block]
    ip_claims: Mapping[Key, IPClaim]
    grids: Mapping[str, Mapping[str, int]]

    def block_of(self, space: str, address: Address) -> Net:
        """Return the block that contains an address, by the address space's block size."""
        return ipaddress.ip_network((address, self.grids[space][str(address.version)]), strict=False)


def make_plan(source: Source, found: Survey, grids: Mapping[str, Mapping[str, int]], now: float,
              headroom: int = 1) -> Plan:
    """Return the Plan. grids: the block sizes of each space of ranges_of(source). headroom: how many blocks after each
    block with an address become SHARED. now: Unix time, for the records."""
    plan = Plan(conflicts=[f"{text}; it was left out" for text in source.found.unreadable])
    there = There({(it.block.space, it.block.cidr): it.block for it in found.blocks},
                  {(holder.space, holder.address): holder.ip_claim for it in found.blocks for holder in it.holders
                   if holder.ip_claim and holder.state != REFUSED}, grids)
    living = []
    for given in read_given(source):
        if not given.pod or source.pods.get(given.pod) == "":
            plan.conflicts.append(f"{given.address} ({given.where}): "
                                  f"{f'pod {given.pod} has no node' if given.pod else 'it names no pod'}")
        elif given.pod in source.pods:
            living.append(given)
        else:
            plan.gone.append(given)
    plan.ended = [it for it in there.ip_claims.values()
                  if it.network == IMPORTED and it.state == HELD and it.pod not in source.pods]
    ranges = ranges_of(source)
    wanted = blocks_to_share(living, ranges, there, headroom)
    plan.blocks = [key for key in wanted if key not in there.blocks]
    taken: dict[Key, Given] = {}
    for given in living:
        plan_address(plan, given, source.pods[given.pod], taken, there, now)
    return plan


def blocks_to_share(living: Iterable[Given], ranges: Mapping[str, Sequence[Net]], there: There,
                    headroom: int) -> list[Key]:
    """Return, in order, the blocks that contain the addresses `living`, and the next `headroom` blocks after each such
    block if they overlap a range of the space."""
    wanted: dict[str, set[Net]] = defaultdict(set)
    for given in living:
        block = there.block_of(given.space, given.address)
        wanted[given.space].add(block)
        for step in range(1, headroom + 1):
            number = int(block.network_address) + step * block.num_addresses
            behind = type(block)((number % (1 << block.max_prefixlen), block.prefixlen))
            if any(behind.overlaps(net) for net in ranges[given.space] if net.version == behind.version):
                wanted[given.space].add(behind)
    return [(space, str(block)) for space, blocks in sorted(wanted.items())
            for block in sorted(blocks, key=lambda it: (it.version, int(it.network_address)))]


def plan_address(plan: Plan, given: Given, node: str, taken: dict[Key, Given], there: There, now: float) -> None:
    """Add an address to the plan: as a claim to make, as known, or as a conflict."""
    key, cidr = (given.space, str(given.address)), str(there.block_of(given.space, given.address))
    block, ip_claim = there.blocks.get((given.space, cidr)), there.ip_claims.get(key)
    first = taken.setdefault(key, given)
    if first is not given:
        plan.conflicts.append(f"{given.address}: whereabouts has given it twice, to {owner(first)} and to "
                              f"{owner(given)}")
    elif ip_claim is not None and ip_claim.pod == given.pod and ip_claim.ifname == given.ifname:
        plan.known += 1
    elif ip_claim is not None:
        plan.conflicts.append(f"{given.address} ({owner(given)}): {owner(ip_claim)} on node {ip_claim.node} has it")
    elif block is not None and block.state != SHARED:
        plan.conflicts.append(f"{given.address} ({owner(given)}): its block {cidr} is {block.state}, of node "
                              f"{block.node}")
    else:
        plan.ip_claims.append(IPClaim(
            space=given.space, address=str(given.address), block=cidr, state=HELD, node=node, epoch=0,
            container=given.container, ifname=given.ifname, pod=given.pod, network=IMPORTED, since=now, sticky=False))


def owner(allocation: Given | IPClaim) -> str:
    """Return the owner of an address as text, such as "pod shop/web"."""
    return f"pod {allocation.pod}" if allocation.pod else f"container {allocation.container[:12] or 'unknown'}"


def apply(store: Store, plan: Plan) -> list[str]:
    """Release the ended claims, share the blocks, and claim each address for its pod's node. Return texts about the
    blocks and addresses that another node has claimed since make_plan().

    Nodes that the store does not know are registered. After Away, a second call makes the remaining changes.
    """
    lost = []
    for ip_claim in plan.ended:
        store.release_ip_claim(ip_claim)        # False: the claim has changed, so its pod's node maintains it
    for space, cidr in plan.blocks:
        try:
            store.share(space, cidr)
        except Taken as e:
            lost.append(f"block {cidr} of space {space}: node {e.by.node} has claimed it since")
    nodes = {node.name: node for node in store.nodes()}
    for ip_claim in plan.ip_claims:
        try:
            store.claim_address(nodes.get(ip_claim.node) or join(store, ip_claim.node, nodes), ip_claim)
        except Taken as e:
            lost.append(f"{ip_claim.address} ({owner(ip_claim)}): node {e.by.node} has claimed it since")
        except Changed:
            lost.append(f"{ip_claim.address} ({owner(ip_claim)}): its block was returned since; import again")
    return lost


def join(store: Store, name: str, nodes: dict[str, Node]) -> Node:
    """Register a node that does not run fastcni yet, and add it to `nodes`."""
    nodes[name] = store.join(name, "")
    return nodes[name]
