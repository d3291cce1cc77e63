"""Restore firewall state that another program has flushed. One thread does this for all network namespaces, and sleeps
until nftables sends a notification.

The thread restores fastcni's own tables from a copy (table_mirror.py). It restores the pods' state in iptables and
firewalld by a replay from the runtimes' result caches (replay.py). restore_states.py has the states of both.
"""

from __future__ import annotations

import select
from errno import EACCES, EINVAL, EOPNOTSUPP, EPERM, EPROTONOSUPPORT
from math import inf
from threading import Lock, Thread
from time import monotonic, sleep

from fastcni.daemon.background import start_thread
from fastcni.daemon.wakeup import Wakeup
from fastcni.kernel import netns
from fastcni.server.restoring.namespace_watch import NamespaceWatch, NoWatch
from fastcni.server.restoring.replay import name_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.daemon.log import Logger
    from fastcni.server.restoring.drop_watch import Drops
    from fastcni.server.restoring.replay import Run

# Seconds in which the thread collects notifications before it reads them, so that it does not run during an ADD
GATHER_S = 0.02
NOTHING_TO_WATCH = (EACCES, EPERM, EINVAL, EOPNOTSUPP, EPROTONOSUPPORT)     # no permission or no nf_tables


class Restoring:
    """The thread that restores, and the watched namespaces.

    replay(deleted_at): restores the pods' rules in the calling thread's namespace, and returns a
    runtime.restore.Restored; None: this server replays nothing. deleted_at: see NamespaceWatch.deleted_at(). drops: see
    DropWatch.
    """

    def __init__(self, log: Logger, replay: Run | None = None, drops: Drops | None = None) -> None:
        self.log, self.replay, self.drops = log, replay, drops
        self.watches: dict[int, NamespaceWatch] = {}     # {descriptor: its watch}
        self.lock, self.stopping = Lock(), False
        # Counts for the metrics, over all namespaces: restored tables, restored elements, and replays by outcome
        self.restores, self.elements, self.replays = 0, 0, {"done": 0, "failed": 0}
        self.poll, self.wakeup = select.epoll(), Wakeup()
        self.poll.register(self.wakeup, select.EPOLLIN)
        self.thread = Thread(target=self._work, name="restoring", daemon=True)

    def start(self) -> None:
        """Start the thread if it does not run. Call start() periodically, because Python cannot always start a
        thread."""
        if not self.thread.is_alive():
            start_thread(self.thread, self.log)

    def stop(self) -> None:
        self.stopping = True
        self.wakeup.wake()
        if self.thread.is_alive():
            self.thread.join()

    def watch(self, home: int, *, at_start: bool = False) -> NamespaceWatch | NoWatch:
        """Watch the namespace of the calling thread, and return its NamespaceWatch. home: a descriptor of the
        namespace. Raises OSError.

        at_start: replay once, because rules may have been flushed while no server ran.
        """
        try:
            it = NamespaceWatch(home, self, at_start)
        except OSError as e:
            if e.errno not in NOTHING_TO_WATCH:
                raise
            self.log.warning("watch_unavailable", netns=netns.identity(home)[1], error=str(e))
            return NoWatch()
        fd = it.sock.fileno()
        with self.lock:
            self.watches[fd] = it
        for each in it.fds:
            self.poll.register(each, select.EPOLLIN)
        self.attend_soon(it)                    # so that the thread reads the existing tables
        return it

    def attend_soon(self, watch: NamespaceWatch) -> None:
        watch.due = 0.0
        self.wakeup.wake()

    def note_replay(self, outcome: str) -> None:
        """Count a replay: "done", or "failed" if a rule could not be restored."""
        with self.lock:
            self.replays[outcome] += 1

    def forget(self, watch: NamespaceWatch) -> None:
        with self.lock:
            del self.watches[watch.sock.fileno()]

    def _work(self) -> None:
        name_thread()
        while not self.stopping:
            ready = {fd for fd, _ in self.poll.poll(self._next_due())}
            now = monotonic()
            if self.wakeup.fd in ready:
                self.wakeup.clear()
            sleep(GATHER_S)
            with self.lock:
                some = [it for it in self.watches.values()
                        if it.fds & ready or it.due <= now]
            for it in some:
                self._attend(it, now)

    def _next_due(self) -> float:
        """Return the seconds until a watch has work to do; -1: no work before the next notification."""
        with self.lock:
            due = min([it.due for it in self.watches.values()], default=inf)
        return -1 if due == inf else max(0.0, due - monotonic())

    def _attend(self, watch: NamespaceWatch, started: float) -> None:
        try:
            watch.attend(started)
        except Exception:
            watch.fault()
            self.log.exception("server_fault")
