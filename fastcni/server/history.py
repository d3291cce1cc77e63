"""The last requests that have ended, for programs that watch a server: a request with a name that no plugin has.

Its variables are AFTER (entries up to this number are known) and LIMIT (at most so many entries). The answer:

    {"pid": 812, "next": 4711, "lost": 0, "requests": [
        {"number": 4711, "id": "ab12-17", "time": 1763900000.123, "command": "ADD", "plugin": "bridge", "network": "n",
         "container": "c", "ifname": "eth0", "pid": 99, "outcome": "0", "queueMs": 0.02, "ms": 1.9,
         "phases": [{"name": "netlink", "startMs": 0.1, "ms": 0.3}]}]}

next: the AFTER of the next call. lost: entries after AFTER that are not kept any more. time: of the arrival, in Unix
seconds. outcome, phases: see records.py; startMs counts from the end of the queue. Names end after 128 characters,
phases after 64. Entries are in the order of their ends. A server without this request, or without a history, declines
it.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from itertools import islice
from json import dumps  # in C: fastcni.spec.json takes twice as long
from threading import Lock
from time import perf_counter_ns
from typing import Any

from fastcni.server import protocol
from fastcni.server.metrics.requests import MAX_NAME, text
from fastcni.server.records import NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.server.records import Ended, Phase

NAME = "fastcni-history"        # with the characters of a plugin's name, and no plugin has it
SIZE = 1024                     # requests that are kept by default
LIMIT = 64                      # entries of an answer
MAX_PHASES = 64                 # that are kept of a request
MAX_BYTES = protocol.MAX_ANSWER         # of an answer: it is no memfd
TIMEOUT_S = 3.0


class Entry:
    """What is kept of a request: no message and no connection. start_ns: perf_counter_ns() at the end of the queue."""

    __slots__ = ("names", "outcome", "phases", "pid", "queued", "start_ns", "time", "took")

    def __init__(self, ended: Ended) -> None:
        call = ended.call
        message, key = call.message, call.key or ("", "")
        self.names = [it[:MAX_NAME] for it in (message.id, call.command, message.plugin, call.network, *key)]
        self.pid = message.pid
        self.outcome, self.queued, self.took = ended.outcome, ended.queued, ended.took
        self.phases: list[Phase] = ended.phases.entries[:MAX_PHASES]
        self.time, self.start_ns = time.time() - ended.queued - ended.took, perf_counter_ns() - int(ended.took * 1e9)

    def document(self, number: int) -> dict[str, Any]:
        names = zip(("id", "command", "plugin", "network", "container", "ifname"), map(text, self.names), strict=True)
        return {"number": number, "time": round(self.time, 6), **dict(names), "pid": self.pid, "outcome": self.outcome,
                "queueMs": round(self.queued * 1e3, 3), "ms": round(self.took * 1e3, 3),
                "phases": [{"name": NAMES.get(what) or str(what),
                            "startMs": round(max(0, started - self.start_ns) * 1e-6, 3), "ms": round(took * 1e-6, 3)}
                           for what, started, took in self.phases]}


class History:
    """The last `size` requests. Any thread may call any method."""

    def __init__(self, size: int) -> None:
        self.lock, self.last = Lock(), 0        # the number of the newest entry; the first one has 1
        self.entries: deque[Entry] = deque(maxlen=size)

    def note(self, ended: Ended) -> None:
        entry = Entry(ended)
        with self.lock:
            self.last += 1
            self.entries.append(entry)

    def read(self, after: int, limit: int) -> tuple[int, int, list[Entry]]:
        """(the number of the first entry, how many were lost before it, the entries)."""
        with self.lock:
            after, oldest = min(after, self.last), self.last - len(self.entries) + 1
            first = max(oldest, after + 1)
            return first, first - after - 1, [*islice(self.entries, first - oldest, first - oldest + limit)]

    def answer(self, env: dict[str, str]) -> bytes:
        """The answer to a request with these variables. Those that are no numbers count as 0 and as LIMIT."""
        first, lost, entries = self.read(number_of(env.get("AFTER"), 0), min(LIMIT, number_of(env.get("LIMIT"), LIMIT)))
        pieces: list[bytes] = []
        space = MAX_BYTES - 256
        for number, entry in enumerate(entries, first):
            piece = dumps(entry.document(number)).encode()
            space -= len(piece) + 1
            if space < 0 and pieces:
                break
            pieces.append(piece)
        return b'{"pid": %d, "next": %d, "lost": %d, "requests": [%s]}' % (
            os.getpid(), first - 1 + len(pieces), lost, b",".join(pieces))


def number_of(value: str | None, default: int) -> int:
    return int(value) if value and value.isascii() and value.isdigit() and len(value) < 19 else default


def ask(path: str, after: int = 0, limit: int = LIMIT, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | None:
    """Ask the server at a socket; None if it keeps no history, or is of an older version.

    Raises OSError: no server listens, this user is not served, or no answer came in time (TimeoutError).
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(timeout_s)
        sock.connect(path)
        sock.send(protocol.request(NAME, {"AFTER": str(after), "LIMIT": str(limit)}))
        answer = sock.recv(2 * MAX_BYTES)
    return protocol.read_document(answer)
