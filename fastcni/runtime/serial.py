"""Run calls for one container one after another, in the order of their arrival."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Serial:
    """Locks by key, each with a queue of waiting callers. Callers with different keys run at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[threading.Event]] = {}      # the first caller of each queue holds the key

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Hold the key during the body of the `with` statement. Wait before the body until all earlier callers with
        this key have left their bodies."""
        arrived = threading.Event()
        with self._lock:
            queue = self._waiting.setdefault(key, deque())
            queue.append(arrived)
            if queue[0] is arrived:
                arrived.set()
        try:
            arrived.wait()
            yield
        finally:
            with self._lock:
                first = queue[0] is arrived
                queue.remove(arrived)           # leave the queue, even if an exception has ended the wait
                if not queue:
                    del self._waiting[key]
                elif first:
                    queue[0].set()
