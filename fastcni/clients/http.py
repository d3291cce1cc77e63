"""Send HTTP requests with JSON in both directions, by urllib3: several endpoints, TLS with client certificates, and a
deadline for all endpoints together.

    http = Http(["https://10.0.0.1:2379", "https://10.0.0.2:2379"], ca="ca.pem", cert="node.pem", key="node-key.pem")
    answer = http.request("POST", "/v3/kv/range", {"key": "Zm9v"})
    answer.status, answer.document              # 200, {"header": ...}
    with http.stream("POST", "/v3/watch", {...}, stop=lambda: False) as stream:
        for document in stream: ...             # one document a line, as they arrive

An Http object keeps its connections, which threads share. If an endpoint fails or does not answer in time, the request
goes to the next endpoint. The next request goes first to the endpoint that has answered. A request may reach a service
twice, through two endpoints: send only requests that may be repeated. The first request imports urllib3.
"""

from __future__ import annotations

from _thread import _local, allocate_lock
from time import monotonic

from fastcni._run_token import await_input
from fastcni.clients.errors import Away, Busy
from fastcni.clients.http_pools import LATE, Pools, Tls, reason
from fastcni.kernel import waiting
from fastcni.spec import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

REQUEST_TIMEOUT_S = 5.0         # the limit of a request, for all endpoints together
ENDPOINT_TIMEOUT_S = 1.5        # the limit of a request at each endpoint except the last
STREAM_IDLE_S = 3600.0
HUNG_UP = ("EOF", "closed", "reset", "pipe", "certificate required")
PIECE_BYTES = 1 << 16           # limit of a piece of a stream
STOP_CHECK_MS = 500             # how often a stream calls stop()
AWAY = (502, 503, 504)          # statuses of an endpoint or proxy that cannot reach the service behind it


class Answer:
    """The answer to a request. status: the HTTP status. data: the body in bytes. headers: case-insensitive. endpoint:
    the endpoint that answered."""

    __slots__ = ("status", "data", "headers", "endpoint")

    def __init__(self, status: int, data: bytes, headers: Any, endpoint: str) -> None:
        self.status, self.data, self.headers, self.endpoint = status, data, headers, endpoint

    @property
    def document(self) -> Any:
        """Return the body as JSON, {} if it is empty. Raises Away if the body is not JSON."""
        return read_document(self.data, self.endpoint) if self.data.strip() else {}

    @property
    def text(self) -> str:
        """Return the body for an error message: one line, at most 300 characters."""
        return " ".join(self.data.decode("utf-8", "replace").split())[:300]


class Stopped(Exception):
    """stop() returned true during a wait."""


class Now(_local):
    """The limits of the calling thread's waits. A wait ends at `deadline`, and when stop() returns true."""

    deadline = 0.0
    stop: Callable[[], object] | None = None

    def wait(self, sock: Any) -> None:
        """Wait until the socket is readable. Raises TimeoutError, Stopped, CallerGone."""
        pending = getattr(sock, "pending", None)        # bytes that TLS has decrypted already
        while not (pending and pending()):
            left = int((self.deadline - monotonic()) * 1000) + 1
            if left <= 0:
                raise TimeoutError
            came = await_input(sock.fileno(), waiting.caller(), min(left, STOP_CHECK_MS) if self.stop else left)
            if came == waiting.GONE:
                raise waiting.CallerGone
            if self.stop and self.stop():
                raise Stopped
            if came == 1:
                return


