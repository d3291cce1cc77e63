"""Watch one store of cluster-wide addresses in a thread, and pass the changes to the thread of upkeep.py."""

from __future__ import annotations

from collections import deque
from threading import Event, Thread

from fastcni.clients.errors import Away
from fastcni.daemon.background import start_thread
from fastcni.server.cluster.times import spread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.daemon.log import Logger
    from fastcni.kit.ipam.cluster import contract
    from fastcni.server.cluster.times import Times


class ClusterWatch:
    """The watch of one store. wanted(event): returns whether to pass on a change; called in the watch's thread for the
    changes of the whole cluster. wake(): called after each change that is passed on.

    changes: the changes that the next take() returns.
    """

    def __init__(self, store: contract.Store, wanted: Callable[[contract.Event], bool], wake: Callable[[], object],
                 times: Times, log: Logger) -> None:
        self.store, self.wanted, self.wake, self.times, self.log = store, wanted, wake, times, log
        self.changes: deque[contract.Event] = deque()
        self.ended = Event()
        self.thread: Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs. Call start() periodically, because Python cannot always start a thread."""
        if self.thread and self.thread.is_alive():
            return
        thread = Thread(target=self._work, name=f"watch-{self.store.name}", daemon=True)
        self.thread = thread if start_thread(thread, self.log) else None

    def stop(self) -> None:
        """End the thread within a second; see join()."""
        self.ended.set()

    def join(self, seconds: float) -> None:
        if self.thread:
            self.thread.join(max(0.0, seconds))

    def take(self) -> list[contract.Event]:
        """Return the changes since the last call."""
        return [self.changes.popleft() for _ in range(len(self.changes))]

    def _work(self) -> None:
        pause = 0.0
        while not self.ended.wait(spread(pause)):
            try:
                self.store.watch(self._note, self.ended.is_set)
                pause = 0.0
            except Away as e:
                if not pause:           # log a lost connection once, until the watch has connected again
                    self.log.info("cluster_watch_lost", store=self.store.name, why=str(e))
                pause = min(max(2 * pause, self.times.away_s), self.times.max_away_s)
            except Exception:
                self.log.exception("server_fault")
                pause = self.times.max_away_s

    def _note(self, event: contract.Event) -> None:
        if self.wanted(event):
            self.changes.append(event)
            self.wake()
