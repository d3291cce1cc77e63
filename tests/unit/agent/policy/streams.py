"""Connections whose two ends never pause. Each end records the time at which it last got a packet."""

import contextlib
import mmap
import socket
import struct
import time

from lab.traffic import crc32c
from unit.agent.policy import flood
from unit.agent.policy.pods import ADDRESSES

from fastcni.testing.namespaces import Inside

PROTOCOLS = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP, "sctp": socket.IPPROTO_SCTP,
             "icmp": socket.IPPROTO_ICMP, "other": 253}  # 253: for experiments (RFC 3692), without ports
PORT, UDP_PORT, TICK_S = 80, 85, 0.001          # UDP uses another port, because a Node listens at port 80
ICMPV6 = socket.IPPROTO_ICMPV6
ECHO_REQUEST = {socket.AF_INET: 8, socket.AF_INET6: 128}
FIRST_SCTP_PORT, HANDSHAKE = 20000, 4           # handshake: number of packets
# SCTP chunks (RFC 9260). The client and the server send the four chunks of the handshake in turn, then DATA.
INITIATION = struct.pack("!IIHHI", 1, 65536, 1, 1, 1)
INIT, INIT_ACK, COOKIE_ECHO, COOKIE_ACK, DATA = (
    struct.pack("!BBH", kind, 0, 4 + len(body)) + body
    for kind, body in ((1, INITIATION), (2, INITIATION), (10, b"cook"), (11, b""), (0, bytes(12) + b"data")))


class Stream:
    """A connection. kind: a key of PROTOCOLS. client, server: names of pods. address: the client's destination; by
    default the server's address.

    ends: the sockets of the client and of the server.
    """

    def __init__(self, node, kind, client, server, ipv6=False, address=None):
        self.kind, self.client, self.server = kind, client, server
        self.family = socket.AF_INET6 if ipv6 else socket.AF_INET
        self.addresses = ADDRESSES[client][ipv6], ADDRESSES[server][ipv6]
        self.address, self.count = address or self.addresses[1], 0
        self.open = node.open
        self.port = FIRST_SCTP_PORT + len(node.streams)
        node.streams.append(self)
        getattr(self, f"_open_{kind}")(node)

    def __str__(self):
        return f"{self.kind} {self.client}-{self.server} {self.address}"

    def _socket(self, netns, kind, protocol=0):
        with Inside(netns):
            return self.open.enter_context(socket.socket(self.family, kind | socket.SOCK_NONBLOCK, protocol))

    def _open_tcp(self, node):
        client = node.connect(self.client, self.address, PORT)
        self.ends = client, node.accept(self.server)
        self.ends[1].setblocking(False)

    def _open_udp(self, node):
        names = [node.names[name] for name in (self.client, self.server)]
        client, server = (self._socket(netns, socket.SOCK_DGRAM) for netns in names)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((self.addresses[1], UDP_PORT))
        client.connect((self.address, UDP_PORT))
        client.send(b"first")
        server.settimeout(10)
        server.connect(server.recvfrom(64)[1])
        server.setblocking(False)
        self.ends = client, server

    def _open_raw(self, node, protocol):
        self.ends = tuple(self._socket(node.names[name], socket.SOCK_RAW, protocol)
                          for name in (self.client, self.server))
        for end, peer in zip(self.ends, (self.address, self.addresses[0]), strict=True):
            end.connect((peer, 0))

    def _open_other(self, node):
        self._open_raw(node, PROTOCOLS["other"])

    def _open_sctp(self, node):
        self._open_raw(node, PROTOCOLS["sctp"])

    def _open_icmp(self, node):
        self._open_raw(node, ICMPV6 if self.family == socket.AF_INET6 else PROTOCOLS["icmp"])

    def packets(self):
        """Return the next packets of the client and the server; None for no packet."""
        self.count += 1
        if self.kind == "sctp":
            steps = (INIT, None), (None, INIT_ACK), (COOKIE_ECHO, None), (None, COOKIE_ACK)
            chunks = steps[self.count - 1] if self.count <= HANDSHAKE else (DATA, DATA)
            ports = (self.port, PORT), (PORT, self.port)
            return [chunk and sctp(*pair, chunk, self.count > 1) for pair, chunk in zip(ports, chunks, strict=True)]
        if self.kind == "icmp":
            return echo(ECHO_REQUEST[self.family], self.port, self.count), None
        return b"x", b"x"

    def is_own(self, end, data):
        """Return whether a packet that an end has received belongs to this stream. Raw sockets also receive other
        packets."""
        if end.type != socket.SOCK_RAW or self.kind == "other":
            return bool(data)
        if self.family == socket.AF_INET:
            data = data[(data[0] & 15) * 4:]
        if self.kind == "sctp":
            return struct.pack("!H", self.port) in (data[:2], data[2:4])
        # A ping socket of the server sees requests, a ping socket of the client sees answers.
        is_request = data[0] == ECHO_REQUEST[self.family]
        return struct.unpack("!H", data[4:6])[0] == self.port and is_request is (end is self.ends[1])


class Streams:
    """Send packets on all streams, in a separate process."""

    def __init__(self, streams):
        self.streams = streams
        self._memory = mmap.mmap(-1, 16 * len(streams))
        self.times = memoryview(self._memory).cast("d")

    def last(self, stream):
        """Return the times at which the client and the server last got a packet, monotonic; 0.0 if none."""
        at = 2 * self.streams.index(stream)
        return self.times[at], self.times[at + 1]

    @contextlib.contextmanager
    def running(self):
        with flood.running(None, self._run):
            yield

    def _run(self):
        while True:
            for number, stream in enumerate(self.streams):
                for end, packet in zip(stream.ends, stream.packets(), strict=True):
                    if packet:
                        with contextlib.suppress(OSError):      # the send buffer is full, or an ICMP error arrived
                            end.send(packet)
                for which, end in enumerate(stream.ends):
                    if self._receive(stream, end):
                        self.times[2 * number + which] = time.monotonic()
            time.sleep(TICK_S)

    @staticmethod
    def _receive(stream, end):
        found = False
        with contextlib.suppress(OSError):
            while True:
                data = end.recv(256)
                found = found or stream.is_own(end, data)
                if not data:
                    break
        return found


def echo(kind, number, count):
    body = struct.pack("!HH", number, count & 0xFFFF)
    return struct.pack("!BBH", kind, 0, 0 if kind != 8 else checksum(bytes((kind, 0, 0, 0)) + body)) + body


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def sctp(source, destination, chunk, tagged):
    """Return a packet with a checksum, which conntrack verifies."""
    tag = (1 if tagged else 0).to_bytes(4, "big")
    head = struct.pack("!HH", source, destination) + tag
    return head + struct.pack("<I", crc32c(head + bytes(4) + chunk)) + chunk
