"""Wait for what the kernel announces, never for a clock: a port up, addresses settled. Links gone: deletion.py."""

import posix
from errno import ENOBUFS
from time import monotonic

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.spec import errors
from fastcni.spec.address import ip_text
from fastcni.spec.errors import CniError

PORT_UP_SECONDS = 2.55          # the reference's sleeps of 50, 500, 1000 and 1000 ms together
SETTLE_SECONDS = 5              # the reference's limit for duplicate address detection


def open_watcher():
    return wire.open_socket(groups=(uapi.RTNLGRP_LINK,))


def port_up(sock, index, bridge_index):
    """Wait until the host end of a veth is operationally up; the Link as it was then.

    Raises CniError after 2.55 s, or at once with code 11 when the port has left its bridge: somebody deleted the
    bridge under us.
    """
    seen = []

    def look(_=None):
        link = rtnl.first_link(wire.exchange(sock, rtnl.get_link(Batch(), index=index)))
        if link.master != bridge_index:
            raise CniError(errors.TRY_AGAIN_LATER, f'port "{link.name}" has left its bridge',
                           "the bridge was deleted or changed while the pod was added")
        seen[:] = [link]
        return link.operstate == uapi.IF_OPER_UP

    def changed(messages):
        return any(kind == uapi.RTM_NEWLINK and rtnl.read_index(payload) == index
                   for kind, _, _, _, payload in messages) and look()

    if look():                      # most are up by now
        return seen[0]
    watcher = open_watcher()
    try:
        if not look():
            _until(watcher, PORT_UP_SECONDS, changed, "", look)
    except TimeoutError:
        if not look():
            state = uapi.OPERSTATES[seen[0].operstate]
            raise CniError(errors.INTERNAL, f"bridge port in error state: {state}") from None
    finally:
        watcher.close()
    return seen[0]


def settled(sock, watcher, link):
    """Wait until no IPv6 address of `link` is tentative. Raises CniError for a duplicate, or after 5 s.

    A link that is not operationally up finishes no detection; the reference lets that pass at the deadline. One without
    carrier, as a tap that nobody has opened, does not even begin it: its turn comes with the carrier.
    """
    def look(_=None):
        tentative = False
        for kind, payload in wire.dump(sock, uapi.RTM_GETADDR, rtnl.ifaddrmsg(uapi.AF_INET6, 0, link.index),
                                       f"list IPv6 addresses of {link.name}"):
            if kind != uapi.RTM_NEWADDR:
                continue
            item = rtnl.read_address(payload)
            if item.index == link.index and item.flags & uapi.IFA_F_DADFAILED:
                raise CniError(errors.INTERNAL, f'failed to settle addresses for "{link.name}": link {link.name} has '
                               f"address {ip_text(item.packed)} in DADFAILED state")
            tentative |= item.index == link.index and bool(item.flags & uapi.IFA_F_TENTATIVE)
        return not tentative

    def now():
        return rtnl.first_link(wire.exchange(sock, rtnl.get_link(Batch(), index=link.index)))

    if look() or not now().flags & uapi.IFF_LOWER_UP:
        return
    try:
        _until(watcher, SETTLE_SECONDS, look, "", look)
    except TimeoutError:
        if now().operstate == uapi.IF_OPER_UP:
            raise CniError(errors.INTERNAL, f'failed to settle addresses for "{link.name}": link {link.name} still has '
                           f"tentative addresses after {SETTLE_SECONDS} seconds") from None


def local(sock, watcher, link, table, addresses):
    """Wait until `table` says of each of these IPv6 addresses (packed) that it is the namespace's own: packets to it
    are taken from then on. The watcher hears RTNLGRP_IPV6_ROUTE. Raises CniError after 5 s.

    A link that is not operationally up may have addresses that settle never; that passes at the deadline.
    """
    from fastcni.kit.links import routing

    def missing():
        there = {route.dst for route, _ in routing.routes(sock, (uapi.AF_INET6,))
                 if (route.table, route.kind) == (table, uapi.RTN_LOCAL)}
        return [packed for packed in addresses if packed not in there]

    def look(_=None):
        return not missing()

    if look():
        return
    try:
        _until(watcher, SETTLE_SECONDS, look, "", look)
    except TimeoutError:
        if rtnl.first_link(wire.exchange(sock, rtnl.get_link(Batch(), index=link.index))).operstate == uapi.IF_OPER_UP:
            raise CniError(errors.INTERNAL, f"failed getting local/host addresses for {link.name} in table {table} "
                           f"with dst {', '.join(map(ip_text, missing()))}") from None


def _until(watcher, seconds, done, words, again=None):
    """Feed notifications to done() until it says so. When the kernel dropped some, again() looks for itself;

    Raises TimeoutError, or CniError 11 with `words` where there are any.
    """
    deadline = monotonic() + seconds
    while True:
        left = deadline - monotonic()
        try:
            messages = wire.watch(watcher, left) if left > 0 else []
        except OSError as e:
            if e.errno != ENOBUFS:
                raise
            if again and again():
                return
            continue
        if messages and done(messages):
            return
        if not messages and deadline <= monotonic():
            if words:
                raise CniError(errors.TRY_AGAIN_LATER, words)
            raise TimeoutError(posix.strerror(110))
