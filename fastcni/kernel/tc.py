"""Encode and read messages of traffic control: qdiscs, classes and filters of a link (tc(8), linux/pkt_sched.h,
linux/pkt_cls.h).

Like kernel/rtnl.py, this module adds requests to a Batch and reads replies into small records. It does not send.
"""

from __future__ import annotations

import posix
import sys

from fastcni._netlink import attributes
from fastcni._system import read_file
from fastcni.kernel import uapi
from fastcni.kernel.rtnl import CREATE, u32
from fastcni.kernel.uapi import NLM_F_ACK, NLM_F_ECHO
from fastcni.spec import address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastcni._netlink import Batch

ORDER = sys.byteorder
INGRESS = 0xFFFF0000            # the handle of an ingress qdisc, ffff:
MAX_U32 = 0xFFFFFFFF
QUANTUM = 60000                 # bytes that an htb class sends before the next class; fastcni has only one class
# {length of an address in bytes: offset of the address in struct iphdr or struct ipv6hdr}
SOURCE, DESTINATION = {4: 12, 16: 8}, {4: 16, 16: 24}
PROTOCOLS = {4: uapi.ETH_P_IP, 16: uapi.ETH_P_IPV6}
PSCHED = "/proc/net/psched"     # this file has the same numbers in every namespace


def handle(major: int, minor: int = 0) -> int:
    """Return the number of a handle that tc(8) writes as `major:minor`, both hexadecimal."""
    return major << 16 | minor


def ticks_per_microsecond() -> float:
    """Return the kernel's unit for bursts, usually 15.625. Raises OSError."""
    ticks, microseconds, resolution, *_ = (int(word, 16) for word in read_file(PSCHED, posix.O_RDONLY, 100).split())
    return ticks / microseconds * resolution / 1_000_000


class Shape:
    """The limits of a tbf qdisc or an htb class.

    rate    bytes per second
    limit   bytes that may be queued
    buffer  the burst, as the number of ticks that sending the burst takes at this rate
    """

    __slots__ = ("rate", "limit", "buffer")

    def __init__(self, rate: int, limit: int, buffer: int) -> None:
        self.rate, self.limit, self.buffer = rate, limit, buffer


# struct tcmsg   family:u8  pad:u8  pad:u16 | ifindex:s32 | handle:u32 | parent:u32 | info:u32

def tcmsg(index: int, handle: int = 0, parent: int = 0, info: int = 0) -> bytes:
    return b"".join(number.to_bytes(4, ORDER) for number in (uapi.AF_UNSPEC, index, handle, parent, info))


# struct tc_ratespec   cell_log:u8  linklayer:u8  overhead:u16 | cell_align:s16  mpu:u16 | rate:u32

def ratespec(rate: int) -> bytes:
    """Encode a rate. A rate of more than 32 bits is cut to 32 bits; rate64() adds the full rate."""
    return bytes(8) + min(rate, MAX_U32).to_bytes(4, ORDER)


def new_qdisc(batch: Batch, index: int, kind: str, what: str, *, handle: int = 0,
              parent: int = uapi.TC_H_ROOT) -> Batch:
    batch.begin(uapi.RTM_NEWQDISC, CREATE, tcmsg(index, handle, parent), what)
    return batch.text(uapi.TCA_KIND, kind)


def new_tbf(batch: Batch, index: int, shape: Shape, what: str) -> Batch:
    """Add a token bucket as root qdisc, 1:

    TCA_OPTIONS
        TCA_TBF_PARMS: struct tc_tbf_qopt   rate, peakrate:tc_ratespec | limit:u32 | buffer:u32 | mtu:u32
        TCA_TBF_RATE64, for a rate of more than 32 bits
    """
    new_qdisc(batch, index, "tbf", what, handle=handle(1)).nest(uapi.TCA_OPTIONS)
    numbers = shape.limit.to_bytes(4, ORDER) + shape.buffer.to_bytes(4, ORDER) + bytes(4)
    batch.raw(uapi.TCA_TBF_PARMS, ratespec(shape.rate) + ratespec(0) + numbers)
    return rate64(batch, shape.rate, uapi.TCA_TBF_RATE64).end()


