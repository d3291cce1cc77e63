"""Connections that the kernel tracks: found by their port, and forgotten (nfnetlink_conntrack.h).

A tuple is where a connection's packets come from and go to:

    CTA_TUPLE_ORIG
        CTA_TUPLE_IP:    CTA_IP_V4_SRC, CTA_IP_V4_DST (or of V6)
        CTA_TUPLE_PROTO: CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_PROTO_DST_PORT
"""

from fastcni._netlink import attributes
from fastcni.kernel import wire
from fastcni.kernel.nft import nfgenmsg
from fastcni.kernel.uapi import AF_INET, AF_INET6, NLM_F_ACK

IPCTNL_MSG_CT_GET, IPCTNL_MSG_CT_DELETE = 0x101, 0x102         # subsystem 1, NFNL_SUBSYS_CTNETLINK
CTA_TUPLE_ORIG, CTA_ID, CTA_ZONE, CTA_FILTER = 1, 12, 18, 25
CTA_TUPLE_IP, CTA_TUPLE_PROTO = 1, 2
CTA_IP_DST = {AF_INET: 2, AF_INET6: 4}                          # CTA_IP_V4_DST, CTA_IP_V6_DST
CTA_PROTO_NUM, CTA_PROTO_DST_PORT = 1, 3
CTA_FILTER_ORIG_FLAGS = 1
# net/netfilter/nf_internals.h: CTA_FILTER_F_CTA_PROTO_NUM, _CTA_PROTO_DST_PORT
BY_PROTOCOL_AND_PORT = 1 << 3 | 1 << 5


class Flow:
    """family, destination (packed, of its first packet before NAT), and what it is deleted by: tuple, id, zone."""

    __slots__ = ("family", "destination", "tuple", "id", "zone")


def find(sock, family, protocol, port):
    """[Flow] of those whose first packet went to this port. Linux before 5.8 sends all it has to choose from."""
    def fill(batch):
        batch.nest(CTA_TUPLE_ORIG).nest(CTA_TUPLE_PROTO)
        batch.u8(CTA_PROTO_NUM, protocol).be16(CTA_PROTO_DST_PORT, port).end().end()
        batch.nest(CTA_FILTER).u32(CTA_FILTER_ORIG_FLAGS, BY_PROTOCOL_AND_PORT).end()

    found = []
    for _, payload in wire.dump(sock, IPCTNL_MSG_CT_GET, nfgenmsg(family), f"list flows to port {port}", fill):
        flow = read(payload, protocol, port)
        if flow:
            found.append(flow)
    return found


def read(payload, protocol, port):
    """An IPCTNL_MSG_CT_NEW payload as a Flow, None where it is of another protocol or port."""
    found = attributes(payload, 4)
    parts = attributes(found.get(CTA_TUPLE_ORIG, b""))
    proto = attributes(parts.get(CTA_TUPLE_PROTO, b""))
    if (proto.get(CTA_PROTO_NUM), proto.get(CTA_PROTO_DST_PORT)) != (bytes((protocol,)), port.to_bytes(2, "big")):
        return None
    flow = Flow()
    flow.family = payload[0]
    flow.destination = attributes(parts.get(CTA_TUPLE_IP, b"")).get(CTA_IP_DST[flow.family], b"")
    flow.tuple, flow.id, flow.zone = found[CTA_TUPLE_ORIG], found.get(CTA_ID), found.get(CTA_ZONE)
    return flow


def delete(batch, flow):
    """ENOENT when it is gone."""
    batch.begin(IPCTNL_MSG_CT_DELETE, NLM_F_ACK, nfgenmsg(flow.family), "forget a flow")
    batch.nest(CTA_TUPLE_ORIG).header(flow.tuple).end()
    for kind, value in ((CTA_ID, flow.id), (CTA_ZONE, flow.zone)):
        if value:
            batch.raw(kind, value)
    return batch
