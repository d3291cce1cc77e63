"""This node in one store of cluster-wide addresses: its signs of life, and whether its blocks are still its own.

    confirm   a sign of life, while a space here has a block
    compare   this node's blocks in the store with those that its local state has: at the first contact, when the node
              was declared dead, forgotten or the store restored, after a change that the watch shows, and from time to
              time
    nodes     other nodes that give no sign of life, see lost.py

When the store is away, each of this waits; the work on local files goes on.
"""

from __future__ import annotations

from time import monotonic

from fastcni.clients.away import Away as StoreAway
from fastcni.daemon.log import RateLimited
from fastcni.kit.ipam.cluster import claims
from fastcni.kit.ipam.cluster.contract import Changed, Fenced, Node, Single
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


class Away:
    """since: when the store was first not reached, in monotonic seconds; None: it is not away. until: when to ask it
    again. why: what it said last."""

    def __init__(self, times: Times) -> None:
        self.times, self.until, self.pause, self.why = times, 0.0, 0.0, ""
        self.since: float | None = None

    def begin(self, now: float, why: str) -> bool:
        """Note that the store was not reached. Return whether that is new."""
        new, self.why = self.since is None, why
        self.since = now if self.since is None else self.since
        self.pause = min(max(2 * self.pause, self.times.away_s), self.times.max_away_s)
        self.until = now + spread(self.pause)
        return new

    def end(self, now: float) -> float | None:
        """Note that the store answered. Return for how long it was away, None if it was not."""
        since, self.since, self.pause, self.until = self.since, None, 0.0, 0.0
        return None if since is None else now - since


