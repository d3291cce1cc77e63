"""The blocks of a space in the store: claimed, compared with the local state, and given back.

Under the claim lock no request of this node claims a block; see kit/ipam/cluster/claims.py.
"""

from __future__ import annotations

from fastcni.kit.ipam.cluster import claims, singles
from fastcni.kit.ipam.cluster.contract import Taken
from fastcni.kit.ipam.cluster.released import boottime
from fastcni.server.log import few

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from fastcni.kit.ipam.cluster.contract import Block
    from fastcni.kit.ipam.cluster.grid import Range
    from fastcni.server.cluster_space import ClusterSpace


class Blocks:
    """conflicts: {cidr: who has it}, blocks of others in which this node's pods have addresses; each is logged once."""

    def __init__(self, space: ClusterSpace) -> None:
        self.space, self.local, self.log = space, space.local, space.log
        self.conflicts: dict[str, str] = {}

    def _lock(self):
        return claims.ClaimLock(self.local.keys)

    def claim_next(self, one: Range) -> str | None:
        """Claim a block of a range. Return its cidr, "" if none is free, None if this is not the time. Raises as a
        store, CniError."""
        space = self.space
        if space.state.hold > boottime():
            return None
        with self._lock():
            me = claims.ready(space.member.store, self.local.keys, self.local.warn, [one])
            space.refresh()
            if one.is_tiny(space.state.grid[one.family]) or not space.is_scarce(one):
                return None                     # a request has claimed one meanwhile
            before = set(space.owned)
            full = claims.claim_for(space.member.store, me, self.local.keys, [one], self.local.warn)
            space.refresh()
        return "" if full else ", ".join(set(space.owned) - before) or None

    def compare(self, mine: Collection[str]) -> bool:
        """Compare this node's blocks in the store, `mine`, with those of the local state, and claim again what is
        missing there. Return whether all is as it was, or another's for good. Raises as a store, CniError."""
        space = self.space
        with self._lock():
            space.refresh()
            before = space.state
            if not before.node:
                return True
            missing = before.blocks.keys() - mine
            space.member.node = claims.rejoin(space.member.store, self.local.keys, self.local.warn)
            space.refresh()
            self._log_changes(before.blocks, missing)
            return self._regain(space.member.node)

    def _log_changes(self, before, missing):
        space = self.space
        for cidr, own in space.owned.items():
            if cidr not in before:
                self.log.info("cluster_block_found", space=space.name, block=cidr)
            elif cidr in missing:
                self.log.warning("cluster_block_regained", space=space.name, block=cidr)
            elif before[cidr].epoch != own.epoch:
                self.log.info("cluster_block_adopted", space=space.name, block=cidr, epoch=own.epoch)

    def _regain(self, node):
        """Claim blocks that another had before, as long as this node's pods have addresses of them."""
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
        return not self.conflicts

    def _note_conflict(self, cidr, by, addresses):
        who = f"node {by.node}, epoch {by.epoch}, since {by.since:.0f}" if by.node else "shared"
        if self.conflicts.get(cidr) != who:
            self.conflicts[cidr] = who
            self.log.error("cluster_block_lost", space=self.space.name, block=cidr, by=who,
                           addresses_in_use=few(addresses))

    def give_back(self, cidr: str, cool_down: float) -> bool:
        """Give an idle block back: first no request gives an address of it any more, then the store has it. If that
        fails, compare() makes it stock again. Raises as a store, CniError."""
        space = self.space
        with self._lock():
            block, returned = self._stored(cidr), False
            if block is None or not self.local.drop_idle(cidr, cool_down):
                return False
            try:
                returned = space.member.store.give_back(block)
            finally:
                if not returned:
                    space.member.compare.due = 0.0
        return returned

    def _stored(self, cidr) -> Block | None:
        space = self.space
        mine = space.member.store.blocks(space.name, space.member.name)
        return next((block for block in mine if block.cidr == cidr), None)

    def finish_later(self) -> None:
        """Release the Singles that a DEL could not release. Raises as a store, CniError."""
        with self._lock():
            singles.finish_later(self.space.member.store, self.local.keys, self.local.warn)
        self.space.refresh()
