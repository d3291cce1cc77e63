"""Read and check the range sets of host-local: the addresses that may be allocated. Changes nothing.

A range set is a tuple of Range of one family; each container gets one address of each set. Addresses are packed: 4 or
16 bytes, which compare like numbers within a family.
"""

from __future__ import annotations

from fastcni.spec import address, version
from fastcni.spec.config import Section, shown
from fastcni.spec.errors import INVALID_CONFIG, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    RangeSet = tuple["Range", ...]


class Range:
    """The addresses of one subnet from start to end, both included. The gateway is never allocated.

    start, end, gateway, subnet     packed addresses; the gateway may lie outside of the subnet
    prefix                          length of the subnet's prefix
    """

    __slots__ = ("end", "gateway", "prefix", "start", "subnet")
    end: bytes
    gateway: bytes
    prefix: int
    start: bytes
    subnet: bytes

    def __str__(self) -> str:
        return f"{address.ip_text(self.start)}-{address.ip_text(self.end)}"

    def network(self) -> str:
        """Return the subnet as text."""
        return address.cidr_text(self.subnet, self.prefix)

    def contains(self, packed: bytes) -> bool:
        return len(packed) == len(self.start) and self.start <= packed <= self.end

    def overlaps(self, other: Range) -> bool:
        return len(self.start) == len(other.start) and self.start <= other.end and other.start <= self.end

    def size(self) -> int:
        """Return the number of addresses that can be allocated, without the gateway."""
        count = int.from_bytes(self.end, "big") - int.from_bytes(self.start, "big") + 1
        return count - self.contains(self.gateway)


def set_text(range_set: RangeSet) -> str:
    """Return a set as errors print it: "10.1.0.1-10.1.0.254,10.2.0.1-10.2.0.254"."""
    return ",".join(map(str, range_set))


def find_range(range_set: RangeSet, packed: bytes) -> Range | None:
    """Return the Range of the set that contains this address, or None."""
    for one in range_set:
        if one.contains(packed):
            return one
    return None


def search_order(range_set: RangeSet, after: bytes | None) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the spans (first, last, gateway) in which to search for a free address, in order; both ends included.

    The order is round-robin as in the reference: from the address that follows `after` through the ranges of the set,
    and around to `after`. If `after` is None or in no range of the set, the search starts with the first range.
    """
    for i, one in enumerate(range_set):
        if after is not None and one.contains(after):
            if after != one.end:
                yield address.plus(after, 1), one.end, one.gateway
            for other in range_set[i + 1:] + range_set[:i]:
                yield other.start, other.end, other.gateway
            yield one.start, after, one.gateway
            return
    for one in range_set:
        yield one.start, one.end, one.gateway


def read_range_sets(ipam: Section, runtime_config: Section, config_version: str) -> tuple[RangeSet, ...]:
    """Return the range sets in order: runtimeConfig.ipRanges, the single range of old configurations, ranges.

    The order matters, because a set's index is in the name of its file: the cursor of set 0 is last_reserved_ip.0.
    Raises CniError 7. An empty tuple is no error.
    """
    raw = list(_raw_sets(runtime_config, "ipRanges"))
    if ipam.has("subnet"):
        raw.append([ipam])
    raw.extend(_raw_sets(ipam, "ranges"))
    sets = []
    for i, sections in enumerate(raw):
        try:
            sets.append(_read_set(sections))
        except ValueError as e:
            where = ", ".join(section.where for section in sections if section.where)
            raise CniError(INVALID_CONFIG, f"invalid range set {i}: {e}", where) from None
    if not version.at_least(config_version, "0.3.0"):
        check_one_per_family((s[0].start for s in sets), config_version)
    for i, one in enumerate(sets):
        for j in range(i + 1, len(sets)):
            if any(a.overlaps(b) for a in one for b in sets[j]):
                raise CniError(INVALID_CONFIG, f"range set {i} overlaps with {j}",
                               f"{set_text(one)} and {set_text(sets[j])}")
    return tuple(sets)


def check_one_per_family(addresses: Iterable[bytes], config_version: str) -> None:
    """Raise CniError 7 for two packed addresses of a family: results before 0.3.0 have one member for each family."""
    seen = set()
    for packed in addresses:
        if len(packed) in seen:
            raise CniError(INVALID_CONFIG,
                           f"CNI version {config_version} does not support more than 1 address per family")
        seen.add(len(packed))


def _raw_sets(section: Section, key: str) -> Iterator[list[Section]]:
    """Yield the lists of Sections under `key`, [[{"subnet": ...}, ...], ...]."""
    for i, values in enumerate(section.items(key)):
        if values is None:
            values = []
        if not isinstance(values, list):
            raise section.wrong(f"{key}[{i}]", f"expected a list of ranges, got {shown(values)}")
        sections = []
        for j, value in enumerate(values):
            if value is not None and not isinstance(value, dict):
                raise section.wrong(f"{key}[{i}][{j}]", f'expected an object with "subnet", got {shown(value)}')
            sections.append(section.below(value or {}, section.path(f"{key}[{i}][{j}]")))
        yield sections


def _read_set(sections: list[Section]) -> RangeSet:
    """Read one range set. Raises ValueError with the reference's text."""
    if not sections:
        raise ValueError("empty range set")
    ranges = []
    for section in sections:
        ranges.append(_read_range(section))
        if len(ranges[0].start) != len(ranges[-1].start):
            raise ValueError("mixed address families")
    for i, one in enumerate(ranges):
        for other in ranges[i + 1:]:
            if one.overlaps(other):
                raise ValueError(f"subnets {one} and {other} overlap")
    return tuple(ranges)


def _read_range(section: Section) -> Range:
    """Read one range. The checks follow the reference's order, so that fastcni reports the same first error."""
    subnet = section.cidr("subnet")
    if subnet is None:
        raise ValueError("IP <nil> not v4 nor v6: the subnet is missing")
    r = Range()
    r.subnet, r.prefix = subnet
    bits = len(r.subnet) * 8
    if r.prefix > bits - 2:
        raise ValueError(f"Network {r.network()} too small to allocate from")
    if bits == 32 and ":" in section.text("subnet"):        # an IPv4 address with an IPv6 mask
        raise ValueError("IPNet IP and Mask version mismatch")
    base = address.network(r.subnet, r.prefix)
    if base != r.subnet:
        raise ValueError(f"Network has host bits set. For a subnet mask of length {r.prefix} "
                         f"the network address is {address.ip_text(base)}")
    start, end = section.ip("rangeStart"), section.ip("rangeEnd")
    r.gateway = section.ip("gateway") or address.plus(base, 1)
    last = address.broadcast(r.subnet, r.prefix)
    for key, packed, limit in (("RangeStart", start, end), ("RangeEnd", end, None)):
        if packed is None:
            continue
        inside = len(packed) == len(base) and base <= packed <= last
        beyond = limit is not None and len(limit) == len(packed) and packed > limit
        if not inside or beyond:
            raise ValueError(f"{key} {address.ip_text(packed)} not in network {r.network()}"
                             + (f" up to RangeEnd {address.ip_text(limit)}" if inside and limit else ""))
    r.start = start or address.plus(base, 1)
    r.end = end or (address.plus(last, -1) if bits == 32 else last)
    if r.start > r.end:             # start is after the default end, or end is before the default start
        raise ValueError(f"{'RangeEnd' if end else 'RangeStart'} {address.ip_text(end or r.start)} "
                         f"not in network {r.network()}")
    return r
