"""Maintain one cluster-wide address space on this node: claim the next block ahead, return idle blocks, and write the
use of blocks to the store.

    prefetch   after a request: if less than a quarter of a range's addresses in this node's blocks is free, claim one
               more block
    write      after a request: write the use of the changed blocks, for many requests in one transaction
    idle       return a block without a pod, one at a time, while more than MAX_IDLE blocks have no pod
    later      release IP claims that a DEL could not release because the store was unavailable
    compare    compare this node's blocks in the store with those of the local state, see blocks.py
    ip_claims  maintain IP claims, see ip_claims.py
    reconcile  release addresses whose pods no longer exist, see reconcile.py
"""

from __future__ import annotations

from time import monotonic, time

from fastcni.daemon.log import few
from fastcni.kit.ipam.cluster import upkeep
from fastcni.kit.ipam.cluster.contract import Use
from fastcni.kit.ipam.cluster.upkeep import MAX_IDLE, spare
from fastcni.server.cluster.blocks import Blocks
from fastcni.server.cluster.ip_claims import IPClaims
from fastcni.server.cluster.local import LocalSpace
from fastcni.server.cluster.reconcile import Reconcile
from fastcni.server.cluster.times import NEVER, Job, spread
from fastcni.spec.address import read_ip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from fastcni.daemon.log import Logger
    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.kit.ipam.cluster.grid import Own
    from fastcni.kit.ipam.cluster.node_state import State
    from fastcni.kit.ipam.cluster.upkeep import Room
    from fastcni.server.cluster.member import Member
    from fastcni.server.cluster.pods import Pods
    from fastcni.server.cluster.times import Times

SHOWN = ("address", "container", "ifname", "pod", "network", "since")          # members of a holder, see contract.Use
FULL_PAUSE_S = 5.0              # seconds without a further try after a range had no free block


