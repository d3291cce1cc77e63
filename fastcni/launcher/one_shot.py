"""The mode of a request that a plugin file answers itself, in a process that ends with its answer."""

from __future__ import annotations

import posix

from fastcni.kit.call.mode import Mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.handle import Reply
    from fastcni.kernel.wire import Socket


class OneShotMode(Mode):
    """The result of an ADD goes to stdout, and deferred work to child processes that hold none of the caller's streams.

    A thread would not do for deferred work: a process ends only when its last thread has left the kernel.

    write      write(fd, data), which writes all of the data
    delivered  the result that was written, None: none yet
    """

    __slots__ = ("write", "delivered")

    def __init__(self, write: Callable[[int, bytes], None]) -> None:
        super().__init__()
        self.write = write
        self.delivered: Reply | None = None

    def deliver(self, reply: Reply) -> None:
        try:
            self.write(1, reply.stdout)
        except OSError as error:
            raise OSError(error.errno, error.strerror, "stdout") from None
        self.delivered = reply

    def defer(self, fn: Callable[..., object], *args: object) -> None:
        try:
            child = posix.fork()
        except OSError:                 # no process can be started, so the answer waits
            fn(*args)
            return
        if child:
            return
        try:
            posix.closerange(0, 3)
            fn(*args)
        finally:
            posix._exit(0)

    def close_later(self, sock: Socket) -> None:
        """Leave the last close() of a socket to a child.

        Both processes have the socket, and the kernel makes the last one wait. So the child ends after this process: it
        reads a pipe without a writer, until this process has closed its end.
        """
        here, there = posix.pipe()
        try:
            child = posix.fork()
        except OSError:
            return
        if child:
            return
        try:
            posix.closerange(0, 3)
            posix.close(there)
            posix.read(here, 1)
        finally:
            posix._exit(0)
