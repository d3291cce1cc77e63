"""For CHECK: compare prevResult with the kernel's links, addresses and routes, in the reference plugins' order and with
their texts."""

from __future__ import annotations

from fastcni.kernel import kinds, uapi
from fastcni.kit.call import chained
from fastcni.kit.call.conf import read_mac
from fastcni.kit.links import find, routing
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.pod import Pod
    from fastcni.kit.call.request import Request


def wrong(text: str, details: str = "") -> CniError:
    """Return the CniError for a difference that CHECK has found."""
    return CniError(errors.INTERNAL, text, details)


def prev_result(req: Request, message: str = "Required prevResult missing") -> dict[str, Any]:
    """Return prevResult in the 1.1.0 shape. Raises CniError with `message` if the configuration has no prevResult."""
    return chained.previous(req, message, errors.INTERNAL)


def container_interface(req: Request, previous: dict[str, Any]) -> dict[str, str]:
    """Return the entry of prevResult's interfaces whose name is CNI_IFNAME and whose sandbox is CNI_NETNS. Raises
    CniError."""
    for entry in previous.get("interfaces", ()):
        if entry["name"] == req.ifname and entry.get("sandbox", "") == req.netns:
            return entry
    for entry in previous.get("interfaces", ()):
        if entry["name"] == req.ifname and entry.get("sandbox"):
            raise wrong(f"Sandbox in prevResult {entry['sandbox']} doesn't match configured netns: {req.netns}")
    raise wrong(f"Interface name {req.ifname} not found")


def link_in_pod(req: Request, pod: Pod, previous: dict[str, Any]) -> Link:
    """Return the pod's link CNI_IFNAME. Raises CniError if the link is missing, or if its MAC differs from
    prevResult's."""
    entry = container_interface(req, previous)
    link = find.link(pod.inside, entry["name"])
    if link is None:
        raise wrong(f"Interface name {entry['name']} not found")
    same_mac(entry, link, "Interface")
    return link


def veth_in_pod(req: Request, pod: Pod, previous: dict[str, Any]) -> Link:
    """Return the pod's link CNI_IFNAME, as link_in_pod() does. Raises CniError also if the link is no veth."""
    link = link_in_pod(req, pod, previous)
    if link.kind != "veth":
        raise wrong(f"Error: Container interface {link.name} not of type veth/p2p")
    return link


def same_mac(entry: dict[str, str], link: Link, subject: str) -> None:
    """Raise CniError if an entry of interfaces has another MAC than the link."""
    if entry.get("mac") and _mac(entry["mac"]) != link.address:
        raise wrong(f"{subject} {entry['name']} Mac doesn't match: {entry['mac']}")


def _mac(text: str) -> bytes:
    try:
        return read_mac(text)
    except ValueError as e:
        raise wrong(str(e)) from None


def same(subject: str, found: object, wanted: object) -> None:
    """Raise CniError if CHECK found another value than the configured one."""
    if found != wanted:
        raise wrong(f"{subject} {'(none)' if found is None else found} does not match expected value: {wanted}")


def addresses_and_routes(pod: Pod, link: Link, previous: dict[str, Any]) -> None:
    """Raise CniError unless the link has every address of prevResult with a route to its prefix, and every route of
    prevResult is in its table."""
    for _, _, error in differences(pod.inside, link, previous):
        raise error


ADDRESS, SUBNET, ROUTE = "address", "subnet", "route"


def differences(inside: Socket, link: Link, previous: dict[str, Any], *,
                strict: bool = False) -> Iterator[tuple[str, dict[str, Any], CniError]]:
    """Yield each entry of prevResult that the pod's link lacks, with its kind and CniError. The kinds: ADDRESS, an
    entry of ips; SUBNET, an entry of ips whose prefix has no route; ROUTE, an entry of routes.

    inside: a socket in the pod. strict: also compare the gateway of default routes, which the reference does not.
    """
    present = {(item.packed, item.prefix) for item in find.addresses(inside, link.index)}
    tables = _Tables(inside, link, present)
    for ip in previous.get("ips", ()):
        packed, prefix = addresses.read_cidr(ip["address"])
        if (packed, prefix) not in present:
            yield ADDRESS, ip, wrong(f"Failed to match addr {ip['address']} on interface {link.name}")
            continue
        # The kernel adds no route for the prefix of a host address (/32 or /128). The reference plugin requires one.
        alone = prefix == 8 * len(packed)
        if not alone and not tables.have(0, addresses.network(packed, prefix), prefix):
            yield SUBNET, ip, wrong(f"Failed to find Gateway {ip.get('gateway', '<nil>')} for interface {link.name}",
                                    f"no route to {ip['address']} in the main table or another table that the link's "
                                    "packets use")
    for item in previous.get("routes", ()):
        dst, prefix = addresses.read_cidr(item["dst"])
        gateway = addresses.read_ip(item["gw"]) if item.get("gw") and (prefix or strict) else None
        if gateway and not any(gateway):
            gateway = b""               # 0.0.0.0 means a route without a gateway
        if not tables.have(item.get("table"), addresses.network(dst, prefix), prefix, gateway):
            yield ROUTE, item, wrong(f"Expected Route {item['dst']} via {item.get('gw', '<nil>')} not found in routing "
                                     "table")


class _Tables:
    """The pod's routes, and the routing tables that the packets of a link use.

    The packets use the main table, the table of each rule for an address of the link (the plugin sbr adds such rules),
    and the table of the link's VRF (the plugin vrf adds the link to a VRF).
    """

    __slots__ = ("inside", "routes", "sources", "master", "chosen")

    def __init__(self, inside: Socket, link: Link, present: set[tuple[bytes, int]]) -> None:
        self.inside, self.master = inside, link.master
        self.chosen: set[int] | None = None
        self.sources = {packed for packed, _ in present}
        self.routes = [route for route, _ in routing.routes(inside, find.FAMILIES)]

    def have(self, table: int | None, dst: bytes, prefix: int, gateway: bytes | None = None) -> bool:
        """Return whether `table` has a route to dst/prefix. table None: any table that the link's packets use.

        gateway None: routes with and without a gateway match.
        """
        tables = {route.table for route in self.routes
                  if route.dst == dst and route.prefix == prefix and gateway in (None, route.gateway)}
        return (table or uapi.RT_TABLE_MAIN) in tables or (not table and not tables.isdisjoint(self.others()))

    def others(self) -> set[int]:
        """Return the tables that the link's packets use, without the main table. have() calls others() only if the
        main table lacks a route."""
        if self.chosen is None:
            rules = routing.rules(self.inside, routing.families_of(self.sources))
            self.chosen = {it.table for it, _ in rules if it.host and it.source in self.sources}
            master = find.link(self.inside, index=self.master) if self.master else None
            if master and master.kind == "vrf":
                self.chosen.add(kinds.vrf_table(master))
        return self.chosen
