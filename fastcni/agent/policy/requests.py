"""Receive the requests of the plugin `policy` at the agent's socket. A request and an answer are one line of JSON each.

    {"do": "protect", "id": ["net", "CONTAINER", "eth0"], "pod": "shop/web", "uid": "", "labels": {"app": "web"},
     "addresses": ["10.244.1.5"]}           comes before the pod's first process runs
    {"do": "check", ...}                    has the same keys
    {"do": "forget", "id": [...]}           the agent answers now, and forgets the pod after its port's link is deleted
    {"do": "collect", "network": "net", "valid": [["CONTAINER", "eth0"]]}
    {"do": "status"}
    {"do": "explain", "address": "10.244.1.5"}

    {}                                      done
    {"released": ["10.244.1.5", ...]}       of collect
    {"pods": [{"pod": "shop/web", "ingress": ["shop/web-only"], "egress": [],       of explain: names of policies
               "admin": {"ingress": [], "egress": ["no-guests"]}, "baseline": {"ingress": [], "egress": []}}]}
    {"unreadable": ["..."], "more": 0}      of status: the first errors of documents, and the number of further errors
    {"error": "...", "again": true}         not done; again: the same request may succeed later
"""

from __future__ import annotations

import json
import os
import select
import socket
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from fastcni.daemon import listening

if TYPE_CHECKING:
    from collections.abc import Callable

    Asked = dict[str, Any]
    Answer = dict[str, Any]

MAX_BYTES = 4 << 20             # the maximum of a request; a GC lists all attachments of a network
IDLE_S = 30.0                   # after this time, the agent closes a connection without a request


class Caller:
    """A connection to the agent. data: the received bytes. asked: the request, once it is complete. until: when the
    agent closes the connection, monotonic seconds. watched: whether the socket is registered with epoll."""

    __slots__ = ("asked", "data", "sock", "until", "watched")

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.data, self.until = sock, b"", monotonic() + IDLE_S
        self.asked: Asked | None = None
        self.watched = False


class Requests:
    """The agent's socket and its connections. answer(request, waited): returns the answer to a request that has waited
    for `waited` seconds; None if attend() has to call answer() again later."""

    def __init__(self, path: str, answer: Callable[[Asked, float], Answer | None]) -> None:
        """Listen at `path`. Raises OSError, and ListenError, for example if another agent listens there."""
        self.path, self.answer = path, answer
        self.callers: dict[int, Caller] = {}
        self.listening = self._listen()
        self.poll = select.epoll()
        self.poll.register(self.listening.sock, select.EPOLLIN)

    def _listen(self) -> listening.Listening:
        os.makedirs(os.path.dirname(os.path.dirname(self.path)), exist_ok=True)
        return listening.make(self.path, open_to_all=False, kind=socket.SOCK_STREAM)

    def listen_again(self) -> None:
        """Make the socket again, so that new callers can connect. Raises OSError, ListenError."""
        former, self.listening = self.listening, self._listen()
        former.sock.close()             # close() also removes the socket from epoll
        former.unlock()
        self.poll.register(self.listening.sock, select.EPOLLIN)

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when attend() has work."""
        return self.poll.fileno()

    @property
    def waiting(self) -> bool:
        """Whether a request waits for an answer."""
        return any(caller.asked is not None for caller in self.callers.values())

    def close(self) -> None:
        for caller in list(self.callers.values()):
            self._end(caller)
        self.poll.close()
        self.listening.unlink()
        self.listening.sock.close()
        self.listening.unlock()

    def attend(self) -> None:
        """Read from all connections, and answer the requests that can be answered."""
        for fd, _ in self.poll.poll(0):
            if fd == self.listening.sock.fileno():
                self._accept()
            elif fd in self.callers:
                self._read(self.callers[fd])
        now = monotonic()
        for caller in list(self.callers.values()):
            if caller.asked is not None:
                waited = now - (caller.until - IDLE_S)
                if (answer := self.answer(caller.asked, waited)) is not None:
                    self._reply(caller, answer)
            elif now > caller.until:
                self._end(caller)
        for fd, caller in self.callers.items():         # most callers already have their answer
            if not caller.watched:
                caller.watched = True
                self.poll.register(fd, select.EPOLLIN)

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            while True:
                sock, _ = self.listening.sock.accept()
                sock.setblocking(False)
                self.callers[sock.fileno()] = caller = Caller(sock)
                self._read(caller)                      # usually the request has arrived already

    def _read(self, caller: Caller) -> None:
        try:
            while data := caller.sock.recv(1 << 16):
                caller.data += data
                if len(caller.data) > MAX_BYTES:
                    break
        except BlockingIOError:
            data = None
        except OSError:
            data = b""
        if data is not None:            # the caller has closed the connection, or has sent more than MAX_BYTES
            self._end(caller)
        elif caller.data.endswith(b"\n") and caller.asked is None:
            try:
                caller.asked = json.loads(caller.data)
            except (ValueError, RecursionError):
                self._reply(caller, {"error": "the request is no JSON"})
                return
            caller.until = monotonic() + IDLE_S

    def _reply(self, caller: Caller, answer: Answer) -> None:
        with suppress(OSError):         # the caller has closed the connection
            caller.sock.settimeout(1)
            caller.sock.sendall(json.dumps(answer).encode() + b"\n")
        self._end(caller)

    def _end(self, caller: Caller) -> None:
        del self.callers[caller.sock.fileno()]
        caller.sock.close()             # close() also removes the socket from epoll
