"""Open the listening socket in the server's own directory, or take the one that systemd passes (sd_listen_fds(3))."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import stat
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PATH = "/run/fastcni/fastcni.sock"
ATTEMPT = "/run/fastcni/autostart"     # the file with the time of the last automatic start: launcher/autostart.h
LOCK_ATTEMPTS = 100
BACKLOG = 4096                  # the kernel limits the backlog to net.core.somaxconn
HANDED_OVER_FD = 3              # SD_LISTEN_FDS_START
# {type of socket: (its name, the key of systemd.socket(5) for it)}
KINDS: dict[int, tuple[str, str]] = {socket.SOCK_SEQPACKET: ("SEQPACKET", "ListenSequentialPacket"),
                                     socket.SOCK_STREAM: ("STREAM", "ListenStream")}


class ListenError(Exception):
    """An error when the server opens its listening socket. The text is for the operator."""


class Listening:
    """A listening socket. sock: the socket, non-blocking. path: the socket's file, if this server made it; None if
    systemd passed the socket. lock: the descriptor of take_lock(); None without a path."""

    def __init__(self, sock: socket.socket, path: str | None = None, lock: int | None = None) -> None:
        self.sock, self.path, self.lock = sock, path, lock
        self._file = os.lstat(path) if path else None           # None: made by systemd, or unlinked
        sock.setblocking(False)

    @property
    def handed_over(self) -> bool:
        return self.path is None

    @property
    def lost(self) -> bool:
        """Return whether another program has removed or replaced the socket's file, so that no caller finds it."""
        if not self.path or not self._file:
            return False
        try:
            found = os.lstat(self.path)
        except OSError:
            return True
        # A file system may use the inode number of a removed file again
        return not os.path.samestat(found, self._file) or found.st_mtime_ns != self._file.st_mtime_ns

    def unlink(self) -> None:
        """Remove the socket's file, unless another program has replaced the file. New requests then run one-shot,
        without the server.
        """
        if self.path and not self.lost:
            with suppress(OSError):     # the file's directory no longer exists, so no caller finds the socket
                os.unlink(self.path)
        self._file = None

    def unlock(self) -> None:
        """Release the lock, so that another server can listen at the path."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def listen(path: str, open_to_all: bool, kind: int = socket.SOCK_SEQPACKET) -> Listening:
    """Return the socket that systemd passes; without systemd, make a socket at `path`. Raises ListenError.

    open_to_all: whether the modes of directory and socket let all users connect; the acceptor checks each user id.
    kind: SOCK_SEQPACKET or SOCK_STREAM.
    """
    handed = handed_over(os.environ, kind)
    if handed:
        return Listening(handed)
    try:
        return make(path, open_to_all, kind)
    except OSError as e:
        raise ListenError(f"listen on {path}: {e.strerror or e}") from e


def handed_over(env: Mapping[str, str], kind: int = socket.SOCK_SEQPACKET) -> socket.socket | None:
    """Return the socket that systemd passes to this process; None without one. env: the environment. Raises ListenError
    if systemd passes several sockets, or a socket of another type than `kind`."""
    if env.get("LISTEN_PID") != str(os.getpid()) or not env.get("LISTEN_FDS", "").isdigit():
        return None
    if env["LISTEN_FDS"] != "1":
        raise ListenError(f"systemd hands over {env['LISTEN_FDS']} sockets, expected one")
    try:
        sock = socket.socket(fileno=HANDED_OVER_FD)
    except OSError as e:
        raise ListenError(f"descriptor {HANDED_OVER_FD}, which systemd hands over: {e.strerror}") from e
    os.set_inheritable(HANDED_OVER_FD, False)
    if (sock.family, sock.type) != (socket.AF_UNIX, kind):
        name, key = KINDS[kind]
        raise ListenError(f"the socket that systemd hands over is no unix {name} socket: {key}=")
    return sock


def make(path: str, open_to_all: bool, kind: int = socket.SOCK_SEQPACKET) -> Listening:
    """Make a socket at `path`, and make a missing directory. Replace the socket file of a dead server.

    Raises ListenError, OSError.
    """
    path = os.path.abspath(path)
    directory = os.path.dirname(path)
    try:
        os.mkdir(directory, 0o700)
        if open_to_all:
            os.chmod(directory, 0o711)     # mkdir's mode depends on the umask
    except FileExistsError:
        check_directory(directory)
    lock = take_lock(path)
    try:
        if os.path.lexists(path):
            remove(path)                # this server has the lock, so it may replace the path
        sock = socket.socket(socket.AF_UNIX, kind)
        os.fchmod(sock.fileno(), 0o600)         # bind() makes the file with this mode minus the umask
        sock.bind(path)
        if open_to_all:
            os.chmod(path, 0o666)
        sock.listen(BACKLOG)
        if path == PATH:
            forget_attempt()
    except BaseException:
        os.close(lock)
        raise
    return Listening(sock, path, lock)


def take_lock(path: str) -> int:
    """Lock the lock file next to `path`, so that only one server listens at the path. Return its descriptor.

    The file's mode is 0600, so that only the server's user and root can lock it. In a sticky directory such as /tmp,
    another user can create and lock the file before the server does. The server removes such a file. Raises
    ListenError, OSError.
    """
    name = f"{path}.lock"
    for _ in range(LOCK_ATTEMPTS):
        try:
            # With O_CREAT the kernel does not open another user's file (fs.protected_regular).
            lock: int | None = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            lock = open_lock(name)
        if lock is None:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_still_at(name, lock):
                return lock
        except BlockingIOError:
            os.close(lock)
            raise ListenError(f"another fastcni server listens on {path}") from None
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
    raise ListenError(f"another user keeps creating {name}; use a directory that only root can change")


def forget_attempt() -> None:
    """Empty the file ATTEMPT, so that after this server's end the next request may start a new server. Raises
    OSError."""
    if os.path.lexists(ATTEMPT) and (attempt := open_lock(ATTEMPT)) is not None:
        os.ftruncate(attempt, 0)
        os.close(attempt)


def open_lock(name: str) -> int | None:
    """Open the existing lock file, and return its descriptor. If another user owns the file, remove the file and return
    None. Return None also if the file no longer exists.

    Raises OSError.
    """
    try:
        if not is_ours(os.lstat(name)):
            remove(name)
            return None
        lock = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    if is_ours(os.fstat(lock)):
        return lock
    os.close(lock)
    return None


def is_ours(found: os.stat_result) -> bool:
    """Return whether `found` is a regular file of root or of the server's user with only one hard link. A file with
    more links is not trusted, because any user can make a hard link to a file of root."""
    return stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.geteuid()) and found.st_nlink == 1


def remove(path: str) -> None:
    """Remove the file at `path`. If `path` is a directory of another user, rename the directory, because it may contain
    files. Raises OSError."""
    found = os.lstat(path)
    if stat.S_ISDIR(found.st_mode) and found.st_uid not in (0, os.geteuid()):
        os.rename(path, f"{path}.{secrets.token_hex(8)}")
    else:
        os.unlink(path)


def is_still_at(name: str, lock: int) -> bool:
    """Return whether `name` is still the name of the open file `lock`. Another process may have replaced the file
    before this process locked it."""
    try:
        return os.path.samestat(os.lstat(name), os.fstat(lock))
    except FileNotFoundError:
        return False


def check_directory(directory: str) -> None:
    """Check that only root and the server's user can replace a socket in this directory. Raises ListenError."""
    found = os.stat(directory)
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    if others_write or found.st_uid not in (0, os.geteuid()):
        raise ListenError(f"other users can write to {directory}, and could replace the socket in it")
