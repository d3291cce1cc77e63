"""Range sets of host-local: what a configuration allows to be given out, checked. Touches nothing.

A range set is a tuple of Range of one family; each set gives a container one address. Addresses are packed
bytes, 4 or 16 of them, which within a family compare like the numbers they are.
"""

from fastcni.spec import address, version
from fastcni.spec.config import Section, shown
from fastcni.spec.errors import INVALID_CONFIG, CniError


class Range:
    """From start to end, both included, of one subnet; the gateway is never given out."""

    __slots__ = ("end", "gateway", "prefix", "start", "subnet")

    def __str__(self):
        return f"{address.ip_text(self.start)}-{address.ip_text(self.end)}"

    def network(self):
        return address.cidr_text(self.subnet, self.prefix)

    def contains(self, packed):
        return len(packed) == len(self.start) and self.start <= packed <= self.end

    def overlaps(self, other):
        return len(self.start) == len(other.start) and self.start <= other.end and other.start <= self.end

    def size(self):
        """How many addresses can be given out; the gateway is not one of them."""
        whole = int.from_bytes(self.end, "big") - int.from_bytes(self.start, "big") + 1
        return whole - self.contains(self.gateway)


def text_of(range_set):
    """A set as errors print it: "10.1.0.1-10.1.0.254,10.2.0.1-10.2.0.254"."""
    return ",".join(map(str, range_set))


def range_of(range_set, packed):
    """The Range of the set that has this address, or None."""
    for one in range_set:
        if one.contains(packed):
            return one
    return None


def in_turn(range_set, after):
    """Where to look for a free address, in order: (first, last, gateway) spans, both ends included.

    Round-robin as the reference does it: just after the address `after` (None, or one of no range of the
    set, starts with the first range), on through the ranges of the set in order, and around to it.
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


def read_range_sets(ipam, runtime_config, config_version):
    """The tuple of range sets, in order: runtimeConfig.ipRanges, the old single range, ranges.

    ipam and runtime_config are Sections. The index of a set is part of the state on disk (the cursor
    of set 0 is last_reserved_ip.0), hence the order. Raises CniError 7. No sets at all is not an error here.
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
            raise _invalid(f"invalid range set {i}: {e}", sections) from None
    if not version.at_least(config_version, "0.3.0"):
        at_most_one_per_family((s[0].start for s in sets), config_version)
    for i, one in enumerate(sets):
        for j in range(i + 1, len(sets)):
            if any(a.overlaps(b) for a in one for b in sets[j]):
                raise CniError(INVALID_CONFIG, f"range set {i} overlaps with {j}",
                               f"{text_of(one)} and {text_of(sets[j])}")
    return tuple(sets)


def at_most_one_per_family(addresses, config_version):
    """Results before 0.3.0 have room for one address of a family. Raises CniError 7."""
    seen = set()
    for packed in addresses:
        if len(packed) in seen:
            raise CniError(INVALID_CONFIG,
                           f"CNI version {config_version} does not support more than 1 address per family")
        seen.add(len(packed))


def _raw_sets(section, key):
    """Lists of Sections under `key`, [[{"subnet": ...}, ...], ...]."""
    for i, values in enumerate(section.items(key)):
        if values is None:
            values = []
        if not isinstance(values, list):
            raise section.wrong(f"{key}[{i}]", f"expected a list of ranges, got {shown(values)}")
        sections = []
        for j, value in enumerate(values):
            if value is not None and not isinstance(value, dict):
                raise section.wrong(f"{key}[{i}][{j}]", f'expected an object with "subnet", got {shown(value)}')
            sections.append(Section(value or {}, section.path(f"{key}[{i}][{j}]")))
        yield sections


def _read_set(sections):
    """One range set. Raises ValueError in the words of the reference."""
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


def _read_range(section):
    """One range. The order of the checks is the reference's: it decides which text an operator sees."""
    subnet = section.cidr("subnet")
    if subnet is None:
        raise ValueError("IP <nil> not v4 nor v6")
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
    r.gateway = section.ip("gateway") or address.plus(base, 1)      # may lie outside of the subnet
    last = address.broadcast(r.subnet, r.prefix)
    for key, packed, limit in (("RangeStart", start, end), ("RangeEnd", end, None)):
        if packed is None:
            continue
        inside = len(packed) == len(base) and base <= packed <= last
        if not inside or (limit and len(limit) == len(packed) and packed > limit):
            raise ValueError(f"{key} {address.ip_text(packed)} not in network {r.network()}")
    r.start = start or address.plus(base, 1)
    r.end = end or (address.plus(last, -1) if bits == 32 else last)
    if r.start > r.end:             # one of the two alone, on the far side of the other's default
        raise ValueError(f"{'RangeEnd' if end else 'RangeStart'} {address.ip_text(end or start)} "
                         f"not in network {r.network()}")
    return r


def _invalid(text, sections):
    where = ", ".join(s.where for s in sections if s.where)
    return CniError(INVALID_CONFIG, text, where)
