"""nftables expressions of egress addresses: the next hop, source NAT, marks, and the direction of a connection.

Attribute numbers in the order of nf_tables.h; see nft_rules.py.
"""

from __future__ import annotations

from fastcni.kernel import nft
from fastcni.kernel.nft_rules import (
    IP_CT_DIR_ORIGINAL,
    NFPROTOS,
    NFT_META_MARK,
    NFT_META_NFPROTO,
    NFT_REG32_00,
    NFT_REG_1,
    SADDRS,
    compare,
    ct,
    ct_saddr,
    mask,
    meta,
    payload,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.nft_rules import Expression

NFT_CT_DIRECTION, NFT_CT_STATE, NFT_NAT_SNAT = 1, 0, 0
NFT_RT_NEXTHOP = {4: 1, 16: 2}                  # NFT_RT_NEXTHOP4, NFT_RT_NEXTHOP6, by length of an address
CT_STATE_INVALID, CT_STATE_UNTRACKED = 1 << 0, 1 << 6           # NF_CT_STATE_INVALID_BIT, _UNTRACKED_BIT


def ct_original() -> tuple[Expression, ...]:
    """ct direction original: the packet is of the side that has begun the connection"""
    return ct(NFT_CT_DIRECTION), compare(bytes((IP_CT_DIR_ORIGINAL,)))


def ct_original_saddr(length: int) -> tuple[Expression, ...]:
    """ct original ip saddr (or ip6), in register 1"""
    return (meta(NFT_META_NFPROTO), compare(bytes((NFPROTOS[length],))),
            ct_saddr(length, IP_CT_DIR_ORIGINAL, NFT_REG_1))


def ct_unknown() -> tuple[Expression, ...]:
    """ct state invalid,untracked: NAT does not translate the packet"""
    bits = CT_STATE_INVALID | CT_STATE_UNTRACKED
    return ct(NFT_CT_STATE), mask(bits.to_bytes(4, nft.ORDER)), compare(bytes(4), 1)


def saddr_and_nexthop(length: int) -> tuple[Expression, ...]:
    """ip saddr . rt ip nexthop (or ip6), in register 1 and those behind it. NFTA_RT_DREG 1, NFTA_RT_KEY 2"""
    word = NFT_REG32_00 + length // 4
    return (meta(NFT_META_NFPROTO), compare(bytes((NFPROTOS[length],))), payload(SADDRS[length]),
            ("rt", lambda b: b.be32(1, word).be32(2, NFT_RT_NEXTHOP[length])))


def snat(length: int) -> Expression:
    """Translate the source to the address of so many bytes in register 1. NFTA_NAT_TYPE 1, _FAMILY 2, _REG_ADDR_MIN 3,
    _ADDR_MAX 4"""
    return "nat", lambda b: b.be32(1, NFT_NAT_SNAT).be32(2, NFPROTOS[length]).be32(3, NFT_REG_1).be32(4, NFT_REG_1)


def add_mark(bits: int) -> tuple[Expression, ...]:
    """meta mark set meta mark or <bits>. NFTA_BITWISE_SREG 1, _DREG 2, _LEN 3, _MASK 4, _XOR 5; NFTA_META_KEY 2,
    _SREG 3"""
    kept, added = (~bits & 0xFFFFFFFF).to_bytes(4, nft.ORDER), bits.to_bytes(4, nft.ORDER)
    return (meta(NFT_META_MARK),
            ("bitwise", lambda b: (b.be32(1, NFT_REG_1).be32(2, NFT_REG_1).be32(3, 4)
                                   .nest(4).raw(nft.NFTA_DATA_VALUE, kept).end()
                                   .nest(5).raw(nft.NFTA_DATA_VALUE, added).end())),
            ("meta", lambda b: b.be32(2, NFT_META_MARK).be32(3, NFT_REG_1)))
