"""Close packet sockets in other threads, because each close waits for an RCU grace period, 6.5 ms on an idle machine.

With two closes for each lease, the daemon's only thread could acquire at most 75 leases a second. Eight closes at the
same time share their grace periods and take 0.35 ms each. A thread ends when no socket is left to close.
"""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

MAX_THREADS = 8
IDLE_S = 1.0


class Closer:
    """The threads that close sockets. close(sock) returns immediately. Only one thread may call close(), in the
    daemon's namespace."""

    def __init__(self) -> None:
        self.sockets: SimpleQueue[socket] = SimpleQueue()
        self.lock = threading.Lock()
        self.threads = 0

    def close(self, sock: socket) -> None:
        self.sockets.put(sock)
        with self.lock:
            start = self.threads < min(MAX_THREADS, self.sockets.qsize())
            self.threads += start
        if start:
            try:
                threading.Thread(target=self._work, name="dhcp-closer", daemon=True).start()
            except RuntimeError:                # pids.max is reached
                self._ended()
                self._close_one(0)

    def _work(self) -> None:
        while self._close_one(IDLE_S):
            continue
        self._ended()
        self._close_one(0)                      # close() may have queued a socket meanwhile, and started no thread

    def _close_one(self, seconds: float) -> bool:
        try:
            self.sockets.get(timeout=seconds).close()
        except Empty:
            return False
        except OSError:
            return True                         # close(2) closes the socket even if it returns an error
        return True

    def _ended(self) -> None:
        with self.lock:
            self.threads -= 1
