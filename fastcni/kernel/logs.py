"""Send a log entry: as a datagram to a daemon, or appended to a file. These calls never wait."""

import posix

S_IFMT, S_IFREG = 0o170000, 0o100000        # stat(2)
FLAGS = posix.O_WRONLY | posix.O_APPEND | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC


def send(path, data):
    """Send one datagram. Raises OSError, also where the daemon is busy."""
    import _socket

    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK)
    try:
        sock.connect(path)
        sock.send(data)
    finally:
        sock.close()


def append(path, data):
    """Append with one write to a regular file, made if it is not there. Raises OSError.

    A link, a FIFO or a device is left alone, and never opened: to open some devices does something.
    """
    try:
        if posix.lstat(path).st_mode & S_IFMT != S_IFREG:
            return
    except FileNotFoundError:
        pass
    fd = posix.open(path, FLAGS | posix.O_CREAT, 0o600)
    try:
        if posix.fstat(fd).st_mode & S_IFMT == S_IFREG:
            posix.write(fd, data)
    finally:
        posix.close(fd)
