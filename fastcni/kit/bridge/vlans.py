"""Read the bridge plugin's VLAN keys, put pods' ports into VLANs, and make the host's interface in a VLAN."""

from __future__ import annotations

from errno import EEXIST, EOPNOTSUPP, EXFULL

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.bridge import bridges
from fastcni.kit.call.conf import MAX_VID
from fastcni.kit.call.trunk import read_trunk
from fastcni.kit.links import change, find, veth
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.bridge.bridges import Port
    from fastcni.kit.bridge.conf import Conf
    from fastcni.kit.call.mode import Mode
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.spec.config import Section


class Vlans:
    """The VLAN keys of a network.

    vlan      the VLAN of the pod's untagged frames, 0: none
    trunk     the sorted VIDs of vlanTrunk, None without that key
    preserve  preserveDefaultVlan: the port also stays in the bridge's default VLAN
    """

    __slots__ = ("vlan", "trunk", "preserve")

    vlan: int
    trunk: list[int] | None
    preserve: bool

    @property
    def wanted(self) -> bool:
        """Return whether a key needs a bridge with VLAN filtering."""
        return bool(self.vlan or self.trunk is not None)

    def refused(self, e: wire.NetlinkError) -> CniError:
        """Return the CniError for a kernel without VLAN filtering, which answers EOPNOTSUPP."""
        key = f"vlan {self.vlan}" if self.vlan else "vlanTrunk"
        return CniError(errors.UNSUPPORTED_FIELD, f"{key}: {e}", "the kernel lacks CONFIG_BRIDGE_VLAN_FILTERING")


def read(keys: Section) -> Vlans:
    """Read the three keys. Raises CniError 7."""
    found = Vlans()
    found.vlan = keys.integer("vlan")
    found.preserve = keys.flag("preserveDefaultVlan")
    if not 0 <= found.vlan <= MAX_VID:
        raise errors.bad_config(f"invalid VLAN ID {found.vlan} (must be between 0 and {MAX_VID})")
    found.trunk = None
    if keys.has("vlanTrunk"):
        found.trunk = sorted({vid for item in keys.sections("vlanTrunk") for vid in read_trunk(item)})
    return found


def ranges(vids: Iterable[int]) -> list[tuple[int, int]]:
    """Return sorted numbers as ranges: [1, 2, 3, 7] becomes [(1, 3), (7, 7)]."""
    found: list[tuple[int, int]] = []
    for vid in vids:
        if found and found[-1][1] == vid - 1:
            found[-1] = (found[-1][0], vid)
        else:
            found.append((vid, vid))
    return found


def add(req: Request, conf: Conf, link: Port, undo: Undo) -> None:
    """Put a pod's port into its VLANs: untagged into `vlan`, tagged into the VLANs of the trunk. Remove the port from
    the default VLAN.

    Raises CniError 2 if the kernel has no VLAN filtering. Warns if VLAN filtering of the bridge is off.
    """
    bridge, port, keys = link.bridge, link.host, conf.vlans
    if not bridge.vlan_filtering:
        req.warn(f'bridge "{bridge.name}" existed without vlan_filtering: its VLANs do not separate the pods')
    batch = Batch()
    remove_default(batch, bridge, port, keys)
    if keys.trunk:
        rtnl.set_port_vlans(batch, port.index, ranges(keys.trunk),
                            what=f'failed to setup vlan tag on interface "{port.name}"')
    # Without `vlan`, untagged frames belong to VLAN 1. Add this request last: the request for a trunk with the same VID
    # would otherwise make the port tag these frames.
    set_untagged(batch, port, keys.vlan or 1)
    send(req.mode.route, batch, keys)


def remove_default(batch: Batch, bridge: Link, port: Link, keys: Vlans) -> None:
    """Remove the port from the bridge's default VLAN, which each new port gets."""
    if not keys.preserve and bridge.default_pvid:
        set_vid(batch, port, bridge.default_pvid, "remove default vlan", delete=True)


def set_untagged(batch: Batch, port: Link, vid: int) -> None:
    """Make `vid` the VLAN of the port's untagged frames, received and sent."""
    set_vid(batch, port, vid, "setup vlan tag", flags=uapi.BRIDGE_VLAN_INFO_PVID | uapi.BRIDGE_VLAN_INFO_UNTAGGED)


def set_vid(batch: Batch, port: Link, vid: int, step: str, **how: Any) -> None:
    what = f'failed to {step} on interface "{port.name}": {vid}'
    rtnl.set_port_vlans(batch, port.index, [(vid, vid)], what=what, **how)


def send(sock: Socket, batch: Batch, keys: Vlans) -> None:
    """Send requests about VLANs of ports. Raises CniError 2 if the kernel has no VLAN filtering."""
    try:
        wire.exchange(sock, batch)
    except wire.NetlinkError as e:
        if e.errno != EOPNOTSUPP:
            raise
        raise keys.refused(e) from e


def interface_name(bridge: str, vlan: int) -> str:
    """Return the name of the host's interface in a VLAN of a bridge: br0.100."""
    return f"{bridge}.{vlan}"


def ensure_interface(mode: Mode, bridge: Link, keys: Vlans, undo: Undo) -> Link:
    """Return the host's interface in the pod's VLAN, which gets the gateway addresses. Make the interface if it is
    missing.

    The interface is an end of a veth pair, whose other end is a port of the bridge. No DEL deletes the pair. Raises
    CniError 11 if the bridge is full, NetlinkError.
    """
    sock, name = mode.route, interface_name(bridge.name, keys.vlan)
    found = find.host_link(mode, name)
    if found:
        return found
    port_name, port_mac, mac = veth.random_name(), veth.random_mac(), veth.random_mac()
    batch = rtnl.new_veth(Batch(), port_name, name, None, host_mac=port_mac, peer_mac=mac, mtu=bridge.mtu,
                          master=bridge.index, what=f'failed to create vlan interface: could not add "{name}"')
    try:
        with undo.request(delete_unused_interface, sock, bridge, name):
            wire.exchange(sock, batch)
    except wire.NetlinkError as e:
        if e.errno == EXFULL:
            raise bridges.full(bridge.name) from e
        found = find.link(sock, name) if e.errno == EEXIST else None
        if found is None:
            raise
        return found                    # another ADD has made the interface
    port, found = find.new_link(sock, port_name), find.new_link(sock, name)
    for each in (port_name, name):      # see bridges.refuse_router_advertisements()
        mode.offer_ipv6(each, "accept_ra", "0")
    batch = Batch()
    remove_default(batch, bridge, port, keys)
    set_untagged(batch, port, keys.vlan)
    rtnl.set_link(batch, found.index, up=True, what=f'set "{name}" up')
    send(sock, batch, keys)
    return found


def delete_unused_interface(sock: Socket, bridge: Link, name: str) -> None:
    """Delete an interface that ensure_interface() made, unless the bridge has more ports than the interface's and the
    failed pod's."""
    if find.port_count(sock, bridge) <= 2:
        change.delete_by_name(sock, name)
