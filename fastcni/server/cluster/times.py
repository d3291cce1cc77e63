"""Define how often the server does each work on cluster-wide addresses. All times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import random

from fastcni.kit.ipam.cluster.contract import NODE_TTL_S
from fastcni.kit.ipam.cluster.hold import PAUSE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

NEVER = float("inf")
KUBERNETES_WRITE_S = 5.0        # write_s with an API server, whose etcd has other users, too


@dataclass(frozen=True, slots=True)
class Times:
    """The times of the work, in seconds.

    gather_s        the thread handles the requests of this time together, so that a request need not share its
                    processor with the thread
    confirm_s       between two heartbeats; far below NODE_TTL_S
    list_s          between two comparisons of this node's blocks and IP claims with the store
    write_s         between two writes of uses; after write_changes changed addresses the next write begins immediately
    idle_s          how long a block must be without a pod before it may be returned
    reconcile_s     between two searches for pods that no longer exist
    apart_s         between the two checks of a search
    nodes_s         between two checks of the cluster's nodes, if the cluster has at most lost.CROWD nodes
    grace_s         how long a node must be LOST before it is declared dead
    restored_s      how long nodes claim no block after the store was restored from a backup; at least hold.PAUSE_S
    away_s, max_away_s   the first and the longest pause after the store could not be reached
    stop_s          how long stop() waits for the thread
    """

    gather_s: float = 0.02
    confirm_s: float = 20.0
    list_s: float = 300.0
    write_s: float = 0.2
    write_changes: int = 64
    idle_s: float = 600.0
    reconcile_s: float = 60.0
    apart_s: float = 30.0
    nodes_s: float = 60.0
    grace_s: float = 600.0
    restored_s: float = PAUSE_S
    away_s: float = 1.0
    max_away_s: float = 20.0
    stop_s: float = 5.0

    def with_settings(self, settings: Mapping[str, Any]) -> Times:
        """Return a copy with the times of a store's configuration: the keys node_ttl and dead_after, see
        kit/ipam/cluster/stores/__init__.py."""
        ttl = settings.get("node_ttl", NODE_TTL_S)
        own = {"grace_s": settings.get("dead_after", self.grace_s), "confirm_s": min(self.confirm_s, ttl / 3),
               "nodes_s": min(self.nodes_s, ttl), "restored_s": max(self.restored_s, ttl)}
        if settings.get("type") == "kubernetes":
            own["write_s"] = max(self.write_s, KUBERNETES_WRITE_S)
        return replace(self, **own)


class Job:
    """A periodic job. run(now) does the work, and returns when to run again, in monotonic seconds. due: when to call
    run(). remote: whether the job contacts the store."""

    __slots__ = ("run", "due", "remote")

    def __init__(self, run: Callable[[float], float], due: float = NEVER, *, remote: bool = True) -> None:
        self.run, self.due, self.remote = run, due, remote


def spread(seconds: float) -> float:
    """Return a random time near `seconds`, so that nodes that start together do not contact the store together."""
    return seconds * (0.9 + 0.2 * random())
