"""Find flows of connection tracking, and delete them by port, address and NAT (nfnetlink_conntrack.h).

A flow has two tuples, one for each direction of the connection. A tuple has the source and the destination of the
packets:

    CTA_TUPLE_ORIG, CTA_TUPLE_REPLY
        CTA_TUPLE_IP:    CTA_IP_V4_SRC, CTA_IP_V4_DST (or of V6)
        CTA_TUPLE_PROTO: CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_PROTO_DST_PORT
"""

from __future__ import annotations

from fastcni._netlink import attributes
from fastcni.kernel import wire
from fastcni.kernel.nft import IPS_DST_NAT, ORDER, nfgenmsg
from fastcni.kernel.uapi import AF_INET, AF_INET6, NLM_F_ACK, NLM_F_CREATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fastcni._netlink import Batch
    from fastcni.kernel.wire import Socket

NFNLGRP_CONNTRACK_NEW = 1      # linux/netfilter/nfnetlink.h: a socket in this group gets each new connection
# subsystem 1, NFNL_SUBSYS_CTNETLINK
IPCTNL_MSG_CT_NEW, IPCTNL_MSG_CT_GET, IPCTNL_MSG_CT_DELETE = 0x100, 0x101, 0x102
CTA_TUPLE_ORIG, CTA_TUPLE_REPLY, CTA_STATUS, CTA_ID, CTA_ZONE, CTA_FILTER, CTA_STATUS_MASK = 1, 2, 3, 12, 18, 25, 26
CTA_MARK = 8
CTA_TUPLE_IP, CTA_TUPLE_PROTO = 1, 2
# CTA_IP_V4_SRC, CTA_IP_V6_SRC; CTA_IP_V4_DST, CTA_IP_V6_DST
CTA_IP_SRC, CTA_IP_DST = {AF_INET: 1, AF_INET6: 3}, {AF_INET: 2, AF_INET6: 4}
CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_PROTO_DST_PORT = 1, 2, 3
CTA_FILTER_ORIG_FLAGS, CTA_FILTER_REPLY_FLAGS = 1, 2
CTA_PROTOINFO, CTA_PROTOINFO_TCP, CTA_TIMEOUT = 4, 1, 7
CTA_PROTOINFO_TCP_STATE, CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, CTA_PROTOINFO_TCP_FLAGS_REPLY = 1, 4, 5
TCP_CONNTRACK_ESTABLISHED, IP_CT_TCP_FLAG_BE_LIBERAL = 3, 8
IPPROTO_TCP, ESTABLISHED_S = 6, 5 * 24 * 3600           # net.netfilter.nf_conntrack_tcp_timeout_established
ADDRESS_BYTES = {AF_INET: 4, AF_INET6: 16}
IPS_SRC_NAT = 1 << 4
IPS_SEEN_REPLY, IPS_ASSURED, IPS_CONFIRMED, IPS_OFFLOAD = 1 << 1, 1 << 2, 1 << 3, 1 << 14
# net/netfilter/nf_internals.h: CTA_FILTER_F_*
BY_SOURCE, BY_PROTOCOL, BY_DESTINATION_PORT = 1 << 0, 1 << 3, 1 << 5


def forget_untranslated(batch: Batch, family: int, protocol: int, port: int) -> Batch:
    """Delete the flows without NAT whose first packet went to `port`. Linux before 6.8 answers EINVAL."""
    batch.begin(IPCTNL_MSG_CT_DELETE, NLM_F_ACK, nfgenmsg(family), f"forget flows to port {port}")
    to_port(batch, protocol, port)
    return batch.be32(CTA_STATUS, 0).be32(CTA_STATUS_MASK, IPS_SRC_NAT | IPS_DST_NAT)


def forget_translated(batch: Batch, protocol: int, address: bytes) -> Batch:
    """Delete the flows that DNAT sends to an IPv4 address. Linux before 6.8 answers EINVAL.

    The function takes no IPv6 address, because the kernel would delete the flows to all other addresses (as of 6.18,
    ctnetlink_filter_match_tuple has the comparison inverted).
    """
    batch.begin(IPCTNL_MSG_CT_DELETE, NLM_F_ACK, nfgenmsg(AF_INET), "forget flows to a pod").nest(CTA_TUPLE_REPLY)
    batch.nest(CTA_TUPLE_IP).raw(CTA_IP_SRC[AF_INET], address).end()
    batch.nest(CTA_TUPLE_PROTO).u8(CTA_PROTO_NUM, protocol).end().end()
    batch.nest(CTA_FILTER).u32(CTA_FILTER_REPLY_FLAGS, BY_SOURCE | BY_PROTOCOL).end()
    return batch.be32(CTA_STATUS, IPS_DST_NAT).be32(CTA_STATUS_MASK, IPS_DST_NAT)


