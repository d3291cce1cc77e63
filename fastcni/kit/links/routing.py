"""The pod's routes and routing rules: listed, moved to another table, put back."""

from errno import EEXIST, ENOENT, ESRCH

from fastcni._netlink import Batch, BatchFull
from fastcni.kernel import routing, rtnl, uapi, wire

GONE = (ESRCH, ENOENT)          # what the kernel says of a route or rule that there is not


def routes(sock, families):
    """[(Route, payload)] of all tables."""
    found = []
    for family in families:
        for kind, payload in wire.dump(sock, uapi.RTM_GETROUTE, rtnl.rtmsg(family), "list routes"):
            route = rtnl.read_route(payload) if kind == uapi.RTM_NEWROUTE else None
            if route:
                route.dst = route.dst or bytes(4 if family == uapi.AF_INET else 16)
                found.append((route, payload))
    return found


def rules(sock, families):
    """[(Rule, payload)]"""
    return [(routing.read_rule(payload), payload) for family in families
            for kind, payload in wire.dump(sock, uapi.RTM_GETRULE, routing.fib_rule_hdr(family), "list routing rules")
            if kind == uapi.RTM_NEWRULE]


def used_tables(found_routes, found_rules):
    """The numbers of all tables that routes and rules name."""
    return {it.table for it, _ in found_routes} | {it.table for it, _ in found_rules}


def free_tables(taken, first, count=1):
    """The first so many numbers of tables, from `first` on, that are not in `taken`."""
    found, number = [], first
    while len(found) < count:
        if number not in taken:
            found.append(number)
        number += 1
    return found


def families_of(addresses):
    """AF_INET and AF_INET6, as packed addresses have them: a kernel may know one of them only."""
    return sorted({rtnl.family_of(packed) for packed in addresses})


def send(sock, requests, fine=()):
    """Send requests, functions that add one to a Batch, in as few batches as have room for them. Raises the first
    NetlinkError whose errno is not among `fine`."""
    batch = Batch()
    for add in requests:
        try:
            add(batch)
        except BatchFull:
            _send(sock, batch, fine)
            add(batch)
    if batch:
        _send(sock, batch, fine)


def _send(sock, batch, fine):
    for e in wire.attempt(sock, batch)[1]:
        if e.errno not in fine:
            raise e


def again(payload, **more):
    """A request for send(): the route once more."""
    return lambda batch: routing.route_again(batch, payload, **more)


def put_back(sock, index, families, saved):
    """Have in the main table what the link `index` had there, [(Route, payload)], and no other route of its."""
    now = {routing.route_key(payload): payload for _, payload in of_link(routes(sock, families), index)}
    before = {routing.route_key(payload): payload for _, payload in gateways_last(saved)}
    send(sock, [again(now[key], delete=True, what="delete route") for key in now if key not in before], GONE)
    # APPEND, as another link may have a route to the same prefix.
    send(sock, [again(before[key], flags=uapi.NLM_F_APPEND, what="add route") for key in before if key not in now],
         (EEXIST,))


def gateways_last(found):
    """[(Route, payload)] in an order in which they can be added: to a gateway there has to be a route already."""
    return sorted(found, key=lambda pair: pair[0].gateway)


def of_link(found, index):
    """Those of [(Route, payload)] that are of a link, in the main table."""
    return [pair for pair in found if (pair[0].table, pair[0].index) == (uapi.RT_TABLE_MAIN, index)]


def flush(sock, families, tables):
    """Delete all routes of the tables."""
    send(sock, [again(payload, delete=True, what="delete route") for route, payload in routes(sock, families)
                if route.table in tables], GONE)
