"""Read nftables trace messages: the verdict of each rule about a packet for which a rule has set nftrace.

    sock = wire.open_socket(uapi.NETLINK_NETFILTER, (NFNLGRP_NFTRACE,))
    wire.drain(sock, lambda kind, payload: print(Trace(payload).chain), lost)

The kernel makes trace messages only while a socket of the packet's network namespace is in the group NFNLGRP_NFTRACE.
Names and layouts: include/uapi/linux/netfilter/nf_tables.h; net/netfilter/nf_tables_trace.c.
"""

from __future__ import annotations

from fastcni._netlink import attributes
from fastcni.kernel import nft

NFNLGRP_NFTRACE = 9             # linux/netfilter/nfnetlink.h
NFT_MSG_TRACE = nft.NFNL_SUBSYS_NFTABLES << 8 | 17
(NFTA_TRACE_TABLE, NFTA_TRACE_CHAIN, NFTA_TRACE_RULE_HANDLE, NFTA_TRACE_TYPE, NFTA_TRACE_VERDICT, NFTA_TRACE_ID,
 NFTA_TRACE_LL_HEADER, NFTA_TRACE_NETWORK_HEADER, NFTA_TRACE_TRANSPORT_HEADER, NFTA_TRACE_IIF) = range(1, 11)
NFTA_TRACE_OIF, NFTA_TRACE_POLICY = 12, 16
NFT_TRACETYPE_POLICY, NFT_TRACETYPE_RULE = 1, 3
NFT_CONTINUE = 0xFFFFFFFF
NF_VERDICT_MASK, NF_VERDICT_QBITS = 0xFF, 16            # linux/netfilter.h: NF_QUEUE_NR()


class Trace:
    """One trace message.

    id: the same in all messages about one packet. kind: NFT_TRACETYPE_*. family: NFPROTO_*. handle: the rule's handle,
    0 for the policy of a chain. verdict: NF_DROP, NF_ACCEPT, NFT_CONTINUE, NFT_JUMP and so on. network, transport: the
    first 40 and 20 bytes of these headers, in the first message of each base chain only, else b"". iif, oif: indexes of
    the links that receive and send the packet, 0 if no link does so or the message has no headers.
    """

    __slots__ = ("id", "kind", "family", "table", "chain", "handle", "verdict", "network", "transport", "iif", "oif")

    def __init__(self, payload: bytes) -> None:
        """Read an NFT_MSG_TRACE payload. Raises ValueError for a truncated message."""
        found = attributes(payload, 4)

        def number(kind: int) -> int:
            return int.from_bytes(found.get(kind, b""), "big")

        verdict = found.get(NFTA_TRACE_POLICY) or attributes(found.get(NFTA_TRACE_VERDICT, b"")).get(
            nft.NFTA_VERDICT_CODE)
        self.id, self.kind, self.family = number(NFTA_TRACE_ID), number(NFTA_TRACE_TYPE), nft.read_family(payload)
        self.table = nft.as_text(found.get(NFTA_TRACE_TABLE, b""))
        self.chain = nft.as_text(found.get(NFTA_TRACE_CHAIN, b""))
        self.handle = number(NFTA_TRACE_RULE_HANDLE)
        self.verdict = int.from_bytes(verdict, "big") if verdict else NFT_CONTINUE
        self.network = found.get(NFTA_TRACE_NETWORK_HEADER, b"")
        self.transport = found.get(NFTA_TRACE_TRANSPORT_HEADER, b"")
        self.iif, self.oif = number(NFTA_TRACE_IIF), number(NFTA_TRACE_OIF)

    @property
    def drops(self) -> bool:
        return self.kind in (NFT_TRACETYPE_RULE, NFT_TRACETYPE_POLICY) and self.verdict == nft.NF_DROP

    @property
    def queue(self) -> int | None:
        """Return the number of the nfnetlink queue that gets the packet; None if no rule has queued the packet."""
        queued = self.kind == NFT_TRACETYPE_RULE and self.verdict & NF_VERDICT_MASK == nft.NF_QUEUE
        return self.verdict >> NF_VERDICT_QBITS if queued else None
