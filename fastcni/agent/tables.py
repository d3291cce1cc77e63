"""Read the kernel's neighbours, FDB entries and routes as tables, compare them with a State, and write the difference.

One send() has all requests of a difference: first neighbours, then FDB entries, then routes, so that the kernel never
resolves an address through the tunnel. Entries that are no longer wanted are removed in the reverse order.
"""

from __future__ import annotations

from errno import EEXIST, ENOENT, ESRCH
from typing import TYPE_CHECKING, TypeVar

from fastcni.agent.batches import NetlinkRequests
from fastcni.agent.contract import pair
from fastcni.agent.links import packed_mac
from fastcni.agent.wireguard_peers import peer_of, read_peers, write_peers
from fastcni.kernel import neighbours, routing, rtnl, uapi, wire
from fastcni.kernel.neighbours import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from fastcni.agent.contract import State
    from fastcni.kernel.devices.wireguard import Peer
    from fastcni.kernel.rtnl import Route
    from fastcni.kernel.wire import NetlinkError, Socket

GONE = (ENOENT, ESRCH, EEXIST)          # harmless: the entry to remove is missing, or the entry to add exists
FAMILIES = (uapi.AF_INET, uapi.AF_INET6)
Key = TypeVar("Key")
Value = TypeVar("Value")


class Tables:
    """The kernel's entries, by key. neighbours: {(index, packed address): MAC}; stations, the FDB: {(index, MAC):
    packed remote}; routes: {(packed address, prefix length): (index, packed gateway or b"", packed source, which is b""
    in the agent's own routes, onlink)}; peers: {(index, public key): Peer}. index: a link's interface index."""

    __slots__ = ("neighbours", "peers", "routes", "stations")

    def __init__(self) -> None:
        self.neighbours: dict[tuple[int, bytes], bytes] = {}
        self.stations: dict[tuple[int, bytes], bytes] = {}
        self.routes: dict[tuple[bytes, int], tuple[int, bytes, bytes, bool]] = {}
        self.peers: dict[tuple[int, bytes], Peer] = {}


def wanted_tables(state: State, indexes: Mapping[str, int]) -> Tables:
    """Return the tables of `state`. indexes: {link name: index}; entries on links without an index are left out."""
    found = Tables()
    for one in state.neighbours:
        if index := indexes.get(one.link, 0):
            found.neighbours[index, one.address.packed] = packed_mac(one.mac) or b""
    for each in state.stations:
        if index := indexes.get(each.link, 0):
            found.stations[index, packed_mac(each.mac) or b""] = each.remote.packed
    for route in state.routes:
        if index := indexes.get(route.link, 0):
            found.routes[pair(route.destination)] = (index, route.gateway.packed if route.gateway else b"", b"",
                                                     route.onlink)
    for peer in state.peers:
        if index := indexes.get(peer.link, 0):
            found.peers[index, peer.public_key] = peer_of(peer)
    return found


def read_tables(sock: Socket, own: Mapping[int, str], written: Tables) -> Tables:
    """Read the kernel's entries: all entries on the links `own` ({index: kind}), and on any link the routes with the
    agent's routing protocol number. written: the tables that the agent wrote last, for read_peers()."""
    found = Tables()
    found.peers = read_peers([index for index, kind in own.items() if kind == "wireguard"], written.peers)
    for family in (*FAMILIES, uapi.AF_BRIDGE):
        for _, payload in wire.dump(sock, uapi.RTM_GETNEIGH, neighbours.ndmsg(family), "list neighbours"):
            note_neighbour(found, payload, own)
    for family in FAMILIES:
        header = rtnl.rtmsg(family, table=uapi.RT_TABLE_MAIN)
        for _, payload in wire.dump(sock, uapi.RTM_GETROUTE, header, "list routes"):
            note_route(found, payload, own)
    return found


def note_neighbour(found: Tables, payload: bytes, own: Collection[int]) -> None:
    it = neighbours.Neighbour(payload)
    if it.index not in own or not it.state & uapi.NUD_PERMANENT:
        return
    if it.family == uapi.AF_BRIDGE:
        found.stations[it.index, it.mac] = it.packed
    else:
        found.neighbours[it.index, it.packed] = it.mac


def note_route(found: Tables, payload: bytes, own: Collection[int]) -> None:
    it = rtnl.read_route(payload)
    if it is None or it.table != uapi.RT_TABLE_MAIN or it.kind != uapi.RTN_UNICAST or it.protocol == uapi.RTPROT_KERNEL:
        return
    if it.protocol == PROTOCOL or it.index in own:
        found.routes[route_key(payload, it)] = route_value(payload, it)


def route_key(payload: bytes, route: Route) -> tuple[bytes, int]:
    return route.dst or bytes(4 if payload[0] == uapi.AF_INET else 16), route.prefix


def route_value(payload: bytes, route: Route) -> tuple[int, bytes, bytes, bool]:
    return route.index, route.gateway, route.source, bool(rtnl.u32(payload[8:12]) & uapi.RTNH_F_ONLINK)


# -- writing -----------------------------------------------------------------------------------------------------------

def write_difference(sock: Socket, have: Tables, want: Tables) -> list[NetlinkError]:
    """Change the kernel's tables from `have` to `want`. Return the kernel's errors."""
    requests = NetlinkRequests()
    for (index, packed), mac in missing(have.neighbours, want.neighbours):
        requests.add(neighbours.put_permanent, index, packed, mac, what="add a neighbour")
    for (index, mac), remote in missing(have.stations, want.stations):
        requests.add(neighbours.put_remote, index, mac, remote, what="add an FDB entry")
    for (dst, prefix), (index, gateway, _, onlink) in missing(have.routes, want.routes):
        requests.add(routing.put_node_route, dst, prefix, index, gateway=gateway, onlink=onlink, protocol=PROTOCOL,
                     what="add a route")
    for (dst, prefix), (index, gateway, _, _) in have.routes.items():
        if (dst, prefix) not in want.routes:
            requests.add(routing.del_node_route, dst, prefix, index, gateway=gateway, what="delete a route")
    for (index, mac), remote in have.stations.items():
        if (index, mac) not in want.stations:
            requests.add(neighbours.del_remote, index, mac, remote, what="delete an FDB entry")
    for index, packed in have.neighbours.keys() - want.neighbours.keys():
        requests.add(neighbours.del_neighbour, index, packed, what="delete a neighbour")
    return [e for e in requests.send(sock) if e.errno not in GONE] + write_peers(have.peers, want.peers)


def missing(have: Mapping[Key, Value], want: Mapping[Key, Value]) -> Iterator[tuple[Key, Value]]:
    """Yield the entries of `want` that are missing or different in `have`."""
    return ((key, value) for key, value in want.items() if have.get(key) != value)
