"""Network namespaces: open one, step inside, come back. A socket stays in the namespace where it was opened."""

import posix
from errno import EINVAL

from fastcni._netlink import close_file, identity, open_file, setns
from fastcni.kernel.waiting import waiting

OWN = "/proc/thread-self/ns/net"


class NotNamespace(OSError):
    """The path exists but is not a network namespace."""


class Lost(BaseException):
    """The thread could not come back: it must not serve another request, its process or thread has to end.

    Not an Exception, so that no error handler on the way goes on in the wrong namespace.
    """


def open_own():
    """A descriptor of the calling thread's namespace."""
    return open_file(OWN, posix.O_RDONLY)


def open_path(path):
    """A descriptor of the network namespace at `path`. Raises OSError; NotNamespace if it is something else.

    Python has no statfs magic; a namespace file is known by the device that all of them share (nsfs).
    """
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    if posix.fstat(fd).st_dev != posix.stat(OWN).st_dev:
        close_file(fd)
        raise NotNamespace(22, "not a network namespace", path)
    return fd


def is_own(fd, home=None):
    """Is `fd` the namespace of the calling thread, of which `home` is a descriptor if there is one?"""
    if home is not None:
        return identity(fd) == identity(home)
    ours = posix.stat(OWN)
    return identity(fd) == (ours.st_dev, ours.st_ino)


class locked:
    """`with locked(fd):` nobody else who locks this namespace is in its body: threads, processes, the Go plugins.

    An flock(2) of the namespace itself, which needs no file. Raises OSError.
    """

    __slots__ = ("fd",)

    def __init__(self, fd):
        self.fd = fd

    def __enter__(self):
        import fcntl  # a file of its own in some Pythons

        with waiting():
            fcntl.flock(self.fd, fcntl.LOCK_EX)

    def __exit__(self, kind, error, trace):
        import fcntl

        fcntl.flock(self.fd, fcntl.LOCK_UN)


class inside:
    """`with inside(fd):` runs its body in that namespace. Raises OSError on entering, Lost if there is no way back.

    `home` is a descriptor of the namespace to come back to, where the caller has one.
    """

    __slots__ = ("fd", "home", "opened")

    def __init__(self, fd, home=None):
        self.fd, self.home, self.opened = fd, home, -1

    def __enter__(self):
        if self.home is None:
            self.home = self.opened = open_own()
        try:
            setns(self.fd)
        except OSError as e:
            self._close()
            kind = NotNamespace if e.errno == EINVAL else OSError       # EINVAL: a namespace, but not of networks
            raise kind(e.errno, f"enter the pod's network namespace: {e.strerror}") from None

    def __exit__(self, kind, error, trace):
        try:
            setns(self.home)
        except OSError as e:
            raise Lost(f"cannot return to the home network namespace: {e}") from error
        finally:
            self._close()

    def _close(self):
        if self.opened >= 0:
            close_file(self.opened)
