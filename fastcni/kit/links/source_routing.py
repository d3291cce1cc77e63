"""Set up source-based routing in the pod. Each address has a rule that selects a routing table, and the table has the
address's routes.

    32765: from 10.22.0.2 lookup 100                    (ip rule)
    default via 10.22.0.1 dev net1                      (ip route show table 100)
    10.22.0.0/24 dev net1 scope link src 10.22.0.2

The caller of add_rule(), move_routes() and delete() holds the pod's lock until they return, so that no other request
takes the same free table.
"""

from __future__ import annotations

from errno import EAFNOSUPPORT, EINVAL, EOPNOTSUPP

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kernel.routing import rule
from fastcni.kit.links import find, routing
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

    from fastcni.kernel.rtnl import Link, Route
    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.pod import Pod
    from fastcni.kit.call.undo import Undo

    Gateways = dict[int, bytes]                         # {address length in bytes, 4 or 16: packed}
    Address = tuple[bytes, int, bytes | None]           # (packed, prefix, gateway)

FIRST_TABLE = 100


def read_gateways(texts: list[str]) -> Gateways:
    """Read the key `gateways`: one IPv4 and one IPv6 address at most. Raises CniError 7."""
    if len(texts) > 2:
        raise errors.bad_config("gateways list cannot contain more than 2 entries (one IPv4, one IPv6)")
    found: Gateways = {}
    for text in texts:
        try:
            packed = addresses.read_ip(text)
        except ValueError:
            raise errors.bad_config(f"invalid static gateway IP address: {text}") from None
        if len(packed) in found:
            version = "IPv4" if len(packed) == 4 else "IPv6"
            raise errors.bad_config(f"gateways list contains multiple {version} addresses: "
                                    f"{addresses.ip_text(found[len(packed)])} and {addresses.ip_text(packed)}")
        found[len(packed)] = packed
    return found


def addresses_of(result: dict[str, Any], ifname: str) -> list[Address]:
    """Return the addresses in `result` whose interface is `ifname`, is absent, or is not in the result's interfaces."""
    names = [entry["name"] for entry in result.get("interfaces", ())]
    return [(*addresses.read_cidr(ip["address"]), addresses.read_ip(ip["gateway"]) if ip.get("gateway") else None)
            for ip in result.get("ips", ()) if _is_of(ip.get("interface"), names, ifname)]


def _is_of(index: int | None, names: list[str], ifname: str) -> bool:
    return index is None or not 0 <= index < len(names) or names[index] == ifname


def add_rule(pod: Pod, undo: Undo, packed: bytes, table: int) -> None:
    """Add the rule that packets from this address use this table."""
    text = f"from {addresses.ip_text(packed)} lookup {table}"
    with undo.request(remove_rule, pod, packed, table, f"failed to delete rule: {text}"):
        wire.exchange(pod.inside, rule(Batch(), packed, table, what=f"failed to add rule: {text}"))


def remove_rule(pod: Pod, packed: bytes, table: int, what: str) -> None:
    wire.exchange(pod.inside, rule(Batch(), packed, table, delete=True, what=what))


def move_routes(pod: Pod, undo: Undo, link: Link, ips: list[Address], gateways: Gateways, *, hints: bool,
                warn: Callable[[str], None]) -> None:
    """Give each address a rule and a free table, and move the link's routes of the main table into these tables.

    gateways  {4 or 16: packed}: replace the gateways of the addresses
    hints     whether the main table keeps routes that select the source address, see add_hints()
    warn      a function that prints a warning
    """
    families = routing.families_of(packed for packed, _, _ in ips)
    known = routing.routes(pod.inside, families)
    saved = routing.of_link(known, link.index)
    taken = routing.used_tables(known, routing.rules(pod.inside, families))
    tables = routing.free_tables(taken, FIRST_TABLE, len(ips))
    undo(routing.flush, pod.inside, families, tables)
    for ip, table in zip(ips, tables, strict=True):
        add_rule(pod, undo, ip[0], table)
        routing.send(pod.inside, routes_of_table(gateways, link, ip, table, saved))
    undo(routing.restore, pod.inside, link.index, families, saved)
    staying = add_hints(pod, link, ips, saved, warn) if hints else ()
    routing.send(pod.inside, [routing.again(payload, delete=True, what="Failed to delete route")
                              for route, payload in saved if route not in staying], routing.GONE)