def new_htb(batch: Batch, index: int, default: int, direct: int, what: str) -> Batch:
    """Add htb as root qdisc, 1:

    Packets that no filter assigns to a class go to class `default`. Packets for 1:0 are not limited; up to `direct` of
    them may be queued.

    TCA_OPTIONS
        TCA_HTB_INIT: struct tc_htb_glob   version:u32 (3)  rate2quantum:u32  defcls:u32  debug:u32  direct_pkts:u32
        TCA_HTB_DIRECT_QLEN
    """
    new_qdisc(batch, index, "htb", what, handle=handle(1)).nest(uapi.TCA_OPTIONS)
    batch.raw(uapi.TCA_HTB_INIT, b"".join(number.to_bytes(4, ORDER) for number in (3, 10, default & 0xFFFF, 0, 0)))
    return batch.u32(uapi.TCA_HTB_DIRECT_QLEN, direct).end()


def new_htb_class(batch: Batch, index: int, classid: int, shape: Shape, what: str) -> Batch:
    """Add a class to the qdisc of new_htb(). The class borrows no bandwidth from another class.

    TCA_OPTIONS
        TCA_HTB_PARMS: struct tc_htb_opt   rate, ceil:tc_ratespec | buffer, cbuffer, quantum, level, prio:u32
        TCA_HTB_RATE64, TCA_HTB_CEIL64
    """
    batch.begin(uapi.RTM_NEWTCLASS, CREATE, tcmsg(index, classid, handle(1)), what)
    batch.text(uapi.TCA_KIND, "htb").nest(uapi.TCA_OPTIONS)
    numbers = b"".join(number.to_bytes(4, ORDER) for number in (shape.buffer, shape.buffer, QUANTUM, 0, 0))
    batch.raw(uapi.TCA_HTB_PARMS, 2 * ratespec(shape.rate) + numbers)
    return rate64(batch, shape.rate, uapi.TCA_HTB_RATE64, uapi.TCA_HTB_CEIL64).end()


def rate64(batch: Batch, rate: int, *kinds: int) -> Batch:
    for kind in kinds if rate > MAX_U32 else ():
        batch.raw(kind, rate.to_bytes(8, ORDER))
    return batch


def new_bfifo(batch: Batch, index: int, parent: int, limit: int, what: str) -> Batch:
    """Add a queue of `limit` bytes to the class `parent`."""
    return new_qdisc(batch, index, "bfifo", what, parent=parent).raw(uapi.TCA_OPTIONS, limit.to_bytes(4, ORDER))


def new_ingress(batch: Batch, index: int, what: str) -> Batch:
    """Add the ingress qdisc. Its filters get the packets that the link receives."""
    return new_qdisc(batch, index, "ingress", what, handle=INGRESS, parent=uapi.TC_H_INGRESS)


def new_clsact(batch: Batch, index: int, what: str) -> Batch:
    """Add the qdisc whose filters get the packets that the link receives and sends. A link has an ingress qdisc or this
    qdisc, not both."""
    return new_qdisc(batch, index, "clsact", what, handle=INGRESS, parent=uapi.TC_H_INGRESS)


def del_qdisc(batch: Batch, index: int, parent: int, what: str) -> Batch:
    """Delete the qdisc at TC_H_ROOT or TC_H_INGRESS. The kernel answers ENOENT if that qdisc does not exist."""
    return batch.begin(uapi.RTM_DELQDISC, NLM_F_ACK, tcmsg(index, parent=parent), what)


def get_qdisc(batch: Batch, index: int, parent: int, what: str) -> Batch:
    """Ask for the qdisc at TC_H_ROOT or of a class."""
    return batch.begin(uapi.RTM_GETQDISC, NLM_F_ACK | NLM_F_ECHO, tcmsg(index, parent=parent), what)


def get_class(batch: Batch, index: int, classid: int, what: str) -> Batch:
    """Ask for a class. The kernel answers ENOENT if the class does not exist."""
    return batch.begin(uapi.RTM_GETTCLASS, NLM_F_ACK | NLM_F_ECHO, tcmsg(index, classid), what)


