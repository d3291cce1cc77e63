"""Run the self-test's TCP and UDP servers, one in each namespace, and the probes of its clients."""

from __future__ import annotations

import errno
import selectors
import socket
import threading
import time
from contextlib import suppress

from fastcni.selftest import namespaces

IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PMTUDISC_DO = 10, 23, 2     # linux/in.h, linux/in6.h
HEADERS: dict[int, int] = {socket.AF_INET: 28, socket.AF_INET6: 48}     # {family: bytes of the IP and UDP headers}
MAX_DATAGRAM = 1 << 16
BULK = bytes(1 << 14)
WHO_AM_I = b"?"                 # the first byte by which a client asks for its own address


class Server:
    """A TCP and UDP server on all addresses of a namespace, on one port, in a thread.

    After WHO_AM_I on a TCP connection, the server sends the client's address as text, and closes the connection. It
    reads other connections until they end. It answers a UDP datagram by the datagram's length as text.

    port: the port of TCP and UDP. received: the number of bytes received by TCP.
    """

    def __init__(self, namespace: int) -> None:
        self.received = 0
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        listening, datagrams = namespaces.call(namespace, bind)
        self.port: int = listening.getsockname()[1]
        self._listening, self._datagrams = listening, datagrams
        for sock in (listening, datagrams):
            self._selector.register(sock, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._wake.send(b".")
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()         # type: ignore[union-attr]
        self._selector.close()
        self._wake.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    return
                try:
                    self._attend(key.fileobj)       # type: ignore[arg-type]
                except OSError:
                    self._end(key.fileobj)          # type: ignore[arg-type]

    def _attend(self, sock: socket.socket) -> None:
        if sock is self._datagrams:
            data, client = sock.recvfrom(MAX_DATAGRAM)
            sock.sendto(str(len(data)).encode(), client)
        elif sock is self._listening:
            accepted, _ = sock.accept()
            accepted.setblocking(False)
            self._selector.register(accepted, selectors.EVENT_READ)
        else:
            data = sock.recv(MAX_DATAGRAM)
            self.received += len(data)
            if data[:1] == WHO_AM_I:
                sock.send(plain(sock.getpeername()[0]).encode())
            if data[:1] in (b"", WHO_AM_I):
                self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        if sock is not self._datagrams and sock is not self._listening:
            self._selector.unregister(sock)
            sock.close()


def bind() -> tuple[socket.socket, socket.socket]:
    """Return a listening TCP socket and a UDP socket on the same port. They serve IPv6 and IPv4, or only IPv4 if the
    kernel has no IPv6."""
    for family, everywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            listening, datagrams = socket.socket(family, socket.SOCK_STREAM), socket.socket(family, socket.SOCK_DGRAM)
        except OSError:
            continue
        port = 0
        for sock in (listening, datagrams):
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind((everywhere, port))
            port = sock.getsockname()[1]
        listening.listen(64)
        return listening, datagrams
    raise OSError("the kernel has neither IPv4 nor IPv6")


def plain(address: str) -> str:
    """Return an address, without the prefix ::ffff: if it is an IPv4-mapped address."""
    return address.removeprefix("::ffff:")


def family_of(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def connect(namespace: int, address: str, port: int, seconds: float) -> str:
    """Connect to a Server by TCP. Return the client's address as the server sees it. Raises OSError."""
    with namespaces.call(namespace, lambda: socket.socket(family_of(address), socket.SOCK_STREAM)) as sock:
        sock.settimeout(seconds)
        sock.connect((address, port))
        sock.send(WHO_AM_I)
        return sock.recv(100).decode()


def datagram(namespace: int, address: str, port: int, packet_bytes: int, seconds: float) -> bool:
    """Send a UDP packet to a Server. Return whether the Server answers that the packet arrived complete.

    packet_bytes: the packet's length with its IP header; no router may fragment it. Raises OSError; errno is EMSGSIZE
    if the MTU of a link on the path is too small."""
    size = packet_bytes - HEADERS[family_of(address)]
    return answer(namespace, address, port, bytes(size), seconds) == str(size).encode()


def answer(namespace: int, address: str, port: int, request: bytes, seconds: float) -> bytes:
    """Send a request by UDP, and a second time if no answer comes within half of `seconds`. Return the answer; b"" if
    there is none. The request must not be fragmented. Raises OSError."""
    family = family_of(address)
    with namespaces.call(namespace, lambda: socket.socket(family, socket.SOCK_DGRAM)) as sock:
        forbid_fragments(sock, family)
        sock.settimeout(seconds / 2)
        sock.connect((address, port))
        for _ in range(2):
            with suppress(TimeoutError):
                sock.send(request)
                return sock.recv(MAX_DATAGRAM)
    return b""


def forbid_fragments(sock: socket.socket, family: int) -> None:
    """Set the socket option by which neither this host nor a router may fragment the socket's packets."""
    if family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_DO)
    else:
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_DO)


def answers_dns(namespace: int, address: str, seconds: float) -> bool:
    """Return whether a name server answers a query for the root's name servers (RFC 1035) by UDP. Raises OSError."""
    query = b"fc" + bytes.fromhex("0100 0001 0000 0000 0000") + bytes.fromhex("00 0002 0001")
    return answer(namespace, address, 53, query, seconds)[:2] == query[:2]


def rate(namespace: int, address: str, server: Server, seconds: float) -> float:
    """Send by TCP to a Server for `seconds`. Return the bits per second that arrived in the second half of that time.
    Raises OSError."""
    with namespaces.call(namespace, lambda: socket.socket(family_of(address), socket.SOCK_STREAM)) as sock:
        sock.settimeout(seconds)
        sock.connect((address, server.port))
        sock.setblocking(False)
        started = time.monotonic()
        half: tuple[float, int] | None = None
        while (now := time.monotonic()) < started + seconds:
            if half is None and now > started + seconds / 2:
                half = now, server.received
            try:
                sock.send(BULK)
            except BlockingIOError:
                time.sleep(0.005)
    assert half
    return 8 * (server.received - half[1]) / (time.monotonic() - half[0])


def free_port() -> int:
    """Return the number of a TCP port that no process of the node uses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("0.0.0.0", 0))
        found: int = sock.getsockname()[1]
        return found


def has_address(address: str) -> bool:
    """Return whether this node has the address."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((address, 0))
        except OSError:
            return False
    return True


def has_route(namespace: int, address: str) -> bool:
    """Return whether a namespace has a route to the address, without sending a packet."""
    with namespaces.call(namespace, lambda: socket.socket(family_of(address), socket.SOCK_DGRAM)) as sock:
        try:
            sock.connect((address, 1))
        except OSError as e:
            if e.errno != errno.ENETUNREACH:
                raise
            return False
    return True
