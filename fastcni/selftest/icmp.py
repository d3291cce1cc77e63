"""Send echo requests (RFC 792, RFC 4443) from a network namespace."""

from __future__ import annotations

import os
import select
import socket
import struct
import time

from fastcni.kernel.sockets.packet_sockets import checksum
from fastcni.selftest import namespaces, sockets

HEADER = struct.Struct("!BBHHH")            # type, code, checksum, identifier, sequence
ECHO = {socket.AF_INET: (8, 0), socket.AF_INET6: (128, 129)}        # request, reply
PROTOCOLS = {socket.AF_INET: socket.IPPROTO_ICMP, socket.AF_INET6: socket.IPPROTO_ICMPV6}
IP_BYTES = {socket.AF_INET: 20, socket.AF_INET6: 40}
RESEND_S = 0.3                  # seconds after which ping() repeats a request without a reply


def ping(namespace: int, address: str, seconds: float, packet_bytes: int = 0) -> bool:
    """Send echo requests from a namespace to `address`. Return whether the host answers a request within `seconds`.

    namespace: a descriptor. packet_bytes: the length of a request with its IP header, which no router may fragment; 0:
    as short as possible. Raises OSError if a request cannot be sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    request, reply = ECHO[family]
    sock = namespaces.call(namespace, lambda: socket.socket(family, socket.SOCK_RAW, PROTOCOLS[family]))
    data = bytes(max(0, packet_bytes - IP_BYTES[family] - HEADER.size) & ~1)
    if data:
        sockets.forbid_fragments(sock, family)
    with sock:
        identifier, deadline = int.from_bytes(os.urandom(2), "big"), time.monotonic() + seconds
        number = 0
        while (left := deadline - time.monotonic()) > 0:
            number += 1
            sock.sendto(packet(request, identifier, number, data), (address, 0))
            if awaits(sock, family, reply, identifier, min(left, RESEND_S)):
                return True
    return False


def packet(kind: int, identifier: int, number: int, data: bytes) -> bytes:
    """Return an echo request with a checksum. The kernel overwrites the checksum of ICMPv6, but not of ICMP."""
    empty = HEADER.pack(kind, 0, 0, identifier, number) + data
    return HEADER.pack(kind, 0, checksum(empty), identifier, number) + data


def awaits(sock: socket.socket, family: int, reply: int, identifier: int, seconds: float) -> bool:
    """Return whether an echo reply with this identifier arrives within `seconds`. reply: the ICMP type of a reply."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([sock], [], [], left)[0]:
            return False
        data = sock.recv(sockets.MAX_DATAGRAM)
        start = 4 * (data[0] & 0x0F) if family == socket.AF_INET else 0        # raw IPv4 sockets return the IP header
        if len(data) >= start + HEADER.size:
            kind, _, _, found, _ = HEADER.unpack_from(data, start)
            if (kind, found) == (reply, identifier):
                return True
    return False
