"""Answer GET requests over HTTP/1.1 in one thread, one request for each connection.

The thread never blocks on one client, so a slow client delays no other client. A connection is closed after
CLIENT_TIMEOUT_S. Beyond MAX_CLIENTS the oldest connection is closed.
"""

from __future__ import annotations

import selectors
from dataclasses import dataclass
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING

from fastcni.daemon.background import start_thread
from fastcni.daemon.wakeup import Wakeup
from fastcni.server.web.address import is_local

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

    from fastcni.daemon.log import Logger

CLIENT_TIMEOUT_S = 10.0
MAX_CLIENTS = 16
MAX_HEAD_BYTES = 16 << 10
ACCEPT_PAUSE_S = 0.1            # seconds until the next accept(2) if no descriptor is free
TEXT = "text/plain; charset=utf-8"
REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
           500: "Internal Server Error", 503: "Service Unavailable"}


class NotReady(Exception):
    """The content does not exist yet; the client may ask again in a second."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page. make: returns the content, or raises NotReady. headers: further header lines, each with its line end.
    local: whether the Host header must name a loopback address. Without this check, a script of another site could
    read the page in a browser by a name of that site that resolves to this machine (DNS rebinding)."""

    kind: str
    make: Callable[[], bytes]
    headers: str = ""
    local: bool = False


class Client:
    """A connection. head: the received bytes of its request. answer: the bytes to send, None before the answer is
    made."""

    __slots__ = ("answer", "deadline", "head", "sock")

    def __init__(self, sock: socket) -> None:
        self.sock, self.head, self.deadline = sock, b"", monotonic() + CLIENT_TIMEOUT_S
        self.answer: memoryview | None = None


class Listener:
    """The thread that answers requests, and its clients. sock: a listening, non-blocking socket. pages: {path: Page}.
    log: the server's log."""

    def __init__(self, sock: socket, pages: dict[str, Page], log: Logger) -> None:
        self.sock, self.pages, self.log = sock, pages, log
        self.events, self.wakeup, self.stopping = selectors.DefaultSelector(), Wakeup(), False
        self.events.register(sock, selectors.EVENT_READ)
        self.events.register(self.wakeup, selectors.EVENT_READ)
        self.clients: dict[int, Client] = {}            # {descriptor: Client}, oldest first
        self.thread = Thread(target=self._run, name="http", daemon=True)

    def start(self) -> bool:
        """Start the thread if it does not run. Return whether this call started the thread: Python cannot always start
        a thread."""
        return not self.thread.is_alive() and not self.stopping and start_thread(self.thread, self.log)

    def stop(self) -> None:
        self.stopping = True
        self.wakeup.wake()
        if self.thread.is_alive():
            self.thread.join()
        for client in [*self.clients.values()]:
            self._close(client)
        self.sock.close()
        self.events.close()
        self.wakeup.close()

    def _run(self) -> None:
        while not self.stopping:
            try:
                self._step()
            except Exception:           # a defect of fastcni: the server continues
                self.log.exception("server_fault")
                sleep(ACCEPT_PAUSE_S)

    def _step(self) -> None:
        oldest = next(iter(self.clients.values()), None)
        for key, _ in self.events.select(None if oldest is None else max(0.0, oldest.deadline - monotonic())):
            if key.fileobj is self.sock:
                self._accept()
            elif key.fileobj is self.wakeup:
                self.wakeup.clear()
            elif client := self.clients.get(key.fd):
                self._proceed(client)
        now = monotonic()
        for client in [*self.clients.values()]:
            if len(self.clients) <= MAX_CLIENTS and client.deadline > now:
                break
            self._close(client)

    def _accept(self) -> None:
        try:
            sock, _ = self.sock.accept()
        except BlockingIOError:
            return
        except OSError:                 # no free descriptor, or the client has left
            sleep(ACCEPT_PAUSE_S)
            return
        sock.setblocking(False)
        self.clients[sock.fileno()] = Client(sock)
        self.events.register(sock, selectors.EVENT_READ)

    def _proceed(self, client: Client) -> None:
        """Read the received bytes, or send as much of the answer as the socket accepts."""
        try:
            if client.answer is None:
                piece = client.sock.recv(MAX_HEAD_BYTES)
                client.head += piece
                if b"\r\n\r\n" not in client.head and piece and len(client.head) <= MAX_HEAD_BYTES:
                    return
                if not client.head:
                    self._close(client)
                    return
                client.answer = memoryview(self._answer(client.head))
                self.events.modify(client.sock, selectors.EVENT_WRITE)
            client.answer = client.answer[client.sock.send(client.answer):]
        except BlockingIOError:
            return
        except OSError:                 # the client has left
            self._close(client)
            return
        if not client.answer:
            self._close(client)

    def _close(self, client: Client) -> None:
        self.events.unregister(client.sock)
        del self.clients[client.sock.fileno()]
        client.sock.close()

    def _answer(self, head: bytes) -> bytes:
        """Return the bytes of the answer to a request."""
        first, *lines = head.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1.") or b"\r\n\r\n" not in head:
            return response(400, TEXT, b"expected a request of HTTP/1.1\n")
        method, target, _ = words
        page = self.pages.get(target.partition("?")[0])
        if method not in ("GET", "HEAD"):
            return response(405, TEXT, b"only GET and HEAD\n", "Allow: GET, HEAD\r\n")
        if not page:
            return response(404, TEXT, f"the pages are {', '.join(self.pages)}\n".encode())
        if page.local and not all(map(is_local, hosts(lines) or [""])):
            return response(403, TEXT, b"expected localhost or a loopback address as the host\n")
        status, kind, headers = 200, page.kind, page.headers
        try:
            body = page.make()
        except NotReady:
            status, kind, headers, body = 503, TEXT, "Retry-After: 1\r\n", b"ask again in a second\n"
        except Exception:               # a defect of fastcni: Prometheus shows the scrape as failed
            self.log.exception("server_fault")
            status, kind, headers, body = 500, TEXT, "", b"see the server's log\n"
        return response(status, kind, body, headers, head_only=method == "HEAD")


def hosts(lines: list[str]) -> list[str]:
    """Return the values of the Host headers."""
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for name, _, value in pairs if name.strip().lower() == "host"]


def response(status: int, kind: str, body: bytes, more: str = "", *, head_only: bool = False) -> bytes:
    """Return the bytes of an answer. more: further header lines."""
    head = (f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            f"X-Content-Type-Options: nosniff\r\nConnection: close\r\n{more}\r\n")
    return head.encode() + (b"" if head_only else body)
