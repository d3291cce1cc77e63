"""Ranges of cluster-wide addresses, and the blocks of each range. Pure calculation: no file, no store.

    range 10.0.0.0/24, blocks of /28:   10.0.0.0/28  10.0.0.16/28  ...  10.0.0.240/28

All ranges of a space have the same block size and alignment, so that ranges which overlap have the same blocks. The
addresses that a range excludes (its ends, the gateway, `exclude`) are a mask on its blocks, and change no block.
Addresses are integers of 32 or 128 bits; IPv6 costs the same as IPv4.
"""

from __future__ import annotations

from fastcni.spec import address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Span = tuple[int, int]          # the first and the last address

USUAL = {32: 26, 128: 122}          # prefix lengths: blocks of 64 addresses
USUAL_BITS = 6                      # host bits of these blocks
SHARES = 4                          # a block has so many host bits less than a small range: 16 blocks in the range
FEWEST = 4                          # blocks of a range below which each address is claimed by itself


class Range:
    """Addresses of one subnet, for one address of each pod.

    bits      32 or 128
    network, prefix   of the subnet
    first, last       the bounds, both included
    spans     the addresses that pods can get, without the excluded addresses, in order
    gateway   packed, or None: the pod's gateway in the result
    block_size  the configured prefix length of blocks; 0: not configured; `bits`: each address is claimed by itself
    """

    __slots__ = ("bits", "block_size", "first", "gateway", "last", "network", "prefix", "spans")
    bits: int
    block_size: int
    first: int
    gateway: bytes | None
    last: int
    network: int
    prefix: int
    spans: tuple[Span, ...]

    def __str__(self) -> str:
        """The subnet, and its bounds if it is not given completely: "10.0.0.0/24 (10.0.0.5 to 10.0.0.9)"."""
        subnet = cidr_text(self.bits, self.network, self.prefix)
        if (self.first, self.last) == usable(self.bits, self.network, self.prefix):
            return subnet
        return f"{subnet} ({ip_text(self.bits, self.first)} to {ip_text(self.bits, self.last)})"

    @property
    def family(self) -> str:
        """The key of the family in a space's block sizes."""
        return family_of(self.bits)

    def has(self, number: int) -> bool:
        """Whether the address can be given."""
        return any(first <= number <= last for first, last in self.spans)

    def contains(self, packed: bytes) -> bool:
        """Whether the subnet has this address."""
        return len(packed) * 8 == self.bits and to_int(packed) >> self.bits - self.prefix == \
            self.network >> self.bits - self.prefix

    def size(self) -> int:
        """The number of addresses that can be given."""
        return sum(last - first + 1 for first, last in self.spans)

    def wanted_prefix(self) -> int:
        """Return the prefix length of blocks for a space without block sizes. A small range gets smaller blocks, so
        that it has blocks for several nodes: a /24 has 16 blocks of 16 addresses."""
        if 0 < self.block_size < self.bits:
            return self.block_size
        width = (self.last - self.first).bit_length()           # host bits of the addresses that are given
        if width - SHARES < 3:                                  # too small for blocks: one address at a time
            return USUAL[self.bits]
        return self.bits - min(USUAL_BITS, width - SHARES)

    def blocks(self, prefix: int) -> tuple[int, int]:
        """The numbers of the range's first and last block. A number is an address without its host bits."""
        shift = self.bits - prefix
        return self.first >> shift, self.last >> shift

    def is_tiny(self, prefix: int) -> bool:
        """Whether the range has so few blocks that each address is claimed by itself."""
        first, last = self.blocks(prefix)
        return self.block_size == self.bits or (last - first + 1 < FEWEST and prefix != self.block_size)

    def inside(self, network: int, prefix: int) -> Iterator[Span]:
        """The spans of a block that this range may give."""
        low, high = ends(self.bits, network, prefix)
        for first, last in self.spans:
            if first <= high and low <= last:
                yield max(first, low), min(last, high)


def make_range(bits: int, network: int, prefix: int, bounds: Span, excluded: Iterable[Span]) -> Range:
    """A Range of a subnet, its bounds, and spans that are not given; without gateway."""
    one = Range()
    one.bits, one.network, one.prefix, one.gateway, one.block_size = bits, network, prefix, None, 0
    one.first, one.last = bounds
    one.spans = tuple(without(bounds, excluded))
    return one


def usable(bits: int, network: int, prefix: int) -> Span:
    """The addresses of a subnet that pods can have: all but the first and the last one. Of a subnet with one or two
    addresses all (RFC 3021, RFC 6164)."""
    first, last = ends(bits, network, prefix)
    return (first, last) if prefix >= bits - 1 else (first + 1, last - 1)


def ends(bits: int, network: int, prefix: int) -> Span:
    """The first and the last address of a prefix."""
    hosts = (1 << bits - prefix) - 1
    return network & ~hosts, network | hosts


def without(bounds: Span, excluded: Iterable[Span]) -> Iterator[Span]:
    """Yield the parts of `bounds` outside of the excluded spans, which may be in any order."""
    first, last = bounds
    for low, high in sorted(excluded):
        if high < first or low > last:
            continue
        if low > first:
            yield first, low - 1
        first = max(first, high + 1)
    if first <= last:
        yield first, last


def family_of(bits: int) -> str:
    return "4" if bits == 32 else "6"


def to_int(packed: bytes) -> int:
    return int.from_bytes(packed, "big")


def to_packed(bits: int, number: int) -> bytes:
    return number.to_bytes(bits // 8, "big")


def ip_text(bits: int, number: int) -> str:
    return address.ip_text(to_packed(bits, number))


def cidr_text(bits: int, number: int, prefix: int) -> str:
    """A prefix as the records of a store have it; host bits are cut."""
    return address.cidr_text(to_packed(bits, number >> bits - prefix << bits - prefix), prefix)


def read_block(cidr: str) -> tuple[int, int, int]:
    """(bits, network, prefix length) of a block's cidr."""
    packed, prefix = address.read_cidr(cidr)
    return len(packed) * 8, to_int(packed), prefix


def block_of(packed: bytes, prefix: int) -> str:
    """The cidr of the block that has an address."""
    return cidr_text(len(packed) * 8, to_int(packed), prefix)
