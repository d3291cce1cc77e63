"""Wait until the kernel notifies that a bridge port is up, or that addresses are usable. (kit/call/deletion.py waits
for the deletion of links.)"""

from __future__ import annotations

import posix
from errno import ENOBUFS, ENODEV, ETIMEDOUT
from time import monotonic

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.spec import errors
from fastcni.spec.address import ip_text
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastcni._netlink import Message
    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket

PORT_UP_TIMEOUT_S = 2.55        # the sum of the reference's sleeps of 50, 500, 1000 and 1000 ms
SETTLE_TIMEOUT_S = 5            # the reference's limit for duplicate address detection


def open_watcher() -> Socket:
    """Open a socket, in the calling thread's network namespace, that receives the kernel's notifications of links."""
    return wire.open_socket(groups=(uapi.RTNLGRP_LINK,))


def port_up(sock: Socket, index: int, bridge_index: int) -> Link:
    """Wait until the host end of a veth is operationally up. Return its current Link.

    Raises CniError after 2.55 s. Raises CniError 11 immediately if the port has left its bridge, because another
    program has deleted the bridge.
    """
    seen: list[Link] = []

    def look(_: object = None) -> bool:
        link = _present(sock, index)
        if link.master != bridge_index:
            raise CniError(errors.TRY_AGAIN_LATER, f'port "{link.name}" has left its bridge',
                           "the bridge was deleted or changed while the pod was added")
        seen[:] = [link]
        return link.operstate == uapi.IF_OPER_UP

    def changed(messages: list[Message]) -> bool:
        return any(kind == uapi.RTM_NEWLINK and rtnl.read_index(payload) == index
                   for kind, _, _, _, payload in messages) and look()

    if look():                      # usually the link is up already
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


def wait_for_addresses(sock: Socket, watcher: Socket, link: Link) -> None:
    """Wait until no IPv6 address of `link` is tentative. Raises CniError for a duplicate, or after 5 s.

    On a link that is not operationally up, duplicate address detection does not end. So for such a link the deadline is
    no error, as in the reference. For a link without carrier, such as a tap that no process has opened, return
    immediately: detection begins when the link gets a carrier.
    """
    def look(_: object = None) -> bool:
        tentative = False
        for kind, payload in wire.dump(sock, uapi.RTM_GETADDR, rtnl.ifaddrmsg(uapi.AF_INET6, 0, link.index),
                                       f"list IPv6 addresses of {link.name}"):
            if kind != uapi.RTM_NEWADDR:
                continue
            item = rtnl.Address(payload)
            if item.index == link.index and item.flags & uapi.IFA_F_DADFAILED:
                raise CniError(errors.INTERNAL, f'failed to settle addresses for "{link.name}": link {link.name} has '
                               f"address {ip_text(item.packed)} in DADFAILED state")
            tentative |= item.index == link.index and bool(item.flags & uapi.IFA_F_TENTATIVE)
        return not tentative

    if not look() and _present(sock, link.index).flags & uapi.IFF_LOWER_UP:
        _settle(sock, watcher, link, look, lambda: f'failed to settle addresses for "{link.name}": link {link.name} '
                f"still has tentative addresses after {SETTLE_TIMEOUT_S} seconds")


def local(sock: Socket, watcher: Socket, link: Link, table: int, addresses: Sequence[bytes]) -> None:
    """Wait until `table` has a local route for each of these IPv6 addresses (packed): with the route, the namespace
    accepts packets to the address. The watcher receives RTNLGRP_IPV6_ROUTE. Raises CniError after 5 s.

    Addresses of a link that is not operationally up may stay tentative, so for such a link the deadline is no error.
    """
    from fastcni.kit.links import routing

    def missing() -> list[bytes]:
        there = {route.dst for route, _ in routing.routes(sock, (uapi.AF_INET6,))
                 if (route.table, route.kind) == (table, uapi.RTN_LOCAL)}
        return [packed for packed in addresses if packed not in there]

    def look(_: object = None) -> bool:
        return not missing()

    if not look():
        _settle(sock, watcher, link, look, lambda: f"failed getting local/host addresses for {link.name} in table "
                f"{table} with dst {', '.join(map(ip_text, missing()))}")


def _settle(sock: Socket, watcher: Socket, link: Link, look: Callable[..., bool], failure: Callable[[], str]) -> None:
    """Wait until look() returns true. After 5 s, raise CniError with the text of failure() if the link is operationally
    up; otherwise return."""
    try:
        _until(watcher, SETTLE_TIMEOUT_S, look, look)
    except TimeoutError:
        if _present(sock, link.index).operstate == uapi.IF_OPER_UP:
            raise CniError(errors.INTERNAL, failure()) from None


def _present(sock: Socket, index: int) -> Link:
    """Return the link's current state. Raises NetlinkError if the link no longer exists."""
    link = rtnl.first_link(wire.exchange(sock, rtnl.get_link(Batch(), index=index)))
    if link is None:
        raise wire.NetlinkError(ENODEV, f"find link {index}")
    return link


def _until(watcher: Socket, seconds: float, done: Callable[[list[Message]], bool], look: Callable[[], bool]) -> None:
    """Pass notifications to done() until done() returns true. If the kernel has dropped notifications, call look()
    instead. Raises TimeoutError."""
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
