"""For CHECK: compare a link's qdiscs with its limits, and check that received packets are redirected to the ifb."""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import tc, uapi, wire
from fastcni.kit.links.checks import wrong
from fastcni.kit.shaping import ifbs, qdiscs
from fastcni.spec import address as addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.pod import Pod
    from fastcni.kit.call.request import Request
    from fastcni.kit.shaping.limits import Limit, Limits


def check(req: Request, pod: Pod, host: Link, limits: Limits) -> None:
    """Raise CniError 999 unless the host end and the pod's ifb have the limits. Raises NetlinkError."""
    if limits.ingress:
        check_limit(pod.host, host, limits.ingress)
    if limits.egress:
        ifb = next(iter(ifbs.find_own(req)), None)
        if ifb is None or not ifb.up:
            raise wrong("get ifb device: it is down" if ifb else "get ifb device: Link not found",
                        " or ".join(ifbs.names_of(req)))
        check_redirect(pod.host, host, ifb)
        check_limit(pod.host, ifb, limits.egress)


def check_limit(sock: Socket, link: Link, limit: Limit) -> None:
    """Raise CniError 999 unless the link's qdiscs have the limit."""
    wanted, found = qdiscs.shape(limit), read(sock, link, limit)
    for name in ("rate", "limit", "buffer"):
        actual, asked = getattr(found, name), getattr(wanted, name)
        # Accept any value if the wanted value is the maximum: the reference plugin's value has wrapped around.
        if asked not in (actual, tc.MAX_U32):
            raise wrong(f"{name.capitalize()} doesn't match", f"{link.name} has {actual}, configured are {asked}")


def check_redirect(sock: Socket, link: Link, ifb: Link) -> None:
    """Raise CniError 999 unless the packets that a link receives are redirected to the ifb."""
    if qdiscs.redirect_filter(ifb) not in filters_of(sock, link, tc.INGRESS):
        raise wrong("Failed to find the filter that redirects to the ifb",
                    f"packets that {link.name} receives are not redirected to {ifb.name}")


def read(sock: Socket, link: Link, limit: Limit) -> tc.Shape:
    """Return the limit that a link's qdiscs have, as a Shape. Raises CniError 999 if the qdiscs, classes or filters are
    of other kinds than `limit` needs."""
    kind, options = ask(sock, tc.get_qdisc(Batch(), link.index, uapi.TC_H_ROOT, "look up the root qdisc"))
    if kind != ("htb" if limit.subnets else "tbf"):
        raise wrong("Failed to find qdisc", f"the root qdisc of {link.name} is {kind or 'none'}")
    if not limit.subnets:
        return tc.read_tbf(options)
    if tc.read_htb_default(options) != qdiscs.default_class(limit):
        raise wrong("Default class doesn't match", f"{link.name} limits what it should exempt, or the reverse")
    found = filters_of(sock, link, tc.handle(1))
    for each, subnet in zip(qdiscs.filters(limit), limit.subnets, strict=True):
        if each not in found:
            raise wrong(f"Failed to find the filter of {addresses.cidr_text(*subnet)}", f"{link.name} has none")
    if len(found) != len(limit.subnets):
        raise wrong("Filters don't match", f"{link.name} has {len(found)}, configured are {len(limit.subnets)}")
    kind, options = ask(sock, tc.get_class(Batch(), link.index, qdiscs.LIMITED, "look up the class"))
    queue, length = ask(sock, tc.get_qdisc(Batch(), link.index, qdiscs.LIMITED, "look up the queue"))
    if (kind, queue) != ("htb", "bfifo"):
        raise wrong("Failed to find class", f"{link.name} has no class 1:30 with a queue")
    shape = tc.read_htb_class(options)
    shape.limit = tc.u32(length)
    return shape


def ask(sock: Socket, batch: Batch) -> tuple[str, bytes]:
    """Send a request for a qdisc or class. Return its (kind, options), ("", b"") if it does not exist."""
    found = wire.look_up(sock, batch)
    return tc.read_kind(found[0][1]) if found else ("", b"")


def filters_of(sock: Socket, link: Link, parent: int) -> list[tc.Filter]:
    """Return the filters of a qdisc, [] if there are none."""
    replies = wire.dump(sock, uapi.RTM_GETTFILTER, tc.tcmsg(link.index, parent=parent), f"list filters of {link.name}")
    return [each for each in (tc.read_filter(payload) for _, payload in replies) if each]
