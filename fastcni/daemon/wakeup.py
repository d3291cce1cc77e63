"""Define Wakeup, by which any thread ends another thread's wait in poll(2) or epoll(7)."""

from __future__ import annotations

import os


class Wakeup:
    """An eventfd(2). The waiting thread polls it for reading, and calls clear() after its wait. Other threads call
    wake()."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self.fd

    def wake(self) -> None:
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        os.eventfd_read(self.fd)

    def close(self) -> None:
        os.close(self.fd)
