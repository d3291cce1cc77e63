"""The bridge itself: made when it is missing, adopted when it is there, given ports and gateway addresses."""

from errno import EADDRNOTAVAIL, EEXIST, ENODEV, EOPNOTSUPP, EXFULL

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.call.conf import read_requested_mac
from fastcni.kit.links import change, find, veth
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.config import check_ifname
from fastcni.spec.errors import CniError

MOST_PORTS = 1023               # net/bridge/br_private.h: BR_PORT_BITS 10, and no port has number 0


def check_name(name):
    try:
        check_ifname(name)
    except CniError as e:
        raise CniError(errors.INVALID_CONFIG, f'bridge "{name}": {e.msg}', e.details) from None


def ensure(host, conf, undo):
    """The bridge as a Link, up; made if it is missing. One that is there keeps its MAC, its MTU and its VLAN filtering.

    Raises CniError where the name is another link's, and with code 11 when the bridge went away under us.
    """
    sock = host.route
    bridge = find.host_link(host, conf.name) or create(sock, conf, undo)
    if bridge is None:
        raise CniError(errors.TRY_AGAIN_LATER, f'bridge "{conf.name}" was deleted while the pod was added')
    check_kind(bridge, errors.INTERNAL, f'failed to create bridge "{conf.name}": ')
    host.recall(("accept_ra", bridge.index), lambda: host.offer_ipv6(conf.name, "accept_ra", "0"))
    promisc = conf.promisc and not promiscuous(bridge)
    if promisc or not bridge.up:
        undo(set_back_unused, sock, bridge)
        wire.exchange(sock, rtnl.set_link(Batch(), bridge.index, up=True, promisc=promisc or None,
                                          what=f'set bridge "{conf.name}" up'))
    return bridge


def check_kind(bridge, code, words=""):
    if bridge.kind != "bridge":
        raise CniError(code, f'{words}"{bridge.name}" already exists but is not a bridge')


def promiscuous(bridge):
    """Somebody set it so; its promiscuity also counts those who capture on it just now."""
    return bool(bridge.flags & uapi.IFF_PROMISC)


def create(sock, conf, undo):
    """A new bridge with a MAC of its own, which no port's can change; another ADD may have been first."""
    batch = rtnl.new_bridge(Batch(), conf.name, address=veth.random_mac(), mtu=conf.mtu,
                            vlan_filtering=conf.vlans.wanted,
                            what=f'failed to create bridge "{conf.name}": could not add "{conf.name}"')
    try:
        with undo.request(delete_unused, sock, conf.name):
            echo = rtnl.first_link(wire.exchange(sock, batch))
    except wire.NetlinkError as e:
        if e.errno == EOPNOTSUPP and conf.vlans.wanted:
            raise conf.vlans.refused(e) from e
        if e.errno != EEXIST:
            raise
        return find.link(sock, conf.name)
    return echo if echo and echo.kind else find.link(sock, conf.name)


def set_back_unused(sock, bridge):
    """The way back of setting the bridge up and promiscuous, unless another pod is on it by now."""
    if find.link(sock, index=bridge.index) and not find.port_count(sock, bridge):
        wire.exchange(sock, rtnl.set_link(Batch(), bridge.index, up=bridge.up, promisc=promiscuous(bridge),
                                          what=f'set bridge "{bridge.name}" as it was'))


def delete_unused(sock, name):
    """The rollback of create(): delete the bridge unless another pod is on it by now."""
    bridge = find.link(sock, name)
    if bridge and not find.port_count(sock, bridge):
        change.delete_by_name(sock, name)


def add_port(req, pod, bridge, conf, undo):
    """The pod's veth pair, its host end on the bridge: (host Link, inside Link). CniError 11 says that it is full."""
    try:
        host, inside = veth.add(req, pod, undo, mtu=conf.mtu, master=bridge.index, mac=read_requested_mac(req),
                                     ipv6=conf.ipv6)
    except wire.NetlinkError as e:
        if e.errno != EXFULL:
            raise
        raise full(bridge.name, errors.TRY_AGAIN_LATER) from e
    if conf.hairpin or conf.isolated:           # a new port has neither
        what = f'failed to set bridge port flags of "{host.name}"'
        wire.exchange(pod.host, rtnl.set_bridge_port(Batch(), host.name, hairpin=conf.hairpin, isolated=conf.isolated,
                                                     what=what))
    return host, inside


