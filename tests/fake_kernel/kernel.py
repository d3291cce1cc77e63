"""A kernel made of a list: it stands where a netlink socket stands, at send() and recv(), nothing else."""

import struct
from _socket import MSG_DONTWAIT

from fastcni._netlink import messages
from fastcni.kernel import uapi

NLM_F_REQUEST, NLM_F_ACK, NLM_F_ECHO, NLM_F_DUMP = 0x1, 0x4, 0x8, 0x300
CAPPED = 0x100


def message(kind, flags, sequence, payload=b""):
    data = struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0) + payload
    return data + bytes(-len(data) % 4)


def ack(sequence, code=0):
    return message(uapi.NLMSG_ERROR, CAPPED, sequence, struct.pack("=i", -code) + struct.pack("=IHHII", 16, 0, 0, 0, 0))


def done(sequence, flags=0, code=0):
    return message(uapi.NLMSG_DONE, flags, sequence, struct.pack("=i", -code))


class Socket:
    """The queue of a socket: datagrams to be received, or exceptions to be raised, in order."""

    def __init__(self, queue=()):
        self.queue, self.timeouts, self.closed = list(queue), [], False

    def send(self, data):
        return len(data)

    def recv(self, size, flags=0):
        if not self.queue:
            if self.timeouts and self.timeouts[-1] is not None:
                raise TimeoutError                  # Python waits first, MSG_DONTWAIT or not
            if flags & MSG_DONTWAIT:
                raise BlockingIOError
            raise AssertionError("this would wait for ever: everything was answered")
        item = self.queue.pop(0)
        if isinstance(item, Exception):
            raise item
        assert len(item) <= size, "the datagram would be cut short"
        return item

    def settimeout(self, seconds):
        self.timeouts.append(seconds)

    def close(self):
        self.closed = True


class FakeKernel(Socket):
    """Answers every request with an ACK, or with an errno for the types in `refuse` ({RTM_NEWADDR: EEXIST}).

    `answers` are {type of request: [(type, payload)]} sent before the ACK. What was sent is in `sent`, a list of
    (type, flags, payload).
    """

    def __init__(self, refuse=None, answers=None):
        super().__init__()
        self.sent, self.refuse, self.answers = [], dict(refuse or {}), dict(answers or {})

    def send(self, data):
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
