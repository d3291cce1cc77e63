"""The listening socket: made in a folder of its own, or handed over by systemd (sd_listen_fds(3))."""

import fcntl
import os
import socket
import stat

PATH = "/run/fastcni/fastcni.sock"
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
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.lexists(path):
            os.unlink(path)             # whoever has the lock has the path
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.fchmod(sock.fileno(), 0o600)         # bind() gives that to the file, less what the umask takes
        sock.bind(path)
        if open_to_all:
            os.chmod(path, 0o666)
        sock.listen(BACKLOG)
    except BlockingIOError:
        os.close(lock)
        raise ListenError(f"another fastcni server listens on {path}") from None
    except BaseException:
        os.close(lock)
        raise
    return Listening(sock, path, lock)


def check_folder(folder):
    """Only root or we can put another socket into its place. Raises ListenError."""
    found = os.stat(folder)
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    if others_write or found.st_uid not in (0, os.geteuid()):
        raise ListenError(f"{folder} can be changed by others; a socket in it could be replaced by theirs")
