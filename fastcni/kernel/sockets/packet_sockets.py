"""Open the sockets of one link: packet sockets (packet(7)) for ARP and for DHCP before the link has an address, UDP
sockets for DHCP afterwards. Announce addresses to neighbours.

A socket is opened in the calling thread's namespace and stays in that namespace. The BPF filter of a DHCP socket passes
only the packets of one DHCP exchange, so that broadcasts of other pods wake no thread.
"""

from __future__ import annotations

import sys
from _socket import AF_INET, AF_PACKET, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, socket

from fastcni.kernel import filters, uapi

BROADCAST = b"\xff" * 6
SERVER_PORT, CLIENT_PORT = 67, 68
UDP, FRAGMENT_BITS = 17, 0x1FFF         # in the IP header: protocol number, bits of the fragment offset
# linux/bpf_common.h: LDB and LDH load from an offset in the packet; LDX_IP sets x to the length of the IP header; LDH_X
# and LD_X load from an offset after x
LDB, LDH, LDH_X, LD_X, LDX_IP = 0x30, 0x28, 0x48, 0x40, 0xB1
JEQ, JSET, RET = 0x15, 0x45, 0x06
RECEIVE_BYTES = 1 << 16
AUXDATA_BYTES = 20                      # struct tpacket_auxdata
ALL_NODES, ALL_NODES_MAC = b"\xff\x02" + bytes(13) + b"\x01", b"\x33\x33\0\0\0\x01"      # ff02::1
ARP_ETHERNET = b"\0\x01\x08\0\x06\x04\0\x01"    # Ethernet, IPv4, lengths 6 and 4, a request (RFC 5227: an announcement)
ICMPV6, HOP_LIMIT, NA, OVERRIDE, TARGET_LLADDR = 58, 255, 136, 0x20, b"\x02\x01"
FLAGS = SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK


def open_dhcp(ifname: str, xid: int) -> socket:
    """Open a packet socket that receives only a DHCP server's answers to the transaction `xid`. Raises OSError."""
    sock = _open(ifname, uapi.ETH_P_IP, dhcp_filter(xid))
    sock.setsockopt(uapi.SOL_PACKET, uapi.PACKET_AUXDATA, 1)
    return sock


def dhcp_filter(xid: int) -> filters.Program:
    """Return the filter that passes unfragmented UDP to port 68 with this xid. bpf_dbg would print the filter as:

    ldb [9]; jeq 17             UDP
    ldh [6]; jset 0x1fff        a fragment
    ldxb 4*([0]&0xf)
    ldh [x + 2]; jeq 68         destination port
    ld [x + 12]; jeq xid        after the UDP header's 8 bytes and op, htype, hlen, hops
    """
    return [(LDB, 0, 0, 9), (JEQ, 0, 8, UDP), (LDH, 0, 0, 6), (JSET, 6, 0, FRAGMENT_BITS), (LDX_IP, 0, 0, 0),
            (LDH_X, 0, 0, 2), (JEQ, 0, 3, CLIENT_PORT), (LD_X, 0, 0, 12), (JEQ, 0, 1, xid), (RET, 0, 0, filters.ALL),
            (RET, 0, 0, 0)]


def open_arp(ifname: str) -> socket:
    """Open a packet socket that receives the ARP packets of a link. Raises OSError."""
    return _open(ifname, uapi.ETH_P_ARP, [])


def _open(ifname: str, protocol: int, program: filters.Program) -> socket:
    sock = socket(AF_PACKET, FLAGS, 0)          # protocol 0: no packet arrives before the filter is attached
    try:
        if program:
            filters.attach(sock, program)
        sock.bind((ifname, protocol))
    except BaseException:
        sock.close()
        raise
    return sock


def send_to(sock: socket, ifname: str, packet: bytes, mac: bytes = BROADCAST, protocol: int = uapi.ETH_P_IP) -> None:
    """Send an IP or ARP packet to a MAC over the link `ifname`. Raises OSError, with ENETDOWN if the link is down."""
    sock.sendto(packet, (ifname, protocol, 0, 0, mac))


def receive(sock: socket) -> tuple[bytes, bytes, bool] | None:
    """Return (the packet from its IP or ARP header on, its source MAC, whether its checksum is complete); None if no
    packet waits. Raises OSError, for example if the link went down.

    A packet that arrives from this machine over a veth has an incomplete checksum, because a network card would
    complete it.
    """
    try:
        packet, ancillary, _, source = sock.recvmsg(RECEIVE_BYTES, AUXDATA_BYTES + 64)
    except BlockingIOError:
        return None
    status = next((int.from_bytes(data[:4], sys.byteorder) for level, kind, data in ancillary
                   if (level, kind) == (uapi.SOL_PACKET, uapi.PACKET_AUXDATA)), 0)
    return packet, bytes(source[4][:6]), not status & uapi.TP_STATUS_CSUMNOTREADY


def open_udp(ifname: str, address: str) -> socket:
    """Open a UDP socket at port 68 of the link's address, for a client that has a lease. Raises OSError."""
    sock = socket(AF_INET, FLAGS)
    try:
        sock.setsockopt(uapi.SOL_SOCKET, uapi.SO_REUSEADDR, 1)
        sock.setsockopt(uapi.SOL_SOCKET, uapi.SO_BINDTODEVICE, ifname.encode() + b"\0")
        sock.bind((address, CLIENT_PORT))
    except BaseException:
        sock.close()
        raise
    return sock


def send_from_here(server: str, data: bytes) -> None:
    """Send one datagram to a server's port 67, by the routes of the calling thread's namespace. Raises OSError."""
    sock = socket(AF_INET, FLAGS)
    try:
        sock.sendto(data, (server, SERVER_PORT))
    finally:
        sock.close()


def announce(ifname: str, mac: bytes, packed: bytes) -> None:
    """Announce to the neighbours on a link that an address is at this MAC: gratuitous ARP, or an unsolicited neighbour
    advertisement (RFC 4861, 7.2.6). Raises OSError."""
    sock = socket(AF_PACKET, FLAGS, 0)
    try:
        if len(packed) == 4:
            send_to(sock, ifname, ARP_ETHERNET + mac + packed + bytes(6) + packed, BROADCAST, uapi.ETH_P_ARP)
        else:
            send_to(sock, ifname, advertisement(mac, packed), ALL_NODES_MAC, uapi.ETH_P_IPV6)
    finally:
        sock.close()


def advertisement(mac: bytes, packed: bytes) -> bytes:
    """Return an unsolicited neighbour advertisement of the address `packed`, beginning with the IPv6 header."""
    body = bytes((NA, 0, 0, 0, OVERRIDE, 0, 0, 0)) + packed + TARGET_LLADDR + mac
    pseudo = packed + ALL_NODES + len(body).to_bytes(4, "big") + bytes((0, 0, 0, ICMPV6))
    body = body[:2] + checksum(pseudo + body).to_bytes(2, "big") + body[4:]
    return b"\x60\0\0\0" + len(body).to_bytes(2, "big") + bytes((ICMPV6, HOP_LIMIT)) + packed + ALL_NODES + body


def checksum(data: bytes) -> int:
    """Return the internet checksum (RFC 1071)."""
    data += bytes(len(data) % 2)
    total = sum(int.from_bytes(data[at:at + 2], "big") for at in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
