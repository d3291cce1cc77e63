"""Collect the data for the document of summary.py: the server's status and history, and counts of this node's files."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fastcni.node.activity import summary
from fastcni.server.metrics.pools import COUNT_S, Counted, cluster_pools


class Source:
    """The data of `fastcni top` and the status page. describe(): returns the server's status document. ask(after):
    returns the answer of the server's history; None if the server keeps no history. count(): see
    node/activity/pools.py."""

    def __init__(self, describe: Callable[[], dict[str, Any]], ask: Callable[[int], dict[str, Any]] | None,
                 count: Callable[[], Counted]) -> None:
        self.describe, self.count = describe, count
        self.recent, self.counted = summary.Recent(ask) if ask else None, Counted()
        self.server: dict[str, Any] = {}
        self.now = time.time()

    def poll(self) -> None:
        """Read new data. Raises the exceptions of describe() and ask()."""
        self.server = self.describe()
        if self.recent:
            self.recent.poll(time.time())
        self.now = time.time()
        if not self.counted.moment or time.monotonic() - self.counted.moment > COUNT_S:
            self.counted = self.count()

    def view(self) -> tuple[summary.Sample, summary.Node]:
        """Return the sample and the node from which document() makes its result. A later poll() does not change
        them."""
        pools = (*self.counted.pools, *cluster_pools(self.server.get("cluster", ())))
        sample = self.recent.sample(self.now) if self.recent else summary.Sample((), self.now, self.now)
        return sample, summary.Node(self.server, pools, self.counted.attachments)

    def document(self, chosen: str) -> dict[str, Any]:
        return summary.document(*self.view(), chosen)
