"""Represent this node in one store of cluster-wide addresses: send the node's heartbeats, and check that the node still
owns its blocks.

    confirm   sends a heartbeat, while an address space of this node has a block
    compare   compares this node's blocks in the store with its local state: at the first contact, when the node was
              declared dead or forgotten, when the store was restored, after a change that the watch shows, and
              periodically
    nodes     checks other nodes without heartbeats, see lost.py

While the store is unavailable, these jobs wait; the work on local files continues.
"""

from __future__ import annotations

from time import monotonic

from fastcni.clients.errors import Away
from fastcni.daemon.log import RateLimited
from fastcni.kit.ipam.cluster.contract import Changed, Fenced, IPClaim, Node, log_restored, restored
from fastcni.kit.ipam.store import boot_id
from fastcni.server.cluster.lost import LostNodes
from fastcni.server.cluster.times import NEVER, Job, spread
from fastcni.server.cluster.watch import ClusterWatch
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.daemon.log import Logger
    from fastcni.kit.ipam.cluster import contract
    from fastcni.server.cluster.space import ClusterSpace
    from fastcni.server.cluster.times import Times


class Availability:
    """The availability of the store. since: when the store first could not be reached, in monotonic seconds; None:
    the store is available. until: when to contact the store again. why: the last error."""

    def __init__(self, times: Times) -> None:
        self.times, self.until, self.pause, self.why = times, 0.0, 0.0, ""
        self.since: float | None = None

    def begin(self, now: float, why: str) -> bool:
        """Record that the store could not be reached. Return whether the store was available before."""
        new, self.why = self.since is None, why
        self.since = now if self.since is None else self.since
        self.pause = min(max(2 * self.pause, self.times.away_s), self.times.max_away_s)
        self.until = now + spread(self.pause)
        return new

    def end(self, now: float) -> float | None:
        """Record that the store answered. Return the seconds for which it was unavailable; None if it was available."""
        since, self.since, self.pause, self.until = self.since, None, 0.0, 0.0
        return None if since is None else now - since


