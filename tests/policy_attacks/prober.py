"""Probes: the first packet of a connection, sent by a raw socket in one namespace and seen by a raw socket in another.

    prober = Prober([Endpoint("a", netns, ("10.0.0.1", "fd00::1")), ...])
    arrived, answered = prober.sweep([Probe(a, "10.0.0.1", "10.0.0.2", "TCP", 80), ...], expected)

This process has the sockets of all namespaces, so a sweep of thousands of probes takes less than a second. Each probe's
packet contains the probe's number, so late packets are recognized, too.
"""

import contextlib
import select
import socket
import struct
import time
from dataclasses import dataclass, field

from unit.agent.policy.frames import checksum

from fastcni.testing.namespaces import Inside

NUMBERS = {"TCP": socket.IPPROTO_TCP, "UDP": socket.IPPROTO_UDP, "SCTP": 132}
MAGIC = b"probe of a policy"
BUFFER_BYTES = 8 << 20
SO_RCVBUFFORCE, IP_PKTINFO = 33, 8      # asm-generic/socket.h, linux/in.h
IPV6_CHECKSUM = 7               # linux/in6.h: an option of raw sockets
ARRIVES_S, AGAIN_S, GRACE_S = 10.0, 0.25, 0.06
SYN, RST_ACK = 0x02, 0x14


@dataclass(eq=False)
class Endpoint:
    """A namespace that sends and receives. netns: None for the node's namespace. sockets: {(family, protocol): raw
    socket}."""

    name: str
    netns: str | None
    addresses: tuple = ()
    sockets: dict = field(default_factory=dict)

    def open(self):
        with Inside(self.netns):
            for family in (4, 6):
                for protocol in (*NUMBERS, "ICMP"):
                    number = NUMBERS.get(protocol, socket.IPPROTO_ICMPV6 if family == 6 else socket.IPPROTO_ICMP)
                    it = socket.socket(socket.AF_INET6 if family == 6 else socket.AF_INET,
                                       socket.SOCK_RAW | socket.SOCK_NONBLOCK, number)
                    it.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
                    if family == 6 and protocol in ("TCP", "UDP"):
                        it.setsockopt(socket.IPPROTO_IPV6, IPV6_CHECKSUM, 16 if protocol == "TCP" else 6)
                    self.sockets[family, protocol] = it

    def close(self):
        for it in self.sockets.values():
            it.close()
        self.sockets = {}


@dataclass(frozen=True, eq=False)
class Probe:
    """The first packet of a connection from `address` to `to`. source: the Endpoint that sends. port: 0 for ICMP.
    receiver: the Endpoint that receives the packet if the policies allow it."""

    source: Endpoint
    address: str
    to: str
    protocol: str
    port: int
    receiver: Endpoint

    def __str__(self):
        port = f" port {self.port}" if self.port else ""
        return f"{self.protocol} from {self.source.name} {self.address} to {self.receiver.name} {self.to}{port}"


