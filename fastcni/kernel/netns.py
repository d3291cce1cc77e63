"""Open network namespaces, enter a namespace and return to the previous one. A socket stays in the namespace where it
was opened."""

from __future__ import annotations

import posix
from errno import EINVAL
from time import sleep

from fastcni._system import close_file, identity, open_file, setns, unlock
from fastcni.kernel import waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

OWN = "/proc/thread-self/ns/net"
RETURN_TRIES, RETURN_PAUSE_S = 5, 0.01      # attempts: setns(2) allocates memory, which can fail for a moment


class NotNamespace(OSError):
    """A path or descriptor that exists but is not a network namespace."""


class OwnUnread(OSError):
    """The file OWN cannot be read, so a path without a file does not show that a namespace no longer exists."""


class Lost(BaseException):
    """The thread could not return to its namespace. The thread must not serve another request; the thread or its
    process must end.

    Lost is not an Exception, so that no error handler continues in the wrong namespace.
    """


def open_own() -> int:
    """Open a descriptor of the calling thread's namespace."""
    return open_file(OWN, posix.O_RDONLY)


def open_path(path: str) -> int:
    """Open a descriptor of the network namespace at `path`. Raises OSError; NotNamespace for any other file, OwnUnread
    without /proc.

    Python has no statfs(2). All namespace files are on one device (nsfs), so the device number identifies them.
    """
    try:
        device = posix.stat(OWN).st_dev
    except OSError as e:
        raise OwnUnread(e.errno, f"{OWN}: {e.strerror}; is /proc mounted?") from None
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    try:
        if posix.fstat(fd).st_dev != device:
            raise NotNamespace(EINVAL, "not a network namespace", path)
    except OSError:
        close_file(fd)
        raise
    return fd


def is_own(fd: int, home: int | None = None) -> bool:
    """Return whether `fd` is the namespace of the calling thread. `home`: a descriptor of that namespace, if known."""
    if home is not None:
        return identity(fd) == identity(home)
    ours = posix.stat(OWN)
    return identity(fd) == (ours.st_dev, ours.st_ino)


def return_to(home: int) -> None:
    """Move the calling thread into its home namespace. Raises Lost."""
    tries = RETURN_TRIES
    while True:
        try:
            setns(home)
            return
        except OSError as e:
            tries -= 1
            if not tries:
                raise Lost(f"cannot return to the home network namespace: {e}") from e
        sleep(RETURN_PAUSE_S)


def ensure(home: int) -> None:
    """Move the calling thread into its home namespace: a new thread starts in the namespace of its creator.

    Raises Lost.
    """
    try:
        there = is_own(home)
    except OSError:
        there = False                   # /proc cannot be read, so the thread's namespace is unknown
    if not there:
        return_to(home)


class locked:
    """A lock, `with locked(fd, warn):`, which excludes other threads and processes, also reference plugins, that lock
    the same namespace.

    The lock is an flock(2) of the namespace itself, without a lock file. A process in the pod can hold the lock, too.
    So after NAMESPACE_LOCK_TIMEOUT_S the body runs without the lock, after a call of warn(text). A conflict between two
    requests in that namespace harms only that pod. Raises OSError.
    """

    __slots__ = ("fd", "held", "warn")

    def __init__(self, fd: int, warn: Callable[[str], None]) -> None:
        self.fd, self.warn = fd, warn

    def __enter__(self) -> None:
        seconds = waiting.NAMESPACE_LOCK_TIMEOUT_S
        self.held = waiting.lock(self.fd, seconds, waiting.NAMESPACE_LOCK)
        if not self.held:
            self.warn(f"the pod's network namespace is locked for more than {seconds:g} s, which a process in the pod "
                      "can do; going on without the lock")

    def __exit__(self, *_: object) -> None:
        if self.held:
            unlock(self.fd)


class inside:
    """A context manager: `with inside(fd):` runs its body in that namespace. Raises OSError on entering, Lost if the
    thread cannot return.

    home: a descriptor of the namespace to return to; None: the calling thread's namespace.
    """

    __slots__ = ("fd", "home", "opened")

    def __init__(self, fd: int, home: int | None = None) -> None:
        self.fd, self.home, self.opened = fd, -1 if home is None else home, -1

    def __enter__(self) -> None:
        if self.home < 0:
            self.home = self.opened = open_own()
        try:
            setns(self.fd)
        except OSError as e:
            self._close()
            # EINVAL: the descriptor is a namespace of another kind
            kind = NotNamespace if e.errno == EINVAL else OSError
            raise kind(e.errno, f"enter the pod's network namespace: {e.strerror}") from None

    def __exit__(self, *_: object) -> None:
        try:
            return_to(self.home)
        except Lost as e:
            self._forget(e)
            raise
        self._close()

    def _forget(self, lost: Lost) -> None:
        """Close the descriptors after a Lost. Add an error to the Lost as a note, because raising the error would hide
        the Lost."""
        try:
            self._close()
        except OSError as e:
            lost.add_note(str(e))

    def _close(self) -> None:
        if self.opened >= 0:
            close_file(self.opened)
