"""Read and check the keys that limit the rate of a pod's traffic."""

from __future__ import annotations

from fastcni.kernel import tc
from fastcni.spec import address as addresses
from fastcni.spec import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.spec.config import Section

    Subnet = tuple[bytes, int]

RATES = ("ingressRate", "ingressBurst", "egressRate", "egressBurst")
MAX_BITS = (1 << 64) - 1
MAX_BURST_BYTES = 0xFFFFFFFF
MAX_SUBNETS = 100               # the kernel compares each packet with each subnet


class Limit:
    """A rate for all traffic of one direction, or for the traffic with some subnets.

    rate, burst     in bytes/s, in bytes
    subnets         [(packed, prefix)]: the limit is for traffic with these subnets; []: for all traffic
    exempt          True: the limit is for all traffic except that with the subnets
    offsets         tc.SOURCE or tc.DESTINATION: where a packet has the address of the pod's peer, which the kernel
                    compares with the subnets
    """

    __slots__ = ("rate", "burst", "subnets", "exempt", "offsets")

    def __init__(self, rate: int, burst: int, offsets: dict[int, int], subnets: list[Subnet] | tuple[()] = (),
                 exempt: bool = False) -> None:
        self.rate, self.burst, self.offsets = rate, burst, offsets
        self.subnets, self.exempt = subnets, exempt

    @property
    def burst_us(self) -> int:
        """Return how long the burst takes at this rate, in microseconds."""
        return self.burst * 1_000_000 // self.rate


class Limits:
    """The limits of both directions. ingress, egress: a Limit, None for no limit. subnets: the subnets of both
    Limits."""

    __slots__ = ("ingress", "egress", "subnets")
    ingress: Limit | None
    egress: Limit | None
    subnets: list[Subnet]

    def __bool__(self) -> bool:
        return bool(self.ingress or self.egress)


def read(keys: Section) -> Limits:
    """Read the limits: the configuration's own rates, otherwise the rates of runtimeConfig.bandwidth. Raises
    CniError 7."""
    asked = keys.section("runtimeConfig").section("bandwidth")
    rates = keys if any(keys.has(key) for key in RATES) else asked
    found = Limits()
    found.subnets, exempt = read_subnets(rates, keys)
    found.ingress = read_limit(rates, "ingress", tc.SOURCE, found.subnets, exempt)
    found.egress = read_limit(rates, "egress", tc.DESTINATION, found.subnets, exempt)
    return found


def read_limit(section: Section, direction: str, offsets: dict[int, int], subnets: list[Subnet],
               exempt: bool) -> Limit | None:
    """Return the Limit of "ingress" or "egress", None without a limit. The configuration has bits, a Limit bytes."""
    rate, burst = (section.integer(f"{direction}{word}", low=0, high=MAX_BITS) for word in ("Rate", "Burst"))
    both = f"{section.path(f'{direction}Rate')} is {rate}, {section.path(f'{direction}Burst')} is {burst}"
    if bool(rate) != bool(burst):
        given, missing = ("rate", "burst") if rate else ("burst", "rate")
        raise errors.bad_config(f"if {given} is set, {missing} must also be set")
    if not rate:
        return None
    if burst // 8 >= MAX_BURST_BYTES:
        raise errors.bad_config("burst cannot be more than 4GB")
    if rate < 8 or burst < 8:
        raise errors.bad_config("rate and burst have to be 8 bits at least: the kernel counts bytes", both)
    limit = Limit(rate // 8, burst // 8, offsets, subnets, exempt)
    if not limit.burst_us:
        raise errors.bad_config("burst is too small for its rate: the kernel needs a burst of 1 us or more", both)
    return limit


def read_subnets(*sections: Section) -> tuple[list[Subnet], bool]:
    """Return ([(packed, prefix)], whether these subnets are exempt from the limit) of the first section that names
    subnets."""
    for section in sections:
        exempt, shaped = section.texts("unshapedSubnets"), section.texts("shapedSubnets")
        if exempt and shaped:
            raise errors.bad_config("unshapedSubnets and shapedSubnets exclude each other",
                          "use one of them: each key alone decides which traffic is limited")
        if exempt or shaped:
            return read_cidrs(section, "unshapedSubnets" if exempt else "shapedSubnets", exempt or shaped), bool(exempt)
    return [], False


def read_cidrs(section: Section, key: str, texts: list[str]) -> list[Subnet]:
    if len(texts) > MAX_SUBNETS:
        raise section.wrong(key, f"{len(texts)} subnets; there can be {MAX_SUBNETS}")
    found = []
    for i, text in enumerate(texts):
        try:
            found.append(addresses.read_cidr(text))
        except ValueError as e:
            raise section.wrong(f"{key}[{i}]", str(e)) from None
    return found