def full(name, code):
    return CniError(code, f'bridge "{name}" is full: a Linux bridge has {MOST_PORTS:,} ports',
                    "each pod takes one, and the kernel has no more: delete pods, or give the network another bridge")


def status(req, name):
    """STATUS: a link of that name is a bridge. One that is missing is fine, ADD makes it. A full one is a warning: its
    pods have their network. Raises CniError 50."""
    bridge = find.host_link(req.host, name)
    if bridge is None:
        return
    check_kind(bridge, errors.PLUGIN_NOT_AVAILABLE)
    if find.port_count(req.host.route, bridge) >= MOST_PORTS:
        req.warn(str(full(name, errors.TRY_AGAIN_LATER)))


def ensure_addresses(host, bridge, leg, gateways, conf, undo):
    """The bridge, or its leg in a VLAN where there is one, has all `gateways`, (packed, prefix), and no conflicting
    address: any other of IPv4, an overlapping one of IPv6.

    With an address it gets, its MAC is pinned: that of a bridge made by somebody else may follow its ports' MACs.
    """
    sock, link = host.route, leg or bridge
    missing, conflicts = compare(host, link, gateways)
    if conflicts and not conf.force_address:
        wanted = next(iter(conflicts.values()))
        raise CniError(errors.INTERNAL, f'failed to set bridge addr: "{link.name}" already has an IP address '
                       f"different from {addresses.cidr_text(*wanted)}")
    if not missing:
        return
    batch = Batch()
    for packed, prefix in conflicts:
        rtnl.del_address(batch, link.index, packed, prefix,
                         what=f'delete {addresses.cidr_text(packed, prefix)} from "{link.name}"')
    for packed, prefix in missing:
        broadcast = addresses.broadcast(packed, prefix) if len(packed) == 4 and prefix < 31 else None
        rtnl.new_address(batch, link.index, packed, prefix, broadcast=broadcast, nodad=not conf.enable_dad,
                         what=f"failed to set bridge addr: could not add {addresses.cidr_text(packed, prefix)} to "
                              f'"{link.name}"')
    rtnl.set_link(batch, link.index, address=link.address, what=f'pin the MAC of "{link.name}"')
    undo(restore_addresses, sock, bridge, leg, missing, conflicts)
    for e in wire.attempt(sock, batch)[1]:
        # Another ADD was first with the same address; or one that goes is secondary and went with its primary.
        if e.errno not in (EEXIST, EADDRNOTAVAIL):
            raise e


def compare(host, link, gateways):
    """([those of `gateways` that the link lacks], {an address in the way: the gateway that it is in the way of})."""
    missing, conflicts = [], {}
    for family in dict.fromkeys(rtnl.family_of(packed) for packed, _ in gateways):
        found = host.recall(("addresses", link.index, family),
                            lambda: find.addresses(host.route, link.index, [family]))   # noqa: B023 - asked here
        present = [(item.packed, item.prefix) for item in found]
        new = [each for each in gateways if rtnl.family_of(each[0]) == family and each not in present]
        missing += new
        for other in present:
            hit = next((each for each in new if family == uapi.AF_INET or overlap(*other, *each)), None)
            if hit and other not in gateways:
                conflicts[other] = hit
    return missing, conflicts


def restore_addresses(sock, bridge, leg, added, deleted):
    """The way back of ensure_addresses(), while our pod is the only one on the bridge: others count on them."""
    if find.port_count(sock, bridge) > (2 if leg else 1):
        return
    batch, link = Batch(), leg or bridge
    for packed, prefix in added:
        rtnl.del_address(batch, link.index, packed, prefix, what="take the gateway address back")
    for packed, prefix in deleted:
        rtnl.new_address(batch, link.index, packed, prefix, what="put the old address back")
    for e in wire.attempt(sock, batch)[1]:
        if e.errno not in (EADDRNOTAVAIL, EEXIST, ENODEV):      # the first: it was never added
            raise e


def overlap(a, a_prefix, b, b_prefix):
    shorter = min(a_prefix, b_prefix)
    return addresses.network(a, shorter) == addresses.network(b, shorter)
