"""Send one real packet from a namespace, and receive the answer: a TCP connection that is closed as soon as it is
established, or an empty UDP datagram."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable

from fastcni.selftest import namespaces

CONNECTED, REFUSED, ERROR, SILENT = "connected", "refused", "error", "silent"


class Probe:
    """An attempt to reach an address and port from a network namespace, by TCP or UDP.

    port: the socket's own port. outcome: CONNECTED (with UDP: the destination answered), REFUSED (with UDP: the socket
    received "port unreachable"), ERROR, SILENT. errno: the error number of ERROR. source: the source address that the
    kernel has chosen, or "".
    """

    def __init__(self, namespace: int, address: str, port: int, *, udp: bool, source: str = "") -> None:
        self.address, self.to, self.udp = address, port, udp
        self.family = socket.AF_INET6 if ":" in address else socket.AF_INET
        kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
        everywhere = "::" if self.family == socket.AF_INET6 else "0.0.0.0"

        def opened() -> socket.socket:
            sock = socket.socket(self.family, kind)
            try:
                sock.setblocking(False)
                sock.bind((source or everywhere, 0))
            except BaseException:
                sock.close()
                raise
            return sock

        self.sock = namespaces.call(namespace, opened)
        self.port: int = self.sock.getsockname()[1]
        self.outcome, self.errno, self.source = SILENT, 0, ""

    def send(self) -> None:
        """Send the first packet."""
        self._note(self.sock.connect_ex((self.address, self.to)))
        if self.udp and self.outcome == SILENT:
            self._datagram()
        found = self.sock.getsockname()[0]
        self.source = "" if found in ("::", "0.0.0.0") else found

    def _datagram(self) -> None:
        try:
            self.sock.send(b"")
        except OSError as e:
            self._note(e.errno or 0)

    def _note(self, number: int) -> None:
        if number in (0, errno.EINPROGRESS, errno.EAGAIN):
            self.outcome = CONNECTED if number == 0 and not self.udp else self.outcome
        elif number == errno.ECONNREFUSED:
            self.outcome = REFUSED
        else:
            self.outcome, self.errno = ERROR, number

    def wait(self, seconds: float, done: Callable[[], bool] = lambda: False) -> str:
        """Wait for an answer, at most `seconds`. Return the outcome. wait() calls done() every 20 ms; if done() returns
        True, the wait ends."""
        deadline = time.monotonic() + seconds
        while self.outcome == SILENT and (left := deadline - time.monotonic()) > 0 and not done():
            reading = [self.sock] if self.udp else []
            ready = select.select(reading, [] if self.udp else [self.sock], [], min(left, 0.02))
            if not any(ready):
                continue
            number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number or not self.udp:
                self._note(number)
                continue
            try:
                self.sock.recv(1)
                self.outcome = CONNECTED
            except OSError as e:
                self._note(e.errno or 0)
        return self.outcome

    def again(self) -> None:
        """Send a second datagram. With TCP do nothing: the kernel itself repeats the first packet after a second."""
        if self.udp and self.outcome == SILENT:
            self._datagram()

    def close(self) -> None:
        self.sock.close()
