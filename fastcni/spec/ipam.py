"""Read the keys that all IPAM plugins share: the ipam section, requested addresses, routes, dns."""

from __future__ import annotations

from fastcni.spec import address
from fastcni.spec.errors import INVALID_CONFIG, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from fastcni.spec.config import Section

# Route keys of spec 1.1.0 other than dst and gw, and whether an explicit 0 is printed (Go's fields are pointers).
ROUTE_NUMBERS = (("mtu", False), ("advmss", False), ("priority", False), ("table", True), ("scope", True))
DNS_LISTS = ("nameservers", "search", "options")


def ipam_section(conf: Section) -> Section:
    """Return the Section under `ipam`. Raises CniError 7 if the key is missing or not an object."""
    if not conf.has("ipam"):
        raise CniError(INVALID_CONFIG, "IPAM config missing 'ipam' key")
    conf.strict.section("ipam")
    return conf.section("ipam")


def requested_ips(conf: Section) -> list[tuple[str, list[str]]]:
    """Return the addresses that the caller requests in args.cni.ips and runtimeConfig.ips: [(path of the key, its list
    of texts)]."""
    sections = (conf.section("args").section("cni"), conf.section("runtimeConfig"))
    return [(section.path("ips"), section.texts("ips")) for section in sections]


def requested_addresses(conf: Section, read: Callable[[str], bytes]) -> list[bytes]:
    """Return the addresses of requested_ips(), packed, each address once. read(text) returns the packed address of a
    text, and raises ValueError for a wrong text. Raises CniError 7."""
    found = []
    for path, texts in requested_ips(conf):
        for text in texts:
            try:
                found.append(read(text))
            except ValueError as e:
                raise CniError(INVALID_CONFIG, f"cannot understand ip: {e}", path) from None
    return list(dict.fromkeys(found))


def read_routes(section: Section) -> list[dict[str, Any]]:
    """Return `routes` of a section in the shape of a result (spec 1.1.0, section 5). Raises CniError 7."""
    routes = []
    for one in section.sections("routes"):
        dst = one.cidr("dst")
        if dst is None:
            raise one.wrong("dst", "missing; a route needs one")
        route = {"dst": address.cidr_text(*dst)}
        gateway = one.ip("gw")
        if gateway is not None:
            route["gw"] = address.ip_text(gateway)
        for key, zero_counts in ROUTE_NUMBERS:
            if one.has(key):
                number = one.integer(key)
                if number or zero_counts:
                    route[key] = number
        routes.append(route)
    return routes


def read_dns(section: Section) -> dict[str, Any]:
    """Return a dns Section in the shape of a result, without empty members."""
    dns: dict[str, Any] = {key: section.texts(key) for key in DNS_LISTS}
    dns["domain"] = section.text("domain")
    return {key: value for key, value in dns.items() if value}


def make_result(ips: Iterable[tuple[bytes, int, bytes | None]], routes: list[dict[str, Any]],
                dns: dict[str, Any]) -> dict[str, Any]:
    """Return a new result in the 1.1.0 shape. ips: (packed, prefix, packed gateway or None). make_result() copies
    routes and dns, because many pods share these arguments."""
    document: dict[str, Any] = {"ips": []}
    for packed, prefix, gateway in ips:
        entry = {"address": address.cidr_text(packed, prefix)}
        if gateway is not None:
            entry["gateway"] = address.ip_text(gateway)
        document["ips"].append(entry)
    if routes:
        document["routes"] = [dict(route) for route in routes]
    if dns:
        document["dns"] = dict(dns)
    return document
