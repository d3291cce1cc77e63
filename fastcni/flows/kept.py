"""`fastcni serve --flows`: the last flows of the node, and their number. The answer to the control request NAME:

    {"flows": [{"time": 1763900000.123, ...}]}          see records.py; the oldest first

and in the document of `fastcni-status` the key "flows":

    {"dropped": 12, "last": [{...}]}                    of the last minute; the newest drops
"""

from __future__ import annotations

from collections import Counter, deque
from json import dumps  # in C: fastcni.spec.json takes twice as long
from threading import Event, Lock, Thread
from time import time
from typing import TYPE_CHECKING, Any

from fastcni.daemon.background import start_thread
from fastcni.flows.records import DROPPED, Flow
from fastcni.server import control
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.flows.collector import Collector
    from fastcni.server.service import Server

NAME = "fastcni-flows"          # has the characters of a plugin's name, but no plugin has this name
SIZE = 10_000                   # flows that are kept
SHOWN = 5                       # of the newest drops
SPAN_S = 60.0
WAIT_S = 1.0                    # for a flow, before the thread looks whether the server ends
MAX_COUNTS = 1000               # combinations of labels: others are counted with policy OTHER
OTHER = "other"


class Kept:
    """A part of the server. open_collector(): begins to collect. Raises OSError."""

    def __init__(self, open_collector: Callable[[], Collector]) -> None:
        self.open_collector = open_collector
        self.flows: deque[Flow] = deque(maxlen=SIZE)
        self.counts = Counter[tuple[str, str, str, str]]()
        self.lock, self.ended = Lock(), Event()
        self.collector: Collector | None = None
        self.thread: Thread | None = None

    def attach(self, server: Server) -> None:
        """Answer the control request, and describe the drops. The sockets are opened in this thread, which is in the
        node's network namespace."""
        self.log = server.logger
        try:
            self.collector = self.open_collector()
        except (OSError, CniError) as e:
            self.log.error("flows_unavailable", error=str(e))
            return
        server.acceptor.control[NAME] = lambda conn, _: server.background(control.answer, conn, self.document)
        server.described["flows"] = self.summary

    def start(self) -> None:
        """Start the thread; a later call tries again if the thread could not be started."""
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
            except Exception:           # a defect of fastcni: the server goes on
                self.log.exception("server_fault")
                return

    def note(self, found: list[Flow]) -> None:
        """Keep flows."""
        with self.lock:
            self.flows += found
            for flow in found:
                key = flow.verdict, flow.by, flow.policy, flow.network
                if key not in self.counts and len(self.counts) >= MAX_COUNTS:
                    key = flow.verdict, flow.by, OTHER, OTHER
                self.counts[key] += 1

    def copy_counts(self) -> dict[tuple[str, str, str, str], int]:
        """Return {(verdict, by, policy, network): number}."""
        with self.lock:
            return dict(self.counts)

    def document(self) -> bytes:
        """The answer to the control request."""
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
    """Return the answer of the server at the socket `path`; None if the server records no flows. Raises OSError, as
    control.ask()."""
    return control.ask(path, NAME, {}, timeout_s)
