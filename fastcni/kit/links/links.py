"""Links of a pod: the veth pair of bridge and ptp, the addresses and routes inside, and their deletion.

*host* is the end in the caller's namespace, *inside* the one in the pod's.
"""

import posix
from errno import EEXIST, ENODEV

from fastcni._netlink import Batch
from fastcni.kernel import netns, rtnl, sysctl, uapi, wire
from fastcni.kit.links import announced
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

SCOPES = {uapi.RT_SCOPE_UNIVERSE: "universe", uapi.RT_SCOPE_LINK: "link", uapi.RT_SCOPE_HOST: "host"}
NAME_TRIES = 10                 # as the reference: four random bytes rarely collide


class Pod:
    """Two route sockets of one request, each bound for life to its namespace, and the way in for sysctls.
    The one inside is closed with the request."""

    __slots__ = ("host", "inside", "netns_fd", "home")

    def __init__(self, req):
        self.netns_fd, self.home = req.open_netns(), req.host.home
        self.host = req.host.route
        try:
            with self.enter():
                self.inside = wire.open_socket()
            req.opened.append(self.inside)
        except netns.NotNamespace:
            raise CniError(errors.INVALID_NETNS, f'failed to open netns "{req.netns}": a namespace of another kind, '
                           "not a network namespace") from None

    def enter(self):
        """`with pod.enter():` runs its body in the pod's namespace."""
        return netns.inside(self.netns_fd, self.home)


def random_mac():
    """A locally administered unicast MAC. Chosen here, it need not be asked for, and udev leaves it alone."""
    raw = bytearray(posix.urandom(6))
    raw[0] = raw[0] & 0xFE | 0x02
    return bytes(raw)


def random_name():
    return f"veth{posix.urandom(4).hex()}"


def find(sock, name=None, *, index=0):
    """The Link called `name`, or the one with that index; None if there is none, or no link can have that name."""
    if name and ("\0" in name or len(name.encode("utf-8", "replace")) >= uapi.ALTIFNAMSIZ):
        return None
    try:
        return rtnl.first_link(wire.exchange(sock, rtnl.get_link(Batch(), name=name, index=index)))
    except wire.NetlinkError as e:
        if e.errno != ENODEV:
            raise
        return None


def made(sock, name):
    """The Link that was just made. Raises CniError 11 if another program has deleted it."""
    link = find(sock, name)
    if link is None:
        raise CniError(errors.TRY_AGAIN_LATER, f'link "{name}" has vanished', "does another program delete links?")
    return link


def find_inside(pod, name, words):
    """The Link of that name in the pod. Raises CniError with `words` where there is none."""
    link = find(pod.inside, name)
    if link is None:
        raise CniError(errors.INTERNAL, words)
    return link


def on_host(host, name):
    """The Link called `name` on the caller's side, as it is known there; None if there is none."""
    return host.recall(("link", name), lambda: find(host.route, name))


def add_veth(req, pod, undo, *, mtu=0, master=0, mac=None, ipv6=True):
    """A veth pair, the host end up: (host Link, inside Link). One request, its echo tells both indexes.

    Without ipv6 the host end has none; before its peer is up it has sent nothing yet. Raises CniError when the pod
    has an interface of that name, NetlinkError for what else the kernel refuses.
    """
    host_mac, inside_mac = random_mac(), mac or random_mac()
    for _ in range(NAME_TRIES):
        name = random_name()
        batch = rtnl.new_veth(Batch(), name, req.ifname, pod.netns_fd, host_mac=host_mac, peer_mac=inside_mac,
                              mtu=mtu, master=master, what="failed to make veth pair")
        try:
            with undo.request(delete_by_name, pod.host, name):
                host = rtnl.first_link(wire.exchange(pod.host, batch))
        except wire.NetlinkError as e:
            if e.errno != EEXIST:
                raise
            if find(pod.host, name):
                continue                # the random name is taken: another one
            raise CniError(errors.INTERNAL, f'container veth name ("{req.ifname}") peer provided ("{name}") '
                           'already exists') from e
        host = host or made(pod.host, name)     # Linux before 6.2 does not echo
        req.host.offer_ipv6(name, *(("accept_ra", "0") if ipv6 else ("disable_ipv6", "1")))
        inside = rtnl.Link()
        inside.name, inside.index, inside.address = req.ifname, host.peer, inside_mac
        return host, inside
    raise CniError(errors.INTERNAL, f"failed to make veth pair: {NAME_TRIES} random names were all taken")


def delete_by_name(sock, name):
    """Delete a link and wait for it, for the rollback of ADD. A link that is gone is fine."""
    delete_now(sock, rtnl.del_link(Batch(), name=name))


