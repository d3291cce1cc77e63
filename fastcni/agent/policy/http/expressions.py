"""Encode nftables expressions that set marks, and expressions that give packets to a transparent proxy
(linux/netfilter/nf_tables.h). The rules of policies and of egress addresses use set_mark(), too."""

from __future__ import annotations

from fastcni.kernel import nft
from fastcni.kernel.nft_rules import NFPROTOS, NFT_CT_MARK, NFT_META_MARK, NFT_REG_1, NFT_REG_2, compare, ct, meta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.nft_rules import Expression


def set_mark(bits: int, on: bool = True) -> tuple[Expression, ...]:
    """Return `meta mark set meta mark or <bits>`. If `on` is False, the expressions clear the bits. Attributes:
    NFTA_META_KEY 2, _SREG 3."""
    return meta(NFT_META_MARK), set_bits(bits, on), ("meta", lambda b: b.be32(2, NFT_META_MARK).be32(3, NFT_REG_1))


def set_ct_mark(bits: int) -> tuple[Expression, ...]:
    """Return `ct mark set ct mark or <bits>`. Attributes: NFTA_CT_KEY 2, _SREG 4."""
    return ct(NFT_CT_MARK), set_bits(bits), ("ct", lambda b: b.be32(2, NFT_CT_MARK).be32(4, NFT_REG_1))


def set_bits(bits: int, on: bool = True) -> Expression:
    """Return the expression that sets `bits` in register 1: register = (register & ~bits) ^ bits. If `on` is False, the
    expression clears the bits.

    Attributes: NFTA_BITWISE_SREG 1, _DREG 2, _LEN 3, _MASK 4, _XOR 5.
    """
    kept, added = ((each & 0xFFFFFFFF).to_bytes(4, nft.ORDER) for each in (~bits, bits if on else 0))
    return "bitwise", lambda b: (b.be32(1, NFT_REG_1).be32(2, NFT_REG_1).be32(3, 4)
                                 .nest(4).raw(nft.NFTA_DATA_VALUE, kept).end()
                                 .nest(5).raw(nft.NFTA_DATA_VALUE, added).end())


def transparent() -> tuple[Expression, ...]:
    """Return `socket transparent 1`. Attributes: NFTA_SOCKET_KEY 1 (NFT_SOCKET_TRANSPARENT is 0), _DREG 2."""
    return ("socket", lambda b: b.be32(1, 0).be32(2, NFT_REG_1)), compare(b"\1")


def tproxy(address: bytes, port: int) -> tuple[Expression, ...]:
    """Return `tproxy ip to <address>:<port>`, which gives the packet to the socket that listens on this address and
    port. If no socket listens, the kernel goes on with the next rule. address: packed.

    Attributes: NFTA_TPROXY_FAMILY 1, _REG_ADDR 2, _REG_PORT 3.
    """
    family = NFPROTOS[len(address)]
    return (value(address), value(port.to_bytes(2, "big"), NFT_REG_2),
            ("tproxy", lambda b: b.be32(1, family).be32(2, NFT_REG_1).be32(3, NFT_REG_2)))


def value(data: bytes, register: int = NFT_REG_1) -> Expression:
    """Return the expression that loads `data` into a register. Attributes: NFTA_IMMEDIATE_DREG 1, _DATA 2."""
    return "immediate", lambda b: b.be32(1, register).nest(2).raw(nft.NFTA_DATA_VALUE, data).end()
