"""Start the forwarder's process, and hold the sockets at which pods' queries arrive. The agent holds these sockets, so
that they survive the end of that process."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.policy.child import Child
from fastcni.agent.policy.names.channel import BEAT, read_answers, write_numbers
from fastcni.spec import address

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fastcni.agent.policy.names.channel import Answer

FAMILIES = {4: socket.AF_INET, 16: socket.AF_INET6}
IPPROTO_TCP, IPPROTO_UDP = 6, 17
BEAT_S, ANSWER_S = 0.5, 1.0     # seconds between two BEATs; maximum age of the last answer of a working forwarder
# Restart a forwarder that has sent no answer START_S after its start, or LOST_S after its last answer
START_S, LOST_S = 10.0, 5.0
FIRST_PAUSE_S = 0.2
MAX_MESSAGE_BYTES = 1 << 18
BACKLOG = 128
MAIN = ("import sys; sys.path[:] = {path!r}; from fastcni.agent.policy.names.forwarder import serve; "
        "serve({fd}, {listeners!r})")


class Listener:
    """The two sockets for queries to one resolver: UDP and TCP, {IPPROTO_*: socket}. Raises OSError."""

    def __init__(self, resolver: bytes) -> None:
        self.resolver, family = resolver, FAMILIES[len(resolver)]
        with ExitStack() as opened:
            self.sockets = {number: opened.enter_context(socket.socket(family, kind))
                            for number, kind in ((IPPROTO_UDP, socket.SOCK_DGRAM), (IPPROTO_TCP, socket.SOCK_STREAM))}
            for each in self.sockets.values():
                if family == socket.AF_INET6:
                    each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                each.bind(("", 0))
            self.sockets[IPPROTO_TCP].listen(BACKLOG)
            self._opened = opened.pop_all()
        self.ports: dict[int, int] = {number: each.getsockname()[1] for number, each in self.sockets.items()}

    def close(self) -> None:
        self._opened.close()


class Process(Child):
    """The forwarder's process. One thread in the node's namespace calls all methods.

    due: when to call attend() without an event, in monotonic seconds.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        super().__init__("forwards DNS queries", FIRST_PAUSE_S)
        self.listeners, self.due, self._answered = listeners, 0.0, 0.0

    @property
    def works(self) -> bool:
        """Whether the process has answered a BEAT within ANSWER_S."""
        return self.sock is not None and monotonic() < self._answered + ANSWER_S

    def _start(self) -> None:
        sockets = [[each.fileno() for each in it.sockets.values()] for it in self.listeners]
        listeners = [(*fds, address.ip_text(it.resolver)) for fds, it in zip(sockets, self.listeners, strict=True)]
        self._run(MAIN, [fd for fds in sockets for fd in fds], listeners=listeners)
        self._answered, self._until = 0.0, monotonic() + START_S

    def _lose(self, what: str) -> None:
        super()._lose(what)
        self.due = self._until

    def attend(self) -> list[Answer]:
        """Start the process if it is due, check whether the process answers, and return the DNS answers that wait for
        let()."""
        now = monotonic()
        if self.sock is None and now >= self.due:
            try:
                self._start()
            except OSError as e:
                self._lose(f"cannot be started: {e.strerror or e}")
        found = self._receive()
        if self.sock and now >= self._until:
            self._lose("does not answer")
        if self.sock and now >= self.due:
            self.due = now + BEAT_S
            self._send(BEAT)
        return found

    def _receive(self) -> list[Answer]:
        found: list[Answer] = []
        while self.sock:
            try:
                data = self.sock.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            if not data:
                self._lose("has ended")
            elif data == BEAT:
                self._answered = monotonic()
                self._until = self._answered + LOST_S
                self.why, self._pause = "", FIRST_PAUSE_S
            else:
                found += read_answers(data)
        return found

    def let(self, numbers: Iterable[int]) -> None:
        """Let the forwarder send the answers with these numbers to the pods."""
        self._send(write_numbers(numbers))

    def _send(self, data: bytes) -> None:
        if self.sock:
            try:
                self.sock.send(data)
            except BlockingIOError:             # the process hangs; attend() restarts it
                return
            except ConnectionError:
                self._lose("has ended")
