"""Read the kernel's peers of wireguard links, compare them with a State, and write the difference.

The kernel sends no notifications about peers, so the agent compares peers when other entries of the State have changed.
The agent writes a peer's endpoint only when the node's record changes, because WireGuard itself updates the endpoint of
a peer that moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni._netlink import Batch
from fastcni.agent.batches import NetlinkRequests
from fastcni.agent.contract import pair
from fastcni.kernel import genl, uapi, wire
from fastcni.kernel.devices import wireguard

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fastcni.agent.contract import WireguardPeer
    from fastcni.kernel.devices.wireguard import Peer
    from fastcni.kernel.wire import NetlinkError

    Peers = Mapping[tuple[int, bytes], Peer]        # {(index of the link, public key): Peer}


ANSWER_BYTES, REQUEST_BYTES = 16 << 20, 4 << 20       # buffer for the kernel's ACKs; the maximum of one send()


def peer_of(peer: WireguardPeer) -> Peer:
    allowed = frozenset(map(pair, peer.allowed))
    return peer.keepalive_s, allowed, (peer.endpoint.packed, peer.port), peer.preshared_key


def set_key(index: int, private_key: bytes, port: int) -> None:
    """Set the private key and the UDP port of the wireguard link with this interface index. Raises NetlinkError."""
    with wire.open_socket(uapi.NETLINK_GENERIC) as sock:
        family = genl.family_id(sock, wireguard.FAMILY)
        wire.exchange(sock, wireguard.set_device(Batch(), family, index, private_key, port))


def read_peers(indexes: Collection[int], written: Peers) -> dict[tuple[int, bytes], Peer]:
    """Return the peers of the wireguard links `indexes`. A peer's endpoint is the endpoint in `written`, which the
    agent wrote last, even if the peer has moved since. Without an entry in `written`, the result has the kernel's
    endpoint."""
    found: dict[tuple[int, bytes], Peer] = {}
    if not indexes:
        return found
    with wire.open_socket(uapi.NETLINK_GENERIC) as sock:
        family = genl.family_id(sock, wireguard.FAMILY)
        for index in indexes:
            for key, (keepalive, allowed, end, preshared) in wireguard.read_device(sock, family, index).peers.items():
                if (index, key) in written:
                    end = written[index, key][2]
                found[index, key] = keepalive, allowed, end, preshared
    return found


def write_peers(have: Peers, want: Peers) -> list[NetlinkError]:
    """Change the kernel's peers from `have` to `want`. Return the kernel's errors."""
    changed = {key: peer for key, peer in want.items() if have.get(key) != peer}
    gone = have.keys() - want.keys()
    if not changed and not gone:
        return []
    requests = NetlinkRequests()
    with wire.open_socket(uapi.NETLINK_GENERIC) as sock:
        wire.set_buffer_size(sock, ANSWER_BYTES)
        wire.set_request_size(sock, REQUEST_BYTES)
        family = genl.family_id(sock, wireguard.FAMILY)
        for index, key in gone:             # removals first, because another peer may get a removed peer's networks
            requests.add(wireguard.del_peer, family, index, key)
        for (index, key), (keepalive, allowed, endpoint, preshared) in changed.items():
            requests.add(wireguard.put_peer, family, index, key, endpoint, sorted(allowed), preshared, keepalive)
        return requests.send(sock)
