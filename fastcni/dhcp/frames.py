"""Encode and read the IPv4 and UDP headers of DHCP messages, and ARP packets. The kernel adds the Ethernet header."""

from __future__ import annotations

import struct

from fastcni.kernel.sockets.packet_sockets import checksum

IP = struct.Struct("!BBHHHBBH4s4s")
UDP = struct.Struct("!HHHH")
ARP = struct.Struct("!HHBBH6s4s6s4s")
IP_VERSION_AND_LENGTH, TTL, PROTOCOL_UDP, DO_NOT_FRAGMENT = 0x45, 64, 17, 0x4000
ETHERNET, ETH_P_IP, REQUEST, REPLY = 1, 0x0800, 1, 2        # linux/if_arp.h
CLIENT_PORT, SERVER_PORT = 68, 67
EVERYWHERE, NO_ADDRESS, NO_MAC = b"\xff" * 4, bytes(4), bytes(6)


class FrameError(ValueError):
    """The packet is not IPv4, has a wrong length, or has a wrong UDP checksum."""


def pseudo_header(source: bytes, destination: bytes, size: int) -> bytes:
    return source + destination + struct.pack("!BBH", 0, PROTOCOL_UDP, size)


def to_server(data: bytes, source: bytes = NO_ADDRESS, destination: bytes = EVERYWHERE) -> bytes:
    """Return an IP packet that has `data` in a UDP packet from port 68 to port 67."""
    size = UDP.size + len(data)
    udp = UDP.pack(CLIENT_PORT, SERVER_PORT, size, 0) + data
    check = checksum(pseudo_header(source, destination, size) + udp) or 0xFFFF
    udp = udp[:6] + check.to_bytes(2, "big") + udp[8:]
    head = IP.pack(IP_VERSION_AND_LENGTH, 0, IP.size + size, 0, DO_NOT_FRAGMENT, TTL, PROTOCOL_UDP, 0, source,
                   destination)
    return head[:10] + checksum(head).to_bytes(2, "big") + head[12:] + udp


def payload(packet: bytes, complete: bool) -> bytes:
    """Return the UDP content of an IP packet. complete: whether the packet has a complete checksum to check. Raises
    FrameError."""
    if len(packet) < IP.size or packet[0] >> 4 != 4:
        raise FrameError("no IPv4")
    start, total = (packet[0] & 0xF) * 4, int.from_bytes(packet[2:4], "big")
    udp = packet[start:total]
    if start < IP.size or total > len(packet) or len(udp) < UDP.size:
        raise FrameError("cut short")
    size, check = int.from_bytes(udp[4:6], "big"), int.from_bytes(udp[6:8], "big")
    if not UDP.size <= size <= len(udp):
        raise FrameError("a wrong UDP length")
    udp = udp[:size]
    if complete and check and checksum(pseudo_header(packet[12:16], packet[16:20], size) + udp):
        raise FrameError("a wrong UDP checksum")
    return udp[UDP.size:]


def probe(mac: bytes, address: bytes) -> bytes:
    """Return an ARP probe (RFC 5227) for the address. Its sender address is 0.0.0.0, so that no host learns the
    address."""
    return ARP.pack(ETHERNET, ETH_P_IP, 6, 4, REQUEST, mac, NO_ADDRESS, NO_MAC, address)


def conflicts(packet: bytes, mac: bytes, address: bytes) -> bool:
    """Return whether an ARP packet shows that another host has, or probes for, the address."""
    if len(packet) < ARP.size:
        return False
    kind, protocol, _, _, what, sender, source, _, target = ARP.unpack_from(packet)
    if (kind, protocol) != (ETHERNET, ETH_P_IP) or sender == mac:
        return False
    return source == address or (what == REQUEST and source == NO_ADDRESS and target == address)