class Http:
    """A service at several endpoints.

    endpoints: "http://HOST:PORT" or "https://...", optionally with a path, which is put in front of each request's
    path. ca, cert, key: PEM files, which are read again when they change, or PEM texts; without `ca` the system's CAs.
    server_name: see Tls. headers: a function that returns headers for each request, for example a token. service: the
    service's name in errors.
    """

    def __init__(self, endpoints: Sequence[str], *, ca: str = "", cert: str = "", key: str = "", verify: bool = True,
                 server_name: str = "", headers: Callable[[], dict[str, str]] | None = None, service: str = "store",
                 timeout: float = REQUEST_TIMEOUT_S, endpoint_timeout: float = ENDPOINT_TIMEOUT_S) -> None:
        self.endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self.tls = Tls(ca, cert, key, verify, server_name)
        self.headers, self.service = headers, service
        self.timeout, self.endpoint_timeout = timeout, endpoint_timeout
        self.good = 0                   # index of the endpoint to ask first
        self.sent = 0                   # number of requests, for measurements and tests
        self._now, self._lock = Now(), allocate_lock()
        self._pools: Pools | None = None

    def request(self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None,
                timeout: float = 0.0) -> Answer:
        """Send a request and return the answer, which may have any status except those in AWAY. body: encoded as JSON;
        bytes are sent unchanged; None: no body. timeout: seconds for all endpoints together; 0.0: the default.

        Raises Away, waiting.CallerGone.
        """
        with waiting.waiting(waiting.STORE):
            response, endpoint = self._ask_each(method, path, body, headers, timeout or self.timeout, whole=True)
        return Answer(response.status, response.data, response.headers, endpoint)

    def stream(self, method: str, path: str, body: Any = None, *, stop: Callable[[], object],
               headers: dict[str, str] | None = None, idle: float = STREAM_IDLE_S, timeout: float = 0.0) -> Stream:
        """Send a request and return its answer as a Stream, which ends when stop() returns true. stop() is called twice
        a second. idle: seconds after which a silent connection counts as lost. timeout: seconds until the answer
        begins; 0.0: the default. Raises Away."""
        self._now.stop = stop
        try:
            response, endpoint = self._ask_each(method, path, body, headers, timeout or self.timeout, whole=False)
        except Stopped:
            return Stream(self, None, "", stop, idle)
        finally:
            self._now.stop = None
        return Stream(self, response, endpoint, stop, idle)

    def close(self) -> None:
        """Close the connections that no request uses. The next request opens a new connection."""
        with self._lock:
            pools, self._pools = self._pools, None
        if pools:
            pools.close()

    def away(self, endpoint: str, failure: BaseException) -> Away:
        """Return the Away that describes a failure. With TLS 1.3 a server that requires a client certificate may close
        the connection without an error."""
        why = reason(failure)
        if endpoint.startswith("https:") and not self.tls.cert and any(text in why for text in HUNG_UP):
            why += "; the configuration names no client certificate"
        return (Busy if why == LATE else Away)(f"{self.service} at {endpoint}: {why}")

    def _ask_each(self, method: str, path: str, body: Any, headers: dict[str, str] | None, seconds: float,
                  whole: bool) -> tuple[Any, str]:
        """Return (urllib3's response, endpoint) of the first endpoint that answers. whole: whether to read the
        response's body."""
        if body is not None and not isinstance(body, bytes):
            body = json.write(body)
            headers = {"Content-Type": "application/json"} | (headers or {})
        deadline = monotonic() + waiting.limit(seconds)
        first, count, failed = self.good, len(self.endpoints), []
        kind = Away
        for number in range(count):
            at = (first + number) % count
            until = deadline if number == count - 1 else min(deadline, monotonic() + self.endpoint_timeout)
            try:
                response = self._ask(self.endpoints[at], until, method, path, body, headers, whole)
                self.good = at
                return response, self.endpoints[at]
            except Away as e:
                failed.append(str(e))
                kind = Busy if isinstance(e, Busy) else kind
            if monotonic() >= deadline:
                break
        raise kind("; ".join(failed))

    def _ask(self, endpoint: str, deadline: float, method: str, path: str, body: bytes | None,
             headers: dict[str, str] | None, whole: bool) -> Any:
        """Return urllib3's response of one endpoint. If the service has closed a kept connection, try once with a new
        connection."""
        pools = self._current_pools()
        pool = pools.pool(endpoint)
        headers = (self.headers() if self.headers else {}) | (headers or {})
        self._now.deadline = deadline
        prefix = endpoint.partition("://")[2].partition("/")[2]
        for repeated in (False, True):
            self.sent += 1
            try:
                response = pool.urlopen(method, f"/{prefix}{path}" if prefix else path, body=body, headers=headers,
                                        retries=False, redirect=False, assert_same_host=False, preload_content=whole,
                                        timeout=pools.timeout(max(0.01, deadline - monotonic())))
                if response.status in AWAY:
                    raise Busy(f"{self.service} at {endpoint}: status {response.status}: "
                               f"{Answer(response.status, response.data, {}, endpoint).text}")
                return response
            except pools.failures as e:
                if repeated or not pools.was_closed(e):
                    raise self.away(endpoint, e) from e
        raise AssertionError("not reached")

    def _current_pools(self) -> Pools:
        pools = self._pools
        if pools is None or pools.outdated():
            with self._lock:
                if self._pools is pools:
                    self._pools = Pools(self.tls, self._now.wait)
                pools = self._pools or Pools(self.tls, self._now.wait)
        return pools


class Stream:
    """The documents of an endless answer: `for document in stream`. Use a Stream in one thread, in a `with` block.

    status: the HTTP status. If it is not 200, answer() returns the body. If stop() returned true before an answer
    arrived, the status is 200 and the Stream has no documents.
    """

    def __init__(self, http: Http, response: Any, endpoint: str, stop: Callable[[], object], idle: float) -> None:
        self.http, self.response, self.endpoint, self.stop, self.idle = http, response, endpoint, stop, idle
        self.status: int = response.status if response else 200

    def answer(self) -> Answer:
        """Read the complete body and return the Answer, if the status is not 200. Raises Away."""
        return Answer(self.status, b"".join(self._pieces(self.http.timeout)), self.response.headers, self.endpoint)

    def __iter__(self) -> Iterator[Any]:
        """Yield documents until over() returns true or the service ends the answer. Raises Away."""
        rest = b""
        for piece in self._pieces(self.idle):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.strip():
                    yield read_document(line, self.endpoint)
                if self.over():
                    return

    def over(self) -> bool:
        """Return whether the stream has to end: stop() returns true, or requests have changed to another endpoint. Then
        the stream's endpoint may hang."""
        return bool(self.stop()) or self.http.endpoints[self.http.good] != self.endpoint

    def pieces(self) -> Iterator[bytes]:
        """Yield the body of an answer that ends, in pieces as they arrive. Raises Away."""
        return self._pieces(self.idle, PIECE_BYTES)

    def close(self) -> None:
        """Close the connection."""
        if self.response:
            self.response.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pieces(self, seconds: float, least: int = 1) -> Iterator[bytes]:
        """Yield the body in pieces as they arrive. seconds: the longest time without a piece. least: the size of a
        piece in bytes, if the body has no chunks."""
        now, response = self.http._now, self.response
        if not response:
            return
        # If the body has no chunks, a read of more than `least` bytes would wait until all these bytes have arrived.
        pieces = response.stream(PIECE_BYTES if response.chunked else least, decode_content=False)
        while True:
            now.deadline, now.stop = monotonic() + seconds, self.over
            try:
                piece = next(pieces, None)
            except Stopped:
                return
            except self.http._current_pools().failures as e:
                raise self.http.away(self.endpoint, e) from e
            finally:
                now.stop = None
            if piece is None:
                return
            yield piece


def read_document(data: bytes, endpoint: str) -> Any:
    """Decode one JSON document. Raises Away."""
    try:
        return json.read(data)
    except json.JsonError as e:
        raise Away(f"{endpoint}: not a JSON document: {e}: {data[:80]!r}") from None
