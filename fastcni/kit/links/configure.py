"""The addresses and routes of a result, given to the link inside the pod, and the link set up."""

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, sysctl, uapi, wire
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

SCOPES = {uapi.RT_SCOPE_UNIVERSE: "universe", uapi.RT_SCOPE_LINK: "link", uapi.RT_SCOPE_HOST: "host"}


def pod_link(pod, link, result, *, ipv6=True, dad=None, arp_notify=False, ndisc_notify=False, then=None):
    """Give the inside link its addresses and routes and set it up; the kernel announces them with arp_notify
    (gratuitous ARP) and ndisc_notify (unsolicited neighbour advertisements).

    `ipv6`: whether there is IPv6 on the link; `dad`: duplicate address detection, None leaves it alone. All goes out
    in one batch, except with detection and an IPv6 gateway: then routes wait until addresses settled. `then` adds to
    the batch what comes after them.
    """
    ips = results.ips_of(result)
    gateways = first_gateways(result)
    has_v6 = any(len(packed) == 16 for packed, _ in ips)
    sysctls = list(ipv6_sysctls(dad, ndisc_notify)) if ipv6 else [("disable_ipv6", "1")]
    if sysctls or has_v6:
        with pod.enter():
            for name, value in sysctls:
                sysctl.offer(f"net/ipv6/conf/{link.name}/{name}", value)
            if has_v6:
                enable_ipv6(link.name)
    batch = Batch()
    nodad = dad is False and not ndisc_notify       # the kernel announces no address that it need not settle
    if arp_notify:
        rtnl.set_arp_notify(batch, link.index, what=f'failed to set arp_notify of "{link.name}"')
    for packed, prefix in ips:
        broadcast = addresses.broadcast(packed, prefix) if len(packed) == 4 and prefix < 31 else None
        rtnl.new_address(batch, link.index, packed, prefix, broadcast=broadcast, nodad=nodad,
                         what=f'failed to add IP addr {addresses.cidr_text(packed, prefix)} to "{link.name}"')
    rtnl.set_link(batch, link.index, up=True, what=f'failed to set "{link.name}" UP')
    if dad and 16 in gateways:
        with_watch(pod, link, batch)
    for item in result.get("routes", ()):
        add_route(batch, link, item, gateways)
    if then:
        then(batch)
    if batch:
        wire.exchange(pod.inside, batch)


def ipv6_sysctls(dad, ndisc_notify):
    """The switches of a link in net/ipv6/conf, each ignored where the kernel lacks it."""
    if dad:
        yield "enhanced_dad", "1"
    if dad is not None:
        yield "accept_dad", "1" if dad else "0"
    if ndisc_notify:
        yield "ndisc_notify", "1"


def first_gateways(result):
    """{4: packed, 16: packed}: the first gateway of each family, by length of its address."""
    found = {}
    for ip in result.get("ips", ()):
        if ip.get("gateway"):
            packed = addresses.read_ip(ip["gateway"])
            found.setdefault(len(packed), packed)
    return found


def add_route(batch, link, item, gateways):
    """One route of a result; without gw it goes to the first gateway of its family."""
    dst, prefix = addresses.read_cidr(item["dst"])
    gateway = addresses.read_ip(item["gw"]) if item.get("gw") else gateways.get(len(dst))
    via = addresses.ip_text(gateway) if gateway else "<nil>"
    scope, table, metric = (route_number(item, key) for key in ("scope", "table", "priority"))
    rtnl.route(batch, addresses.network(dst, prefix), prefix, index=link.index, gateway=gateway, metric=metric,
               table=table or uapi.RT_TABLE_MAIN, scope=scope, mtu=route_number(item, "mtu"),
               advmss=route_number(item, "advmss"),
               what=f"failed to add route '{item['dst']} via {via} dev {link.name} metric {metric} "
                    f"(Scope: {SCOPES.get(scope, scope)}, Table: {table})'")


def route_number(item, key):
    """A number of a route, 0 where it has none. Raises CniError 7 for one that the kernel's field has no room for."""
    number = item.get(key) or 0
    most = 0xFF if key == "scope" else 0xFFFFFFFF
    if not 0 <= number <= most:
        raise CniError(errors.INVALID_CONFIG, f"route {item['dst']}: {key} {number} is not from 0 to {most}")
    return number


def enable_ipv6(ifname):
    """An IPv6 address needs IPv6 on; keep_addr_on_down lets it survive a chained plugin that flaps the link."""
    try:
        for name in ("lo", ifname):
            sysctl.ensure(f"net/ipv6/conf/{name}/disable_ipv6", "0")
        sysctl.ensure(f"net/ipv6/conf/{ifname}/keep_addr_on_down", "1")
    except OSError as e:
        raise CniError(errors.INTERNAL, f'failed to enable IPv6 for interface "{ifname}": {e}',
                       "is IPv6 enabled in the kernel?") from e


def with_watch(pod, link, batch):
    """Send `batch` and wait until no IPv6 address of `link` is tentative."""
    from fastcni.kit.links import announced

    with pod.enter():
        watcher = wire.open_socket(groups=(uapi.RTNLGRP_IPV6_IFADDR, uapi.RTNLGRP_LINK))
    try:
        wire.exchange(pod.inside, batch)
        announced.settled(pod.inside, watcher, link)
    finally:
        watcher.close()
