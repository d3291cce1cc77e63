"""Find the server that listens on this node by its socket, and stop it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct

from fastcni.daemon.listening import ATTEMPT

STOP_S = 100                    # seconds until stop() gives up; a server answers its running requests for at most 80 s
UCRED = struct.Struct("iII")    # pid, uid, gid


def listener(path: str, *, stream: bool = False) -> int:
    """Return the pid of the process that listens at a socket: a server, 1 for systemd, 0 for no process. stream:
    whether the socket is a dhcp daemon's. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if stream else socket.SOCK_SEQPACKET) as sock:
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return 0
        pid, _, _ = UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
        return int(pid)


def owns_lock(path: str) -> bool:
    """Return whether a server has made the socket itself, and so holds the lock file next to it. Raises OSError."""
    try:
        handle = os.open(f"{path}.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def stop(pid: int) -> bool:
    """Send SIGTERM to a server, and wait until it has answered its requests. Return whether the server has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGTERM)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(STOP_S * 1000))
    finally:
        os.close(handle)


def remove_files(path: str) -> list[str]:
    """Remove the files of a server that does not run, and their directory. Return the paths of the removed files.
    Raises OSError."""
    removed = []
    attempt = os.path.join(os.path.dirname(path), os.path.basename(ATTEMPT))
    for each in (path, f"{path}.lock", attempt):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(each)
            removed.append(each)
    with contextlib.suppress(OSError):                  # the directory has other files, or does not exist
        os.rmdir(os.path.dirname(path))
    return removed