class Prober:
    """Sender and receiver of probes. Endpoints may be added and removed between sweeps."""

    def __init__(self):
        self.endpoints, self.poll, self.number = [], select.epoll(), 0
        self.by_descriptor, self.sent = {}, {}          # {number: Probe} of all sweeps since the last forget()

    def add(self, endpoint):
        endpoint.open()
        self.endpoints.append(endpoint)
        for (family, protocol), it in endpoint.sockets.items():
            self.by_descriptor[it.fileno()] = endpoint, family, protocol, it
            self.poll.register(it, select.EPOLLIN)

    def remove(self, endpoint):
        for it in endpoint.sockets.values():
            self.poll.unregister(it)
            del self.by_descriptor[it.fileno()]
        endpoint.close()
        self.endpoints.remove(endpoint)

    def close(self):
        for endpoint in list(self.endpoints):
            self.remove(endpoint)
        self.poll.close()

    def send(self, probe):
        """Send one packet. Ignore an error of the kernel, because the packet then does not arrive."""
        self.number = self.number % 0x7FFFFFFF + 1
        self.sent[self.number] = probe
        family = 6 if ":" in probe.to else 4
        sock = probe.source.sockets[family, probe.protocol]
        data = packet(probe, family, self.number)
        if family == 6:
            source = (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO,
                      socket.inet_pton(socket.AF_INET6, probe.address) + bytes(4))
        else:
            source = socket.IPPROTO_IP, IP_PKTINFO, bytes(4) + socket.inet_aton(probe.address) + bytes(4)
        with contextlib.suppress(BlockingIOError, PermissionError):
            sock.sendmsg([data], [source], 0, (probe.to, 0))

    def receive(self, seconds=0.0):
        """Yield (Probe, whether the packet is an answer) for each received packet."""
        for descriptor, _ in self.poll.poll(seconds):
            endpoint, family, protocol, it = self.by_descriptor[descriptor]
            with contextlib.suppress(BlockingIOError):
                while True:
                    data = it.recv(2048)
                    if family == 4:
                        data = data[(data[0] & 15) * 4:]
                    number, answer = read(family, protocol, data)
                    probe = self.sent.get(number)
                    if probe and probe.protocol == protocol and endpoint is (
                            probe.source if answer else probe.receiver):
                        yield probe, answer

    def sweep(self, probes, expected, seconds=ARRIVES_S):
        """Send all probes. Repeat probes of `expected` until they have arrived, at most for `seconds`. Return (arrived,
        answered), two sets of probes. `arrived` also has late probes of earlier sweeps."""
        arrived, answered, missing = set(), set(), list(probes)
        until, first = time.monotonic() + min(seconds, ARRIVES_S), True
        while missing and (first or time.monotonic() < until):
            for count, probe in enumerate(missing):
                self.send(probe)
                if count % 64 == 63:
                    self._take(arrived, answered, 0)
            wait = time.monotonic() + AGAIN_S
            while not expected <= arrived and time.monotonic() < wait:
                self._take(arrived, answered, 0.01)
            first, missing = False, [probe for probe in expected if probe not in arrived]
        grace = time.monotonic() + GRACE_S
        while time.monotonic() < grace:
            self._take(arrived, answered, 0.01)
        return arrived, answered

    def _take(self, arrived, answered, seconds):
        for probe, answer in self.receive(seconds):
            (answered if answer else arrived).add(probe)

    def forget(self):
        """Forget the probes of earlier sweeps."""
        self.sent = {}


# -- packets ----------------------------------------------------------------------------------------------------------

def packet(probe, family, number):
    source_port = 1024 + number % 60000
    if probe.protocol == "TCP":
        data = struct.pack("!HHIIBBHHH", source_port, probe.port, number, 0, 5 << 4, SYN, 64000, 0, 0)
        return data if family == 6 else with_checksum(probe, data, 16, socket.IPPROTO_TCP)
    if probe.protocol == "UDP":
        body = struct.pack("!I", number) + MAGIC
        data = struct.pack("!HHHH", source_port, probe.port, 8 + len(body), 0) + body
        return data if family == 6 else with_checksum(probe, data, 6, socket.IPPROTO_UDP)
    if probe.protocol == "SCTP":
        data = struct.pack("!HHII", source_port, probe.port, 0, 0) + struct.pack(
            "!BBHIIHHI", 1, 0, 20, number, 64000, 1, 1, number)
        return data[:8] + struct.pack("<I", crc32c(data)) + data[12:]
    data = struct.pack("!BBHHHI", 128 if family == 6 else 8, 0, 0, number & 0xFFFF, 1, number) + MAGIC
    return data if family == 6 else data[:2] + checksum(data) + data[4:]        # the kernel computes ICMPv6's checksum


def read(family, protocol, data):
    """Return (the probe's number, whether the packet is an answer), or (0, False) for another program's packet. data:
    the packet without its IP header."""
    if protocol == "TCP" and len(data) >= 20:
        sequence, acknowledged, _, flags = struct.unpack("!IIBB", data[4:14])
        return (sequence, False) if flags == SYN else (acknowledged - 1, True) if flags == RST_ACK else (0, False)
    if protocol == "UDP" and data[12:29] == MAGIC:
        return struct.unpack("!I", data[8:12])[0], False
    if protocol == "SCTP" and len(data) >= 32 and data[12] == 1:
        return struct.unpack("!I", data[16:20])[0], False
    if protocol == "ICMP" and data[12:29] == MAGIC:
        return struct.unpack("!I", data[8:12])[0], data[0] in (0, 129)
    return 0, False


def with_checksum(probe, data, at, number):
    """Return the bytes of a TCP or UDP packet over IPv4, with the checksum at offset `at`."""
    pseudo = socket.inet_aton(probe.address) + socket.inet_aton(probe.to) + struct.pack("!HH", number, len(data))
    return data[:at] + checksum(pseudo + data) + data[at + 2:]


def crc32c(data):
    """Return the checksum of SCTP. Source: RFC 9260, appendix A."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF
