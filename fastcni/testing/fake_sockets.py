"""Define sockets that replace netlink sockets in tests: a queue has the replies that wire.receive() returns."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from fastcni._netlink import messages
from fastcni.kernel import uapi, waiting, wire
from fastcni.kernel.uapi import NLM_F_ACK, NLM_F_DUMP

NLM_F_REQUEST = 0x1
CAPPED = 0x100
DATAGRAM = 65536


def message(kind: int, flags: int, sequence: int, payload: bytes = b"") -> bytes:
    data = struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0) + payload
    return data + bytes(-len(data) % 4)


def ack(sequence: int, code: int = 0) -> bytes:
    return message(uapi.NLMSG_ERROR, CAPPED, sequence, struct.pack("=i", -code) + struct.pack("=IHHII", 16, 0, 0, 0, 0))


def done(sequence: int, flags: int = 0, code: int = 0) -> bytes:
    return message(uapi.NLMSG_DONE, flags, sequence, struct.pack("=i", -code))


class Socket:
    """A netlink socket without a kernel. queue: the datagrams that receive() returns, or exceptions that it raises, in
    this order. waits: the timeout of each receive(), in milliseconds."""

    sequence = port = 0                         # wire.Socket has these attributes
    proto = uapi.NETLINK_ROUTE

    def __init__(self, queue: Iterable[bytes | Exception] = ()) -> None:
        self.queue, self.closed = list(queue), False
        self.waits: list[int] = []

    def fileno(self) -> int:
        return -1

    def send(self, data: bytes) -> int:
        return len(data)

    def receive(self, milliseconds: int = wire.ANSWER_MS, caller: int = -1) -> Any:
        """Return the messages of the queue's next datagram, or raise its next exception; None if the queue is empty."""
        self.waits.append(milliseconds)
        if not self.queue:
            assert milliseconds != wire.ANSWER_MS, "this would wait for ever: everything was answered"
            return None
        item = self.queue.pop(0)
        if isinstance(item, Exception):
            raise item
        assert len(item) <= DATAGRAM, "the datagram would be cut short"
        if waiting.here.request.show:
            waiting.here.request.show("<", item)
        return messages(item)

    def close(self) -> None:
        self.closed = True


class FakeKernel(Socket):
    """A socket that answers each request with an ACK.

    refuse: {type of request: the errno of the answer}, such as {RTM_NEWADDR: EEXIST}. answers: {type of request:
    [(type, payload)]}, messages before the ACK. sent: the requests so far, [(type, flags, payload)].
    """

    def __init__(self, refuse: dict[int, int] | None = None,
                 answers: dict[int, list[tuple[int, bytes]]] | None = None) -> None:
        super().__init__()
        self.refuse, self.answers = dict(refuse or {}), dict(answers or {})
        self.sent: list[tuple[int, int, bytes]] = []

    def send(self, data: bytes) -> int:
        for kind, flags, sequence, _, payload in messages(data):
            self.sent.append((kind, flags, payload))
            code = self.refuse.get(kind, 0)
            if not code:
                self.queue += [message(k, 0, sequence, p) for k, p in self.answers.get(kind, ())]
            if flags & NLM_F_DUMP == NLM_F_DUMP and not code:
                self.queue.append(done(sequence))
            elif flags & NLM_F_ACK or code:
                self.queue.append(ack(sequence, code))
        return len(data)
