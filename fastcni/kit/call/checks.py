"""CHECK: compare prevResult with what the kernel has (the reference plugins' order and words)."""

from fastcni.kernel import kinds, uapi
from fastcni.kit.call.conf import read_mac
from fastcni.kit.links import find, routing
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
    raise wrong(f"Interface name {req.ifname} not found")


def inside_link(pod, entry):
    """The Link of an entry inside the pod, its MAC compared."""
    link = find.link(pod.inside, entry["name"])
    if link is None:
        raise wrong(f"Interface name {entry['name']} not found")
    same_mac(entry, link, "Interface")
    return link


def same_mac(entry, link, words):
    if entry.get("mac") and _mac(entry["mac"]) != link.address:
        raise wrong(f"{words} {entry['name']} Mac doesn't match: {entry['mac']}")


def _mac(text):
    try:
        return read_mac(text)
    except ValueError as e:
        raise wrong(str(e)) from None


def addresses_and_routes(pod, link, previous):
    """Every address of prevResult is on the link with a route to its prefix; every route is in its table."""
    present = {(item.packed, item.prefix) for item in find.addresses(pod.inside, link.index)}
    tables = _Tables(pod, link, present)
    for ip in previous.get("ips", ()):
        packed, prefix = addresses.read_cidr(ip["address"])
        if (packed, prefix) not in present:
            raise wrong(f"Failed to match addr {ip['address']} on interface {link.name}")
        # The kernel makes no prefix route for a host address; the reference fails every /32 here.
        alone = prefix == 8 * len(packed)
        if not alone and not tables.have(0, addresses.network(packed, prefix), prefix):
            raise wrong(f"Failed to find Gateway {ip.get('gateway', '<nil>')} for interface {link.name}",
                        f"no route to {ip['address']} in the main table, nor in another that its packets take")
    for item in previous.get("routes", ()):
        dst, prefix = addresses.read_cidr(item["dst"])
        gateway = addresses.read_ip(item["gw"]) if item.get("gw") and prefix else None
        if gateway and not any(gateway):
            gateway = b""               # 0.0.0.0, a route without one
        if not tables.have(item.get("table"), addresses.network(dst, prefix), prefix, gateway):
            raise wrong(f"Expected Route {item['dst']} via {item.get('gw', '<nil>')} not found in routing table")


class _Tables:
    """The pod's routes, and what tables its packets take: the main one, those to which rules send what comes from the
    link's addresses (sbr moves the link's routes there), and that of the VRF that the link is in (vrf does so)."""

    __slots__ = ("pod", "routes", "sources", "master", "chosen")

    def __init__(self, pod, link, present):
        self.pod, self.master, self.chosen = pod, link.master, None
        self.sources = {packed for packed, _ in present}
        self.routes = [route for route, _ in routing.routes(pod.inside, (uapi.AF_INET, uapi.AF_INET6))]

    def have(self, table, dst, prefix, gateway=None):
        """Is there such a route in that table, or, without one, where it is looked for?"""
        tables = {route.table for route in self.routes
                  if route.dst == dst and route.prefix == prefix and gateway in (None, route.gateway)}
        return (table or uapi.RT_TABLE_MAIN) in tables or (not table and not tables.isdisjoint(self.others()))

    def others(self):
        if self.chosen is None:         # most pods need none, and nobody asks
            rules = routing.rules(self.pod.inside, routing.families_of(self.sources))
            self.chosen = {it.table for it, _ in rules if it.host and it.source in self.sources}
            master = find.link(self.pod.inside, index=self.master) if self.master else None
            if master and master.kind == "vrf":
                self.chosen.add(kinds.vrf_table(master))
        return self.chosen
