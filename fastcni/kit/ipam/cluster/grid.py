"""Calculate the ranges of cluster-wide addresses, the blocks of each range and the addresses of this node's blocks,
without a file or a store.

    range 10.0.0.0/24, blocks of /28:   10.0.0.0/28  10.0.0.16/28  ...  10.0.0.240/28

All ranges of an address space have the same block size and alignment, so that overlapping ranges have the same blocks.
A range does not give the addresses that it excludes (its ends, the gateway, `exclude`); its blocks stay the same.
Addresses are integers of 32 or 128 bits, so IPv6 costs the same as IPv4.
"""

from __future__ import annotations

from fastcni.kit.call.names import digest
from fastcni.spec import address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Span = tuple[int, int]          # the first and the last address

USUAL = {32: 26, 128: 122}          # prefix lengths: blocks of 64 addresses
USUAL_BITS = 6                      # host bits of the USUAL blocks
SHARES = 4                          # a small range has 2**4 blocks: the range has 4 more host bits than a block
FEWEST = 4                          # with fewer blocks in a range, nodes claim single addresses


class Range:
    """The addresses of one subnet that pods can get. A pod gets one address of each Range.

    bits      32 or 128
    network, prefix   of the subnet
    first, last       the range's first and last address, both included
    spans     (first, last) of the addresses that pods can get, without the excluded addresses, in order
    gateway   the gateway in the pod's result, packed, or None
    block_size  the configured prefix length of blocks; 0: not configured; `bits`: nodes claim single addresses
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
        """Return the subnet, and the bounds if they exclude a part of it: "10.0.0.0/24 (10.0.0.5 to 10.0.0.9)"."""
        subnet = cidr_text(self.bits, self.network, self.prefix)
        if (self.first, self.last) == usable(self.bits, self.network, self.prefix):
            return subnet
        return f"{subnet} ({ip_text(self.bits, self.first)} to {ip_text(self.bits, self.last)})"

    @property
    def family(self) -> str:
        """Return "4" or "6", the key of the range's family in an address space's block sizes."""
        return family_of(self.bits)

    def has(self, number: int) -> bool:
        """Return whether a pod can get the address."""
        return any(first <= number <= last for first, last in self.spans)

    def contains(self, packed: bytes) -> bool:
        """Return whether the subnet contains this address."""
        return len(packed) * 8 == self.bits and to_int(packed) >> self.bits - self.prefix == \
            self.network >> self.bits - self.prefix

    def size(self) -> int:
        """Return the number of addresses that pods can get."""
        return sum(last - first + 1 for first, last in self.spans)

    def wanted_prefix(self) -> int:
        """Return the prefix length of blocks that this range chooses for an address space without block sizes. A small
        range chooses smaller blocks, enough for several nodes: a /24 has 16 blocks of 16 addresses."""
        if 0 < self.block_size < self.bits:
            return self.block_size
        width = (self.last - self.first).bit_length()           # host bits of the span of addresses
        if width - SHARES < 3:                                  # too small for blocks: claim single addresses
            return USUAL[self.bits]
        return self.bits - min(USUAL_BITS, width - SHARES)

    def blocks(self, prefix: int) -> tuple[int, int]:
        """Return the numbers of the range's first and last block. A block's number is its address shifted right by its
        host bits."""
        shift = self.bits - prefix
        return self.first >> shift, self.last >> shift

    def is_tiny(self, prefix: int) -> bool:
        """Return whether the range has so few blocks that nodes claim single addresses."""
        first, last = self.blocks(prefix)
        return self.block_size == self.bits or (last - first + 1 < FEWEST and prefix != self.block_size)

    def inside(self, network: int, prefix: int) -> Iterator[Span]:
        """Yield the parts of a block that pods of this range may get, as (first, last)."""
        low, high = ends(self.bits, network, prefix)
        for first, last in self.spans:
            if first <= high and low <= last:
                yield max(first, low), min(last, high)


class Own:
    """A block of this node. bits: 32 or 128. first, last: addresses as numbers. epoch: the node's epoch at the claim.
    since: unix time of the claim. at: the place of the first address in the table of released addresses."""

    __slots__ = ("at", "bits", "cidr", "epoch", "first", "last", "shift", "since")

    def __init__(self, cidr: str, epoch: int, since: float, at: int) -> None:
        self.cidr, self.epoch, self.since, self.at = cidr, epoch, since, at
        self.bits, network, prefix = read_block(cidr)
        self.first, self.last = ends(self.bits, network, prefix)
        self.shift = self.bits - prefix

    def size(self) -> int:
        return self.last - self.first + 1

    def place(self, packed: bytes) -> int:
        """Return the place of an address of this block in the table of released addresses."""
        return self.at + to_int(packed) - self.first


class Plan:
    """The addresses of a range that are in this node's blocks. prefix: the prefix length of blocks, 0 if unknown.

    spans  [(packed first, packed last)], in order; adjacent spans are merged
    parts  [(first address, last address, place of the first address in the table of released addresses)], as numbers
    starts {place of a block in that table: index in `parts` of the block's first part}
    """

    __slots__ = ("parts", "spans", "starts")

    def __init__(self, blocks: Iterable[Own], prefix: int, range_: Range) -> None:
        self.parts: list[tuple[int, int, int]] = []
        self.starts: dict[int, int] = {}
        for block in sorted((block for block in blocks if block.bits == range_.bits), key=lambda b: b.first):
            if block.last >= range_.first and block.first <= range_.last and prefix:
                self.starts[block.at] = len(self.parts)
                self.parts += ((first, last, block.at + first - block.first)
                               for first, last in range_.inside(block.first, prefix))
        self.spans = [(to_packed(range_.bits, first), to_packed(range_.bits, last))
                      for first, last in merged((first, last) for first, last, _ in self.parts)]


def make_range(bits: int, network: int, prefix: int, bounds: Span, excluded: Iterable[Span]) -> Range:
    """Return the Range of a subnet between `bounds`, without the spans `excluded`. The Range has no gateway yet."""
    one = Range()
    one.bits, one.network, one.prefix, one.gateway, one.block_size = bits, network, prefix, None, 0
    one.first, one.last = bounds
    one.spans = tuple(without(bounds, excluded))
    return one


def usable(bits: int, network: int, prefix: int) -> Span:
    """Return the first and last address of a subnet that pods can have. The subnet's own first and last address are
    left out, except in subnets of one or two addresses (RFC 3021, RFC 6164)."""
    first, last = ends(bits, network, prefix)
    return (first, last) if prefix >= bits - 1 else (first + 1, last - 1)


def ends(bits: int, network: int, prefix: int) -> Span:
    """Return the first and the last address of a prefix."""
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


def merged(spans: Iterable[Span]) -> list[list[int]]:
    """Return [[first, last], ...]: the spans, with overlapping and adjacent spans joined. spans: sorted."""
    found: list[list[int]] = []
    for first, last in spans:
        if found and first <= found[-1][1] + 1:
            found[-1][1] = last
        else:
            found.append([first, last])
    return found


def in_turn(spans: Sequence[Sequence[int]], seed: str) -> Iterator[int]:
    """Yield each number of the spans. The text `seed` decides at which number the sequence begins."""
    count = sum(last - first + 1 for first, last in spans)
    start = int(digest(seed, 15), 16) % count if count else 0
    for k in range(count):
        k = (start + k) % count
        for first, last in spans:
            if k <= last - first:
                yield first + k
                break
            k -= last - first + 1


def family_of(bits: int) -> str:
    return "4" if bits == 32 else "6"


def to_int(packed: bytes) -> int:
    return int.from_bytes(packed, "big")


def to_packed(bits: int, number: int) -> bytes:
    return number.to_bytes(bits // 8, "big")


def ip_text(bits: int, number: int) -> str:
    return address.ip_text(to_packed(bits, number))


def cidr_text(bits: int, number: int, prefix: int) -> str:
    """Return a prefix as text in the form of the store's records, with host bits set to 0."""
    return address.cidr_text(to_packed(bits, number >> bits - prefix << bits - prefix), prefix)


def read_block(cidr: str) -> tuple[int, int, int]:
    """Return (bits, network, prefix length) of a block's cidr."""
    packed, prefix = address.read_cidr(cidr)
    return len(packed) * 8, to_int(packed), prefix


def block_of(packed: bytes, prefix: int) -> str:
    """Return the cidr of the block that contains an address. prefix: the prefix length of blocks."""
    return cidr_text(len(packed) * 8, to_int(packed), prefix)
