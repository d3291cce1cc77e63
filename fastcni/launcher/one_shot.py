"""Define OneShotMode, the mode of a request that a plugin file answers itself, in a process that ends with the
answer."""

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
    """The mode of one request. The result of an ADD is written to stdout. System calls that take long run in other
    processes, which do not hold the caller's streams. Threads would not help, because a process ends only when its last
    thread has left the kernel.

    write      write(fd, data), which writes all of the data
    delivered  the result of ADD that was written; None: not written yet
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
        fn(*args)                       # in a thread, this process could not end before the thread has left the kernel

    def send_deletion(self, watcher: Socket, data: bytes, request: DeleteRequest) -> None:
        try:
            wire.send_apart(watcher, data)
        except OSError:                 # no process can be started, so this process waits
            super().send_deletion(watcher, data, request)

    def close_later(self, sock: Socket) -> None:
        """Let another process make the last close() of a socket.

        Both processes have the socket. The process that closes the socket last must wait in the kernel. So the other
        process ends later than this process: it reads a pipe until this process has closed the pipe's other end.
        """
        try:
            hold_files(*posix.pipe())
        except OSError:
            sock.close()
