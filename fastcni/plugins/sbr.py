"""sbr: source-based routing: what the pod sends from an address of the link goes by that link.

A rule for each address chooses a table of its own, and the link's routes move there from the main table.
"""

from errno import EAFNOSUPPORT, EINVAL, EOPNOTSUPP

from fastcni._netlink import Batch
from fastcni.kernel import netns, rtnl, uapi, wire
from fastcni.kernel.routing import delete_rule, rule
from fastcni.kit.call import chained
from fastcni.kit.call.conf import ENDINGS, keys_of
from fastcni.kit.links import find, routing
from fastcni.kit.links.pod import Pod
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

FIRST_TABLE = 100


class Conf:
    """table (0: free ones), gateways ({4 or 16: packed}, over those of the addresses), hints (addSourceHints)."""

    __slots__ = ("table", "gateways", "hints")


def read(req):
    keys, conf = keys_of(req), Conf()
    conf.table = keys.integer("table", low=1, high=0xFFFFFFFF)
    if req.command in ENDINGS:
        return conf
    conf.gateways = read_gateways(keys.texts("gateways"))
    conf.hints = keys.flag("addSourceHints")
    return conf


def read_gateways(texts):
    """{4: packed, 16: packed} by length of the address."""
    if len(texts) > 2:
        raise wrong_gateways("gateways list cannot contain more than 2 entries (one IPv4, one IPv6)")
    found = {}
    for text in texts:
        try:
            packed = addresses.read_ip(text)
        except ValueError:
            raise wrong_gateways(f"invalid static gateway IP address: {text}") from None
        if len(packed) in found:
            raise wrong_gateways(f"gateways list contains multiple {'IPv4' if len(packed) == 4 else 'IPv6'} addresses: "
                                 f"{addresses.ip_text(found[len(packed)])} and {addresses.ip_text(packed)}")
        found[len(packed)] = packed
    return found


def wrong_gateways(words):
    return CniError(errors.INVALID_CONFIG, words)


def add(req, conf, undo):
    previous, ips = pod_addresses(req)
    pod = Pod(req)
    with netns.locked(pod.netns_fd, req.warn):  # from the look for free tables on
        if conf.table:
            for packed, _, _ in ips:
                add_rule(pod, undo, packed, conf.table)
        else:
            move_routes(req, conf, undo, pod, ips)
    return previous


def pod_addresses(req):
    """(prevResult, [(packed, prefix, gateway or None)]) of the entries of ips that are of CNI_IFNAME, of no link, or of
    one that prevResult lacks."""
    previous = chained.previous(req, "This plugin must be called as chained plugin")
    names = [entry["name"] for entry in previous.get("interfaces", ())]
    found = [(*addresses.read_cidr(ip["address"]), addresses.read_ip(ip["gateway"]) if ip.get("gateway") else None)
             for ip in previous.get("ips", ()) if of_link(ip.get("interface"), names, req.ifname)]
    if not found:
        raise CniError(errors.INVALID_CONFIG, f"No IP addresses supplied on interface: {req.ifname}")
    return previous, found


def of_link(index, names, ifname):
    return index is None or not 0 <= index < len(names) or names[index] == ifname


def add_rule(pod, undo, packed, table):
    """As ip(8) shows it: `32765: from 10.22.0.2 lookup 100`."""
    words = f"from {addresses.ip_text(packed)} lookup {table}"
    with undo.request(remove_rule, pod, packed, table, f"failed to delete rule: {words}"):
        wire.exchange(pod.inside, rule(Batch(), packed, table, what=f"failed to add rule: {words}"))


def remove_rule(pod, packed, table, what):
    wire.exchange(pod.inside, rule(Batch(), packed, table, delete=True, what=what))


def move_routes(req, conf, undo, pod, ips):
    """Every address gets a rule and a table; the link's routes of the main table move to those that they belong to."""
    link = find.pod_link(pod, req.ifname, f"Cannot find network interface {req.ifname}")
    families = routing.families_of(packed for packed, _, _ in ips)
    known = routing.routes(pod.inside, families)
    saved = routing.of_link(known, link.index)
    taken = routing.used_tables(known, routing.rules(pod.inside, families))
    tables = routing.free_tables(taken, FIRST_TABLE, len(ips))
    undo(routing.flush, pod.inside, families, tables)
    for ip, table in zip(ips, tables, strict=True):
        add_rule(pod, undo, ip[0], table)
        routing.send(pod.inside, routes_of_table(conf, link, ip, table, saved))
    undo(routing.put_back, pod.inside, link.index, families, saved)
    staying = add_hints(req, pod, link, ips, saved) if conf.hints else ()
    routing.send(pod.inside, [routing.again(payload, delete=True, what="Failed to delete route")
                              for route, payload in saved if route not in staying], routing.GONE)


