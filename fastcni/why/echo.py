"""Send echo requests of a size that no host may fragment, to learn whether a packet as long as the MTU arrives."""

from __future__ import annotations

import os
import socket
import struct
from errno import EMSGSIZE

from fastcni.selftest import icmp, namespaces, sockets

SMALLEST = 64                   # bytes of an IP packet that every link transports
TRIES, WAIT_S = 2, 0.35
HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}             # bytes of the IP and ICMP headers


def arrives(namespace: int, address: str, packet_bytes: int) -> bool:
    """Return whether a host answers an echo request of this size. Return True also if the kernel has learned that the
    size is too large for the path, because TCP then sends smaller packets. namespace: a descriptor."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    request, reply = icmp.ECHO[family]
    sock = namespaces.in_thread(lambda: namespaces.call(namespace, lambda: socket.socket(
        family, socket.SOCK_RAW, icmp.PROTOCOLS[family])))
    with sock:
        if family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_IP, sockets.IP_MTU_DISCOVER, sockets.PMTUDISC_DO)
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, sockets.IPV6_MTU_DISCOVER, sockets.PMTUDISC_DO)
        identifier = int.from_bytes(os.urandom(2), "big")
        payload = bytes(max(0, packet_bytes - HEADERS[family]))
        for number in range(TRIES):
            packet = request_packet(request, identifier, number, payload)
            try:
                sock.sendto(packet, (address, 0))
            except OSError as e:
                return e.errno == EMSGSIZE
            if icmp.awaits(sock, family, reply, identifier, WAIT_S):
                return True
    return False


def request_packet(kind: int, identifier: int, number: int, payload: bytes) -> bytes:
    """Return an echo request whose data have an even length. The kernel itself computes the checksum of ICMPv6."""
    payload = payload[:len(payload) & ~1]
    empty = icmp.HEADER.pack(kind, 0, 0, identifier, number) + payload
    return struct.pack("!BBHHH", kind, 0, icmp.checksum(empty), identifier, number) + payload
