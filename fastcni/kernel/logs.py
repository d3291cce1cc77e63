"""Send a log entry as a datagram to a daemon, or append it to a file. The functions never block."""

from __future__ import annotations

import posix
from _stat import S_ISREG

FLAGS = posix.O_WRONLY | posix.O_APPEND | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC


def send(path: str, data: bytes) -> None:
    """Send one datagram to the unix socket `path`. Raises OSError, also if the daemon's queue is full."""
    import _socket

    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK)
    try:
        sock.connect(path)
        sock.send(data)
    finally:
        sock.close()


def append(path: str, data: bytes) -> None:
    """Append `data` to a regular file by one write. Create the file if it does not exist. Raises OSError.

    append() never opens a symbolic link, a FIFO or a device, because opening some devices has effects.
    """
    try:
        if not S_ISREG(posix.lstat(path).st_mode):
            return
    except FileNotFoundError:
        pass
    fd = posix.open(path, FLAGS | posix.O_CREAT, 0o600)
    try:
        if S_ISREG(posix.fstat(fd).st_mode):
            posix.write(fd, data)
    finally:
        posix.close(fd)
