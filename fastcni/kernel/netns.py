"""Network namespaces: open one, step inside, come back. A socket stays in the namespace where it was opened."""

import os

from fastcni._netlink import setns

OWN = "/proc/thread-self/ns/net"


class NotNamespace(OSError):
    """The path exists but is not a network namespace."""


class Lost(BaseException):
    """The thread could not come back: it must not serve another request, its process or thread has to end.

    Not an Exception, so that no error handler on the way goes on in the wrong namespace.
    """


def open_path(path):
    """A descriptor of the network namespace at `path`. Raises OSError; NotNamespace if it is something else.

    Python has no statfs magic; a namespace file is known by the device that all of them share (nsfs).
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if os.fstat(fd).st_dev != os.stat(OWN).st_dev:
        os.close(fd)
        raise NotNamespace(22, "not a network namespace", path)
    return fd


def is_own(fd):
    """Is `fd` the namespace of the calling thread?"""
    ours, theirs = os.stat(OWN), os.fstat(fd)
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


class inside:
    """`with inside(fd):` runs its body in that namespace. Raises OSError on entering, Lost if there is no way back."""

    __slots__ = ("fd", "home")

    def __init__(self, fd):
        self.fd = fd

    def __enter__(self):
        self.home = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
        try:
            setns(self.fd)
        except OSError:
            os.close(self.home)
            raise

    def __exit__(self, kind, error, trace):
        try:
            setns(self.home)
        except OSError as e:
            raise Lost(f"cannot return to the home network namespace: {e}") from error
        finally:
            os.close(self.home)