class Member:
    """store: open. name: of this node. wake(): ends the wait of the thread that calls run(). All but the watch's part
    is for that thread."""

    def __init__(self, store: contract.Store, name: str, times: Times, log: Logger, wake: Callable[[], object]) -> None:
        self.store, self.name, self.times, self.log = store, name, times, log
        self.node: Node | None = None
        self.history: tuple[str, int] | None = None
        self.forgotten = False              # since the last compare
        self.restored = False               # since the last compare
        self.restored_until = 0.0           # no block is claimed until then, in monotonic seconds
        self.spaces: dict[tuple[str, str], ClusterSpace] = {}
        self.own: frozenset[tuple[str, str]] = frozenset()          # (space, cidr) of this node's blocks
        self.away, self.failed = Away(times), RateLimited(log.warning)
        self.lost = LostNodes(name, times, log)
        self.watch = ClusterWatch(store, self._wanted, wake, times, log)
        now = monotonic()
        self.confirm, self.compare = Job(self._confirm, NEVER), Job(self._compare, NEVER)
        self.nodes = Job(self._look_at_nodes, self.lost.first(now))
        self.jobs = [self.confirm, self.compare, self.nodes]

    def add(self, space: ClusterSpace) -> None:
        """Look after a space of this store, too."""
        self.spaces[space.data_dir, space.name] = space
        self.jobs += space.jobs
        if self.history is None and space.state.history[0]:
            self.history = space.state.history
        self.confirm.due = 0.0

    def due(self) -> float:
        """When to call run(), in monotonic seconds."""
        return min(max(job.due, self.away.until) if job.remote else job.due for job in self.jobs)

    def run(self, now: float) -> None:
        """Do what is due."""
        for event in self.watch.take():
            self._note_change(event)
        for job in self.jobs:
            if job.due <= now and not (job.remote and now < self.away.until):
                self._run(job, now)

    def _run(self, job: Job, now: float) -> None:
        job.due = NEVER                     # what the job does may make it due again
        again = now + spread(self.times.max_away_s)             # if it fails
        try:
            again = job.run(now)
            if job.remote:
                self._note_answer(monotonic())
        except StoreAway as e:
            again = now                     # when the pause is over
            self.note_away(e)
        except (Fenced, Changed) as e:      # of this node, or of its blocks
            again = self.confirm.due = self.compare.due = now + spread(self.times.away_s)
            self.failed("cluster_changed", store=self.store.name, why=f"{type(e).__name__}: {e}")
        except (CniError, ImportError, OSError) as e:       # ImportError: the store's client is not installed
            self.failed("cluster_failed", store=self.store.name, error=str(e))
        except Exception:
            self.log.exception("server_fault")
        job.due = min(job.due, again)

    # The store is away or back

    def note_away(self, error: StoreAway) -> None:
        self.lost.reset()
        if self.away.begin(monotonic(), str(error)):
            self.log.warning("cluster_store_away", store=self.store.name, why=str(error),
                             blocks=len(self.own), pause_s=round(self.away.pause, 1))

    def _note_answer(self, now: float) -> None:
        if (seconds := self.away.end(now)) is not None:
            self.log.info("cluster_store_back", store=self.store.name, away_s=round(seconds, 1))
            self.confirm.due = self.compare.due = now

    # Signs of life

    def _confirm(self, now: float) -> float:
        if not any(space.needs_node for space in self.spaces.values()):
            return NEVER                    # wake() begins again
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
        elif not self.restored:             # else compare notes it, when it has seen what was lost
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
        """Notice a store that was restored from a backup, or replaced by another one."""
        history, former = self.store.history(), self.history
        self.history = history
        if former is not None and claims.restored(former, history):
            self._note_restored(now, f"revision {history[1]} of {history[0]} after {former[1]} of {former[0]}")

    def _note_restored(self, now: float, why: str) -> None:
        """The store has lost records: claim no block for a while, in which each node claims its own blocks again."""
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
            return NEVER                    # confirm begins it
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
        """Note which blocks are this node's now, for the watch and the signs of life."""
        self.own = frozenset((space.name, cidr) for space in self.spaces.values() for cidr in space.owned)
        self.wake()

    def wake(self) -> None:
        """Give signs of life, if that is needed."""
        if self.confirm.due == NEVER:
            self.confirm.due = 0.0

    def _look_at_nodes(self, now: float) -> float:
        if self.node is None:
            return now + spread(self.times.nodes_s)
        after = [keys.reclaim_after for space in self.spaces.values() for keys in space.networks.values()]
        self.lost.reclaim_after_s = max(after) if after and all(after) else 0.0     # 0: never
        return self.lost.look(self.store, now)

    # What the watch shows

    def _wanted(self, event: contract.Event) -> bool:
        """Is a change of the store about this node? Called in the watch's thread."""
        record = event.record
        if isinstance(record, Node):
            return record.name == self.name
        if isinstance(record, Single):
            return (record.space, record.block) in self.own or record.node == self.name
        return (record.space, record.cidr) in self.own and (event.gone or record.node != self.name)

    def _note_change(self, event: contract.Event) -> None:
        record, now = event.record, monotonic()
        if isinstance(record, Node):
            if self.node and (event.gone or record.epoch != self.node.epoch):
                self.confirm.due = now
        elif isinstance(record, Single):
            for space in self.spaces.values():
                if space.name == record.space:
                    space.singles.note(record, event.gone)
        else:
            self.compare.due = now

    # The end, and other threads

    def stop(self) -> None:
        """Let the watch end. For any thread."""
        self.watch.stop()

    def finish(self) -> None:
        """Write what the store has not, if it is there."""
        now = monotonic()
        for space in self.spaces.values():
            if self.away.since is None and space.dirty:
                self._run(space.write_job, now)

    def status(self, now: float) -> dict[str, object]:
        """The part of the status document about this store. For any thread."""
        found = {"store": self.store.name, "node": self.name, "epoch": self.node.epoch if self.node else 0,
                 "spaces": [space.status() for space in list(self.spaces.values())]}
        if self.away.since is not None:
            found |= {"awaySeconds": round(now - self.away.since, 1), "why": self.away.why}
        return found