def ask_for_kind(batch: Batch, index: int, kind: str, parent: int) -> Batch:
    """Ask whether the kernel supports a kind of qdisc, by a request for an invalid qdisc with an empty size table.

    The kernel answers ENOENT if neither the kernel nor a module supports the kind, otherwise another error.
    """
    return new_qdisc(batch, index, kind, f"make a qdisc of kind {kind}", parent=parent).nest(uapi.TCA_STAB).end()


def read_kind(payload: bytes) -> tuple[str, bytes]:
    """Read an RTM_NEWQDISC, RTM_NEWTCLASS or RTM_NEWTFILTER payload: (kind, options in bytes).

    Raises ValueError for a truncated message.
    """
    found = attributes(payload, 20)
    return found.get(uapi.TCA_KIND, b"").rstrip(b"\0").decode("ascii", "replace"), found.get(uapi.TCA_OPTIONS, b"")


def read_tbf(options: bytes) -> Shape:
    """Return the options of a tbf qdisc as a Shape. Raises KeyError if they are missing."""
    found = attributes(options)
    params = found[uapi.TCA_TBF_PARMS]
    return Shape(read_rate(params, found.get(uapi.TCA_TBF_RATE64)), u32(params[24:28]), u32(params[28:32]))


def read_htb_class(options: bytes) -> Shape:
    """Return the options of an htb class as a Shape. Its `limit` is 0, because the class's queue has the limit. Raises
    KeyError if the options are missing."""
    found = attributes(options)
    params = found[uapi.TCA_HTB_PARMS]
    return Shape(read_rate(params, found.get(uapi.TCA_HTB_RATE64)), 0, u32(params[24:28]))


def read_rate(params: bytes, rate64: bytes | None) -> int:
    return int.from_bytes(rate64, ORDER) if rate64 else u32(params[8:12])


def read_htb_default(options: bytes) -> int:
    """Return the default class in the options of an htb qdisc. Raises KeyError if the options are missing."""
    return handle(1, u32(attributes(options)[uapi.TCA_HTB_INIT][8:12]))


# struct tc_u32_sel   flags:u8 offshift:u8 nkeys:u8 pad:u8 | offmask:be16 off:u16 | offoff:s16 hoff:s16 | hmask:be32
# struct tc_u32_key   mask:be32 | val:be32 | off:s32 | offmask:s32

def selector(keys: Sequence[tuple[bytes, bytes, int]] = ((b"\0\0\0\0", b"\0\0\0\0", 0),)) -> bytes:
    """Return a selector of packets that have all these keys in their network header: (value of four bytes, mask of four
    bytes, offset). Without `keys`, return a selector of all packets."""
    parts = [b"%c\0%c\0" % (uapi.TC_U32_TERMINAL, len(keys)), bytes(12)]
    for value, mask, offset in keys:
        parts += mask, value, offset.to_bytes(4, ORDER), bytes(4)
    return b"".join(parts)


def subnet_selector(packed: bytes, prefix: int, offsets: dict[int, int]) -> bytes:
    """Return a selector of packets with an address of the subnet at `offsets`, which is SOURCE or DESTINATION."""
    mask = (~address.host_mask(packed, prefix) & (1 << 8 * len(packed)) - 1).to_bytes(len(packed), "big")
    value, offset = address.network(packed, prefix), offsets[len(packed)]
    keys = [(value[at:at + 4], mask[at:at + 4], offset + at) for at in range(0, len(packed), 4)]
    return selector([key for key in keys if any(key[1])] or keys[:1])


class Filter:
    """A u32 filter.

    protocol  ETH_P_*
    priority  filters of one protocol have the same priority
    classid   a number made by handle()
    selector  the bytes of selector()
    redirect  index of the link to which packets are redirected, 0 for none
    """

    __slots__ = ("protocol", "priority", "classid", "selector", "redirect")

    def __init__(self, protocol: int, priority: int, classid: int, selector: bytes, redirect: int = 0) -> None:
        self.protocol, self.priority, self.classid = protocol, priority, classid
        self.selector, self.redirect = selector, redirect

    def __eq__(self, other: object) -> bool:
        return all(getattr(self, name) == getattr(other, name) for name in Filter.__slots__)

    __hash__ = None         # type: ignore[assignment]