class Member:
    """This node in one store. store: the open store. name: this node's name. wake(): ends the wait of the thread that
    calls run(). Only that thread may call the methods that do not name another thread."""

    def __init__(self, store: contract.Store, name: str, times: Times, log: Logger, wake: Callable[[], object]) -> None:
        self.store, self.name, self.times, self.log = store, name, times, log
        self.node: Node | None = None
        self.history: contract.History | None = None
        self.forgotten = False              # whether the store has forgotten the node since the last compare
        self.restored = False               # whether the store was restored since the last compare
        self.restored_until = 0.0           # until this time no block is claimed, in monotonic seconds
        self.spaces: dict[tuple[str, str], ClusterSpace] = {}
        self.own: frozenset[tuple[str, str]] = frozenset()          # (space, cidr) of this node's blocks
        self.away, self.failed = Availability(times), RateLimited(log.warning)
        self.lost = LostNodes(name, times, log)
        self.watch = ClusterWatch(store, self._wanted, wake, times, log)
        now = monotonic()
        self.confirm, self.compare = Job(self._confirm, NEVER), Job(self._compare, NEVER)
        self.nodes = Job(self._look_at_nodes, self.lost.first(now))
        self.jobs = [self.confirm, self.compare, self.nodes]

    def add(self, space: ClusterSpace) -> None:
        """Maintain one more address space of this store."""
        self.spaces[space.data_dir, space.name] = space
        self.jobs += space.jobs
        if self.history is None and space.state.history[0]:
            self.history = space.state.history
        self.confirm.due = 0.0

    def due(self) -> float:
        """Return when to call run(), in monotonic seconds."""
        return min(max(job.due, self.away.until) if job.remote else job.due for job in self.jobs)

    def run(self, now: float) -> None:
        """Handle the changes that the watch has seen, and run the jobs that are due."""
        for event in self.watch.take():
            self._note_change(event)
        for job in self.jobs:
            if job.due <= now and not (job.remote and now < self.away.until):
                self._run(job, now)

    def _run(self, job: Job, now: float) -> None:
        job.due = NEVER                     # the job may set its own `due`
        again = now + spread(self.times.max_away_s)             # the next try, if this try fails
        try:
            again = job.run(now)
            if job.remote:
                self._note_answer(monotonic())
        except Away as e:
            again = now                     # try again as soon as the pause `away` is over
            self.note_away(e)
        except (Fenced, Changed) as e:      # this node or its blocks have changed in the store
            again = self.confirm.due = self.compare.due = now + spread(self.times.away_s)
            self.failed("cluster_changed", store=self.store.name, why=f"{type(e).__name__}: {e}")
        except (CniError, ImportError, OSError) as e:       # ImportError: the store's client is not installed
            self.failed("cluster_failed", store=self.store.name, error=str(e))
        except Exception:
            self.log.exception("server_fault")
        job.due = min(job.due, again)

    # The store is unavailable or available again

    def note_away(self, error: Away) -> None:
        self.lost.reset()
        if self.away.begin(monotonic(), str(error)):
            self.log.warning("cluster_store_away", store=self.store.name, why=str(error),
                             blocks=len(self.own), pause_s=round(self.away.pause, 1))

    def _note_answer(self, now: float) -> None:
        if (seconds := self.away.end(now)) is not None:
            self.log.info("cluster_store_back", store=self.store.name, away_s=round(seconds, 1))
            self.confirm.due = self.compare.due = now

    # Heartbeats

    def _confirm(self, now: float) -> float:
        if not any(space.needs_node for space in self.spaces.values()):
            return NEVER                    # wake() makes this job due again
        self.watch.start()
        former = self.node
        try:
            self.node = self.store.keep_alive(former) if former else self._join()
        except Fenced:
            self.node = self._join()
        except Changed:
            self.node, self.forgotten = self._join(), True
        self._check_history(now)
        if former is None or self.forgotten or former.epoch != self.node.epoch:
            self._note_epoch(former)
            self.compare.due = now
        elif not self.restored:             # after a restore, _compare() records the history when it has compared
            self._note_confirmed()
        return now + spread(self.times.confirm_s)

    def _note_confirmed(self) -> None:
        assert self.node and self.history
        for space in self.spaces.values():
            space.local.note_node(self.node, self.history)

    def _join(self) -> Node:
        return self.store.join(self.name, boot_id().decode())

    def _note_epoch(self, former: Node | None) -> None:
        assert self.node
        known = max([space.state.epoch for space in self.spaces.values()] + [former.epoch if former else 0])
        if known and self.node.epoch > known:
            self.log.warning("cluster_node_returned", node=self.name, store=self.store.name, epoch=self.node.epoch,
                             why="the cluster had declared this node dead")
        elif self.forgotten or self.node.epoch < known:
            self.forgotten = True
            self.log.warning("cluster_node_returned", node=self.name, store=self.store.name, epoch=self.node.epoch,
                             why="the store had forgotten this node")

    def _check_history(self, now: float) -> None:
        """Check whether the store was restored from a backup, or replaced by another store."""
        former, history = self.history, self.store.history()
        if former is not None and restored(former, history):
            self._note_restored(now, f"revision {history[1]} of {history[0]} after {former[1]} of {former[0]}")
        elif former is not None and log_restored(former, self.store.log()):
            self._note_restored(now, f"its log is shorter than before, at revision {history[1]} of {history[0]}")
        self.history = self.store.history()             # its at_least comes from the last log()

    def _note_restored(self, now: float, why: str) -> None:
        """Handle a store that has lost records: claim no block for a pause in which each node claims its own blocks
        again."""
        self.log.error("cluster_store_restored", store=self.store.name, why=why, no_claims_s=self.times.restored_s)
        self.restored, self.restored_until = True, now + self.times.restored_s
        self.lost.reset()
        self.compare.due = now
        for space in self.spaces.values():
            space.local.stop_claims()

    # Own blocks

    def _compare(self, now: float) -> float:
        if self.node is None:
            self.confirm.due = now
            return NEVER                    # _confirm() makes this job due
        mine: dict[str, dict[str, contract.Block]] = {name: {} for name, _ in self.own}
        for block in self.store.blocks(node=self.name):
            mine.setdefault(block.space, {})[block.cidr] = block
        missing = [cidr for name, cidr in self.own if cidr not in mine[name]]
        if missing and not self.forgotten and now >= self.restored_until:
            self._note_restored(now, f"block {missing[0]} of this node is missing")
        for space in self.spaces.values():
            self.node = space.blocks.compare(self.node, mine.get(space.name, {}), self.restored)
        self.forgotten = self.restored = False
        self._note_confirmed()
        self.note_own()
        soon = now < self.restored_until or any(space.blocks.conflicts for space in self.spaces.values())
        return now + spread(self.times.confirm_s if soon else self.times.list_s)

    def note_own(self) -> None:
        """Record which blocks this node has now, for the watch and the heartbeats."""
        self.own = frozenset((space.name, cidr) for space in self.spaces.values() for cidr in space.owned)
        self.wake()

    def wake(self) -> None:
        """Begin to send heartbeats, if this node sends none."""
        if self.confirm.due == NEVER:
            self.confirm.due = 0.0

    def _look_at_nodes(self, now: float) -> float:
        if self.node is None:
            return now + spread(self.times.nodes_s)
        after = [keys.reclaim_after for space in self.spaces.values() for keys in space.networks.values()]
        self.lost.reclaim_after_s = max(after) if after and all(after) else 0.0     # 0: never
        return self.lost.look(self.store, now)

    # Changes that the watch sees

    def _wanted(self, event: contract.Event) -> bool:
        """Return whether a change of the store concerns this node. Called in the watch's thread."""
        record = event.record
        if isinstance(record, Node):
            return record.name == self.name
        if isinstance(record, IPClaim):
            return (record.space, record.block) in self.own or record.node == self.name
        return (record.space, record.cidr) in self.own and (event.gone or record.node != self.name)

    def _note_change(self, event: contract.Event) -> None:
        record, now = event.record, monotonic()
        if isinstance(record, Node):
            if self.node and (event.gone or record.epoch != self.node.epoch):
                self.confirm.due = now
        elif isinstance(record, IPClaim):
            for space in self.spaces.values():
                if space.name == record.space:
                    space.ip_claims.note(record, event.gone)
        else:
            self.compare.due = now

    # The end, and calls from other threads

    def finish(self) -> None:
        """Write the pending changes to the store, if it is available."""
        now = monotonic()
        for space in self.spaces.values():
            if self.away.since is None and space.dirty:
                self._run(space.write_job, now)

    def status(self, now: float) -> dict[str, object]:
        """Return the part of the status document about this store. Any thread may call this."""
        found = {"store": self.store.name, "node": self.name, "epoch": self.node.epoch if self.node else 0,
                 "spaces": [space.status() for space in list(self.spaces.values())]}
        if self.away.since is not None:
            found |= {"awaySeconds": round(now - self.away.since, 1), "why": self.away.why}
        return found

