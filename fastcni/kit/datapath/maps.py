"""Encode and decode the elements of the datapath's two maps, of pods and of flows (kernel/bpf/redirect.bpf.c).

    struct pod   ifindex, flags, mtu:u32 | macs:u8[12]      key: an address of 16 bytes; IPv4 is mapped, ::ffff:10.1.0.2
    struct key   ends:u8[16][2] | ports:u16[2] | protocol:u32       the smaller end comes first
    struct flow  2 of seen, packets, bytes:u64, ifindex, closed:u32 | first, unused:u32
"""

from __future__ import annotations

import sys

ORDER = sys.byteorder
ADDRESS_BYTES, POD_BYTES, KEY_BYTES, FLOW_BYTES = 16, 24, 40, 72
MAX_PODS, MAX_FLOWS = 16384, 131072     # most addresses of pods; most entries of flows (see Flow.ports)
RESTRICTED = 1
MAPPED = bytes(10) + b"\xff\xff"
IPPROTO_TCP = 6


def mapped(packed: bytes) -> bytes:
    """Return an address of 4 or 16 bytes as 16 bytes; IPv4 as ::ffff:10.1.0.2."""
    return MAPPED + packed if len(packed) == 4 else packed


def unmapped(packed: bytes) -> bytes:
    return packed[12:] if packed.startswith(MAPPED) else packed


def u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at:at + 4], ORDER)


def pod_value(ifindex: int, flags: int, mtu: int, mac: bytes, host_mac: bytes) -> bytes:
    return b"".join(number.to_bytes(4, ORDER) for number in (ifindex, flags, mtu)) + mac + host_mac


def with_flags(pod: bytes, flags: int) -> bytes:
    return pod[:4] + flags.to_bytes(4, ORDER) + pod[8:]


class Flow:
    """A flow between two pods. Each list has a value for each end; the end that sent the first packet comes first.

    ends      packed addresses
    ports     the ends' ports. If the first port is 0, the entry is no flow: with this entry, programs redirect new
              connections to the second end's port from their SYN on
    protocol  IPPROTO_*
    seen      when a packet of the end last passed through the host's stack, in ns of CLOCK_MONOTONIC; 0: never
    packets   number of redirected packets that the end has sent
    bytes     bytes of these packets, with Ethernet headers
    ifindexes  indexes of the host ends of the pods' links
    closed    whether the end has sent a FIN
    key       the flow's key in the map
    """

    __slots__ = ("ends", "ports", "protocol", "seen", "packets", "bytes", "ifindexes", "closed", "key")

    def __init__(self, key: bytes, value: bytes) -> None:
        self.key, first = key, u32(value, 64) & 1
        sides = (first, 1 - first)
        self.ends = [unmapped(key[16 * side:16 * side + 16]) for side in sides]
        self.ports = [int.from_bytes(key[32 + 2 * side:34 + 2 * side], "big") for side in sides]
        self.protocol = u32(key, 36)
        self.seen, self.packets, self.bytes = ([int.from_bytes(value[32 * side + at:32 * side + at + 8], ORDER)
                                                for side in sides] for at in (0, 8, 16))
        self.ifindexes, self.closed = ([u32(value, 32 * side + at) for side in sides] for at in (24, 28))
