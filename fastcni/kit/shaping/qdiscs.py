"""Add the qdiscs that limit a link's rate, for all packets, as the reference plugin does, or for packets of some
subnets.

    qdisc tbf 1: root rate .. burst .. lat 25ms       qdisc htb 1: root default 0x30, or 0 if only subnets are limited
                                                        class htb 1:30 rate .. burst ..
                                                          qdisc bfifo limit ..
                                                        filter u32 match ip src .. flowid 1:0 (not limited), or 1:30

A link limits the packets that it sends. To limit received packets, the kernel redirects them to an ifb, which sends
them:

    qdisc ingress ffff:
      filter u32 match all, action mirred egress redirect dev bwp...
"""

from __future__ import annotations

from errno import EEXIST, ENODEV, ENOENT

from fastcni._netlink import Batch
from fastcni.kernel import tc, uapi, wire
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.shaping.limits import Limit, Limits

LATENCY = 40                    # a packet may wait 1/40 s, 25 ms
UNLIMITED, LIMITED = tc.handle(1), tc.handle(1, 0x30)
DIRECT_PACKETS = 1000           # most packets that wait in 1:0, as in a veth's default queue
LOOPBACK_IFINDEX = 1            # the index of lo, in every namespace


def shape(limit: Limit) -> tc.Shape:
    """Return a limit in the kernel's units. A value that is too large for the kernel's field becomes the field's
    maximum. (In the reference plugin such a value wraps around.)"""
    buffer = int(limit.burst_us * tc.ticks_per_microsecond())
    return tc.Shape(limit.rate, min(limit.rate // LATENCY + limit.burst, tc.MAX_U32), min(buffer, tc.MAX_U32))


def default_class(limit: Limit) -> int:
    """Return the class for packets that match no filter."""
    return LIMITED if limit.exempt else UNLIMITED


def filters(limit: Limit) -> list[tc.Filter]:
    """Return the u32 filters, one for each subnet."""
    classid = UNLIMITED if limit.exempt else LIMITED
    return [tc.Filter(tc.PROTOCOLS[len(packed)], len(packed), classid,
                      tc.subnet_selector(packed, prefix, limit.offsets)) for packed, prefix in limit.subnets]


def redirect_filter(ifb: Link) -> tc.Filter:
    return tc.Filter(uapi.ETH_P_ALL, 1, tc.handle(1, 1), tc.selector(), ifb.index)


def add(sock: Socket, link: Link, limit: Limit, undo: Undo) -> None:
    """Limit the packets that a link sends. Raises CniError if the link already has a root qdisc, NetlinkError."""
    numbers, batch, what = shape(limit), Batch(), f'create qdisc of "{link.name}"'
    if limit.subnets:
        tc.new_htb(batch, link.index, default_class(limit), DIRECT_PACKETS, what)
    else:
        tc.new_tbf(batch, link.index, numbers, what)
    send(sock, batch, link, undo, uapi.TC_H_ROOT)
    if limit.subnets:
        tc.new_htb_class(batch, link.index, LIMITED, numbers, f'create class of "{link.name}"')
        tc.new_bfifo(batch, link.index, LIMITED, numbers.limit, f'create queue of "{link.name}"')
        for each in filters(limit):
            tc.new_filter(batch, link.index, tc.handle(1), each, f'add filter to "{link.name}"')
        wire.exchange(sock, batch)


def add_ingress(sock: Socket, link: Link, undo: Undo) -> None:
    """Add the ingress qdisc that redirect() needs. Raises CniError if the link already has an ingress qdisc,
    NetlinkError."""
    batch = tc.new_ingress(Batch(), link.index, f'create ingress qdisc of "{link.name}"')
    send(sock, batch, link, undo, uapi.TC_H_INGRESS)


def redirect(sock: Socket, link: Link, ifb: Link) -> None:
    """Redirect all packets that a link receives to an ifb. Raises NetlinkError."""
    wire.exchange(sock, tc.new_filter(Batch(), link.index, tc.INGRESS, redirect_filter(ifb),
                                      f'add filter to "{link.name}"'))


def send(sock: Socket, batch: Batch, link: Link, undo: Undo, parent: int) -> None:
    """Add a qdisc at `parent` of the link."""
    try:
        with undo.request(delete, sock, link, parent):
            wire.exchange(sock, batch)
    except wire.NetlinkError as e:
        if e.errno != EEXIST:
            raise
        raise CniError(errors.INTERNAL, str(e), f"see tc qdisc show dev {link.name}: was the pod added before, or does "
                       "another program shape its traffic?") from e


def delete(sock: Socket, link: Link, parent: int) -> None:
    """Delete a qdisc, as the rollback of add() and add_ingress()."""
    wire.exchange(sock, tc.del_qdisc(Batch(), link.index, parent, f'delete qdisc of "{link.name}"'), (ENOENT, ENODEV))


def status(sock: Socket, limits: Limits) -> None:
    """Raise CniError 50 if the kernel lacks a qdisc that the limits need."""
    for kind, parent in (("ingress", uapi.TC_H_INGRESS), ("htb" if limits.subnets else "tbf", uapi.TC_H_ROOT)):
        _, refused = wire.attempt(sock, tc.ask_for_kind(Batch(), LOOPBACK_IFINDEX, kind, parent))
        if refused and refused[0].errno == ENOENT:
            raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"this kernel has no {kind} qdiscs",
                           f"the kernel found no module sch_{kind}")
