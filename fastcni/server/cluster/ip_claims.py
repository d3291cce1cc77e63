"""Maintain the IP claims (class IPClaim) in this node's blocks: fixed addresses, and sticky addresses of pods.

Another node asks for an address by a claim in state ASKED. This node answers: it takes the address out of its block and
sets the claim to HELD. If one of this node's pods has the address, this node sets the claim to REFUSED, with the holder
as reason. For each claim that is HELD, or KEPT for a pod's next sandbox, this node has an address file, so that no ADD
allocates the address. The node removes the file when the claim no longer exists.
"""

from __future__ import annotations

from fastcni.kernel.presence import boot_began
from fastcni.kit.ipam.cluster import upkeep
from fastcni.kit.ipam.cluster.contract import ASKED, HELD, IMPORTED, KEPT, REFUSED
from fastcni.server.cluster.times import NEVER, Job, spread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kit.ipam.cluster.contract import IPClaim
    from fastcni.server.cluster.space import ClusterSpace


class IPClaims:
    """The IP claims in this node's blocks of one address space. any: whether pods of this node have claims, in
    blocks of any node."""

    def __init__(self, space: ClusterSpace) -> None:
        self.space, self.local, self.any = space, space.local, False
        self.changed: dict[str, tuple[IPClaim, bool]] = {}          # {address: (claim, whether it was deleted)}
        self.stale: set[str] = set()        # addresses whose file had no claim at the last check
        self.conflicts: set[str] = set()
        self.attend_job, self.list_job = Job(self._attend), Job(self._list, 0.0 if space.owned else NEVER)
        self.jobs = [self.attend_job, self.list_job]

    def note(self, ip_claim: IPClaim, gone: bool) -> None:
        """Record a change of an IP claim that the watch has seen."""
        self.changed[ip_claim.address] = ip_claim, gone
        self.attend_job.due = 0.0

    def _attend(self, now: float) -> float:
        while self.changed:
            address = next(iter(self.changed))
            change = ip_claim, gone = self.changed[address]
            if gone:
                self._end_mirror(ip_claim.address)
            else:
                self._attend_one(ip_claim)
            # Drop the change only after its work: if the store is unavailable, this thread tries again. A newer change
            # stays.
            if self.changed.get(address) is change:
                del self.changed[address]
        return NEVER

    def _attend_one(self, ip_claim: IPClaim) -> None:
        space = self.space
        self.any = self.any or ip_claim.node == space.member.name
        if ip_claim.network == IMPORTED and ip_claim.node == space.member.name and ip_claim.state == HELD:
            self._take_imported(ip_claim)
        if ip_claim.block not in space.owned:
            return
        if ip_claim.state == ASKED:
            self._answer(ip_claim)
        elif ip_claim.state in (HELD, KEPT):
            holder = self.local.take_ip_claim(ip_claim)
            if holder and ip_claim.address not in self.conflicts:
                self.conflicts.add(ip_claim.address)
                space.log.error("cluster_address_conflict", space=space.name, address=ip_claim.address,
                                held_by=holder, claimed_by=f"{ip_claim.container} {ip_claim.ifname}",
                                node=ip_claim.node)
            elif not holder:
                self.conflicts.discard(ip_claim.address)

    def _take_imported(self, ip_claim: IPClaim) -> None:
        """Make the file of an address that was imported from another IPAM. If the address is from before the reboot,
        release it."""
        if ip_claim.since < boot_began():
            self.space.member.store.release_ip_claim(ip_claim)
        elif self._is_current(ip_claim) and self.local.take_imported(ip_claim) and not self._is_current(ip_claim):
            self._end_mirror(ip_claim.address)          # a DEL has released the address in between

    def _is_current(self, ip_claim: IPClaim) -> bool:
        """Return whether the store still has exactly this claim, because an event of the watch may be old."""
        return self.space.member.store.ip_claim(ip_claim.space, ip_claim.address) == ip_claim

    def _answer(self, ip_claim: IPClaim) -> None:
        """Answer the node that asks for an address by the claim `ip_claim`."""
        space = self.space
        answer = upkeep.answer_asked(space.member.store, self.local.keys, self.local.warn, ip_claim)
        if answer is not None:              # None: the node no longer asks
            space.log.info("cluster_address_asked", space=space.name, address=ip_claim.address, node=ip_claim.node,
                           answer=answer.state, holder=answer.reason)

    def _end_mirror(self, address: str) -> None:
        """Remove the file that held an address for a claim, unless the store has a claim for the address again."""
        space = self.space
        if not upkeep.is_complete(space.member.store, self.local.keys, self.local.warn):
            return
        now = space.member.store.ip_claim(space.name, address)
        if now is None or now.state == REFUSED:
            self.local.forget_ip_claim(address)
            self.conflicts.discard(address)

    def _list(self, now: float) -> float:
        """Compare all claims of this node's blocks with the address files, because the watch may have missed
        changes."""
        space = self.space
        if not space.owned:
            return NEVER
        found = {one.address: one for one in space.member.store.ip_claims(space=space.name)
                 if one.block in space.owned or one.node == space.member.name}
        self.any = any(one.node == space.member.name for one in found.values())
        self.conflicts &= found.keys()
        for ip_claim in found.values():
            self._attend_one(ip_claim)
            # A request makes the file before the claim in the store, so a file without a claim is stale only at the
            # second check
        stale = {address for address in self.local.claimed_addresses() if address not in found}
        for address in stale & self.stale:
            self._end_mirror(address)
        self.stale = stale
        return now + (spread(space.times.apart_s) if stale else spread(space.times.list_s))