def to_port(batch: Batch, protocol: int, port: int | None) -> Batch:
    """Select flows whose first packet went to this port; None: to any port."""
    batch.nest(CTA_TUPLE_ORIG).nest(CTA_TUPLE_PROTO).u8(CTA_PROTO_NUM, protocol)
    if port:
        batch.be16(CTA_PROTO_DST_PORT, port)
    batch.end().end()
    flags = BY_PROTOCOL | (BY_DESTINATION_PORT if port else 0)
    return batch.nest(CTA_FILTER).u32(CTA_FILTER_ORIG_FLAGS, flags).end()


class Flow:
    """A tracked connection.

    family, protocol, port, source, destination   the first packet's, before NAT; port: the destination port
    source_port                                   the first packet's; 0 if conntrack has no ports for the protocol
    replier, replier_port                         the address and port that answer: the destination after NAT
    nat                                           whether the flow has NAT
    mark                                          the flow's mark, `ct mark` in nftables
    tuple, id, zone                               attributes by which delete() identifies the flow
    """

    __slots__ = ("family", "protocol", "port", "source", "destination", "source_port", "replier", "replier_port",
                 "translated", "nat", "mark", "tuple", "id", "zone")

    def __init__(self, payload: bytes) -> None:
        """Read an IPCTNL_MSG_CT_NEW payload."""
        found, self.family = attributes(payload, 4), payload[0]
        sent, answered = (attributes(found.get(kind, b"")) for kind in (CTA_TUPLE_ORIG, CTA_TUPLE_REPLY))
        ports = attributes(sent.get(CTA_TUPLE_PROTO, b""))
        self.protocol, self.source_port, self.port = (int.from_bytes(ports.get(kind, b""), "big") for kind in (
            CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_PROTO_DST_PORT))
        ends = attributes(sent.get(CTA_TUPLE_IP, b""))
        self.source, self.destination = ends.get(CTA_IP_SRC[self.family], b""), ends.get(CTA_IP_DST[self.family], b"")
        ports = attributes(answered.get(CTA_TUPLE_PROTO, b""))
        self.replier_port = int.from_bytes(ports.get(CTA_PROTO_SRC_PORT, b""), "big")
        ends = attributes(answered.get(CTA_TUPLE_IP, b""))
        self.replier, self.translated = ends.get(CTA_IP_SRC[self.family], b""), ends.get(CTA_IP_DST[self.family], b"")
        self.nat = bool(int.from_bytes(found.get(CTA_STATUS, b""), "big") & (IPS_SRC_NAT | IPS_DST_NAT))
        self.mark = int.from_bytes(found.get(CTA_MARK, b""), "big")
        self.tuple, self.id, self.zone = found.get(CTA_TUPLE_ORIG, b""), found.get(CTA_ID), found.get(CTA_ZONE)


def find(sock: Socket, family: int, protocol: int, port: int | None = None) -> list[Flow]:
    """Return the flows of `protocol` whose first packet went to `port`; if `port` is None, those with destination NAT.

    The call takes some milliseconds, because the kernel locks each bucket of its table in turn. Linux before 5.8 sends
    the complete table.
    """
    def fill(batch: Batch) -> None:
        to_port(batch, protocol, port)
        if not port:
            batch.be32(CTA_STATUS, IPS_DST_NAT).be32(CTA_STATUS_MASK, IPS_DST_NAT)

    found = [Flow(payload) for _, payload in
             wire.dump(sock, IPCTNL_MSG_CT_GET, nfgenmsg(family), f"list flows to port {port}", fill)]
    return [flow for flow in found if flow.protocol == protocol and port in (None, flow.port)]


def list_flows(sock: Socket, ends: Collection[bytes] | None = None) -> list[Flow]:
    """Return the flows of IPv4 and IPv6 whose source or replier is one of `ends`; None: all flows.

    The call takes some milliseconds even without any flow, see find(). Flow() takes five times as long as read_ends(),
    so flows of other ends are not decoded.
    """
    found = wire.dump(sock, IPCTNL_MSG_CT_GET, nfgenmsg(0), "list flows")
    return [Flow(payload) for _, payload in found if payload[0] in CTA_IP_SRC
            and (ends is None or any(end in ends for end in read_ends(payload)))]


