"""A rate that a link sends at, at most: all of it, as in the reference, or its traffic with some subnets.

    qdisc tbf 1: root rate .. burst .. lat 25ms       qdisc htb 1: root default 0x30, or 0 where only subnets are held
                                                        class htb 1:30 rate .. burst ..
                                                          qdisc bfifo limit ..
                                                        filter u32 match ip src .. flowid 1:0, past all limits, or 1:30
"""

from errno import EEXIST, ENODEV, ENOENT

from fastcni._netlink import Batch
from fastcni.kernel import tc, uapi, wire
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

LATENCY = 40                    # parts of a second that a packet may wait: 25 ms
DIRECT, HELD = tc.handle(1), tc.handle(1, 0x30)
DIRECT_PACKETS = 1000           # as a veth's queue by default
LOOPBACK_IFINDEX = 1            # of lo, in every namespace
PROTOCOLS = {4: uapi.ETH_P_IP, 16: uapi.ETH_P_IPV6}
# {length of an address: where it is in its header}
SOURCE, DESTINATION = {4: 12, 16: 8}, {4: 16, 16: 24}


class Limit:
    """rate (bytes/s) and burst (bytes); of the traffic with `subnets`, [(packed, prefix)], or with exempt all other;
    without subnets of everything. far_end: where a packet has the address that is not the pod's, SOURCE or DESTINATION.
    """

    __slots__ = ("rate", "burst", "subnets", "exempt", "far_end")

    def __init__(self, rate, burst, far_end, subnets=(), exempt=False):
        self.rate, self.burst, self.far_end = rate, burst, far_end
        self.subnets, self.exempt = subnets, exempt

    @property
    def default(self):
        """The class of what no filter is about, where there are filters."""
        return HELD if self.exempt else DIRECT

    @property
    def microseconds(self):
        """How long the burst takes at this rate."""
        return self.burst * 1_000_000 // self.rate

    def shape(self):
        """In the kernel's numbers. What does not fit a field ends with it; the Go plugin lets it wrap around."""
        buffer = int(self.microseconds * tc.ticks_per_microsecond())
        return tc.Shape(self.rate, min(self.rate // LATENCY + self.burst, tc.MOST), min(buffer, tc.MOST))

    def filters(self):
        """One for each subnet: [tc.Filter]."""
        return [tc.Filter(PROTOCOLS[len(packed)], len(packed), DIRECT if self.exempt else HELD,
                          tc.selector(keys(packed, prefix, self.far_end[len(packed)])))
                for packed, prefix in self.subnets]


def keys(packed, prefix, offset):
    """A subnet as keys of a filter."""
    mask = (~addresses.host_mask(packed, prefix) & (1 << 8 * len(packed)) - 1).to_bytes(len(packed), "big")
    value = addresses.network(packed, prefix)
    words = [(value[at:at + 4], mask[at:at + 4], offset + at) for at in range(0, len(packed), 4)]
    return [word for word in words if any(word[1])] or words[:1]


def add(sock, link, limit, undo):
    """Hold a link to its limit. Raises CniError where it has one already, NetlinkError."""
    shape, batch, what = limit.shape(), Batch(), f'create qdisc of "{link.name}"'
    if limit.subnets:
        tc.new_htb(batch, link.index, limit.default, DIRECT_PACKETS, what)
    else:
        tc.new_tbf(batch, link.index, shape, what)
    send(sock, batch, link, undo, uapi.TC_H_ROOT)
    if limit.subnets:
        tc.new_htb_class(batch, link.index, HELD, shape, f'create class of "{link.name}"')
        tc.new_bfifo(batch, link.index, HELD, shape.limit, f'create queue of "{link.name}"')
        for each in limit.filters():
            tc.new_filter(batch, link.index, tc.handle(1), each, f'add filter to "{link.name}"')
        wire.exchange(sock, batch)


def add_ingress(sock, link, undo):
    """Have a link ready for redirect(). Raises CniError where it is, by somebody else or for another purpose."""
    batch = tc.new_ingress(Batch(), link.index, f'create ingress qdisc of "{link.name}"')
    send(sock, batch, link, undo, uapi.TC_H_INGRESS)


def redirect(sock, link, ifb):
    """All that a link receives goes through an ifb first."""
    wire.exchange(sock, tc.new_filter(Batch(), link.index, tc.INGRESS, to(ifb), f'add filter to "{link.name}"'))


def to(ifb):
    return tc.Filter(uapi.ETH_P_ALL, 1, tc.handle(1, 1), tc.selector(), ifb.index)


def send(sock, batch, link, undo, parent):
    """Add a qdisc at `parent` of the link."""
    try:
        with undo.request(delete, sock, link, parent):
            wire.exchange(sock, batch)
    except wire.NetlinkError as e:
        if e.errno != EEXIST:
            raise
        raise CniError(errors.INTERNAL, str(e), f"see tc qdisc show dev {link.name}: was the pod added before, or does "
                       "another program shape its traffic?") from e


def delete(sock, link, parent):
    """The rollback of add() and add_ingress()."""
    _, refused = wire.attempt(sock, tc.del_qdisc(Batch(), link.index, parent, f'delete qdisc of "{link.name}"'))
    if refused and refused[0].errno not in (ENOENT, ENODEV):
        raise refused[0]


def status(sock, kinds):
    """The kernel has qdiscs of these kinds. Raises CniError 50."""
    for kind in kinds:
        parent = uapi.TC_H_INGRESS if kind == "ingress" else uapi.TC_H_ROOT
        _, refused = wire.attempt(sock, tc.ask_for_kind(Batch(), LOOPBACK_IFINDEX, kind, parent))
        if refused and refused[0].errno == ENOENT:
            raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"this kernel has no {kind} qdiscs",
                           f"modprobe sch_{kind} finds none")
