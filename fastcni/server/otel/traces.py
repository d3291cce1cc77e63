"""Queue ended requests, and make and send their spans in a thread.

A request only appends to the queue. A collector that is unavailable, slow or hangs delays no request, and delays the
server's stop by at most STOP_S. Requests beyond MAX_WAITING get no spans; the log reports their number.
"""

from __future__ import annotations

from collections import deque
from threading import Event, Thread
from time import monotonic, monotonic_ns, time_ns
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from fastcni.daemon.background import start_thread
from fastcni.daemon.listening import ListenError

if TYPE_CHECKING:
    from fastcni._steps import Phase
    from fastcni.daemon.log import Logger
    from fastcni.server.records.ended import Ended
    from fastcni.server.service import Server

MAX_WAITING = 4096              # limit of the requests that wait for the collector
BATCH = 128                     # number of requests whose spans the thread sends together
DELAY_S = 1.0                   # seconds in which ended requests are collected before their spans are sent
STOP_S = 1.5                    # seconds that the server's stop waits for the last spans
LOG_S = 30.0                    # seconds between two lines about lost spans
FAULT = "a fault of fastcni"


class UrlError(ValueError):
    """The text is not the URL of a collector."""


class Traced(NamedTuple):
    """The data for the spans of a request, without the request's configuration, which can be large.

    env: the caller's variables. outcome, error: as in Ended. phases, merged: as in Phases. arrived, queued, ended: when
    the request entered the queue, left the queue, and ended, in nanoseconds of monotonic_ns(), which on Linux equals
    perf_counter_ns(). to_unix: the nanoseconds to add to these times for Unix time.
    """

    command: str
    plugin: str
    network: str
    id: str
    pid: int
    env: dict[str, str]
    outcome: str
    error: str
    phases: list[Phase]
    merged: dict[int | str, int]
    arrived: int
    queued: int
    ended: int
    to_unix: int


class Traces:
    """The traces of a server. url: the collector's URL, without /v1/traces. The constructor raises ListenError if
    OpenTelemetry's SDK is missing."""

    def __init__(self, url: str, log: Logger) -> None:
        try:
            from fastcni.server.otel.spans import Sender
        except ImportError as e:
            raise ListenError(f"--otlp needs the Python packages opentelemetry-sdk and "
                              f"opentelemetry-exporter-otlp-proto-http ({e}): install fastcni[otel] from PyPI; "
                              "Debian has no packages of them") from e
        self.url, self.log, self.sender = url, log, Sender(url)
        self.waiting: deque[Traced] = deque()
        self.sending = 0                # requests whose spans are being sent
        self.lost = 0                   # requests that lost their spans since the last log line about lost spans
        self.wake, self.stopping = Event(), Event()
        self.next_line = 0.0            # when the next line may be logged, by monotonic()
        self.thread = Thread(target=self._run, name="traces", daemon=True)

    def attach(self, server: Server) -> None:
        """Trace the requests of this server."""
        server.acceptor.records.receivers.append(self.note)

    def start(self) -> None:
        """Start the thread if it does not run. Call start() periodically, because Python cannot always start a
        thread."""
        if self.thread.ident is None and start_thread(self.thread, self.log):
            self.log.info("traces_ready", url=self.url)

    def note(self, ended: Ended) -> None:
        """Add an ended request to the queue. Called in the request's thread."""
        if len(self.waiting) >= MAX_WAITING:
            self.lost += 1
            return
        call, now = ended.call, monotonic_ns()
        message, arrived = call.message, int(call.arrived * 1e9)
        left_queue = arrived + int(ended.queued * 1e9)
        self.waiting.append(Traced(call.command, message.plugin, call.network, message.id, message.pid, message.env,
                                   ended.outcome, ended.error, ended.phases.entries, ended.phases.merged,
                                   arrived, left_queue, left_queue + int(ended.took * 1e9), time_ns() - now))
        if not self.wake.is_set():
            self.wake.set()

    def stop(self) -> None:
        """Send the waiting spans, for at most STOP_S."""
        self.stopping.set()
        self.wake.set()
        if self.thread.is_alive():
            self.thread.join(STOP_S)
        if self.thread.is_alive():      # a daemon thread does not delay the end of the process
            self.log.warning("traces_lost", requests=self.lost + len(self.waiting) + self.sending, url=self.url,
                             why=f"the collector did not accept the spans within {STOP_S} s of the server's stop")
            self.sender.close()

    def _run(self) -> None:
        while not self.stopping.is_set():
            self.wake.wait()
            self.stopping.wait(DELAY_S)         # collect the requests that end now
            self.wake.clear()
            self._send_waiting()
        self._send_waiting()            # requests that ended before the stop
        self.sender.close()

    def _send_waiting(self) -> None:
        while self.waiting:
            self._send([self.waiting.popleft() for _ in range(min(BATCH, len(self.waiting)))])

    def _send(self, batch: list[Traced]) -> None:
        self.sending, why = len(batch), ""
        for each in batch:
            try:
                self.sender.add(each)
            except Exception:           # a defect of fastcni or of the SDK: the other requests' spans are sent
                if not why:
                    self.log.exception("server_fault")
                self.sending, self.lost, why = self.sending - 1, self.lost + 1, FAULT
        try:
            failed = self.sender.send()
        except Exception:
            self.log.exception("server_fault")
            failed = FAULT
        if failed:
            self.lost, why = self.lost + self.sending, failed
        self.sending = 0
        if self.lost and monotonic() >= self.next_line:
            self.log.warning("traces_lost", requests=self.lost, url=self.url,
                             why=why or f"more than {MAX_WAITING} requests waited for the collector")
            self.lost, self.next_line = 0, monotonic() + LOG_S


def read_url(text: str) -> str:
    """Return the URL of a collector, if it is valid. Raises UrlError."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UrlError(f"expected the URL of a collector such as http://127.0.0.1:4318, got {text!r}")
    return text
