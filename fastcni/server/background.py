"""Background threads, for work that no answer waits for."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Lock, Thread

from fastcni.kernel import netns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


CANNOT_START = (RuntimeError, MemoryError)      # of Thread.start(): pids.max; no memory


class Background:
    """background(fn, *args) runs fn(*args) in a background thread. Threads are started as they are needed, and kept.

    max_threads: if all of these are busy, the job waits for one. If no thread can be started at all, as with pids.max,
    the caller runs the job. home: a descriptor of the server's network namespace. The threads enter it: a new thread is
    in the namespace of the worker that starts it. If this is a pod's, the thread would keep it alive.
    """

    def __init__(self, max_threads: int, home: int) -> None:
        self.max_threads, self.home, self.size, self.free = max_threads, home, 0, 0
        self.jobs: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()
        self.lock = Lock()

    def __call__(self, fn: Callable[..., object], *args: Any) -> None:
        with self.lock:
            if self.free > 0:
                self.free -= 1
                here = False
            else:
                here = self.size < self.max_threads and not self._start_one()
        if here:
            run(fn, args)
        else:
            self.jobs.put((fn, args))

    def _start_one(self):
        """Start a thread. Return False if that is impossible."""
        try:
            Thread(target=self._work, name=f"background-{self.size + 1}", daemon=True).start()
        except CANNOT_START:
            return False
        self.size += 1
        return True

    def _work(self):
        self._enter_home()
        while True:
            run(*self.jobs.get())
            with self.lock:
                self.free += 1

    def _enter_home(self):
        """Enter the server's namespace. If that fails, the thread works nevertheless: its jobs are about open
        sockets."""
        try:
            netns.ensure(self.home)
        except netns.Lost:
            return


def run(fn: Callable[..., object], args: tuple[Any, ...]) -> None:
    try:
        fn(*args)
    except OSError:
        return                          # a job's socket was closed meanwhile