class ClusterSpace:
    """An address space, used by the thread of upkeep.py.

    name, data_dir  the space's name and directory; the state on this node is in data_dir/name
    networks        the Keys of its networks, by the texts of their ranges
    used            whether a request has used the space since the server started
    state           the local state as of the last count()
    until_scarce    how many addresses requests can allocate until the next count(). A count takes the directory's lock,
                    for which requests wait
    """

    def __init__(self, keys: Keys, pods: Pods, member: Member) -> None:
        self.name, self.data_dir, self.member = keys.space, keys.data_dir, member
        self.times: Times = member.times
        self.log: Logger = member.log
        self.local = LocalSpace(keys, self.log)
        self.networks: dict[tuple[str, ...], Keys] = {}
        self.note_network(keys)
        self.used = False
        self.full_until: dict[str, float] = {}
        self.count()
        # Blocks whose use is not in the store yet, the number of changed addresses, and {block: use in the store}
        self.dirty: set[str] = set(self.owned)
        self.changes = 0
        self.written: dict[str, list[dict[str, Any]]] = {}
        self.blocks, self.ip_claims, self.reconcile = Blocks(self), IPClaims(self), Reconcile(self, pods)
        first = 0.0 if self.owned else NEVER
        self.prefetch_job, self.write_job = Job(self._prefetch, first), Job(self._write, first)
        self.idle_job, self.later_job = Job(self._give_back_idle, first), Job(self._finish_later)
        self.jobs = [self.prefetch_job, self.write_job, self.idle_job, self.later_job,
                     *self.ip_claims.jobs, *self.reconcile.jobs]

    # Reading

    state: State
    until_scarce: int
    room: list[Room]
    idle: int                       # number of this node's blocks without an address in use

    @property
    def owned(self) -> dict[str, Own]:
        """Return this node's blocks of the space, {cidr: Own}."""
        return self.state.blocks

    @property
    def needs_node(self) -> bool:
        """Return whether this node must send heartbeats: it has a block or an IP claim, or a request used the
        space."""
        return bool(self.owned) or self.used or self.ip_claims.any

    def count(self) -> None:
        """Read the local state again, because one-shot requests change it, too. Raises CniError."""
        self.state, self.room, self.idle = self.local.count(self.networks.values())
        self.until_scarce = min((spare(size, free) for _, size, free in self.room), default=0)

    def note_network(self, keys: Keys) -> None:
        """Record the ranges of a configuration; configurations of DEL and GC have no ranges."""
        texts = tuple(map(str, getattr(keys, "ranges", ())))
        if texts and texts not in self.networks:
            self.until_scarce = 0
        if texts:
            self.networks[texts] = keys

    def note(self, keys: Keys, addresses: Iterable[bytes]) -> None:
        """Record that a request has given or released these addresses."""
        self.note_network(keys)
        self.used = True
        changed = list(addresses)
        self.until_scarce -= len(changed)
        if self.until_scarce <= 0 or not self.state.grid:
            self.refresh()
            self.prefetch_job.due = 0.0
        self._note_dirty(changed)
        self.idle_job.due = min(self.idle_job.due, monotonic() + self.times.idle_s / 10)

    def note_released(self, address: str) -> None:
        """Record that the server itself has released an address."""
        self.refresh()
        self._note_dirty([read_ip(address)])

    def _note_dirty(self, addresses: Iterable[bytes]) -> None:
        now = monotonic()
        for packed in addresses:
            self.dirty.add(self.local.block_of(self.state, packed))
            self.changes += 1
        self.write_job.due = min(self.write_job.due,
                                 now if self.changes >= self.times.write_changes else now + self.times.write_s)

    def refresh(self) -> None:
        """Read the local state again, and record the changes."""
        before = set(self.owned)
        self.count()
        if before != set(self.owned):
            self.member.note_own()
            self.ip_claims.list_job.due = 0.0       # a new block may already have IP claims
        if self.state.later:
            self.later_job.due = 0.0

    # Jobs

    def _prefetch(self, now: float) -> float:
        for texts, keys in self.networks.items():
            short = [text for text in texts if text in self.short() and now >= self.full_until.get(text, 0.0)]
            if short:
                self._claim(keys, short, now)
        return NEVER

    def _finish_later(self, now: float) -> float:
        upkeep.finish_later(self.member.store, self.local.keys, self.local.warn)
        self.refresh()
        self.later_job.due = NEVER
        return now + spread(self.times.confirm_s) if self.state.later else NEVER

    def short(self) -> set[str]:
        """Return the ranges with so few free addresses that this node needs another block."""
        return {str(one) for one, size, free in self.room if spare(size, free) < 0}

    def _claim(self, keys: Keys, ranges: Sequence[str], now: float) -> None:
        claimed = upkeep.claim_ahead(self.member.store, keys, self.local.warn)
        self.refresh()
        if claimed:
            self.log.info("cluster_block_claimed", space=self.name, block=", ".join(claimed), ranges=few(ranges))
        for text in self.short() & set(ranges):
            self.full_until[text] = now + FULL_PAUSE_S
            if self.state.hold is None:
                self.log.warning("cluster_range_full", space=self.name, range=text)

    def _write(self, now: float) -> float:
        """Write the use of the changed blocks to the store."""
        node, dirty = self.member.node, self.dirty & self.owned.keys()
        if node is None:
            return now + self.times.write_s if dirty else NEVER
        taken, self.dirty, self.changes = self.dirty, set(), 0          # later changes wait for the next write
        try:
            uses = [Use(self.name, cidr, node.name, node.epoch, node.boot_id, shown, time())
                    for cidr, holders in self.local.holders(dirty).items()
                    if self.written.get(cidr) != (shown := [{key: one[key] for key in SHOWN} for one in holders])]
            if uses:
                self.member.store.write_uses(node, uses)
        except BaseException:
            self.dirty |= taken
            raise
        self.written |= {use.cidr: use.holders for use in uses}
        return NEVER

    def _give_back_idle(self, now: float) -> float:
        idle_s = max([self.times.idle_s, *(keys.cool_down for keys in self.networks.values())])
        for cidr in upkeep.give_back_idle(self.member.store, self.local.keys, self.local.warn, idle_s):
            self.written.pop(cidr, None)
            self.log.info("cluster_block_returned", space=self.name, block=cidr, why="idle")
        self.refresh()
        return NEVER if self.idle <= MAX_IDLE else now + self.times.idle_s / 10

    def status(self) -> dict[str, Any]:
        """Return the space's part of the status document."""
        return {"space": self.name, "dataDir": self.data_dir, "blocks": len(self.owned),
                "idle": self.idle, "conflicts": sorted(self.blocks.conflicts),
                "ranges": [{"range": str(one), "free": free, "size": size} for one, size, free in self.room]}
