"""Send the events that events.py lists as Kubernetes Events of this node: `kubectl events --for node/NAME`.

The thread that logs a line only adds it to a table. Another thread sends it, so that an unavailable API server delays
no request. All lines of one event about one subject become one Event: the first line is sent immediately, and later
lines only change the Event's count, at most once in SERIES_S.
"""

from __future__ import annotations

import os
import time
from threading import Event as Flag
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Protocol

from fastcni.clients.errors import Away, Invalid
from fastcni.clients.kubeconfig import in_cluster, read_kubeconfig
from fastcni.clients.kubernetes import Api, Conflict, Missing
from fastcni.daemon.background import start_thread
from fastcni.daemon.events import EVENTS
from fastcni.daemon.log import RateLimited, logfmt_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastcni.daemon.log import Logger

    class Logs(Protocol):
        """A process with a log, such as the server."""

        logger: Logger

IN_CLUSTER = "in-cluster"
NAMESPACE = "default"           # the namespace of Events about objects without a namespace, such as nodes
PATH = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
CONTROLLER = "fastcni.dev/server"
# The fields that identify an event's subject. The other fields may differ from line to line
THINGS = ("plugin", "network", "range", "table", "space", "block", "address", "store", "pod")
MAX_SERIES = 256                # limit of the series in the table
SERIES_S = 60.0                 # seconds between two updates of an Event's count
ENDED_S = 1800.0                # seconds without a line after which the next line is a new Event
RETRY_S = 10.0                  # seconds until the next try after a failure
STOP_S = 1.0                    # seconds that stop() waits until the thread has sent the last Events
MAX_NODE_NAME = 200             # limit of the node's name in an Event's name, in characters; the API allows 253 in all
MAX_NOTE = 1024                 # the API's limit of an Event's text, in bytes


class Series:
    """The lines of one event about one subject. fields: the fields of the first line. count: the number of lines. sent:
    the count that the API server has. name: the name of the Kubernetes Event; "" before it exists. last: the Unix time
    of the last line. due: when the next count may be sent, in monotonic seconds. failed: when the last try failed, in
    monotonic seconds; 0.0: the last try did not fail."""

    __slots__ = ("count", "due", "event", "failed", "fields", "last", "name", "sent")

    def __init__(self, event: str, fields: dict[str, Any]) -> None:
        self.event, self.fields, self.name = event, fields, ""
        self.count = self.sent = 0
        self.last, self.due, self.failed = time.time(), 0.0, 0.0


