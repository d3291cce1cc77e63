"""Store the last flows of the node, and count all flows, for `fastcni serve --flows`.

The server answers the control request NAME with the stored flows (flow.py), the oldest first:

    {"flows": [{"time": 1763900000.123, ...}]}

The key "flows" of its status has the number of drops in the last minute, and the newest drops:

    {"dropped": 12, "last": [{...}]}
"""

from __future__ import annotations

from collections import Counter, deque
from json import dumps  # written in C; fastcni.spec.json would take twice as long
from threading import Event, Lock, Thread
from time import time
from typing import TYPE_CHECKING, Any

from fastcni.daemon.background import start_thread
from fastcni.flows.flow import DROPPED, Flow
from fastcni.server import control
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.flows.collector import Collector
    from fastcni.server.service import Server

NAME = "fastcni-flows"          # has the characters of a plugin's name, but no plugin has this name
SIZE = 10_000                   # the most flows that are stored
SHOWN = 5                       # the newest drops that the status shows
SPAN_S = 60.0                   # the seconds in which the status counts drops
WAIT_S = 1.0                    # seconds for which the thread waits for a flow before it checks whether the server ends
MAX_COUNTS = 1000               # the most combinations of labels; further combinations are counted as OTHER
OTHER = "other"


class LastFlows:
    """The server's store of flows. open_collector(): returns a Collector; raises OSError."""

    def __init__(self, open_collector: Callable[[], Collector]) -> None:
        self.open_collector = open_collector
        self.flows: deque[Flow] = deque(maxlen=SIZE)
        self.counts = Counter[tuple[str, str, str, str]]()
        self.lock, self.ended = Lock(), Event()
        self.collector: Collector | None = None
        self.thread: Thread | None = None

    def attach(self, server: Server) -> None:
        """Make the server answer the control request, and show drops in its status. Open the collector's sockets in the
        calling thread, which is in the node's network namespace."""
        self.log = server.logger
        try:
            self.collector = self.open_collector()
        except (OSError, CniError) as e:
            self.log.error("flows_unavailable", error=str(e))
            return
        server.acceptor.control[NAME] = lambda conn, _: server.background(control.answer, conn, self.document)
        server.described["flows"] = self.summary

    def start(self) -> None:
        """Start the thread that collects flows. If the thread cannot be started, call start() again later."""
        if self.collector and self.thread is None:
            thread = Thread(target=self._run, args=(self.collector,), name="flows", daemon=True)
            if start_thread(thread, self.log):
                self.thread = thread

    def stop(self) -> None:
        self.ended.set()
        if self.thread:
            self.thread.join()
        if self.collector:
            self.collector.close()

    def _run(self, collector: Collector) -> None:
        while not self.ended.is_set():
            try:
                self.note(collector.collect(WAIT_S))
            except Exception:           # a bug of fastcni must not end the server
                self.log.exception("server_fault")
                return

    def note(self, found: list[Flow]) -> None:
        """Store and count flows."""
        with self.lock:
            self.flows += found
            for flow in found:
                key = flow.verdict, flow.by, flow.policy, flow.network
                if key not in self.counts and len(self.counts) >= MAX_COUNTS:
                    key = flow.verdict, flow.by, OTHER, OTHER
                self.counts[key] += 1

    def copy_counts(self) -> dict[tuple[str, str, str, str], int]:
        """Return {(verdict, by, policy, network): number of flows}."""
        with self.lock:
            return dict(self.counts)

    def document(self) -> bytes:
        """Return the JSON answer to the control request NAME."""
        with self.lock:
            flows = list(self.flows)
        return f'{{"flows": [{", ".join([dumps(flow.document()) for flow in flows])}]}}'.encode()

    def summary(self) -> dict[str, Any]:
        """Return the value of the key "flows" of the status."""
        since = time() - SPAN_S
        with self.lock:
            drops = [flow for flow in self.flows if flow.verdict == DROPPED and flow.time >= since]
        return {"dropped": len(drops), "last": [flow.document() for flow in drops[-SHOWN:]]}


def ask(path: str, timeout_s: float = control.TIMEOUT_S) -> dict[str, Any] | None:
    """Return the flows of the server at the socket `path`, {"flows": [...]}; None if the server collects no flows.
    Raises the OSError of control.ask()."""
    return control.ask(path, NAME, {}, timeout_s)
