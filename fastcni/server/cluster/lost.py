"""Declare a node dead when its heartbeats have stopped for the grace period, and forget dead nodes that no longer
exist.

Each server does this for all other nodes. The store compares and writes in one step, so two servers can declare the
same node dead at the same time. A server measures the grace period by its own monotonic clock, from the moment when it
saw the node LOST. After the store was unavailable the period begins again, because nodes could not send heartbeats
either.
"""

from __future__ import annotations

from random import random

from fastcni.kit.ipam.cluster.contract import ACTIVE, DEAD, LOST, Changed
from fastcni.server.cluster.times import spread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.daemon.log import Logger
    from fastcni.kit.ipam.cluster.contract import Node, Store
    from fastcni.server.cluster.times import Times

CROWD = 50                      # with more nodes each server checks less often: all servers together once a second


class LostNodes:
    """The other nodes of one store, with the state that this server has seen.

    since: {(name, epoch, state): the monotonic time when the node was first seen in this state}, for LOST and DEAD
    nodes. reclaim_after_s: for how many seconds a node is DEAD before it is forgotten; 0: a node is forgotten only if
    the store knows that the node no longer exists.
    """

    def __init__(self, me: str, times: Times, log: Logger) -> None:
        self.me, self.times, self.log = me, times, log
        self.since: dict[tuple[str, int, str], float] = {}
        self.reclaim_after_s = 0.0

    def reset(self) -> None:
        """Forget the states of nodes that this server has seen, because the store was unavailable or has other data."""
        self.since.clear()

    def first(self, now: float) -> float:
        """Return when to check the nodes for the first time, in monotonic seconds."""
        return now + self.times.nodes_s * random()

    def look(self, store: Store, now: float) -> float:
        """Read all nodes. Declare LOST nodes dead after the grace period, and forget dead nodes that no longer exist.
        Return when to check again, in monotonic seconds. Raises Away."""
        nodes = [node for node in store.nodes() if node.name != self.me]
        seen = {key_of(node): node for node in nodes if node.state in (LOST, DEAD)}
        self.since = {key: self.since.get(key, now) for key in seen}
        for key, node in seen.items():
            self._attend(store, node, now - self.since[key])
        pause = spread(self.times.nodes_s * max(1.0, len(nodes) / CROWD))
        return min([now + pause, *(self.since[key] + self.times.grace_s for key, node in seen.items()
                                   if node.state == LOST and self.since[key] + self.times.grace_s > now)])

    def _attend(self, store: Store, node: Node, seconds: float) -> None:
        try:
            if node.state == LOST and seconds >= self.times.grace_s:
                dead = store.declare_dead(node)
                self.log.warning("cluster_node_dead", node=node.name, epoch=dead.epoch, lost_s=round(seconds, 1),
                                 blocks="quarantine")
            elif node.state == DEAD and not seconds and any(it.state == ACTIVE for it in store.blocks(node=node.name)):
                store.declare_dead(node)        # again, because a killed server may have left blocks ACTIVE
            elif node.state == DEAD and (why := self._why_gone(store, node, seconds)):
                store.forget(node)
                self.log.warning("cluster_node_forgotten", node=node.name, why=why, blocks="free")
        except Changed:
            return                      # the node is alive again, or another server was faster

    def _why_gone(self, store: Store, node: Node, seconds: float) -> str:
        """Return why no pod of a dead node runs any more, "" if a pod may still run."""
        if store.node_gone(node.name):
            return f"{store.name} has no such node any more"
        limit = self.reclaim_after_s
        return f"dead for {limit:g} s" if 0 < limit <= seconds else ""


def key_of(node: Node) -> tuple[str, int, str]:
    return node.name, node.epoch, node.state