def delete_by_index(sock, index):
    """The same for a link whose name changes."""
    delete_now(sock, rtnl.del_link(Batch(), index=index))


def delete_now(sock, batch):
    try:
        wire.exchange(sock, batch)
    except wire.NetlinkError as e:
        if e.errno != ENODEV:
            raise


def configure(pod, link, result, *, ipv6=True, dad=None, arp_notify=False, ndisc_notify=False, then=None):
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
    with pod.enter():
        watcher = wire.open_socket(groups=(uapi.RTNLGRP_IPV6_IFADDR, uapi.RTNLGRP_LINK))
    try:
        wire.exchange(pod.inside, batch)
        announced.settled(pod.inside, watcher, link)
    finally:
        watcher.close()


def addresses_of(sock, index, families=(uapi.AF_INET, uapi.AF_INET6)):
    """The Addresses of a link, global and link-local alike, as the kernel lists them."""
    found = []
    for family in families:
        for kind, payload in wire.dump(sock, uapi.RTM_GETADDR, rtnl.ifaddrmsg(family, 0, index),
                                       f"list addresses of link {index}"):
            if kind == uapi.RTM_NEWADDR:
                item = rtnl.read_address(payload)
                if item.index == index:         # kernels without strict checking list every link's
                    found.append(item)
    return found


class Pair:
    """A veth pair that an ADD made: index and name of its host end, and the packed addresses that the pod was given."""

    __slots__ = ("index", "name", "ips")

    def __init__(self, index, name, ips):
        self.index, self.name, self.ips = index, name, ips


def remember(req, host, result):
    """A server keeps in mind the pair that an ADD made: its DEL need not look for it, and wait for RTNL twice."""
    if req.host.memory:
        ips = [packed for packed, _ in results.ips_of(result)]
        req.host.memory.keep_pair(pair_key(req), Pair(host.index, host.name, ips))


def pair_key(req):
    return netns.identity(req.open_netns()), req.ifname


def recall_pair(req):
    """The Pair that ADD made, None where it is not known, or is no more. Its name is random: who has that, and the
    index, is no other."""
    pair = req.host.memory.take_pair(pair_key(req)) if req.host.memory else None
    return pair if pair and wire.index_of(pair.name) == pair.index else None


def host_end(req, named):
    """The index of the host's end of the pod's veth pair, which has one of these names. 0 if none or several of them
    are an end of a pair."""
    if req.host.memory:
        try:
            pair = req.host.memory.pairs.get(pair_key(req))
        except CniError:                # the pod's namespace cannot be opened, which is not needed for this
            pair = None
        if pair and pair.name in named:
            return pair.index
    found = [find(req.host.route, name) for name in named if len(name.encode()) < uapi.IFNAMSIZ]
    veths = [link.index for link in found if link and link.kind == "veth"]
    return veths[0] if len(veths) == 1 else 0


def delete_inside(req, *, list_addresses=False):
    """DEL's link: delete CNI_IFNAME in the pod; gone is fine. Returns packed addresses: those that it had, if asked to
    list them, and those that it was given, as far as they are known.

    The host end is what is deleted, where we can be sure that it is the other end of the pair: then nothing of
    ours holds the pod's namespace while the kernel frees the links.
    """
    if req.netns_gone():
        return [], []
    if pair := recall_pair(req):
        req.close()
        announced.delete(req, pair.index, pair.name)
        return pair.ips, pair.ips
    pod = Pod(req)
    link = find(pod.inside, req.ifname)
    if link is None:
        return [], []
    found = [item.packed for item in addresses_of(pod.inside, link.index)] if list_addresses else []
    other = find(pod.host, index=link.peer) if link.kind == "veth" and link.peer_elsewhere and link.peer else None
    if other and other.kind == "veth" and other.peer == link.index and other.peer_elsewhere:
        req.close()
        announced.delete(req, other.index, other.name)
    else:
        with pod.enter():
            watcher = announced.open_watcher()
        req.close()
        announced.delete(req, link.index, link.name, watcher)
    return found, []


def ports(sock, bridge):
    """The number of links on the bridge."""
    found = wire.dump(sock, uapi.RTM_GETLINK, rtnl.ifinfomsg(), "list bridge ports",
                      lambda batch: batch.u32(uapi.IFLA_MASTER, bridge.index))
    return sum(rtnl.read_link(payload).master == bridge.index for _, payload in found)


def interface(link, sandbox=""):
    """A link as an entry of a result's interfaces."""
    entry = {"name": link.name, "mac": link.mac}
    if sandbox:
        entry["sandbox"] = sandbox
    return entry