def new_filter(batch: Batch, index: int, parent: int, filter: Filter, what: str) -> Batch:
    """Add a Filter to a qdisc.

    TCA_KIND "u32"
    TCA_OPTIONS
        TCA_U32_CLASSID
        TCA_U32_ACT
            1: TCA_ACT_KIND "mirred"
               TCA_ACT_OPTIONS
                   TCA_MIRRED_PARMS: struct tc_mirred   index:u32  capab:u32  action:int  refcnt:int  bindcnt:int |
                                     eaction:int | ifindex:u32
        TCA_U32_SEL
    """
    info = filter.priority << 16 | int.from_bytes(filter.protocol.to_bytes(2, "big"), ORDER)
    batch.begin(uapi.RTM_NEWTFILTER, CREATE, tcmsg(index, parent=parent, info=info), what)
    batch.text(uapi.TCA_KIND, "u32").nest(uapi.TCA_OPTIONS).u32(uapi.TCA_U32_CLASSID, filter.classid)
    if filter.redirect:
        numbers = (0, 0, uapi.TC_ACT_STOLEN, 0, 0, uapi.TCA_EGRESS_REDIR, filter.redirect)
        batch.nest(uapi.TCA_U32_ACT).nest(1).text(uapi.TCA_ACT_KIND, "mirred").nest(uapi.TCA_ACT_OPTIONS)
        batch.raw(uapi.TCA_MIRRED_PARMS, b"".join(number.to_bytes(4, ORDER) for number in numbers)).end().end().end()
    return batch.raw(uapi.TCA_U32_SEL, filter.selector).end()


def bpf_info(priority: int) -> int:
    """Return tcm_info of a filter for packets of all protocols."""
    return priority << 16 | int.from_bytes(uapi.ETH_P_ALL.to_bytes(2, "big"), ORDER)


def new_bpf_filter(batch: Batch, index: int, parent: int, priority: int, program: int, name: str, what: str) -> Batch:
    """Add or replace a filter whose program (a descriptor) decides about the packet itself: `bpf direct-action`.

    TCA_KIND "bpf"
    TCA_OPTIONS
        TCA_BPF_FD  TCA_BPF_NAME  TCA_BPF_FLAGS
    """
    batch.begin(uapi.RTM_NEWTFILTER, NLM_F_ACK | uapi.NLM_F_CREATE, tcmsg(index, 1, parent, bpf_info(priority)), what)
    batch.text(uapi.TCA_KIND, "bpf").nest(uapi.TCA_OPTIONS).u32(uapi.TCA_BPF_FD, program)
    return batch.text(uapi.TCA_BPF_NAME, name).u32(uapi.TCA_BPF_FLAGS, uapi.TCA_BPF_FLAG_ACT_DIRECT).end()


def get_bpf_filter(batch: Batch, index: int, parent: int, priority: int, what: str) -> Batch:
    """Ask for the filter of new_bpf_filter(). The kernel answers with an error if the filter does not exist."""
    batch.begin(uapi.RTM_GETTFILTER, NLM_F_ACK | NLM_F_ECHO, tcmsg(index, 1, parent, bpf_info(priority)), what)
    return batch.text(uapi.TCA_KIND, "bpf")


def read_filter(payload: bytes) -> Filter | None:
    """Read an RTM_NEWTFILTER payload as a Filter; None if the filter is not a u32 filter with a selector."""
    info, (kind, data) = u32(payload[16:20]), read_kind(payload)
    options = attributes(data) if kind == "u32" else {}
    if uapi.TCA_U32_SEL not in options:
        return None                     # a u32 object without a selector, for example a hash table
    protocol = int.from_bytes((info & 0xFFFF).to_bytes(2, ORDER), "big")
    redirect = 0
    for action in attributes(options.get(uapi.TCA_U32_ACT, b"")).values():
        parts = attributes(action)
        if parts.get(uapi.TCA_ACT_KIND) == b"mirred\0":
            redirect = u32(attributes(parts[uapi.TCA_ACT_OPTIONS])[uapi.TCA_MIRRED_PARMS][24:28])
            break                       # the reference plugin adds a second action, which never runs
    classid = u32(options.get(uapi.TCA_U32_CLASSID, b""))
    return Filter(protocol, info >> 16, classid, options[uapi.TCA_U32_SEL], redirect)
