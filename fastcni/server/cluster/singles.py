"""Maintain the address claims (class Single) in this node's blocks: fixed addresses, and sticky addresses of pods.

Another node asks for an address by a claim in state ASKED. This node answers: it takes the address out of its block and
sets the claim to HELD. If one of this node's pods has the address, this node sets the claim to REFUSED, with the holder
as reason. For each claim that is HELD, or KEPT for a pod that comes again, this node has an address file, so that no
ADD allocates the address. The node removes the file when the claim no longer exists.
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
    """The address claims in this node's blocks of one address space. any: whether pods of this node have claims, in
    blocks of any node."""

    def __init__(self, space: ClusterSpace) -> None:
        self.space, self.local, self.any = space, space.local, False
        self.changed: dict[str, tuple[Single, bool]] = {}           # {address: (claim, whether it was deleted)}
        self.stale: set[str] = set()        # addresses whose file had no claim at the last check
        self.conflicts: set[str] = set()
        self.attend_job, self.list_job = Job(self._attend), Job(self._list, 0.0 if space.owned else NEVER)
        self.jobs = [self.attend_job, self.list_job]

    def note(self, single: Single, gone: bool) -> None:
        """Record a change of an address claim that the watch has seen."""
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
            # Only now: if the store was unavailable, this thread tries the change again. A newer change stays.
            if self.changed.get(address) is change:
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
        """Make the file of an address that was imported from another IPAM. If the address is from before the reboot,
        release it."""
        if single.since < time.time() - time.clock_gettime(time.CLOCK_BOOTTIME):
            self.space.member.store.release_single(single)
        elif self._is_current(single) and self.local.take_imported(single) and not self._is_current(single):
            self._end_mirror(single.address)            # a DEL has released the address in between

    def _is_current(self, single: Single) -> bool:
        """Return whether the store still has exactly this claim, because an event of the watch may be old."""
        return self.space.member.store.single(single.space, single.address) == single

    def _answer(self, single: Single) -> None:
        """Answer the node that asks for an address by the claim `single`."""
        space = self.space
        answer = upkeep.answer_asked(space.member.store, self.local.keys, self.local.warn, single)
        if answer is not None:              # None: the node no longer asks
            space.log.info("cluster_address_asked", space=space.name, address=single.address, node=single.node,
                           answer=answer.state, holder=answer.reason)

    def _end_mirror(self, address: str) -> None:
        """Remove the file that held an address for a claim, unless the store has a claim for the address again."""
        space = self.space
        if not upkeep.is_complete(space.member.store, self.local.keys, self.local.warn):
            return
        now = space.member.store.single(space.name, address)
        if now is None or now.state == REFUSED:
            self.local.forget_single(address)
            self.conflicts.discard(address)

    def _list(self, now: float) -> float:
        """Compare all claims of this node's blocks with the address files, because the watch may have missed
        changes."""
        space = self.space
        if not space.owned:
            return NEVER
        found = {one.address: one for one in space.member.store.singles(space=space.name)
                 if one.block in space.owned or one.node == space.member.name}
        self.any = any(one.node == space.member.name for one in found.values())
        self.conflicts &= found.keys()
        for single in found.values():
            self._attend_one(single)
            # A request makes the file before the claim in the store, so a file without a claim is stale only at the
            # second check
        stale = {address for address in self.local.singles() if address not in found}
        for address in stale & self.stale:
            self._end_mirror(address)
        self.stale = stale
        return now + (spread(space.times.apart_s) if stale else spread(space.times.list_s))
