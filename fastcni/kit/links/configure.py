"""Give the pod's link the addresses and routes of a result, and set the link up."""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, sysctl, uapi, wire
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from fastcni.kernel.rtnl import Link
    from fastcni.kit.call.pod import Pod

IPV6_MIN_MTU = 1280             # bytes, linux/ipv6.h
ROUTE_NUMBERS = {"scope": 0, "table": 0, "priority": 0, "mtu": 0, "advmss": 0}      # a route's numbers, if absent
SCOPES = {uapi.RT_SCOPE_UNIVERSE: "universe", uapi.RT_SCOPE_LINK: "link", uapi.RT_SCOPE_HOST: "host"}


def pod_link(pod: Pod, link: Link, result: dict[str, Any], *, ips: Sequence[tuple[bytes, int]] | None = None,
             ipv6: bool = True, dad: bool | None = None, arp_notify: bool = False, ndisc_notify: bool = False,
             then: Callable[[Batch], None] | None = None) -> None:
    """Give the pod's link the addresses and routes of `result` (1.1.0 shape), and set the link up.

    ips           results.ips_of(result), if the caller has read the addresses
    ipv6          False: the link has no IPv6
    dad           duplicate address detection on or off; None: the kernel's default
    arp_notify    the kernel announces the IPv4 addresses by gratuitous ARP
    ndisc_notify  the kernel announces the IPv6 addresses by unsolicited neighbour advertisements
    then          then(batch) adds further requests after the routes

    One batch has all requests. With duplicate address detection and an IPv6 gateway, a second batch adds the routes
    when the addresses are no longer tentative. Raises NetlinkError, and CniError 7 for a route with a number that is
    too large for the kernel's field.
    """
    if ips is None:
        ips = results.ips_of(result)
    gateways = first_gateways(result)
    has_v6 = any(len(packed) == 16 for packed, _ in ips)
    sysctls = list(ipv6_sysctls(dad, ndisc_notify)) if ipv6 else [("disable_ipv6", "1")]
    if sysctls or has_v6:
        with pod.enter():
            for name, value in sysctls:
                sysctl.offer(f"net/ipv6/conf/{link.name}/{name}", value)
            if has_v6:
                enable_ipv6(pod, link.name)
    batch = Batch()
    nodad = dad is False and not ndisc_notify       # the kernel does not announce an address that skips detection
    if arp_notify:
        rtnl.set_ipv4_conf(batch, link.index, uapi.IPV4_DEVCONF_ARP_NOTIFY,
                           what=f'failed to set arp_notify of "{link.name}"')
    for (packed, prefix), ip in zip(ips, result.get("ips", ()), strict=True):
        rtnl.new_address(batch, link.index, packed, prefix, broadcast=broadcast(packed, prefix), nodad=nodad,
                         what=f'failed to add IP addr {ip["address"]} to "{link.name}"')
    rtnl.set_link(batch, link.index, up=True, what=f'failed to set "{link.name}" UP')
    if dad and 16 in gateways:
        send_and_settle(pod, link, batch)
    for item in result.get("routes", ()):
        add_route(batch, link, item, gateways)
    if then:
        then(batch)
    if batch:
        wire.exchange(pod.inside, batch)


def broadcast(packed: bytes, prefix: int) -> bytes | None:
    """Return the broadcast address of an IPv4 address's subnet, None if the subnet has no broadcast address."""
    return addresses.broadcast(packed, prefix) if len(packed) == 4 and prefix < 31 else None


def ipv6_sysctls(dad: bool | None, ndisc_notify: bool) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of the sysctls to set in net/ipv6/conf/<link>. A kernel need not have each of these
    sysctls."""
    if dad:
        yield "enhanced_dad", "1"
    if dad is not None:
        yield "accept_dad", "1" if dad else "0"
    if ndisc_notify:
        yield "ndisc_notify", "1"


def first_gateways(result: dict[str, Any]) -> dict[int, str]:
    """Return {4: text, 16: text}: the first gateway of each family, by the length of its address."""
    found: dict[int, str] = {}
    for ip in result.get("ips", ()):
        if text := ip.get("gateway"):
            found.setdefault(len(addresses.read_ip(text)), text)
    return found


def add_route(batch: Batch, link: Link, item: dict[str, Any], gateways: dict[int, str]) -> None:
    """Add the request for one route of a result. A route without gw goes to the first gateway of its family."""
    dst, prefix = addresses.read_cidr(item["dst"])
    via = item.get("gw") or gateways.get(len(dst))
    gateway = addresses.read_ip(via) if via else None
    numbers = ROUTE_NUMBERS
    if not numbers.keys().isdisjoint(item):
        numbers = {key: route_number(item, key) if item.get(key) else 0 for key in ROUTE_NUMBERS}
    scope, table, metric, mtu, advmss = numbers.values()
    rtnl.route(batch, addresses.network(dst, prefix), prefix, index=link.index, gateway=gateway, metric=metric,
               table=table or uapi.RT_TABLE_MAIN, scope=scope, mtu=mtu, advmss=advmss,
               what=f"failed to add route '{item['dst']} via {via or '<nil>'} dev {link.name} metric {metric} "
                    f"(Scope: {SCOPES.get(scope, scope)}, Table: {table})'")


def route_number(item: dict[str, Any], key: str) -> int:
    """Return the value of a numeric key of a route. Raises CniError 7 if the kernel's field is too small for it."""
    number: int = item[key]
    most = 0xFF if key == "scope" else 0xFFFFFFFF
    if not 0 <= number <= most:
        raise errors.bad_config(f"route {item['dst']}: {key} {number} is not from 0 to {most}")
    return number


def check_mtu(link: Link) -> None:
    """Raise CniError 7 if the link's MTU is too small for IPv6. The kernel's own errors do not name the MTU: "Invalid
    argument", or "No such file or directory" for the link's IPv6 sysctls."""
    if 0 < link.mtu < IPV6_MIN_MTU:
        raise errors.bad_config(f"the MTU of {link.name} is {link.mtu}, and IPv6 needs {IPV6_MIN_MTU} "
                                "or more", 'give "mtu" a greater value, or give the network no IPv6 range')


def enable_ipv6(pod: Pod, ifname: str) -> None:
    """Switch IPv6 on for `lo` and the link. keep_addr_on_down keeps the link's IPv6 addresses when a chained plugin
    sets the link down and up. Raises CniError."""
    try:
        for name in ("lo", ifname):
            sysctl.ensure(f"net/ipv6/conf/{name}/disable_ipv6", "0")
        sysctl.ensure(f"net/ipv6/conf/{ifname}/keep_addr_on_down", "1")
    except OSError as e:
        from fastcni.kit.links import find

        if actual := find.link(pod.inside, ifname):
            check_mtu(actual)
        raise CniError(errors.INTERNAL, f'failed to enable IPv6 for interface "{ifname}": {e}',
                       "is IPv6 enabled in the kernel?") from e


def send_and_settle(pod: Pod, link: Link, batch: Batch) -> None:
    """Send `batch` and wait until no IPv6 address of `link` is tentative. Raises CniError for a duplicate."""
    from fastcni.kit.links import announced

    with pod.enter():
        watcher = wire.open_socket(groups=(uapi.RTNLGRP_IPV6_IFADDR, uapi.RTNLGRP_LINK))
    try:
        wire.exchange(pod.inside, batch)
        announced.wait_for_addresses(pod.inside, watcher, link)
    finally:
        watcher.close()
