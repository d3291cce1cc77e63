"""Ask the kernel what it would do with a packet: its route, its neighbour, the bridge port that it uses.

The functions change nothing. The socket that a function gets is in the namespace that the function asks about.
"""

from __future__ import annotations

import sys
from errno import ENODEV

from fastcni._netlink import Batch, attribute_list, attributes, u32
from fastcni.kernel import conntrack, neighbours, nft, rtnl, uapi, wire
from fastcni.kernel.neighbours import Neighbour

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.wire import Socket

ORDER = sys.byteorder
RTA_SRC, RTA_IIF = 2, 3         # linux/rtnetlink.h
RTN_LOCAL, RTN_BROADCAST = 2, 3         # linux/rtnetlink.h
RTN_BLACKHOLE, RTN_UNREACHABLE, RTN_PROHIBIT = 6, 7, 8
NUD_INCOMPLETE, NUD_FAILED = 0x01, 0x20                 # linux/neighbour.h
IFLA_BRPORT_STATE = 1           # linux/if_link.h
RTEXT_FILTER_BRVLAN = 2         # linux/rtnetlink.h
BR_STATE_FORWARDING = 3         # linux/if_bridge.h
BR_STATES = {0: "disabled", 1: "listening", 2: "learning", 4: "blocking"}


class Way:
    """The kernel's route for one packet. errno: why the packet has no route, or 0. kind: RTN_*. index: the index of the
    outgoing link. gateway, source: the next hop and the chosen source address, b"" if the route has none."""

    __slots__ = ("errno", "gateway", "index", "kind", "source")

    def __init__(self, errno: int = 0, payload: bytes = b"") -> None:
        found = attributes(payload, 12) if payload else {}
        self.errno, self.kind = errno, payload[7] if payload else 0
        self.index = u32(found[uapi.RTA_OIF]) if uapi.RTA_OIF in found else 0
        self.gateway, self.source = found.get(uapi.RTA_GATEWAY, b""), found.get(uapi.RTA_PREFSRC, b"")


def way(sock: Socket, destination: bytes, *, source: bytes = b"", iif: int = 0) -> Way:
    """Return how the kernel would route a packet. iif: the index of the link by which the packet comes in; 0 if the
    packet begins in this namespace. The result's errno is EXDEV if rp_filter rejects the source, EHOSTUNREACH if the
    link does not forward."""
    batch = rtnl.get_route(Batch(), destination, "look up a route")
    if source:
        batch = Batch().begin(uapi.RTM_GETROUTE, uapi.NLM_F_ACK, _rtmsg(destination, source),
                              "look up a route").raw(uapi.RTA_DST, destination).raw(RTA_SRC, source)
    if iif:
        batch.u32(RTA_IIF, iif)
    replies, refused = wire.attempt(sock, batch)
    if refused:
        return Way(refused[0].errno)
    return Way(0, replies[0][1])


def _rtmsg(destination: bytes, source: bytes) -> bytes:
    """Return struct rtmsg with the lengths of both addresses."""
    header = rtnl.rtmsg(rtnl.family_of(destination), 8 * len(destination))
    return header[:2] + bytes((8 * len(source),)) + header[3:]


def neighbour(sock: Socket, index: int, packed: bytes) -> Neighbour | None:
    """Return the neighbour entry of an address on a link; None if there is no entry."""
    replies = wire.look_up(sock, neighbours.get_neighbour(Batch(), index, packed))
    return neighbours.Neighbour(replies[0][1]) if replies else None


def station(sock: Socket, bridge: int, mac: bytes) -> Neighbour | None:
    """Return the FDB entry of a MAC on a bridge; None if there is no entry. The entry's `index` is the index of the
    port, or of the bridge itself."""
    try:
        replies = wire.look_up(sock, neighbours.get_station(Batch(), bridge, mac))
    except wire.NetlinkError as e:
        if e.errno != ENODEV:
            raise
        return None
    return neighbours.Neighbour(replies[0][1]) if replies else None


def bridge_port(sock: Socket, index: int) -> dict[int, int]:
    """Return the settings of a bridge port, {IFLA_BRPORT_*: number}; {} if the link is no port of a bridge."""
    replies = wire.exchange(sock, rtnl.get_link(Batch(), index=index))
    info = attributes(attributes(replies[0][1], len(rtnl.ANY_LINK)).get(uapi.IFLA_LINKINFO, b""))
    if info.get(uapi.IFLA_INFO_SLAVE_KIND) != b"bridge\0":
        return {}
    return {number: value[0] for number, value in attributes(info[uapi.IFLA_INFO_SLAVE_DATA]).items()
            if len(value) == 1}


def pvid(sock: Socket, index: int) -> int:
    """Return the VLAN that a bridge port, or the bridge itself, gives to untagged frames; 0 for no VLAN."""
    for _, payload in wire.dump(sock, uapi.RTM_GETLINK, rtnl.ifinfomsg(family=uapi.AF_BRIDGE), "list VLANs of ports",
                                lambda batch: batch.u32(uapi.IFLA_EXT_MASK, RTEXT_FILTER_BRVLAN)):
        if rtnl.read_index(payload) != index:
            continue
        for kind, data in attribute_list(attributes(payload, 16).get(uapi.IFLA_AF_SPEC, b"")):
            flags, vid = (int.from_bytes(data[at:at + 2], ORDER) for at in (0, 2))
            if kind == uapi.IFLA_BRIDGE_VLAN_INFO and flags & uapi.BRIDGE_VLAN_INFO_PVID:
                return vid
    return 0


class Tracked:
    """A conntrack entry. flow: its Flow. seen_as, seen_port: source address and port that the target sees, after
    masquerade."""

    __slots__ = ("flow", "seen_as", "seen_port")

    def __init__(self, payload: bytes) -> None:
        self.flow = conntrack.Flow(payload)
        answered = attributes(attributes(payload, 4).get(conntrack.CTA_TUPLE_REPLY, b""))
        ends, ports = (attributes(answered.get(kind, b"")) for kind in (
            conntrack.CTA_TUPLE_IP, conntrack.CTA_TUPLE_PROTO))
        self.seen_as = ends.get(conntrack.CTA_IP_DST[self.flow.family], b"")
        self.seen_port = int.from_bytes(ports.get(conntrack.CTA_PROTO_DST_PORT, b""), "big")


def tracked(sock: Socket, family: int, protocol: int, port: int) -> list[Tracked]:
    """Return the conntrack entries of connections to a port. family: NFPROTO_IPV4 or NFPROTO_IPV6. sock: a netfilter
    socket. Raises OSError."""
    found = wire.dump(sock, conntrack.IPCTNL_MSG_CT_GET, nft.nfgenmsg(family), f"list flows to port {port}",
                      lambda batch: conntrack.to_port(batch, protocol, port))
    return [it for it in (Tracked(payload) for _, payload in found)
            if it.flow.protocol == protocol and it.flow.port == port]