class KubernetesEvents:
    """The table of events and the thread that sends them. where: the path of a kubeconfig, or IN_CLUSTER. node: this
    node's name in the cluster; "": the environment variable NODE_NAME, otherwise the host name."""

    def __init__(self, where: str, node: str = "") -> None:
        self.api = Api(in_cluster if where == IN_CLUSTER else lambda: read_kubeconfig(where))
        self.node = node or os.environ.get("NODE_NAME") or os.uname().nodename.lower()
        self.lock, self.wake, self.stopping = Lock(), Flag(), Flag()
        self.left_out, self.retry_at = 0, 0.0           # number of dropped lines; when to try again after a failure
        self.series: dict[tuple[str, ...], Series] = {}
        self.thread = Thread(target=self._run, name="kubernetes-events", daemon=True)

    def receive(self, line: Mapping[str, Any]) -> None:
        """Record a line of the log. Any thread may call this."""
        if line["event"] in EVENTS:
            self.note(line["event"], {name: line[name] for name in EVENTS[line["event"]].fields if name in line})

    def note(self, event: str, fields: dict[str, Any]) -> None:
        key = (event, *(str(fields.get(name, "")) for name in THINGS))
        with self.lock:
            one = self.series.get(key)
            if not one:
                if len(self.series) >= MAX_SERIES and not self._make_room():
                    self.left_out += 1
                    return
                one = self.series[key] = Series(event, fields)
            one.count, one.last = one.count + 1, time.time()
        self.wake.set()

    def _make_room(self) -> bool:
        """Remove the oldest completely sent series from the table. Return False if the table has no such series."""
        sent = next((key for key, one in self.series.items() if one.sent == one.count), None)
        return sent is not None and bool(self.series.pop(sent))

    def attach(self, server: Logs) -> None:
        """Log failures to send events in the log of `server`."""
        self.log: Logger = server.logger
        self.unsent = RateLimited(self.log.warning, 60.0)

    def start(self) -> None:
        """Start the thread if it does not run. If Python cannot start it, call start() again later."""
        if self.thread.ident is None and not self.stopping.is_set():
            start_thread(self.thread, self.log)

    def stop(self) -> None:
        """Send the waiting lines, for at most STOP_S."""
        self.stopping.set()
        self.wake.set()
        if self.thread.is_alive():
            self.thread.join(STOP_S)    # a daemon thread does not delay the end of the process

    def _run(self) -> None:
        pause, ends = None, False
        while not ends:
            self.wake.wait(pause)
            self.wake.clear()
            self.stopping.wait(max(0.0, self.retry_at - time.monotonic()))
            ends = self.stopping.is_set()       # read first, so that this round sends all lines from before stop()
            try:
                pause = self.send_due(everything=ends)
            except Exception:           # a bug of fastcni must not end the server
                self.log.exception("server_fault")
                pause, self.retry_at = RETRY_S, time.monotonic() + RETRY_S
        self.api.close()

    def send_due(self, *, everything: bool = False) -> float | None:
        """Send the series that are due; everything: send all series with unsent lines. Return the seconds until the
        next series is due; None if no series has unsent lines."""
        now, pause = time.monotonic(), None
        if self.left_out:
            self.unsent("kubernetes_event_unsent", lines=self.left_out, why=f"{MAX_SERIES} others wait")
            self.left_out = 0
        for one in sorted(self._waiting(), key=lambda one: one.failed):
            if everything or now >= one.due:
                try:
                    self._send(one)
                except Invalid as e:        # the API server would reject this Event each time
                    self.unsent("kubernetes_event_unsent", reason=reason_of(one.event), why=str(e))
                    one.sent = one.count
                except (Away, Conflict) as e:
                    self.unsent("kubernetes_event_unsent", reason=reason_of(one.event), why=str(e))
                    self.retry_at = now + RETRY_S
                    one.failed = now            # send this Event last: the API server may reject only this Event
                    return RETRY_S
                one.due, one.failed = now + SERIES_S, 0.0
            if one.sent < one.count:    # further lines arrived while the series was sent
                pause = min(pause or SERIES_S, max(0.1, one.due - now))
        return pause

    def _waiting(self) -> list[Series]:
        """Return the series with unsent lines. Remove series without a line for ENDED_S from the table."""
        with self.lock:
            ended = [key for key, one in self.series.items()
                     if one.sent == one.count and one.last < time.time() - ENDED_S]
            for key in ended:
                del self.series[key]
            return [one for one in self.series.values() if one.sent < one.count]

    def _send(self, series: Series) -> None:
        count, last = series.count, micro_time(series.last)     # receive() may change both meanwhile
        if series.name:
            try:
                self.api.patch(f"{PATH}/{series.name}", {"series": {"count": count, "lastObservedTime": last}})
            except Missing:             # API servers remove Events after an hour
                series.name = ""
        if not series.name:
            name = f"{self.node[:MAX_NODE_NAME]}.{time.time_ns():x}"
            try:
                self.api.create(PATH, document(self.node, name, series.event, series.fields, count, last))
            except Conflict:            # the API server received the previous request, but its answer was lost
                pass
            series.name = name
        series.sent = count


def document(node: str, name: str, event: str, fields: Mapping[str, Any], count: int, last: str) -> dict[str, Any]:
    """Return an Event of events.k8s.io/v1. count: the number of lines. last: the MicroTime of the last line."""
    note = f"{EVENTS[event].meaning} {logfmt_fields(fields)}".strip()
    found: dict[str, Any] = {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name, "namespace": NAMESPACE},
        "eventTime": last, "reportingController": CONTROLLER, "reportingInstance": node[:128], "action": "Report",
        "reason": reason_of(event), "type": "Normal" if EVENTS[event].level == "info" else "Warning",
        # kubelets use the node's name as the uid in its Events, and kubectl searches for that uid
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "note": note.encode("utf-8", "replace")[:MAX_NOTE].decode("utf-8", "ignore")}
    return found | {"series": {"count": count, "lastObservedTime": last}} if count > 1 else found


def reason_of(event: str) -> str:
    """Return the reason of a Kubernetes Event: PoolNearlyFull for the event pool_nearly_full."""
    return event.title().replace("_", "")


def micro_time(moment: float) -> str:
    """Return a Unix time as a MicroTime of the Kubernetes API."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment))}.{int(moment % 1 * 1e6):06d}Z"
