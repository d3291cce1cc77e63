"""Keep the latest value of a slow function. A thread calls the function, so that a caller gets an old value rather than
wait long for a file system."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock, Thread
from time import monotonic
from typing import Generic, TypeVar

from fastcni.daemon.background import start_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.daemon.log import Logger

Value = TypeVar("Value")
WAIT_S = 1.0                    # seconds that a caller waits for a new value before it gets the previous value


class Latest(Generic[Value]):
    """The latest value of make(), which may be slow and runs in a thread. first: the initial value. good_s: for how
    many seconds a value is valid. make() runs only after a call of get()."""

    def __init__(self, make: Callable[[], Value], first: Value, good_s: float, log: Logger, name: str) -> None:
        self.make, self.last, self.good_s, self.log, self.name = make, first, good_s, log, name
        self.lock, self.ready = Lock(), Event()
        self.running, self.made = False, 0.0

    def get(self) -> Value:
        """Return the last value. If that value is older than good_s, first wait up to WAIT_S for a new value."""
        with self.lock:
            fresh = self.made and monotonic() - self.made < self.good_s
            begin = not fresh and not self.running
            if begin:
                self.running = True
                self.ready.clear()
        if begin and not start_thread(Thread(target=self._work, name=self.name, daemon=True), self.log):
            self.running = False
            return self.last
        if not fresh:
            self.ready.wait(WAIT_S)
        return self.last

    def _work(self) -> None:
        try:
            self.last = self.make()
            self.made = monotonic()
        except Exception:               # a defect of fastcni: the caller gets the last value and its age
            self.log.exception("server_fault")
        finally:
            self.running = False
            self.ready.set()
