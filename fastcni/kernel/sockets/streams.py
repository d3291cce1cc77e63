"""Connect to a daemon's socket, send and receive. Every wait has a limit, and ends when the request's caller leaves."""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, AF_UNIX, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, socket
from errno import EAFNOSUPPORT, EAGAIN, EMFILE, ENFILE, ENOBUFS, ENOMEM, EPERM, ETIMEDOUT

from fastcni.kernel import waiting

CONNECT_TIMEOUT_S = 5.0
# Errors of socket(2) and connect(2) that do not show whether a daemon listens: no descriptor, or a full backlog
UNASKED = (EAGAIN, EMFILE, ENFILE, ENOBUFS, ENOMEM, EPERM, EAFNOSUPPORT)
RECEIVE_BYTES = 1 << 16


class Stream(socket):
    """A connected stream. deadline: the monotonic time in seconds at which send_all() and receive() give up. kind: the
    kind of its waits, see waiting.py."""

    __slots__ = ("deadline", "kind")

    def __init__(self, address: str | tuple[str, int], seconds: float, kind: str) -> None:
        """Connect to the path of a unix socket, or by TCP to (IP address, port).

        Raises OSError if no daemon listens at the address, or its backlog is full.
        """
        family = AF_UNIX if isinstance(address, str) else AF_INET6 if ":" in address[0] else AF_INET
        super().__init__(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK)
        self.deadline, self.kind = waiting.monotonic() + seconds, kind
        try:
            if not waiting.until(lambda: self._connect(address), min(seconds, CONNECT_TIMEOUT_S), kind):
                raise OSError(EAGAIN, "too many connections wait for the daemon")
        except BaseException:
            self.close()
            raise

    def _connect(self, address: str | tuple[str, int]) -> bool:
        try:
            self.connect(address)
        except BlockingIOError:         # the daemon's backlog is full, or TCP waits for the peer
            return False
        return True

    def send_all(self, data: bytes) -> None:
        """Send all of `data`. Raises OSError, CallerGone."""
        def sent() -> bool:
            nonlocal data
            try:
                data = data[self.send(data):]
            except BlockingIOError:     # the peer reads slowly
                return False
            return not data

        while data:
            if not waiting.until(sent, self._left(), self.kind) and self._left() <= 0:
                raise OSError(ETIMEDOUT, "the daemon does not read the request")

    def receive(self) -> bytes:
        """Receive some bytes; b"": the daemon has closed the connection. Raises OSError with ETIMEDOUT, CallerGone."""
        while True:
            try:
                return self.recv(RECEIVE_BYTES)
            except BlockingIOError:
                if not waiting.readable(self.fileno(), max(0.0, self._left()), self.kind) and self._left() <= 0:
                    raise OSError(ETIMEDOUT, "the daemon does not answer") from None

    def _left(self) -> float:
        return self.deadline - waiting.monotonic()
