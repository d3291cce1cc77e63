"""Keep the last ended requests, and answer the control request NAME, by which `fastcni trace` and `fastcni top` read
them.

    {"pid": 812, "size": 1024, "first": 3689, "next": 4712, "lost": 0, "requests": [
        {"number": 4711, "id": "ab12-17", "time": 1763900000.123, "command": "ADD", "plugin": "bridge",
         "network": "net", "container": "c1", "ifname": "eth0", "pid": 99, "outcome": "0", "queueMs": 0.02, "ms": 1.9,
         "phases": [{"name": "netlink", "startMs": 0.1, "ms": 0.3}], "story": {...}}]}

AFTER=4711 selects requests with a higher number, LIMIT=100 at most 100 requests, the oldest first. After WIRE=1 the
server also keeps the steps of successful requests, for WIRE_S seconds. Without AFTER the answer has the newest
requests.

first    from this number on the history has all requests
next     the value of AFTER for the next control request
lost     how many requests after AFTER the server has already dropped
time     the request's arrival in Unix seconds; queueMs: time in the queue; ms: time from the queue to the end
outcome  see ended.py
phases   in the order of their ends; startMs counts from the end of the queue; phases can be nested
story    the steps of a failed request, see stories.py

The last MAX_STORIES failed requests stay longer than later successful requests. A request without a story takes some
2 kB of memory, a request with a story at most 160 kB. At most MAX_STORIES failed and MAX_STORIES successful requests
have a story.
"""

from __future__ import annotations

import os
from collections import deque
from json import dumps  # C code: fastcni.spec.json takes twice as long
from threading import Lock
from time import monotonic, time
from typing import Any

from fastcni.server import control
from fastcni.server.records import stories
from fastcni.server.records.ended import NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastcni._steps import Phase
    from fastcni.server.records.ended import Ended

NAME = "fastcni-history"        # valid as a plugin's name, but no plugin has this name
DEFAULT_SIZE = 1024
MAX_LIMIT = 1000                # limit of the requests in one answer
MAX_STORIES = 64
MAX_NAME = 256                  # limit of a name in characters, because callers choose the names
MAX_PHASES = 64                 # limit of the stored phases of one request
WIRE_S = 3.0


class Entry:
    """An ended request, without the data of a running request."""

    __slots__ = ("number", "names", "arrived", "started", "outcome", "queued", "took", "phases", "story")

    def __init__(self, number: int, ended: Ended) -> None:
        call, message = ended.call, ended.call.message
        self.number = number
        self.names = (message.id, call.command, message.plugin, call.network, message.env.get("CNI_CONTAINERID", ""),
                      message.env.get("CNI_IFNAME", ""), message.pid)
        self.arrived, self.started = time() - call.waited, call.arrived + ended.queued
        self.outcome, self.queued, self.took = ended.outcome, ended.queued, ended.took
        self.phases: list[Phase] = ended.phases.entries
        self.story: stories.Story | None = None

    def document(self) -> dict[str, Any]:
        request_id, command, plugin, network, container, ifname, pid = self.names
        found = {"number": self.number, "id": request_id, "time": round(self.arrived, 6), "command": cut(command),
                 "plugin": cut(plugin), "network": cut(network), "container": cut(container), "ifname": cut(ifname),
                 "pid": pid, "outcome": self.outcome, "queueMs": ms(self.queued), "ms": ms(self.took),
                 "phases": [{"name": NAMES.get(what) or str(what), "startMs": ms(start / 1e9 - self.started),
                             "ms": ms(took / 1e9)} for what, start, took in self.phases[:MAX_PHASES]]}
        if self.story:
            found["story"] = self.story.document(self.started)
        return found


class History:
    """The last `size` requests. note() receives the records of ended requests. Any thread may call any method."""

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self.entries: deque[Entry] = deque(maxlen=size)
        self.failed: deque[Entry] = deque(maxlen=MAX_STORIES)   # failed requests, which stay longer than in `entries`
        self.traced: deque[Entry] = deque()                     # successful requests whose steps are kept
        self.number, self.wire_until, self.lock = 0, 0.0, Lock()

    def note(self, ended: Ended) -> None:
        """Add a request that has ended to the history."""
        with self.lock:
            self.number += 1
            entry = Entry(self.number, ended)
            self.entries.append(entry)
            if ended.outcome != "0":
                entry.story = stories.Story(ended)
                if len(self.failed) == MAX_STORIES:
                    self.failed[0].story = None         # append() drops this request, which may still be in entries
                self.failed.append(entry)
            elif monotonic() < self.wire_until:
                entry.story = stories.Story(ended)
                self.traced.append(entry)
                if len(self.traced) > MAX_STORIES:
                    self.traced.popleft().story = None

    def document(self, variables: Mapping[str, str]) -> bytes:
        """Return the answer to a control request. Raises ValueError for an invalid number."""
        after, limit = variables.get("AFTER"), min(int(variables.get("LIMIT", MAX_LIMIT)), MAX_LIMIT)
        if limit < 0:
            raise ValueError(f"invalid limit: {limit}")
        if variables.get("WIRE"):
            self.wire_until = monotonic() + WIRE_S
        head, found = self.find(int(after) if after is not None else None, limit)
        # Encode request by request, so that other threads can run in between
        requests = [dumps(entry.document()) for entry in found]
        return f'{dumps(head)[:-1]}, "requests": [{", ".join(requests)}]}}'.encode()

    def after(self, number: int) -> dict[str, Any]:
        """Return the answer to AFTER=number as a dict, for a reader in this process."""
        head, found = self.find(number, MAX_LIMIT)
        return {**head, "requests": [entry.document() for entry in found]}

    def find(self, after: int | None, limit: int) -> tuple[dict[str, Any], list[Entry]]:
        """Return (the document without its requests, the entries of the requests)."""
        with self.lock:
            entries, failed, last = self.entries.copy(), self.failed.copy(), self.number
        first = entries[0].number if entries else last + 1
        # A number above `last` is from a previous server, so all requests of this server are new
        start = after if after is not None and after <= last else 0
        found = [*(entry for entry in failed if start < entry.number < first),
                 *(entry for entry in entries if entry.number > start)]
        found = found[:limit] if after is not None else found[-limit:] if limit > 0 else []
        head = {"pid": os.getpid(), "size": self.entries.maxlen, "first": first,
                "next": found[-1].number if found else last, "lost": max(0, first - 1 - start) if start else 0}
        return head, found


def ask(path: str, after: int | None = None, limit: int = MAX_LIMIT, *, wire: bool = False,
        timeout_s: float = control.TIMEOUT_S) -> dict[str, Any] | None:
    """Ask the server at a socket for its history. after: None asks for the newest requests. Return None if the server
    keeps no history or is of an older version. Raises OSError as control.ask()."""
    variables = {"LIMIT": str(limit)}
    if after is not None:
        variables["AFTER"] = str(after)
    if wire:
        variables["WIRE"] = "1"
    return control.ask(path, NAME, variables, timeout_s)


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def cut(text: str) -> str:
    """Return a caller's name, shortened and in a printable encoding."""
    return text[:MAX_NAME].encode("utf-8", "replace").decode()
