"""Run the daemon's event loop: descriptors by epoll, and timers in a heap."""

from __future__ import annotations

import heapq
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from fastcni.daemon.log import Logger

    class Timed(Protocol):
        """An object with a timer. Only Loop.schedule() changes `timer`."""

        timer: float

        def due(self) -> None: ...

MAX_WAIT_S = 30.0               # limit of one wait, because epoll's clock stops while the node is suspended


class Loop:
    """The event loop. After add(fd, call) the loop calls call() while the descriptor is readable. After schedule(item,
    when) the loop calls item.due() at that time."""

    def __init__(self, log: Logger) -> None:
        self.log = log
        self.epoll = select.epoll()
        self.calls: dict[int, Callable[[], object]] = {}
        self.heap: list[tuple[float, int, Timed]] = []
        self.count = 0
        self.ended = False
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.add(self.wakeup, lambda: os.eventfd_read(self.wakeup))

    @staticmethod
    def now() -> float:
        """Return seconds of CLOCK_BOOTTIME, which continues while the node is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def add(self, fd: int, call: Callable[[], object], write: bool = False) -> None:
        """Call call() when the descriptor is readable, or with `write` when it is writable. Raises OSError."""
        events = select.EPOLLOUT if write else select.EPOLLIN
        if fd in self.calls:
            self.epoll.modify(fd, events)
        else:
            self.epoll.register(fd, events)
        self.calls[fd] = call

    def remove(self, fd: int) -> None:
        """Remove a descriptor from the loop. Call remove() before the descriptor is closed."""
        if self.calls.pop(fd, None):
            self.epoll.unregister(fd)

    def schedule(self, item: Timed, when: float) -> None:
        """Call item.due() at the time `when` of now(); inf: never. This replaces an earlier schedule of the item."""
        item.timer = when
        if when != float("inf"):
            self.count += 1
            heapq.heappush(self.heap, (when, self.count, item))

    def run(self) -> None:
        """Handle events until stop(). The loop logs an exception of a call, so that the exception does not end the
        renewals of other leases."""
        while not self.ended:
            self.step()

    def step(self, most_s: float = MAX_WAIT_S) -> None:
        """Wait at most most_s seconds for events or the next timer, and handle them."""
        wait = min(most_s, max(0.0, self.heap[0][0] - self.now())) if self.heap else most_s
        for fd, _ in self.epoll.poll(wait + 0.001 if wait else 0):
            call = self.calls.get(fd)
            if call:                    # None: an earlier call of this round has removed the descriptor
                self._run(call)
        now = self.now()
        while self.heap and self.heap[0][0] <= now:
            when, _, item = heapq.heappop(self.heap)
            if item.timer == when:
                self._run(item.due)

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:
            self.log.exception("dhcp_fault")

    def stop(self) -> None:
        """End run(). Any thread may call stop()."""
        self.ended = True
        os.eventfd_write(self.wakeup, 1)

    def close(self) -> None:
        self.epoll.close()
        os.close(self.wakeup)
