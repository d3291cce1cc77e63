"""The bridge itself: made when it is missing, adopted when it is there, given its gateway addresses."""

from errno import EEXIST, ENODEV, EOPNOTSUPP

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, wire
from fastcni.kit import links, vlans
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.config import check_ifname
from fastcni.spec.errors import CniError


def check_name(name):
    try:
        check_ifname(name)
    except CniError as e:
        raise CniError(errors.INVALID_CONFIG, f'bridge "{name}": {e.msg}', e.details) from None


def find(host, name):
    """The link called `name` on the host, None if there is none."""
    return host.recall(("link", name), lambda: links.find(host.route, name))


def ensure(host, conf, undo):
    """The bridge as a Link, up; made if it is missing. A bridge that is there keeps its MTU and its VLAN filtering."""
    sock = host.route
    bridge = find(host, conf.name) or create(sock, conf, undo)
    if bridge.kind != "bridge":
        raise CniError(errors.INTERNAL, f'failed to create bridge "{conf.name}": "{conf.name}" already exists but is '
                       "not a bridge", f'it is {"a " + bridge.kind if bridge.kind else "a physical"} link')
    host.recall(("accept_ra", bridge.index), lambda: host.offer_ipv6(conf.name, "accept_ra", "0"))
    if not bridge.up:
        undo(set_down_unused, sock, conf.name)
    if not bridge.up or (conf.promisc and not bridge.promiscuity):
        promisc = True if conf.promisc and not bridge.promiscuity else None
        wire.exchange(sock, rtnl.set_link(Batch(), bridge.index, up=True, promisc=promisc,
                                          what=f'set bridge "{conf.name}" up'))
    return bridge


def create(sock, conf, undo):
    """A new bridge; another ADD may have been first."""
    batch = rtnl.new_bridge(Batch(), conf.name, mtu=conf.mtu, vlan_filtering=conf.vlans.wanted,
                            what=f'failed to create bridge "{conf.name}": could not add "{conf.name}"')
    try:
        echo = rtnl.first_link(wire.exchange(sock, batch))
    except wire.NetlinkError as e:
        if e.errno == EOPNOTSUPP and conf.vlans.wanted:
            raise vlans.refused(conf.vlans, e) from e
        if e.errno != EEXIST:
            raise
        return links.find(sock, conf.name)
    undo(delete_unused, sock, conf.name)
    return echo if echo and echo.kind else links.find(sock, conf.name)


def set_down_unused(sock, name):
    """The way back of setting the bridge up, unless another pod is on it by now."""
    bridge = links.find(sock, name)
    if bridge and not links.ports(sock, bridge):
        wire.exchange(sock, rtnl.set_link(Batch(), bridge.index, up=False, what=f'set bridge "{name}" down again'))


def delete_unused(sock, name):
    """The way back of create(): delete the bridge unless another pod is on it by now."""
    bridge = links.find(sock, name)
    if bridge and not links.ports(sock, bridge):
        links.delete_by_name(sock, name)


def set_port(sock, host, conf):
    """Port flags that differ from a new port's."""
    if conf.hairpin or conf.isolated:
        what = f'failed to set bridge port flags of "{host.name}"'
        wire.exchange(sock, rtnl.set_bridge_port(Batch(), host.name, hairpin=conf.hairpin, isolated=conf.isolated,
                                                 what=what))


def ensure_address(host, bridge, gateway, prefix, force, undo):
    """The bridge has gateway/prefix, and no conflicting address: any other of IPv4, an overlapping one of IPv6.

    With an address of its own the bridge's MAC is pinned, so that it does not follow its ports' MACs.
    """
    sock, family = host.route, rtnl.family_of(gateway)
    wanted, conflicts = addresses.cidr_text(gateway, prefix), []
    for item in host.recall(("addresses", bridge.index, family),
                            lambda: links.addresses_of(sock, bridge.index, [family])):
        if (item.packed, item.prefix) == (gateway, prefix):
            return
        if len(gateway) == 4 or overlap(item.packed, item.prefix, gateway, prefix):
            conflicts.append(item)
    if conflicts and not force:
        has = ", ".join(addresses.cidr_text(item.packed, item.prefix) for item in conflicts)
        raise CniError(errors.INTERNAL, f'failed to set bridge addr: "{bridge.name}" already has an IP address '
                       f"different from {wanted}", f"it has {has}; forceAddress replaces it")
    batch = Batch()
    for item in conflicts:
        rtnl.del_address(batch, bridge.index, item.packed, item.prefix,
                         what=f'delete {addresses.cidr_text(item.packed, item.prefix)} from "{bridge.name}"')
    broadcast = addresses.broadcast(gateway, prefix) if len(gateway) == 4 and prefix < 31 else None
    rtnl.new_address(batch, bridge.index, gateway, prefix, broadcast=broadcast,
                     what=f'failed to set bridge addr: could not add {wanted} to "{bridge.name}"')
    rtnl.set_link(batch, bridge.index, address=bridge.address, what=f'pin the MAC of "{bridge.name}"')
    undo(restore_addresses, sock, bridge, gateway, prefix, conflicts)
    try:
        wire.exchange(sock, batch)
    except wire.NetlinkError as e:
        if e.errno != EEXIST:           # another ADD was first, with the same address
            raise


def restore_addresses(sock, bridge, gateway, prefix, conflicts):
    """The way back of ensure_address(), while our pod is the only one on the bridge: others count on the address."""
    if links.ports(sock, bridge) > 1:
        return
    batch = rtnl.del_address(Batch(), bridge.index, gateway, prefix, what="take the gateway address back")
    for item in conflicts:
        rtnl.new_address(batch, bridge.index, item.packed, item.prefix, what="put the old address back")
    for e in wire.attempt(sock, batch)[1]:
        if e.errno not in (99, EEXIST, ENODEV):         # EADDRNOTAVAIL: it was never added
            raise e


def overlap(a, a_prefix, b, b_prefix):
    shorter = min(a_prefix, b_prefix)
    return addresses.network(a, shorter) == addresses.network(b, shorter)