def count_offloaded(sock: Socket, ends: Collection[bytes]) -> int:
    """Return the number of flows in flowtables of nftables whose source and replier are both in `ends`. Linux before
    5.10 sends the complete table."""
    found = wire.dump(sock, IPCTNL_MSG_CT_GET, nfgenmsg(0), "list flows in flowtables",
                      lambda batch: batch.be32(CTA_STATUS, IPS_OFFLOAD).be32(CTA_STATUS_MASK, IPS_OFFLOAD))
    return sum(payload[0] in CTA_IP_SRC and all(end in ends for end in read_ends(payload))
               and bool(int.from_bytes(attributes(payload, 4).get(CTA_STATUS, b""), "big") & IPS_OFFLOAD)
               for _, payload in found)


def read_ends(payload: bytes) -> tuple[bytes, bytes]:
    """Read the source and the replier of an IPCTNL_MSG_CT_NEW payload of IPv4 or IPv6.

    The payload begins with both tuples. Each tuple begins with the headers of CTA_TUPLE_* and CTA_TUPLE_IP, followed by
    the source (ctnetlink_fill_info() of all kernels).
    """
    length = ADDRESS_BYTES[payload[0]]
    second = 4 + int.from_bytes(payload[4:6], ORDER)        # the offset after CTA_TUPLE_ORIG
    return payload[16:16 + length], payload[second + 12:second + 12 + length]


def delete(batch: Batch, flow: Flow) -> Batch:
    """Delete a flow. The kernel answers ENOENT if the flow no longer exists."""
    batch.begin(IPCTNL_MSG_CT_DELETE, NLM_F_ACK, nfgenmsg(flow.family), "forget a flow")
    batch.nest(CTA_TUPLE_ORIG).header(flow.tuple).end()
    for kind, value in ((CTA_ID, flow.id), (CTA_ZONE, flow.zone)):
        if value:
            batch.raw(kind, value)
    return batch


def add_tuple(batch: Batch, kind: int, protocol: int, ends: Sequence[bytes], ports: Sequence[int]) -> Batch:
    """Add CTA_TUPLE_ORIG or CTA_TUPLE_REPLY of packets from the first end to the second."""
    family = AF_INET if len(ends[0]) == 4 else AF_INET6
    batch.nest(kind).nest(CTA_TUPLE_IP).raw(CTA_IP_SRC[family], ends[0]).raw(CTA_IP_DST[family], ends[1]).end()
    batch.nest(CTA_TUPLE_PROTO).u8(CTA_PROTO_NUM, protocol).be16(CTA_PROTO_SRC_PORT, ports[0])
    return batch.be16(CTA_PROTO_DST_PORT, ports[1]).end().end()


def get(batch: Batch, protocol: int, ends: Sequence[bytes], ports: Sequence[int]) -> Batch:
    """Ask for the flow of packets from the first end to the second. The kernel answers ENOENT if the flow does not
    exist."""
    family = AF_INET if len(ends[0]) == 4 else AF_INET6
    batch.begin(IPCTNL_MSG_CT_GET, NLM_F_ACK, nfgenmsg(family), "get a flow")
    return add_tuple(batch, CTA_TUPLE_ORIG, protocol, ends, ports)


def put_established(batch: Batch, ends: Sequence[bytes], ports: Sequence[int]) -> Batch:
    """Add an entry of an established TCP connection from the first end to the second, or set an existing entry to
    established.

    conntrack has not seen the connection's sequence numbers, so the entry is liberal: conntrack does not check the
    window of packets.
    """
    family = AF_INET if len(ends[0]) == 4 else AF_INET6
    batch.begin(IPCTNL_MSG_CT_NEW, NLM_F_ACK | NLM_F_CREATE, nfgenmsg(family), "put a connection into conntrack")
    add_tuple(batch, CTA_TUPLE_ORIG, IPPROTO_TCP, ends, ports)
    add_tuple(batch, CTA_TUPLE_REPLY, IPPROTO_TCP, ends[::-1], ports[::-1])
    batch.be32(CTA_STATUS, IPS_SEEN_REPLY | IPS_ASSURED | IPS_CONFIRMED).be32(CTA_TIMEOUT, ESTABLISHED_S)
    batch.nest(CTA_PROTOINFO).nest(CTA_PROTOINFO_TCP).u8(CTA_PROTOINFO_TCP_STATE, TCP_CONNTRACK_ESTABLISHED)
    for kind in (CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, CTA_PROTOINFO_TCP_FLAGS_REPLY):
        batch.raw(kind, bytes((IP_CT_TCP_FLAG_BE_LIBERAL, IP_CT_TCP_FLAG_BE_LIBERAL)))      # flags, mask
    return batch.end().end()
