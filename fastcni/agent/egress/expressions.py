"""Encode nftables expressions for egress addresses: next hop, source NAT, and direction of a connection.

Attribute numbers follow the order in linux/netfilter/nf_tables.h, as in kernel/nft_rules.py.
"""

from __future__ import annotations

from fastcni.agent.policy.port_rules import of_family
from fastcni.kernel import nft
from fastcni.kernel.nft_rules import (
    IP_CT_DIR_ORIGINAL,
    NFPROTOS,
    NFT_REG32_00,
    NFT_REG_1,
    compare,
    ct,
    ct_saddr,
    mask,
    saddr,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.nft_rules import Expression

NFT_CT_DIRECTION, NFT_CT_STATE, NFT_NAT_SNAT = 1, 0, 0
NFT_RT_NEXTHOP = {4: 1, 16: 2}                  # {length of an address: NFT_RT_NEXTHOP4 or NFT_RT_NEXTHOP6}
CT_STATE_INVALID, CT_STATE_UNTRACKED = 1 << 0, 1 << 6           # NF_CT_STATE_INVALID_BIT, _UNTRACKED_BIT


def ct_original() -> tuple[Expression, ...]:
    """Return `ct direction original`: the packet goes from the connection's client to its server."""
    return ct(NFT_CT_DIRECTION), compare(bytes((IP_CT_DIR_ORIGINAL,)))


def ct_original_saddr(length: int) -> tuple[Expression, ...]:
    """Return `ct original ip saddr` (or ip6), which loads the address into register 1. length: 4 or 16 bytes."""
    return *of_family(length), ct_saddr(length, IP_CT_DIR_ORIGINAL, NFT_REG_1)


def ct_unknown() -> tuple[Expression, ...]:
    """Return `ct state invalid,untracked`: conntrack does not know the packet, so NAT does not translate it."""
    bits = CT_STATE_INVALID | CT_STATE_UNTRACKED
    return ct(NFT_CT_STATE), mask(bits.to_bytes(4, nft.ORDER)), compare(bytes(4), 1)


def saddr_and_nexthop(length: int) -> tuple[Expression, ...]:
    """Return `ip saddr . rt ip nexthop` (or ip6), which loads both addresses into registers, from register 1 on.

    length: the length of an address, 4 or 16 bytes. Attributes: NFTA_RT_DREG 1, NFTA_RT_KEY 2.
    """
    word = NFT_REG32_00 + length // 4
    return *saddr(length), ("rt", lambda b: b.be32(1, word).be32(2, NFT_RT_NEXTHOP[length]))


def snat(length: int) -> Expression:
    """Return the expression that translates a packet's source to the address in register 1. length: the length of the
    address, 4 or 16 bytes. Attributes: NFTA_NAT_TYPE 1, _FAMILY 2, _REG_ADDR_MIN 3, _ADDR_MAX 4."""
    return "nat", lambda b: b.be32(1, NFT_NAT_SNAT).be32(2, NFPROTOS[length]).be32(3, NFT_REG_1).be32(4, NFT_REG_1)
