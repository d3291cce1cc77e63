"""Read the sockets that wait for packets at a port: listening TCP and SCTP sockets, and UDP sockets without a peer
(sock_diag(7)).

For TCP and SCTP the kernel searches only its table of listening sockets. /proc/net/tcp would also list each connection
of the node.
"""

from __future__ import annotations

import sys

from fastcni._netlink import attributes
from fastcni.kernel import uapi, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

TCP, UDP, SCTP = 6, 17, 132             # IPPROTO_*
TCP_CLOSE, TCP_LISTEN = 7, 10           # net/tcp_states.h; an unconnected UDP socket has TCP_CLOSE
WAITING = {TCP: TCP_LISTEN, UDP: TCP_CLOSE, SCTP: TCP_LISTEN}
MAPPED = bytes(10) + b"\xff\xff"        # the prefix of an IPv4-mapped address, as IPv6 sockets have
ID_BYTES, MESSAGE_BYTES = 48, 72        # struct inet_diag_sockid, struct inet_diag_msg


class Waiting:
    """A socket that waits for packets. packed: the address to which the socket is bound, zeros for any address.
    lengths: the lengths in bytes of the destination addresses that reach the socket: 4, 16 or both. inode: the number
    in the link /proc/PID/fd/N, "socket:[INODE]"."""

    __slots__ = ("protocol", "port", "packed", "lengths", "inode")

    def __init__(self, protocol: int, port: int, packed: bytes, lengths: tuple[int, ...], inode: int) -> None:
        self.protocol, self.port, self.packed, self.lengths, self.inode = protocol, port, packed, lengths, inode

    def serves(self, packed: bytes, length: int) -> bool:
        """Return whether packets to the address `packed` of `length` bytes reach the socket. packed b"": to any address
        of that length."""
        return length in self.lengths and (not packed or not any(self.packed) or packed == self.packed)


def waiting(protocol: int) -> Iterator[Waiting]:
    """Yield the sockets of a protocol in the calling thread's network namespace. Raises NetlinkError; errno is ENOENT
    if the kernel has no module tcp_diag, udp_diag or sctp_diag."""
    sock = wire.open_socket(uapi.NETLINK_SOCK_DIAG)
    try:
        for family in (uapi.AF_INET, uapi.AF_INET6):
            for _, payload in wire.dump(sock, uapi.SOCK_DIAG_BY_FAMILY, request(family, protocol),
                                        "list sockets that wait for packets"):
                yield read(protocol, payload)
    finally:
        sock.close()


def request(family: int, protocol: int) -> bytes:
    """Return struct inet_diag_req_v2, which asks for the waiting sockets of a protocol.

    family:u8 protocol:u8 ext:u8 pad:u8 states:u32 id:48 bytes of zeros
    """
    return bytes((family, protocol, 0, 0)) + (1 << WAITING[protocol]).to_bytes(4, sys.byteorder) + bytes(ID_BYTES)


def read(protocol: int, payload: bytes) -> Waiting:
    """Return the socket that a struct inet_diag_msg describes.

    family:u8 state:u8 timer:u8 retrans:u8
    id: sport:be16 dport:be16 src:16 bytes dst:16 bytes if:u32 cookie:8 bytes
    expires:u32 rqueue:u32 wqueue:u32 uid:u32 inode:u32, then attributes
    """
    inode = int.from_bytes(payload[MESSAGE_BYTES - 4:MESSAGE_BYTES], sys.byteorder)
    lengths: tuple[int, ...] = (4,)
    packed = payload[8:12]
    if payload[0] == uapi.AF_INET6:
        packed, lengths = payload[8:24], (16,)
        if packed.startswith(MAPPED):
            packed, lengths = packed[12:], (4,)
        elif not any(packed) and not any(attributes(payload, MESSAGE_BYTES).get(uapi.INET_DIAG_SKV6ONLY, b"")):
            lengths = (16, 4)
    return Waiting(protocol, int.from_bytes(payload[4:6], "big"), packed, lengths, inode)
