"""CHECK of kit/shaping/qdiscs.py: is a link held to its limit, and does what it receives go through its ifb?"""

from fastcni._netlink import Batch
from fastcni.kernel import tc, uapi, wire
from fastcni.kit.call.checks import wrong
from fastcni.kit.shaping import qdiscs
from fastcni.spec import address as addresses


def check(sock, link, limit):
    """Raises CniError where a link is not held to its limit."""
    wanted, found = limit.shape(), read(sock, link, limit)
    for name in ("rate", "limit", "buffer"):
        there, asked = getattr(found, name), getattr(wanted, name)
        if asked not in (there, tc.MOST):       # where the field ends the Go plugin has wrapped around
            raise wrong(f"{name.capitalize()} doesn't match", f"{link.name} has {there}, configured are {asked}")


def read(sock, link, limit):
    """The tc.Shape of a link with that kind of limit. Raises CniError where there is something else."""
    kind, options = ask(sock, tc.get_qdisc(Batch(), link.index, uapi.TC_H_ROOT, "look up the root qdisc"))
    if kind != ("htb" if limit.subnets else "tbf"):
        raise wrong("Failed to find qdisc", f"the root qdisc of {link.name} is {kind or 'none'}")
    if not limit.subnets:
        return tc.read_tbf(options)
    if tc.read_htb_default(options) != limit.default:
        raise wrong("Default class doesn't match", f"{link.name} holds what it should exempt, or the reverse")
    filters = filters_of(sock, link, tc.handle(1))
    for each, subnet in zip(limit.filters(), limit.subnets, strict=True):
        if each not in filters:
            raise wrong(f"Failed to find the filter of {addresses.cidr_text(*subnet)}", f"{link.name} has none")
    if len(filters) != len(limit.subnets):
        raise wrong("Filters don't match", f"{link.name} has {len(filters)}, configured are {len(limit.subnets)}")
    kind, options = ask(sock, tc.get_class(Batch(), link.index, qdiscs.HELD, "look up the class"))
    queue, length = ask(sock, tc.get_qdisc(Batch(), link.index, qdiscs.HELD, "look up the queue"))
    if (kind, queue) != ("htb", "bfifo"):
        raise wrong("Failed to find class", f"{link.name} has no class 1:30 with a queue")
    shape = tc.read_htb_class(options)
    shape.limit = tc.u32(length)
    return shape


def check_redirect(sock, link, ifb):
    """Raises CniError where what a link receives does not go through the ifb."""
    if qdiscs.to(ifb) not in filters_of(sock, link, tc.INGRESS):
        raise wrong("Failed to find the filter that redirects to the ifb",
                    f"what {link.name} receives does not go to {ifb.name}")


def ask(sock, batch):
    """(kind, options) of the answer, ("", b"") where there is none."""
    found = wire.look_up(sock, batch)
    return tc.read_kind(found[0][1]) if found else ("", b"")


def filters_of(sock, link, parent):
    """[tc.Filter] of a qdisc, [] without one."""
    replies = wire.dump(sock, uapi.RTM_GETTFILTER, tc.tcmsg(link.index, parent=parent), f"list filters of {link.name}")
    return [each for each in (tc.read_filter(payload) for _, payload in replies) if each]
