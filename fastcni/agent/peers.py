"""The peers of wireguard links: what a State wants, what the kernel has, and the difference, written.

The kernel announces nothing about peers. They are compared when anything else of the agent's has changed. Where a peer
is reached is not compared: WireGuard follows a peer that moves.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from fastcni._netlink import Batch
from fastcni.kernel import genl, uapi, wire, wireguard

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fastcni.agent.contract import WireguardPeer
    from fastcni.kernel.wire import NetlinkError

    # keepalive in seconds, networks that may come from it, (packed address, port) of the other end, preshared key
    Peer = tuple[int, frozenset[tuple[bytes, int]], tuple[bytes, int], bytes]
    Peers = Mapping[tuple[int, bytes], Peer]


def peer_of(peer: WireguardPeer) -> Peer:
    allowed = frozenset((each.network_address.packed, each.prefixlen) for each in peer.allowed)
    return peer.keepalive_s, allowed, (peer.endpoint.packed, peer.port), peer.preshared_key


def set_key(index: int, private_key: bytes, port: int) -> None:
    """Give a link its key and port. Raises NetlinkError."""
    with closing(wire.open_socket(uapi.NETLINK_GENERIC)) as sock:
        family = genl.family_id(sock, wireguard.FAMILY)
        wire.exchange(sock, wireguard.set_device(Batch(), family, index, private_key, port))


def read_peers(indexes: Collection[int], want: Peers) -> dict[tuple[int, bytes], Peer]:
    """The peers of wireguard links, with the ends and preshared keys that are wanted."""
    found: dict[tuple[int, bytes], Peer] = {}
    if not indexes:
        return found
    with closing(wire.open_socket(uapi.NETLINK_GENERIC)) as sock:
        family = genl.family_id(sock, wireguard.FAMILY)
        for index in indexes:
            for key, (keepalive, allowed) in wireguard.read_device(sock, family, index).peers.items():
                _, _, endpoint, preshared = want.get((index, key), (0, frozenset(), (b"", 0), b""))
                found[index, key] = keepalive, allowed, endpoint, preshared
    return found


def write_peers(have: Peers, want: Peers) -> list[NetlinkError]:
    """Make the kernel's peers, which are `have`, those in `want`. Return what the kernel refused."""
    changed = {key: peer for key, peer in want.items() if have.get(key) != peer}
    gone = have.keys() - want.keys()
    if not changed and not gone:
        return []
    refused = []
    with closing(wire.open_socket(uapi.NETLINK_GENERIC)) as sock:
        family = genl.family_id(sock, wireguard.FAMILY)
        for index, key in gone:
            refused += wire.attempt(sock, wireguard.del_peer(Batch(), family, index, key))[1]
        for (index, key), (keepalive, allowed, endpoint, preshared) in changed.items():
            batch = wireguard.put_peer(Batch(), family, index, key, endpoint, sorted(allowed), preshared, keepalive)
            refused += wire.attempt(sock, batch)[1]
    return refused
