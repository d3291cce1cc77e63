"""Nodes of the cluster that give no sign of life: declared dead after a time of grace, forgotten when they are gone.

Each server does this for all other nodes. The store compares and writes in one step, so two servers that do it at once
disturb nothing. The time is this server's own monotonic clock, from when it saw the node LOST, and begins anew when the
store was away: nodes could not give signs of life then either.
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

CROWD = 50                      # with more nodes, each looks less often: one look in a little more than a second in all


class LostNodes:
    """The other nodes of one store, as this server sees them.

    since: {(name, epoch, state): the monotonic time when it was seen so}; of LOST and DEAD nodes. reclaim_after_s: how
    long a node is DEAD until it is forgotten; 0: only if the store knows that it is gone.
    """

    def __init__(self, me: str, times: Times, log: Logger) -> None:
        self.me, self.times, self.log = me, times, log
        self.since: dict[tuple[str, int, str], float] = {}
        self.reclaim_after_s = 0.0

    def reset(self) -> None:
        """Forget what was seen: the store was away, or has other data."""
        self.since.clear()

    def first(self, now: float) -> float:
        """When to look for the first time."""
        return now + self.times.nodes_s * random()

    def look(self, store: Store, now: float) -> float:
        """Look at all nodes, and do what is due. Return when to look again. Raises Away."""
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
                store.declare_dead(node)        # a server that began it was killed
            elif node.state == DEAD and (why := self._why_gone(store, node, seconds)):
                store.forget(node)
                self.log.warning("cluster_node_forgotten", node=node.name, why=why, blocks="free")
        except Changed:
            return                      # it has come back, or another server was faster

    def _why_gone(self, store: Store, node: Node, seconds: float) -> str:
        """Why no pod of a dead node runs any more, "" if one may."""
        if store.node_gone(node.name):
            return f"{store.name} has no such node any more"
        limit = self.reclaim_after_s
        return f"dead for {limit:g} s" if 0 < limit <= seconds else ""


def key_of(node: Node) -> tuple[str, int, str]:
    return node.name, node.epoch, node.state