def routes_of_table(conf, link, ip, table, saved):
    """Requests for the default route of an address's table, and for the routes of its family and subnet."""
    packed, _, gateway = ip
    static = conf.gateways.get(len(packed))
    gateway = static or gateway
    if gateway:
        yield lambda batch: rtnl.route(batch, bytes(len(packed)), 0, index=link.index, gateway=gateway, table=table,
                                       what=f"Failed to add default route to {addresses.ip_text(gateway)}")
    for route, payload in saved:
        overruled = static and not route.prefix
        if len(route.dst) == len(packed) and belongs(route, ip) and not overruled:
            yield routing.again(payload, table=table, flags=uapi.NLM_F_REPLACE, what="Failed to readd route")


def belongs(route, ip):
    """Its source or gateway is in the address's subnet, or it has neither."""
    ends = [end for end in (route.source, route.gateway) if end]
    return not ends or any(in_subnet(end, ip) for end in ends)


def in_subnet(packed, ip):
    own, prefix, _ = ip
    return len(packed) == len(own) and addresses.network(packed, prefix) == addresses.network(own, prefix)


def add_hints(req, pod, link, ips, saved):
    """What tells the kernel which address to send from, when nobody has chosen one: `10.22.0.0/24 scope link src
    10.22.0.2` in the main table. The routes of it that stay: to other places on the link, and those whose hint the
    kernel finds wrong, as with an IPv6 address that has not settled."""
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
            req.warn(str(e))
            staying += same
    return staying


def delete(req, conf):
    """The rules of the addresses that the link has, and of those in prevResult. The routes end with the link."""
    if req.netns_gone():
        return
    pod = Pod(req)
    with netns.locked(pod.netns_fd, req.warn):
        link = find.link(pod.inside, req.ifname)
        mine = earlier_addresses(req)
        if link:
            mine |= {item.packed for item in find.addresses(pod.inside, link.index)}
        routing.send(pod.inside, [
            lambda batch, payload=payload: delete_rule(batch, payload, what="failed to delete rule")
            for it, payload in routing.rules(pod.inside, routing.families_of(mine))
            if it.host and it.source in mine and it.table and conf.table in (0, it.table)], routing.GONE)


def earlier_addresses(req):
    """Those of prevResult, which DEL can do without."""
    try:
        return {packed for packed, _, _ in pod_addresses(req)[1]}
    except CniError:
        return set()


def check(req, conf):
    """A rule for each address, and in its table the default route."""
    from fastcni.kit.call.checks import wrong

    _, ips = pod_addresses(req)
    pod = Pod(req)
    link = find.pod_link(pod, req.ifname, f"Cannot find network interface {req.ifname}")
    families = routing.families_of(packed for packed, _, _ in ips)
    rules = [it for it, _ in routing.rules(pod.inside, families) if it.host and conf.table in (0, it.table)]
    defaults = {(route.table, route.gateway) for route, _ in routing.routes(pod.inside, families)
                if route.index == link.index and not route.prefix}
    for packed, _, gateway in ips:
        text, gateway = addresses.ip_text(packed), conf.gateways.get(len(packed), gateway)
        tables = {it.table for it in rules if it.source == packed}
        if not tables:
            raise wrong(f"sbr: no rule chooses {f'table {conf.table}' if conf.table else 'a table'} for {text}")
        if gateway and not conf.table and not any((table, gateway) in defaults for table in tables):
            raise wrong(f"sbr: no default route via {addresses.ip_text(gateway)} in the table of {text}")


def status(req, _):
    try:
        routing.rules(req.host.route, (uapi.AF_INET,))
    except wire.NetlinkError as e:
        if e.errno not in (EAFNOSUPPORT, EOPNOTSUPP):
            raise
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, "this kernel has no routing rules",
                       "it was built without CONFIG_IP_MULTIPLE_TABLES") from None