def routes_of_table(gateways: Gateways, link: Link, ip: Address, table: int,
                    saved: routing.Routes) -> Iterator[routing.Add]:
    """Yield requests for the routes of an address's table: the default route, and the saved routes of the address (see
    belongs())."""
    packed, _, own = ip
    static = gateways.get(len(packed))
    gateway = static or own
    if gateway:
        yield lambda batch: rtnl.route(batch, bytes(len(packed)), 0, index=link.index, gateway=gateway, table=table,
                                       what=f"Failed to add default route to {addresses.ip_text(gateway)}")
    for route, payload in saved:
        replaced = static and not route.prefix
        if len(route.dst) == len(packed) and belongs(route, ip) and not replaced:
            yield routing.again(payload, table=table, flags=uapi.NLM_F_REPLACE, what="Failed to readd route")


def belongs(route: Route, ip: Address) -> bool:
    """Return whether the source or gateway of a route is in the address's subnet, or the route has neither."""
    ends = [end for end in (route.source, route.gateway) if end]
    packed, prefix, _ = ip
    return not ends or any(addresses.in_subnet(end, packed, prefix) for end in ends)


def add_hints(pod: Pod, link: Link, ips: list[Address], saved: routing.Routes,
              warn: Callable[[str], None]) -> list[Route]:
    """Add routes such as `10.22.0.0/24 scope link src 10.22.0.2` to the main table, for programs that bind no address.

    Returns the saved routes that stay in the main table: on-link routes to other subnets, and the route to a subnet
    whose hint the kernel rejects. The kernel rejects the hint of an IPv6 address that is still tentative.
    """
    staying = [route for route, _ in saved if route.scope == uapi.RT_SCOPE_LINK]
    for packed, prefix, _ in ips:
        subnet = addresses.network(packed, prefix)
        same = [route for route, _ in saved if (route.dst, route.prefix) == (subnet, prefix)]
        try:
            wire.exchange(pod.inside, rtnl.route(
                Batch(), subnet, prefix, index=link.index, scope=uapi.RT_SCOPE_LINK, source=packed, append=True,
                what=f"failed to add a source hint for {addresses.cidr_text(packed, prefix)}"))
            staying = [route for route in staying if route not in same]
        except wire.NetlinkError as e:
            if e.errno != EINVAL:
                raise
            warn(str(e))
            staying += same
    return staying


def delete(pod: Pod, ifname: str, earlier: Collection[bytes], table: int) -> None:
    """Delete the rules for the addresses of the link, and for `earlier` addresses. table 0: rules for any table.

    The kernel deletes the routes of the rules' tables together with the link.
    """
    link = find.link(pod.inside, ifname)
    mine = set(earlier)
    if link:
        mine |= {item.packed for item in find.addresses(pod.inside, link.index)}
    routing.send(pod.inside, [
        routing.without(payload) for it, payload in routing.rules(pod.inside, routing.families_of(mine))
        if it.host and it.source in mine and it.table and table in (0, it.table)], routing.GONE)


def check(pod: Pod, link: Link, ips: list[Address], gateways: Gateways, table: int) -> None:
    """Raise CniError unless each address has a rule and the rule's table has the default route. table 0: any table."""
    from fastcni.kit.links.checks import wrong

    families = routing.families_of(packed for packed, _, _ in ips)
    rules = [it for it, _ in routing.rules(pod.inside, families) if it.host and table in (0, it.table)]
    defaults = {(route.table, route.gateway) for route, _ in routing.routes(pod.inside, families)
                if route.index == link.index and not route.prefix}
    for packed, _, own in ips:
        text, gateway = addresses.ip_text(packed), gateways.get(len(packed), own)
        tables = {it.table for it in rules if it.source == packed}
        if not tables:
            raise wrong(f"sbr: no rule chooses {f'table {table}' if table else 'a table'} for {text}")
        if gateway and not table and not any((each, gateway) in defaults for each in tables):
            raise wrong(f"sbr: no default route via {addresses.ip_text(gateway)} in the table of {text}")


def need_rules(sock: Socket) -> None:
    """For STATUS: raise CniError 50 if this kernel does not support routing rules."""
    try:
        routing.rules(sock, (uapi.AF_INET,))
    except wire.NetlinkError as e:
        if e.errno not in (EAFNOSUPPORT, EOPNOTSUPP):
            raise
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, "this kernel has no routing rules",
                       "the kernel was built without CONFIG_IP_MULTIPLE_TABLES") from None
