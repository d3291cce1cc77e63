"""CHECK: compare prevResult with what the kernel has (the reference plugins' order and words)."""

from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit import links
from fastcni.kit.conf import read_mac
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError


def wrong(text, details=""):
    return CniError(errors.INTERNAL, text, details)


def prev_result(req, words="Required prevResult missing"):
    """The prevResult in the 1.1.0 shape. Raises CniError with `words` where there is none."""
    previous = results.read_prev_result(req.conf, req.version)
    if previous is None:
        raise wrong(words)
    return previous


def container_interface(req, previous):
    """The entry of CNI_IFNAME in prevResult: the one in our sandbox."""
    for entry in previous.get("interfaces", ()):
        if entry["name"] == req.ifname and entry.get("sandbox", "") == req.netns:
            return entry
    for entry in previous.get("interfaces", ()):
        if entry["name"] == req.ifname and entry.get("sandbox"):
            raise wrong(f"Sandbox in prevResult {entry['sandbox']} doesn't match configured netns: {req.netns}")
    raise wrong(f"Interface name {req.ifname} not found",
                "prevResult.interfaces has no such entry in the pod's sandbox")


def inside_link(pod, entry):
    """The Link of an entry inside the pod, its MAC compared."""
    link = links.find(pod.inside, entry["name"])
    if link is None:
        raise wrong(f"Interface name {entry['name']} not found", "it is not in the pod's network namespace")
    same_mac(entry, link, "Interface")
    return link


def same_mac(entry, link, words):
    if entry.get("mac") and _mac(entry["mac"]) != link.address:
        raise wrong(f"{words} {entry['name']} Mac doesn't match: {entry['mac']}", f"the kernel has {link.mac}")


def _mac(text):
    try:
        return read_mac(text)
    except ValueError as e:
        raise wrong(str(e)) from None


def addresses_and_routes(pod, link, previous):
    """Every address of prevResult is on the link with a route to its prefix; every route is in its table."""
    present = {(item.packed, item.prefix) for item in links.addresses_of(pod.inside, link.index)}
    tables = _routes(pod.inside)
    for ip in previous.get("ips", ()):
        packed, prefix = addresses.read_cidr(ip["address"])
        if (packed, prefix) not in present:
            raise wrong(f"Failed to match addr {ip['address']} on interface {link.name}")
        # The kernel makes no prefix route for a host address; the reference fails every /32 here.
        alone = prefix == 8 * len(packed)
        if not alone and not _has(tables, uapi.RT_TABLE_MAIN, addresses.network(packed, prefix), prefix):
            raise wrong(f"Failed to find Gateway {ip.get('gateway', '<nil>')} for interface {link.name}",
                        f"no route to {ip['address']} in the main table")
    for item in previous.get("routes", ()):
        dst, prefix = addresses.read_cidr(item["dst"])
        gateway = addresses.read_ip(item["gw"]) if item.get("gw") and prefix else None
        if gateway and not any(gateway):
            gateway = b""               # 0.0.0.0, a route without one
        if not _has(tables, item.get("table") or uapi.RT_TABLE_MAIN, addresses.network(dst, prefix), prefix, gateway):
            raise wrong(f"Expected Route {item['dst']} via {item.get('gw', '<nil>')} not found in routing table")


def _routes(sock):
    """{table: [Route]} of both families."""
    tables = {}
    for family in (uapi.AF_INET, uapi.AF_INET6):
        for kind, payload in wire.dump(sock, uapi.RTM_GETROUTE, rtnl.rtmsg(family), "list routes"):
            route = rtnl.read_route(payload) if kind == uapi.RTM_NEWROUTE else None
            if route:
                route.dst = route.dst or bytes(4 if family == uapi.AF_INET else 16)
                tables.setdefault(route.table, []).append(route)
    return tables


def _has(tables, table, dst, prefix, gateway=None):
    return any(route.dst == dst and route.prefix == prefix and gateway in (None, route.gateway)
               for route in tables.get(table, ()))
