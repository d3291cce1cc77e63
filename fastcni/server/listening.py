"""The listening socket: made in a folder of its own, or handed over by systemd (sd_listen_fds(3))."""

import fcntl
import os
import secrets
import socket
import stat

PATH = "/run/fastcni/fastcni.sock"
LOCK_ATTEMPTS = 100
BACKLOG = 4096                  # the kernel makes it net.core.somaxconn at most
FIRST_HANDED = 3                # SD_LISTEN_FDS_START


class ListenError(Exception):
    """There is no socket to listen on; the text is for the operator."""


class Listening:
    """sock: the socket, non-blocking. path: its file where we made it, None where it was handed over."""

    def __init__(self, sock, path=None, lock=None):
        self.sock, self.path, self.lock = sock, path, lock
        sock.setblocking(False)

    @property
    def handed_over(self):
        return self.path is None

    def vanish(self):
        """Nobody new comes: callers go one-shot, and another server may take the path."""
        if self.path:
            try:
                os.unlink(self.path)
            except OSError:
                return                  # somebody was quicker, or took the folder away: nobody finds us either way

    def release(self):
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def listen(path, open_to_all):
    """A Listening: the socket that systemd hands over, else a new one at `path`. Raises ListenError.

    open_to_all: other users than ours may connect (and are looked at then), so folder and socket let them.
    """
    handed = handed_over(os.environ)
    if handed:
        return Listening(handed)
    try:
        return make(path, open_to_all)
    except OSError as e:
        raise ListenError(f"listen on {path}: {e.strerror or e}") from e


def handed_over(env):
    """The socket that systemd opened for us, None where there is none. Raises ListenError for another kind."""
    if env.get("LISTEN_PID") != str(os.getpid()) or not env.get("LISTEN_FDS", "").isdigit():
        return None
    if env["LISTEN_FDS"] != "1":
        raise ListenError(f"systemd hands over {env['LISTEN_FDS']} sockets, expected one")
    try:
        sock = socket.socket(fileno=FIRST_HANDED)
    except OSError as e:
        raise ListenError(f"descriptor {FIRST_HANDED}, which systemd hands over: {e.strerror}") from e
    os.set_inheritable(FIRST_HANDED, False)
    if (sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
        raise ListenError("the socket that systemd hands over is no unix SEQPACKET socket: ListenSequentialPacket=")
    return sock


def make(path, open_to_all):
    """A new socket at `path`, whose folder is made where it is missing; a dead server's socket file is replaced."""
    path = os.path.abspath(path)
    folder = os.path.dirname(path)
    try:
        os.mkdir(folder, 0o700)
        if open_to_all:
            os.chmod(folder, 0o711)     # whatever the umask
    except FileExistsError:
        check_folder(folder)
    lock = take_lock(path)
    try:
        if os.path.lexists(path):
            remove(path)                # the server that has the lock has the path
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.fchmod(sock.fileno(), 0o600)         # bind() gives that to the file, less what the umask takes
        sock.bind(path)
        if open_to_all:
            os.chmod(path, 0o666)
        sock.listen(BACKLOG)
    except BaseException:
        os.close(lock)
        raise
    return Listening(sock, path, lock)


def take_lock(path):
    """The lock of the servers at `path`: an open file beside it, of mode 0600, so that only we and root can lock it.

    In a sticky folder like /tmp any user can make that file first, and lock it. Such a file is removed. Raises
    ListenError, OSError.
    """
    name = f"{path}.lock"
    for _ in range(LOCK_ATTEMPTS):
        try:
            # With O_CREAT alone the kernel refuses another user's file (fs.protected_regular).
            lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
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
    raise ListenError(f"{name} is made again and again by another user; use a folder that only root can change")


def open_lock(name):
    """The lock file that is there, or None: it is gone by now, or was another user's and is removed. Raises OSError."""
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


def is_ours(found):
    """A regular file that we or root have made. Any user can give another of root's files a second name."""
    return stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.geteuid()) and found.st_nlink == 1


def remove(path):
    """Remove what is there; another user's folder, which may be full, is renamed. Raises OSError."""
    found = os.lstat(path)
    if stat.S_ISDIR(found.st_mode) and found.st_uid not in (0, os.geteuid()):
        os.rename(path, f"{path}.{secrets.token_hex(8)}")
    else:
        os.unlink(path)


def is_still_at(name, lock):
    """The open file is the one of this name, and was not replaced before it was locked."""
    try:
        return os.path.samestat(os.lstat(name), os.fstat(lock))
    except FileNotFoundError:
        return False


def check_folder(folder):
    """Only root or we can put another socket into its place. Raises ListenError."""
    found = os.stat(folder)
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    if others_write or found.st_uid not in (0, os.geteuid()):
        raise ListenError(f"{folder} can be changed by others; a socket in it could be replaced by theirs")
