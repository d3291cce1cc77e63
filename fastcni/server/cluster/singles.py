"""Addresses of this node's blocks that are claimed by themselves: fixed ones, and sticky ones of pods.

Another node asks for one by a Single that is ASKED. This node answers: it takes the address out of its block, then the
Single is HELD; if a pod of its own has the address, the Single is REFUSED, with the holder as reason. A Single that is
HELD or KEPT has an address file here, so that no ADD gives its address. The file goes when the Single is gone.
"""

from __future__ import annotations

import time

from fastcni.kit.ipam.cluster import upkeep
from fastcni.kit.ipam.cluster.contract import ASKED, HELD, IMPORTED, KEPT, REFUSED
from fastcni.server.cluster.times import NEVER, Job, spread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kit.ipam.cluster.contract import Single
    from fastcni.server.cluster.space import ClusterSpace


class Singles:
    """The Singles in this node's blocks of one space. any: pods of this node have Singles, in blocks of any node."""

    def __init__(self, space: ClusterSpace) -> None:
        self.space, self.local, self.any = space, space.local, False
        self.changed: dict[str, tuple[Single, bool]] = {}           # {address: (Single, is it gone?)}
        self.stale: set[str] = set()        # addresses whose file had no Single at the last look
        self.conflicts: set[str] = set()
        self.attend_job, self.list_job = Job(self._attend), Job(self._list, 0.0 if space.owned else NEVER)
        self.jobs = [self.attend_job, self.list_job]

    def note(self, single: Single, gone: bool) -> None:
        """The store shows a change."""
        self.changed[single.address] = single, gone
        self.attend_job.due = 0.0

    def _attend(self, now: float) -> float:
        while self.changed:
            address = next(iter(self.changed))
            change = single, gone = self.changed[address]
            if gone:
                self._end_mirror(single.address)
            else:
                self._attend_one(single)
            if self.changed.get(address) is change:         # not before: the store may be away
                del self.changed[address]
        return NEVER

    def _attend_one(self, single: Single) -> None:
        space = self.space
        self.any = self.any or single.node == space.member.name
        if single.network == IMPORTED and single.node == space.member.name and single.state == HELD:
            self._take_imported(single)
        if single.block not in space.owned:
            return
        if single.state == ASKED:
            self._answer(single)
        elif single.state in (HELD, KEPT):
            holder = self.local.take_single(single)
            if holder and single.address not in self.conflicts:
                self.conflicts.add(single.address)
                space.log.error("cluster_address_conflict", space=space.name, address=single.address,
                                held_by=holder, claimed_by=f"{single.container} {single.ifname}", node=single.node)
            elif not holder:
                self.conflicts.discard(single.address)

    def _take_imported(self, single: Single) -> None:
        """An address that was taken over from another IPAM gets its file. One of before the reboot is released."""
        if single.since < time.time() - time.clock_gettime(time.CLOCK_BOOTTIME):
            self.space.member.store.release_single(single)
        elif self._is_current(single) and self.local.take_imported(single) and not self._is_current(single):
            self._end_mirror(single.address)            # a DEL has released it in between

    def _is_current(self, single: Single) -> bool:
        """Whether the store still has this Single: an event may be an old one."""
        return self.space.member.store.single(single.space, single.address) == single

    def _answer(self, single: Single) -> None:
        """Answer the node that asks."""
        space = self.space
        answer = upkeep.answer_asked(space.member.store, self.local.keys, self.local.warn, single)
        if answer is not None:              # else it does not ask any more
            space.log.info("cluster_address_asked", space=space.name, address=single.address, node=single.node,
                           answer=answer.state, holder=answer.reason)

    def _end_mirror(self, address: str) -> None:
        """Remove the file of an address that was held for a Single, unless the store has one of it again."""
        space = self.space
        now = space.member.store.single(space.name, address)
        if now is None or now.state == REFUSED:
            self.local.forget_single(address)
            self.conflicts.discard(address)

    def _list(self, now: float) -> float:
        """Compare all Singles of this node's blocks with the files: the watch may have missed some."""
        space = self.space
        if not space.owned:
            return NEVER
        found = {one.address: one for one in space.member.store.singles(space=space.name)
                 if one.block in space.owned or one.node == space.member.name}
        self.any = any(one.node == space.member.name for one in found.values())
        for single in found.values():
            self._attend_one(single)
        # A request makes the file before the Single in the store: what is left over is so at two looks
        stale = {address for address in self.local.singles() if address not in found}
        for address in stale & self.stale:
            self._end_mirror(address)
        self.stale = stale
        return now + (spread(space.times.apart_s) if stale else spread(space.times.list_s))
