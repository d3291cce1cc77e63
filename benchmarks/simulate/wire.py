"""HTTP for the simulated nodes: persistent connections for requests, and watches whose events are counted and dropped.

Thousands of simulated nodes share one process, so they do not parse records. They only search the registry's answers
for the values that the next request needs.
"""

import asyncio
import json
import os
import select
import socket
import threading

CHUNK_BYTES = 1 << 16


class Traffic:
    """The traffic of all connections of this process. bytes: the HTTP bytes in both directions, without the bytes that
    watches have received, which Streams counts."""

    def __init__(self):
        self.requests = self.bytes = self.received = self.streams = self.lists = self.writes = 0


class Connection:
    """A persistent connection to the registry. ssl: an SSLContext for https, or None for http."""

    def __init__(self, host, port, traffic, headers="", ssl=None):
        self.host, self.port, self.traffic, self.headers, self.ssl = host, port, traffic, headers, ssl
        self.reader = self.writer = None

    async def ask(self, method, path, body=None, content_type="application/json"):
        """Make a request. Return the answer's body, as bytes. Raises RuntimeError if the status is not 2xx."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port, ssl=self.ssl)
        request = compose(method, path, body, self.host, self.headers, content_type)
        self.writer.write(request)
        self.traffic.requests += 1
        head = await self.reader.readuntil(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if lengths:
            answer = await self.reader.readexactly(int(lengths[0].partition(b":")[2]))
        else:
            answer = await self._read_chunks()
        self.traffic.bytes += len(request) + len(head) + len(answer)
        if head.split(b" ", 2)[1][:1] != b"2":
            raise RuntimeError(f"{method} {path}: {head.splitlines()[0]!r} {answer[:300]!r}")
        return answer

    async def _read_chunks(self):
        parts = []
        while size := int(await self.reader.readline(), 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readline()
        await self.reader.readline()
        return b"".join(parts)

    def close(self):
        if self.writer:
            self.writer.close()
            self.reader = self.writer = None


class Streams:
    """All watches of this process. A thread reads, counts and drops the received bytes, because asyncio would need more
    processor time for each event."""

    def __init__(self, traffic):
        self.traffic, self.epoll, self.lost, self.lock = traffic, select.epoll(), "", threading.Lock()
        self.thread = threading.Thread(target=self._drain, name="streams", daemon=True)
        self.thread.start()

    async def open(self, host, port, request, ssl=None):
        """Open a watch, and wait for the first bytes of the answer. Return the watch's socket. Raises RuntimeError.

        ssl: see Connection. The thread counts encrypted bytes, and does not decrypt them.
        """
        loop = asyncio.get_running_loop()
        sock, answer = await loop.run_in_executor(None, ask, host, port, request, ssl)
        if answer.split(b" ", 2)[1:2] != [b"200"]:
            raise RuntimeError(f"the registry refuses a watch: {answer[:300]!r}")
        self.traffic.bytes += len(request) + len(answer)
        self.traffic.streams += 1
        self.epoll.register(sock, select.EPOLLIN)
        return sock

    def close(self, sock):
        with self.lock:                 # without the lock, the thread could read from the next socket with this number
            self.epoll.unregister(sock)
            sock.close()
        self.traffic.streams -= 1

    def _drain(self):
        buffer = bytearray(CHUNK_BYTES)
        while not self.lost:
            self.epoll.poll()
            with self.lock:
                for fd, _ in self.epoll.poll(0):
                    count = os.readv(fd, [buffer])
                    self.traffic.received += count
                    if not count:
                        self.lost = "the registry has ended a watch"


def ask(host, port, request, ssl):
    """Connect and send a request. Return (socket, first bytes of the answer)."""
    sock = socket.create_connection((host, int(port)))
    if ssl:
        sock = ssl.wrap_socket(sock, server_hostname=host)
    sock.sendall(request)
    answer = sock.recv(CHUNK_BYTES)
    sock.setblocking(False)
    return sock, answer


def compose(method, path, body, host, headers="", content_type="application/json"):
    """Return an HTTP request as bytes. body: a JSON value, or None."""
    data = b"" if body is None else json.dumps(body).encode()
    typed = f"Content-Type: {content_type}\r\nContent-Length: {len(data)}\r\n" if body is not None else ""
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}{typed}\r\n".encode() + data
