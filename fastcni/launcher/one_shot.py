"""The mode of a request that a plugin file answers itself, in a process that ends with its answer."""

from __future__ import annotations

import posix

from fastcni._processes import hold_files
from fastcni.kernel import wire
from fastcni.kit.call.mode import Mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.deletion import DeleteRequest
    from fastcni.kit.call.request import Reply


class OneShotMode(Mode):
    """The result of an ADD goes to stdout. System calls that take long go to other processes, which hold none of the
    caller's streams. A thread would not do: a process ends only when its last thread has left the kernel.

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
        fn(*args)                       # this process would not end before a thread has left the kernel

    def send_deletion(self, watcher: Socket, data: bytes, request: DeleteRequest) -> None:
        try:
            wire.send_apart(watcher, data)
        except OSError:                 # no process can be started, so the answer waits
            super().send_deletion(watcher, data, request)

    def close_later(self, sock: Socket) -> None:
        """Leave the last close() of a socket to another process.

        Both processes have the socket, and the kernel makes the last one wait. So the other one ends after this one: it
        reads a pipe without a writer, until this process has closed its end.
        """
        try:
            hold_files(*posix.pipe())
        except OSError:
            sock.close()
