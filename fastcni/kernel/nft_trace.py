"""Trace messages of nftables: what each rule decided about a packet whose flag nftrace a rule has set.

    sock = wire.open_socket(uapi.NETLINK_NETFILTER, (NFNLGRP_NFTRACE,))
    wire.drain(sock, lambda kind, payload: print(Trace(payload).chain), lost)

The kernel makes these messages only while a socket of the packet's network namespace is in the group. Names and
layouts: include/uapi/linux/netfilter/nf_tables.h; net/netfilter/nf_tables_trace.c.
"""

from __future__ import annotations

from fastcni._netlink import attributes
from fastcni.kernel import nft

NFNLGRP_NFTRACE = 9             # linux/netfilter/nfnetlink.h
NFT_MSG_TRACE = nft.NFNL_SUBSYS_NFTABLES << 8 | 17
(NFTA_TRACE_TABLE, NFTA_TRACE_CHAIN, NFTA_TRACE_RULE_HANDLE, NFTA_TRACE_TYPE, NFTA_TRACE_VERDICT, NFTA_TRACE_ID,
 NFTA_TRACE_LL_HEADER, NFTA_TRACE_NETWORK_HEADER, NFTA_TRACE_TRANSPORT_HEADER, NFTA_TRACE_IIF) = range(1, 11)
NFTA_TRACE_POLICY = 16
NFT_CONTINUE = 0xFFFFFFFF


class Trace:
    """One message.

    id: the same in all messages about one packet. family: NFPROTO_*. rule: the rule's handle, 0 for the policy of a
    chain. verdict: NF_DROP, NF_ACCEPT, NFT_CONTINUE, NFT_JUMP and so on. network, transport: the first 40 and 20 bytes
    of these headers, in the first message of each base chain only, else b"". iif: the index of the link that received
    the packet, 0 if there is none or the message has no headers.
    """

    __slots__ = ("id", "family", "table", "chain", "rule", "verdict", "network", "transport", "iif")

    def __init__(self, payload: bytes) -> None:
        """Read an NFT_MSG_TRACE payload. Raises ValueError for a message cut short."""
        found = attributes(payload, 4)
        verdict = found.get(NFTA_TRACE_POLICY) or attributes(found.get(NFTA_TRACE_VERDICT, b"")).get(
            nft.NFTA_VERDICT_CODE)
        self.id, self.family = found.get(NFTA_TRACE_ID, b""), nft.read_family(payload)
        self.table = nft.as_text(found.get(NFTA_TRACE_TABLE, b""))
        self.chain = nft.as_text(found.get(NFTA_TRACE_CHAIN, b""))
        self.rule = int.from_bytes(found.get(NFTA_TRACE_RULE_HANDLE, b""), "big")
        self.verdict = int.from_bytes(verdict, "big") if verdict else NFT_CONTINUE
        self.network = found.get(NFTA_TRACE_NETWORK_HEADER, b"")
        self.transport = found.get(NFTA_TRACE_TRANSPORT_HEADER, b"")
        self.iif = int.from_bytes(found.get(NFTA_TRACE_IIF, b""), "big")
