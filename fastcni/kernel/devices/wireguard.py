"""Read and change the key, port and peers of WireGuard devices by generic netlink (linux/wireguard.h).

    WGDEVICE_A_IFINDEX, _PRIVATE_KEY, _PUBLIC_KEY, _LISTEN_PORT
    WGDEVICE_A_PEERS
        0
            WGPEER_A_PUBLIC_KEY, _PRESHARED_KEY, _FLAGS, _PERSISTENT_KEEPALIVE_INTERVAL
            WGPEER_A_ENDPOINT: a struct sockaddr_in or sockaddr_in6
            WGPEER_A_ALLOWEDIPS
                0: WGALLOWEDIP_A_FAMILY, _IPADDR, _CIDR_MASK

The kernel sends no notification when peers change.
"""

from __future__ import annotations

import sys

from fastcni._netlink import attribute_list, attributes
from fastcni.kernel import genl, uapi, wire
from fastcni.kernel.uapi import NLM_F_ACK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni._netlink import Batch
    from fastcni.kernel.wire import Socket

    Networks = Iterable[tuple[bytes, int]]
    Peer = tuple[int, frozenset[tuple[bytes, int]], tuple[bytes, int], bytes]

FAMILY = "wireguard"
ORDER = sys.byteorder
KEY_BYTES = 32
(WGDEVICE_A_IFINDEX, WGDEVICE_A_PRIVATE_KEY, WGDEVICE_A_PUBLIC_KEY, WGDEVICE_A_LISTEN_PORT,
 WGDEVICE_A_PEERS) = 1, 3, 4, 6, 8
(WGPEER_A_PUBLIC_KEY, WGPEER_A_PRESHARED_KEY, WGPEER_A_FLAGS, WGPEER_A_ENDPOINT, WGPEER_A_KEEPALIVE,
 WGPEER_A_ALLOWEDIPS) = 1, 2, 3, 4, 5, 9
WGALLOWEDIP_A_FAMILY, WGALLOWEDIP_A_IPADDR, WGALLOWEDIP_A_CIDR_MASK = 1, 2, 3
WGPEER_F_REMOVE_ME, WGPEER_F_REPLACE_ALLOWEDIPS = 1, 2
WG_CMD_GET_DEVICE, WG_CMD_SET_DEVICE = 0, 1


class Device:
    """A WireGuard device. public_key: 32 bytes, b"" without a private key. port: the UDP port. peers: {public key:
    (keepalive in seconds, frozenset of the peer's allowed (packed network, prefix length), the peer's endpoint (packed
    address, port), preshared key)}. Absent values are b"" and 0."""

    __slots__ = ("peers", "port", "public_key")

    def __init__(self) -> None:
        self.public_key, self.port = b"", 0
        self.peers: dict[bytes, Peer] = {}


def set_device(batch: Batch, family: int, index: int, private_key: bytes, port: int) -> Batch:
    """Set the private key and the UDP port of a device."""
    begin(batch, family, index, "set the key of a wireguard link")
    return batch.raw(WGDEVICE_A_PRIVATE_KEY, private_key).u16(WGDEVICE_A_LISTEN_PORT, port)


def put_peer(batch: Batch, family: int, index: int, key: bytes, endpoint: tuple[bytes, int], allowed: Networks,
             preshared_key: bytes, keepalive_s: int) -> Batch:
    """Add the peer with the public key `key`, or replace the settings and the allowed networks of an existing peer."""
    begin(batch, family, index, "add a wireguard peer").nest(WGDEVICE_A_PEERS).nest(0)
    batch.raw(WGPEER_A_PUBLIC_KEY, key).u32(WGPEER_A_FLAGS, WGPEER_F_REPLACE_ALLOWEDIPS)
    batch.raw(WGPEER_A_PRESHARED_KEY, preshared_key or bytes(KEY_BYTES))
    batch.raw(WGPEER_A_ENDPOINT, sockaddr(*endpoint)).u16(WGPEER_A_KEEPALIVE, keepalive_s)
    batch.nest(WGPEER_A_ALLOWEDIPS)
    for packed, prefix in allowed:
        batch.nest(0).u16(WGALLOWEDIP_A_FAMILY, uapi.AF_INET if len(packed) == 4 else uapi.AF_INET6)
        batch.raw(WGALLOWEDIP_A_IPADDR, packed).u8(WGALLOWEDIP_A_CIDR_MASK, prefix).end()
    return batch.end().end().end()


def del_peer(batch: Batch, family: int, index: int, key: bytes) -> Batch:
    begin(batch, family, index, "delete a wireguard peer").nest(WGDEVICE_A_PEERS).nest(0)
    return batch.raw(WGPEER_A_PUBLIC_KEY, key).u32(WGPEER_A_FLAGS, WGPEER_F_REMOVE_ME).end().end()


def read_device(sock: Socket, family: int, index: int) -> Device:
    """Read a device from the kernel. Raises NetlinkError."""
    device = Device()
    for _, payload in wire.dump(sock, family, genl.genlmsghdr(WG_CMD_GET_DEVICE), "read a wireguard link",
                                lambda batch: batch.u32(WGDEVICE_A_IFINDEX, index)):
        found = attributes(payload, 4)
        device.public_key = found.get(WGDEVICE_A_PUBLIC_KEY, device.public_key)
        device.port = int.from_bytes(found.get(WGDEVICE_A_LISTEN_PORT, b""), ORDER) or device.port
        for _, each in attribute_list(found.get(WGDEVICE_A_PEERS, b"")):
            note_peer(device, attributes(each))
    return device


def note_peer(device: Device, found: dict[int, bytes]) -> None:
    """Record the attributes of a peer in `device.peers`. A peer with many networks arrives in several messages; only
    the first has the peer's other attributes."""
    key, networks = found[WGPEER_A_PUBLIC_KEY], set()
    for _, each in attribute_list(found.get(WGPEER_A_ALLOWEDIPS, b"")):
        allowed = attributes(each)
        networks.add((allowed[WGALLOWEDIP_A_IPADDR], allowed[WGALLOWEDIP_A_CIDR_MASK][0]))
    if key in device.peers:
        keepalive, before, endpoint, preshared = device.peers[key]
        device.peers[key] = keepalive, before | networks, endpoint, preshared
        return
    preshared = found.get(WGPEER_A_PRESHARED_KEY, b"")
    device.peers[key] = (int.from_bytes(found.get(WGPEER_A_KEEPALIVE, b""), ORDER), frozenset(networks),
                         read_sockaddr(found.get(WGPEER_A_ENDPOINT, b"")), preshared if any(preshared) else b"")


def begin(batch: Batch, family: int, index: int, what: str) -> Batch:
    batch.begin(family, NLM_F_ACK, genl.genlmsghdr(WG_CMD_SET_DEVICE), what)
    return batch.u32(WGDEVICE_A_IFINDEX, index)


def sockaddr(packed: bytes, port: int) -> bytes:
    """Encode a struct sockaddr_in or sockaddr_in6."""
    if len(packed) == 4:
        return uapi.AF_INET.to_bytes(2, ORDER) + port.to_bytes(2, "big") + packed + bytes(8)
    return uapi.AF_INET6.to_bytes(2, ORDER) + port.to_bytes(2, "big") + bytes(4) + packed + bytes(4)


def read_sockaddr(data: bytes) -> tuple[bytes, int]:
    """Return (packed address, port) of a struct sockaddr_in or sockaddr_in6; (b"", 0) for no data."""
    packed = data[4:8] if int.from_bytes(data[:2], ORDER) == uapi.AF_INET else data[8:24]
    return packed, int.from_bytes(data[2:4], "big")
