"""What the configurations of IPAM plugins share: the ipam section, routes, dns. Touches nothing."""

from fastcni.spec import address
from fastcni.spec.errors import INVALID_CONFIG, CniError

# Route keys of spec 1.1.0 beside dst and gw, and whether an explicit 0 says something (Go has pointers there).
ROUTE_NUMBERS = (("mtu", False), ("advmss", False), ("priority", False), ("table", True), ("scope", True))
DNS_LISTS = ("nameservers", "search", "options")


def ipam_section(conf):
    """The Section under `ipam`. Raises CniError 7 when the key is missing or no object."""
    if not conf.has("ipam"):
        raise CniError(INVALID_CONFIG, "IPAM config missing 'ipam' key")
    conf.strict.section("ipam")
    return conf.section("ipam")


def read_routes(section):
    """`routes` of a section as a result has them (spec 1.1.0, section 5). Raises CniError 7."""
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


def read_dns(section):
    """A dns Section as a result has it, without what is empty."""
    dns = {key: section.texts(key) for key in DNS_LISTS}
    dns["domain"] = section.text("domain")
    return {key: value for key, value in dns.items() if value}


def make_result(ips, routes, dns):
    """A result in the 1.1.0 shape, which is the caller's: routes and dns may be those of many pods. ips: (packed,
    prefix, packed gateway or None)."""
    document = {"ips": []}
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
