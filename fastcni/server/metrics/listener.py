"""The thread that answers scrapes: GET over HTTP/1.1, one request a connection.

It serves any number of clients in one thread, so that a slow one delays no other. A client has CLIENT_TIMEOUT_S in all.
Beyond MAX_CLIENTS the oldest is closed.
"""

from __future__ import annotations

import selectors
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING

from fastcni.server.background import start_thread
from fastcni.server.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket
    from typing import Any

    Page = tuple[str, Callable[[], bytes]]      # its content type, and what makes it

CLIENT_TIMEOUT_S = 10.0
MAX_CLIENTS = 16
MAX_HEAD_BYTES = 16 << 10
ACCEPT_PAUSE_S = 0.1            # without a free descriptor
TEXT = "text/plain; charset=utf-8"
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}


class Client:
    """A connection. head: bytes of its request. answer: bytes that are to be sent, None before the answer is made."""

    __slots__ = ("answer", "deadline", "head", "sock")

    def __init__(self, sock: socket) -> None:
        self.sock, self.head, self.deadline = sock, b"", monotonic() + CLIENT_TIMEOUT_S
        self.answer: memoryview | None = None


class Listener:
    """sock: listens, non-blocking. pages: {path: Page}. log: of the server."""

    def __init__(self, sock: socket, pages: dict[str, Page], log: Any) -> None:
        self.sock, self.pages, self.log = sock, pages, log
        self.events, self.wakeup, self.stopping = selectors.DefaultSelector(), Wakeup(), False
        self.events.register(sock, selectors.EVENT_READ)
        self.events.register(self.wakeup, selectors.EVENT_READ)
        self.clients: dict[int, Client] = {}            # by descriptor, oldest first
        self.thread = Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> bool:
        """Start the thread if it does not run; it cannot always be started. Return whether it has been started now."""
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

    def _run(self):
        while not self.stopping:
            try:
                self._step()
            except Exception:           # a defect of fastcni: the server and its requests go on
                self.log.exception("server_fault")
                sleep(ACCEPT_PAUSE_S)

    def _step(self):
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

    def _accept(self):
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

    def _proceed(self, client):
        """Read what has come, or send what fits."""
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

    def _close(self, client):
        self.events.unregister(client.sock)
        del self.clients[client.sock.fileno()]
        client.sock.close()

    def _answer(self, head: bytes) -> bytes:
        """The bytes of the answer to a request."""
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1.") or b"\r\n\r\n" not in head:
            return response(400, TEXT, b"expected a request of HTTP/1.1\n")
        method, target, _ = words
        page = self.pages.get(target.partition("?")[0])
        if method not in ("GET", "HEAD"):
            return response(405, TEXT, b"only GET and HEAD\n", "Allow: GET, HEAD\r\n")
        if not page:
            return response(404, TEXT, f"there is {', '.join(self.pages)}\n".encode())
        kind, make = page
        try:
            status, body = 200, make()
        except Exception:               # a defect of fastcni: Prometheus shows the scrape as failed
            self.log.exception("server_fault")
            status, kind, body = 500, TEXT, b"see the server's log\n"
        return response(status, kind, body, head_only=method == "HEAD")


def response(status: int, kind: str, body: bytes, more: str = "", *, head_only: bool = False) -> bytes:
    """The bytes of an answer. more: further header lines."""
    head = (f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            f"Connection: close\r\n{more}\r\n")
    return head.encode() + (b"" if head_only else body)
