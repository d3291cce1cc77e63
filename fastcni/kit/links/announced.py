"""Wait for an announcement of the kernel, never for a time: a port is up, addresses are settled. Links gone:
deletion.py."""

from __future__ import annotations

import posix
from errno import ENOBUFS, ETIMEDOUT
from time import monotonic

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.spec import errors
from fastcni.spec.address import ip_text
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket

PORT_UP_TIMEOUT_S = 2.55        # the reference's sleeps of 50, 500, 1000 and 1000 ms together
SETTLE_TIMEOUT_S = 5            # the reference's limit for duplicate address detection


def open_watcher() -> Socket:
    """Open a socket that receives announcements of links, in the calling thread's namespace."""
    return wire.open_socket(groups=(uapi.RTNLGRP_LINK,))


def port_up(sock: Socket, index: int, bridge_index: int) -> Link:
    """Wait until the host end of a veth is operationally up. Return its Link of that moment.

    Raises CniError after 2.55 s, or at once with code 11 if the port has left its bridge: another program has deleted
    the bridge.
    """
    seen: list[Link] = []

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
            _until(watcher, PORT_UP_TIMEOUT_S, changed, look)
    except TimeoutError:
        if not look():
            state = uapi.OPERSTATES[seen[0].operstate]
            raise CniError(errors.INTERNAL, f"bridge port in error state: {state}") from None
    finally:
        watcher.close()
    return seen[0]


def settled(sock: Socket, watcher: Socket, link: Link) -> None:
    """Wait until no IPv6 address of `link` is tentative. Raises CniError for a duplicate, or after 5 s.

    A link that is not operationally up finishes no detection; at the deadline that is no error, as in the reference. A
    link without carrier, such as a tap that no process has opened, begins it later, with the carrier: no wait.
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
        _until(watcher, SETTLE_TIMEOUT_S, look, look)
    except TimeoutError:
        if now().operstate == uapi.IF_OPER_UP:
            raise CniError(errors.INTERNAL, f'failed to settle addresses for "{link.name}": link {link.name} still has '
                           f"tentative addresses after {SETTLE_TIMEOUT_S} seconds") from None


def local(sock: Socket, watcher: Socket, link: Link, table: int, addresses: Sequence[bytes]) -> None:
    """Wait until `table` has a local route for each of these IPv6 addresses (packed): from then on the namespace takes
    packets to them. The watcher receives RTNLGRP_IPV6_ROUTE. Raises CniError after 5 s.

    Addresses of a link that is not operationally up may never settle; at the deadline that is no error.
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
        _until(watcher, SETTLE_TIMEOUT_S, look, look)
    except TimeoutError:
        now = rtnl.first_link(wire.exchange(sock, rtnl.get_link(Batch(), index=link.index)))
        if now and now.operstate == uapi.IF_OPER_UP:
            raise CniError(errors.INTERNAL, f"failed getting local/host addresses for {link.name} in table {table} "
                           f"with dst {', '.join(map(ip_text, missing()))}") from None


def _until(watcher: Socket, seconds: float, done: Callable[[list[Any]], bool], look: Callable[[], bool]) -> None:
    """Pass notifications to done() until it returns true. If the kernel dropped some, look() decides. Raises
    TimeoutError."""
    deadline = monotonic() + seconds
    while True:
        left = deadline - monotonic()
        try:
            messages = wire.watch(watcher, left) if left > 0 else []
        except OSError as e:
            if e.errno != ENOBUFS:
                raise
            if look():
                return
            continue
        if messages and done(messages):
            return
        if not messages and deadline <= monotonic():
            raise TimeoutError(posix.strerror(ETIMEDOUT))
