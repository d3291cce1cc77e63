"""The bridge's VLAN keys: vlan, vlanTrunk, preserveDefaultVlan. What they say, and the ports that have it."""

from errno import EEXIST, EOPNOTSUPP, EXFULL

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.links import bridges, change, find, veth
from fastcni.spec import errors
from fastcni.spec.errors import CniError

LAST = 4094


class Vlans:
    """vlan (0: untagged), trunk (sorted VIDs, or None without vlanTrunk), preserve; wanted says that any is set."""

    __slots__ = ("vlan", "trunk", "preserve")

    @property
    def wanted(self):
        return bool(self.vlan or self.trunk is not None)

    @property
    def on_port(self):
        return bool(self.vlan or self.trunk)

    def refused(self, e):
        """The CniError for a kernel that says EOPNOTSUPP."""
        words = f"vlan {self.vlan}" if self.vlan else "vlanTrunk"
        return CniError(errors.UNSUPPORTED_FIELD, f"{words}: {e}", "the kernel lacks CONFIG_BRIDGE_VLAN_FILTERING")


def bad(text):
    return CniError(errors.INVALID_CONFIG, text)


def read(conf):
    keys = Vlans()
    keys.vlan = conf.integer("vlan")
    keys.preserve = conf.flag("preserveDefaultVlan")
    if not 0 <= keys.vlan <= LAST:
        raise bad(f"invalid VLAN ID {keys.vlan} (must be between 0 and {LAST})")
    keys.trunk = None
    if conf.has("vlanTrunk"):
        keys.trunk = sorted({vid for item in conf.sections("vlanTrunk") for vid in read_trunk(item)})
    return keys


def read_trunk(item):
    """The VIDs of one entry of vlanTrunk: minID to maxID, and id."""
    found = set()
    if item.has("minID") != item.has("maxID"):
        missing = "maxID" if item.has("minID") else "minID"
        raise bad(f"minID and maxID should be configured simultaneously, {missing} is missing")
    for key, words in (("minID", "trunk minID"), ("maxID", "trunk maxID"), ("id", "trunk id")):
        if item.has(key) and not 1 <= item.integer(key) <= LAST:
            raise bad(f"incorrect {words} parameter: {item.integer(key)}")
    if item.has("minID"):
        low, high = item.integer("minID"), item.integer("maxID")
        if low > high:
            raise bad(f"minID is greater than maxID in trunk parameter: {low} > {high}")
        found.update(range(low, high + 1))
    if item.has("id"):
        found.add(item.integer("id"))
    return found


def ranges(vids):
    """[1, 2, 3, 7] as [(1, 3), (7, 7)]."""
    found = []
    for vid in vids:
        if found and found[-1][1] == vid - 1:
            found[-1] = (found[-1][0], vid)
        else:
            found.append((vid, vid))
    return found


def set_port(req, bridge, port, keys):
    """A pod's port: its VLAN untagged, the trunk's tagged, and not the one that every new port gets."""
    if not keys.on_port:
        return
    if not bridge.vlan_filtering:
        req.warn(f'bridge "{bridge.name}" was there without vlan_filtering: its VLANs keep nobody apart')
    batch = Batch()
    drop_default(batch, bridge, port, keys)
    if keys.trunk:
        rtnl.set_port_vlans(batch, port.index, ranges(keys.trunk),
                            what=f'failed to setup vlan tag on interface "{port.name}"')
    # With a trunk alone, what comes untagged is VLAN 1. Last: among the trunk's, it would be a tagged one.
    untagged(batch, port, keys.vlan or 1)
    send(req.host.route, batch, keys)


def drop_default(batch, bridge, port, keys):
    if not keys.preserve and bridge.default_pvid:
        only(batch, port, bridge.default_pvid, "remove default vlan", delete=True)


def untagged(batch, port, vid):
    only(batch, port, vid, "setup vlan tag", flags=uapi.BRIDGE_VLAN_INFO_PVID | uapi.BRIDGE_VLAN_INFO_UNTAGGED)


def only(batch, port, vid, words, **how):
    what = f'failed to {words} on interface "{port.name}": {vid}'
    rtnl.set_port_vlans(batch, port.index, [(vid, vid)], what=what, **how)


def send(sock, batch, keys):
    try:
        wire.exchange(sock, batch)
    except wire.NetlinkError as e:
        if e.errno != EOPNOTSUPP:
            raise
        raise keys.refused(e) from e


def leg_name(bridge, vlan):
    return f"{bridge}.{vlan}"


def ensure_leg(host, bridge, keys, undo):
    """The host's own foot in a VLAN, <bridge>.<vlan>: one end of a veth pair, the other a port of the bridge. It gets
    the gateway addresses. Made once, never deleted."""
    sock, name = host.route, leg_name(bridge.name, keys.vlan)
    leg = find.host_link(host, name)
    if leg:
        return leg
    port, port_mac, leg_mac = veth.random_name(), veth.random_mac(), veth.random_mac()
    batch = rtnl.new_veth(Batch(), port, name, None, host_mac=port_mac, peer_mac=leg_mac, mtu=bridge.mtu,
                          master=bridge.index, what=f'failed to create vlan interface: could not add "{name}"')
    try:
        with undo.request(delete_unused_leg, sock, bridge, name):
            wire.exchange(sock, batch)
    except wire.NetlinkError as e:
        if e.errno == EXFULL:
            raise bridges.full(bridge.name, errors.TRY_AGAIN_LATER) from e
        leg = find.link(sock, name) if e.errno == EEXIST else None
        if leg is None:
            raise
        return leg                      # another ADD was first
    end, leg = find.new_link(sock, port), find.new_link(sock, name)
    for each in (port, name):           # as on the bridge: no pod tells the host about routers
        host.offer_ipv6(each, "accept_ra", "0")
    batch = Batch()
    drop_default(batch, bridge, end, keys)
    untagged(batch, end, keys.vlan)
    rtnl.set_link(batch, leg.index, up=True, what=f'set "{name}" up')
    send(sock, batch, keys)
    return leg


def delete_unused_leg(sock, bridge, name):
    """The rollback of ensure_leg(), while only our pod and the leg are on the bridge."""
    if find.port_count(sock, bridge) <= 2:
        change.delete_by_name(sock, name)
