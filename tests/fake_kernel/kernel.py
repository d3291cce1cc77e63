"""A kernel made of a list: it stands where a netlink socket stands, at send() and recv(), nothing else."""

import struct

from fastcni._netlink import messages
from fastcni.kernel import uapi

NLM_F_ACK, NLM_F_ECHO, NLM_F_DUMP = 0x4, 0x8, 0x300


def message(kind, flags, sequence, payload):
    data = struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0) + payload
    return data + bytes(-len(data) % 4)


def ack(sequence, code=0):
    return message(uapi.NLMSG_ERROR, 0x100, sequence, struct.pack("=i", -code) + struct.pack("=IHHII", 16, 0, 0, 0, 0))


class FakeKernel:
    """Answers every request with an ACK, or with an errno for the types in `refuse` ({RTM_NEWADDR: EEXIST}).

    `answers` are {type of request: [(type, payload)]} sent before the ACK. What was sent is in `sent`, a list of
    (type, flags, payload).
    """

    def __init__(self, refuse=None, answers=None):
        self.sent, self.refuse, self.answers = [], dict(refuse or {}), dict(answers or {})
        self.queue = []

    def send(self, data):
        for kind, flags, sequence, _, payload in messages(data):
            self.sent.append((kind, flags, payload))
            code = self.refuse.get(kind, 0)
            if not code:
                self.queue += [message(k, 0, sequence, p) for k, p in self.answers.get(kind, ())]
            if flags & NLM_F_DUMP == NLM_F_DUMP and not code:
                self.queue.append(message(uapi.NLMSG_DONE, 0, sequence, struct.pack("=i", 0)))
            elif flags & NLM_F_ACK or code:
                self.queue.append(ack(sequence, code))
        return len(data)

    def recv(self, size, flags=0):
        if not self.queue:
            raise BlockingIOError
        return self.queue.pop(0)

    def settimeout(self, seconds):
        pass

    def close(self):
        pass
