"""Log when the addresses of a range run out: once when pods hold more than WARN of them, and once when pods hold less
than CLEAR.

Cluster-wide ranges have their own event, cluster_range_full, because a node claims a further block when it needs one.
"""

from __future__ import annotations

from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.daemon.log import Logger
    from fastcni.server.metrics.pools import Counted

WARN, CLEAR = 0.9, 0.8          # shares of a range's addresses that pods hold
PERIOD_S = 60.0                 # seconds between two counts
HOST_LOCAL = "host-local"


class PoolWatch:
    """The periodic check. count(): counts all ranges. defer(fn): runs fn in another thread, because a count
    lists directories."""

    def __init__(self, count: Callable[[], Counted], defer: Callable[[Callable[[], None]], object],
                 log: Logger) -> None:
        self.count, self.defer, self.log = count, defer, log
        self.due, self.running = monotonic() + PERIOD_S, False
        self.full: set[tuple[str, str]] = set()         # (network, range) of the nearly full ranges

    def poll(self) -> None:
        """Begin a count if the next count is due. Never blocks."""
        if monotonic() >= self.due and not self.running:
            self.due, self.running = monotonic() + PERIOD_S, True
            self.defer(self._work)

    def _work(self) -> None:
        try:
            self.check(self.count())
        except Exception:               # a defect of fastcni; the next count may succeed
            self.log.exception("server_fault")
        finally:
            self.running = False

    def check(self, counted: Counted) -> None:
        """Compare a count with the previous count, and log changes."""
        pools = {(it.network, it.range): it for it in counted.pools if it.ipam == HOST_LOCAL and it.free is not None}
        self.full &= pools.keys()
        for key, pool in pools.items():
            free = pool.free or 0
            size, values = pool.held + free, {"network": pool.network, "range": pool.range, "held": pool.held,
                                              "free": free}
            if key not in self.full and pool.held > WARN * size:
                self.full.add(key)
                self.log.warning("pool_nearly_full", **values)
            elif key in self.full and pool.held < CLEAR * size:
                self.full.remove(key)
                self.log.info("pool_recovered", **values)
