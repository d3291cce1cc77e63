"""List the pod's routes and routing rules, move routes to another table, and restore them."""

from __future__ import annotations

from errno import EEXIST, ENOENT, ESRCH

from fastcni._netlink import Batch, BatchFull
from fastcni.kernel import routing, rtnl, uapi, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any

    from fastcni.kernel.routing import Rule
    from fastcni.kernel.rtnl import Route
    from fastcni.kernel.wire import Socket

    Routes = list[tuple[Route, bytes]]          # [(route, the kernel's message about the route)]
    Rules = list[tuple[Rule, bytes]]
    Add = Callable[[Batch], Any]                # adds one request to a Batch

GONE = (ESRCH, ENOENT)          # the errnos for a route or rule that does not exist


def routes(sock: Socket, families: Iterable[int]) -> Routes:
    """Return the routes of all tables. The dst of a default route is 0.0.0.0 or ::."""
    found = []
    for family in families:
        for kind, payload in wire.dump(sock, uapi.RTM_GETROUTE, rtnl.rtmsg(family), "list routes"):
            route = rtnl.read_route(payload) if kind == uapi.RTM_NEWROUTE else None
            if route:
                route.dst = route.dst or bytes(4 if family == uapi.AF_INET else 16)
                found.append((route, payload))
    return found


def rules(sock: Socket, families: Iterable[int]) -> Rules:
    """Return the routing rules."""
    return [(routing.Rule(payload), payload) for family in families
            for kind, payload in wire.dump(sock, uapi.RTM_GETRULE, routing.fib_rule_hdr(family), "list routing rules")
            if kind == uapi.RTM_NEWRULE]


def used_tables(found_routes: Routes, found_rules: Rules) -> set[int]:
    """Return the numbers of all tables that routes and rules name."""
    return {it.table for it, _ in found_routes} | {it.table for it, _ in found_rules}


def free_tables(taken: Collection[int], first: int, count: int = 1) -> list[int]:
    """Return the first `count` table numbers, from `first` on, that are not in `taken`."""
    found: list[int] = []
    number = first
    while len(found) < count:
        if number not in taken:
            found.append(number)
        number += 1
    return found


def families_of(addresses: Iterable[bytes]) -> list[int]:
    """Return the families of packed addresses: AF_INET, AF_INET6 or both. A kernel may support only one family."""
    return sorted({rtnl.family_of(packed) for packed in addresses})


def send(sock: Socket, requests: Iterable[Add], fine: Collection[int] = ()) -> None:
    """Send requests in as few batches as possible. Raises the first NetlinkError whose errno is not in `fine`.

    Each item of `requests` is a function that adds one request to the Batch given.
    """
    batch = Batch()
    for add in requests:
        try:
            add(batch)
        except BatchFull:
            wire.exchange(sock, batch, fine)
            add(batch)
    if batch:
        wire.exchange(sock, batch, fine)


def again(payload: bytes, **changes: Any) -> Add:
    """Return a function for send(), which adds the request of kernel.routing.route_again(): it adds the route of
    `payload` with changes, or deletes the route."""
    return lambda batch: routing.route_again(batch, payload, **changes)


def without(payload: bytes) -> Add:
    """Return a function for send(), which adds the request that deletes the rule of `payload`."""
    return lambda batch: routing.delete_rule(batch, payload, what="failed to delete rule")


def restore(sock: Socket, index: int, families: Iterable[int], saved: Routes) -> None:
    """Give the link `index` exactly the `saved` routes in the main table."""
    now = {routing.route_key(payload): payload for _, payload in of_link(routes(sock, families), index)}
    before = {routing.route_key(payload): payload for _, payload in gateways_last(saved)}
    send(sock, [again(now[key], delete=True, what="delete route") for key in now if key not in before], GONE)
    # Add with APPEND, because another link may have a route to the same prefix.
    send(sock, [again(before[key], flags=uapi.NLM_F_APPEND, what="add route") for key in before if key not in now],
         (EEXIST,))


def gateways_last(found: Routes) -> Routes:
    """Return the routes in an order that the kernel accepts: a route through a gateway needs an earlier route to the
    gateway."""
    return sorted(found, key=lambda pair: pair[0].gateway)


def of_link(found: Routes, index: int) -> Routes:
    """Return the routes of a link that are in the main table."""
    return [pair for pair in found if (pair[0].table, pair[0].index) == (uapi.RT_TABLE_MAIN, index)]


def flush(sock: Socket, families: Iterable[int], tables: Collection[int]) -> None:
    """Delete all routes of these tables."""
    send(sock, [again(payload, delete=True, what="delete route") for route, payload in routes(sock, families)
                if route.table in tables], GONE)
