"""Let any thread end another thread's wait in epoll(7)."""

from __future__ import annotations

import os


class Wakeup:
    """An eventfd(2) that is registered for EPOLLIN. The woken thread calls clear()."""

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
