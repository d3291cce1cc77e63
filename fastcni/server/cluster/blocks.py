"""Compare the blocks of an address space in the store with the local state, and claim lost blocks again.

kit/ipam/cluster/claims.py changes the blocks. This module decides when claims.py does so, and writes the log.
"""

from __future__ import annotations

from fastcni.daemon.log import few
from fastcni.kit.ipam.cluster import claims
from fastcni.kit.ipam.cluster.contract import ACTIVE, Taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fastcni.kit.ipam.cluster.contract import Block, IPClaim, Node
    from fastcni.kit.ipam.cluster.grid import Own
    from fastcni.kit.ipam.cluster.node_state import State
    from fastcni.server.cluster.space import ClusterSpace


class Blocks:
    """The blocks of one address space. conflicts: {cidr: owner}, blocks of other nodes in which this node's pods have
    addresses; each is logged once."""

    def __init__(self, space: ClusterSpace) -> None:
        self.space, self.local, self.log = space, space.local, space.log
        self.conflicts: dict[str, str] = {}

    def compare(self, node: Node, mine: Mapping[str, Block], restored: bool) -> Node:
        """Compare this node's blocks in the store, `mine`, with the blocks of the local state, and claim the missing
        blocks again. restored: whether the store was restored from a backup. Return the Node under which this node now
        writes. Raises the errors of a store, CniError."""
        space = self.space
        with claims.ClaimLock(self.local.keys):
            space.refresh()
            before = space.state
            if not before.node:
                return node
            if restored or not same(before, node, mine):
                node = claims.rejoin(space.member.store, self.local.keys, self.local.warn, suspect=restored)
                space.refresh()
                self._log_changes(before.blocks, before.blocks.keys() - mine.keys())
            self._regain(node)
            return node

    def _log_changes(self, before: Mapping[str, Own], missing: Collection[str]) -> None:
        space = self.space
        for cidr, own in space.owned.items():
            if cidr not in before:
                self.log.info("cluster_block_found", space=space.name, block=cidr)
            elif cidr in missing:
                self.log.warning("cluster_block_regained", space=space.name, block=cidr)
            elif before[cidr].epoch != own.epoch:
                self.log.info("cluster_block_adopted", space=space.name, block=cidr, epoch=own.epoch)

    def _regain(self, node: Node) -> None:
        """Try to claim the lost blocks in which this node's pods still have addresses. If another node has such a
        block, log this only once."""
        space = self.space
        held = self.local.held_outside()
        self.conflicts = {cidr: who for cidr, who in self.conflicts.items() if cidr in held}
        for cidr, addresses in held.items():
            try:
                [block] = space.member.store.claim(node, [(space.name, cidr)])
            except Taken as e:
                self._note_conflict(cidr, e.by, addresses)
                continue
            self.local.add(block)
            self.conflicts.pop(cidr, None)
            self.log.warning("cluster_block_regained", space=space.name, block=cidr)
        self.local.forget_lost(held.keys())
        space.refresh()

    def _note_conflict(self, cidr: str, by: Block | IPClaim, addresses: Sequence[str]) -> None:
        who = f"node {by.node}, epoch {by.epoch}, since {by.since:.0f}" if by.node else "shared"
        if self.conflicts.get(cidr) != who:
            self.conflicts[cidr] = who
            self.log.error("cluster_block_lost", space=self.space.name, block=cidr, by=who,
                           addresses_in_use=few(addresses))


def same(state: State, node: Node, mine: Mapping[str, Block]) -> bool:
    """Return whether the local state agrees with this node and its blocks in the store."""
    return ((state.epoch, state.boot) == (node.epoch, node.boot_id)
            and all(block.state == ACTIVE for block in mine.values())
            and {own.cidr: own.epoch for own in state.blocks.values()} == {
                block.cidr: block.epoch for block in mine.values()})
