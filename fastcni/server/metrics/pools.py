"""Addresses and attachments, counted in a thread of its own: a scrape never waits long for a file system."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.server.background import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

COUNT_S = 15.0                  # seconds that a count is good for
WAIT_S = 1.0                    # that a scrape waits for a new one; then it gets the last one
MAX_POOLS = 1000                # ranges; further ones are left out
UNKNOWN = "none"                # the range of addresses that are in none


@dataclass(frozen=True, slots=True)
class Pool:
    """A range of addresses. ipam: "host-local" or "cluster". network: of cluster, the space. free: None if the range is
    not known."""

    ipam: str
    network: str
    range: str
    held: int
    free: int | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """attachments: {network: number}. moment: monotonic seconds."""

    pools: tuple[Pool, ...] = ()
    attachments: dict[str, int] = field(default_factory=dict)
    moment: float = 0.0


def cluster_pools(stores: Iterable[dict[str, Any]]) -> Iterator[Pool]:
    """The ranges of cluster-wide addresses. stores: a part of the status document, see server/status.py."""
    for store in stores:
        for space in store["spaces"]:
            for one in space["ranges"]:
                yield Pool("cluster", space["space"], one["range"], one["size"] - one["free"], one["free"])


class Counter:
    """count(): takes as long as the file system needs, returns a Counted; in a thread that is started for it."""

    def __init__(self, count: Callable[[], Counted], log: Any) -> None:
        self.count, self.log = count, log
        self.lock, self.ready = Lock(), Event()
        self.running, self.last = False, Counted()

    def recent(self) -> Counted:
        """Return the last count; a new one if that is old, and done within WAIT_S."""
        with self.lock:
            fresh = self.last.moment and monotonic() - self.last.moment < COUNT_S
            begin = not fresh and not self.running
            if begin:
                self.running = True
                self.ready.clear()
        if begin and not self._start():
            return self.last
        if not fresh:
            self.ready.wait(WAIT_S)
        return self.last

    def _start(self):
        if start_thread(Thread(target=self._work, name="metrics-count", daemon=True), self.log):
            return True
        self.running = False
        return False

    def _work(self):
        try:
            self.last = self.count()
        except Exception:               # a defect of fastcni: the scrape has the last values, and their age
            self.log.exception("server_fault")
        finally:
            self.running = False
            self.ready.set()
