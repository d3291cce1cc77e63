"""Make the bridge or adopt an existing bridge, and add pods' ports."""

from __future__ import annotations

from errno import EEXIST, EOPNOTSUPP, EXFULL

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.call.pod import PodLink
from fastcni.kit.links import announced, change, find, veth
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.bridge.conf import Conf
    from fastcni.kit.call.mode import Mode
    from fastcni.kit.call.pod import Pod
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

MAX_PORTS = 1023                # net/bridge/br_private.h: BR_PORT_BITS is 10, and no port has the number 0


class Port(PodLink):
    """The pod's veth pair, whose host end is a port of `bridge`.

    mac             the MAC of the pod's link, None: a random MAC
    vlan_interface  the host's interface in the pod's VLAN, if the gateway's addresses are on it
    """

    __slots__ = ("bridge", "mac", "vlan_interface", "is_up")

    def __init__(self, pod: Pod, bridge: Link, mac: bytes | None = None) -> None:
        self.pod, self.result, self.ips = pod, {}, []
        self.bridge, self.mac, self.is_up = bridge, mac, False
        self.vlan_interface: Link | None = None

    def wait_until_up(self) -> None:
        """Wait until the bridge forwards to the port. Raises CniError, see announced.port_up()."""
        if not self.is_up:
            announced.port_up(self.pod.host, self.host.index, self.bridge.index)
            self.is_up = True


def ensure(mode: Mode, conf: Conf, undo: Undo) -> Link:
    """Return the bridge, which is up. Make the bridge if it is missing. An existing bridge keeps its MAC, MTU and VLAN
    filtering.

    Raises CniError if a link of another kind has the name, and CniError 11 if another program deleted the bridge.
    """
    sock = mode.route
    bridge = find.host_link(mode, conf.name) or create(sock, conf, undo)
    if bridge is None:
        raise CniError(errors.TRY_AGAIN_LATER, f'bridge "{conf.name}" was deleted while the pod was added')
    check_kind(bridge, errors.INTERNAL, f'failed to create bridge "{conf.name}": ')
    refuse_router_advertisements(mode, bridge)
    if conf.mac_check:
        learn_from_checked_frames(mode, bridge)
    promisc = conf.promisc and not promiscuous(bridge)
    if promisc or not bridge.up:
        undo(restore_unused, sock, bridge)
        change.link(sock, bridge.index, up=True, promisc=promisc or None, what=f'set bridge "{conf.name}" up')
    return bridge


def check_kind(bridge: Link, code: int, message: str = "") -> None:
    """Raise CniError if the link is not a bridge."""
    if bridge.kind != "bridge":
        raise CniError(code, f'{message}"{bridge.name}" already exists but is not a bridge')


def promiscuous(bridge: Link) -> bool:
    """Return whether the bridge has the flag promisc. (The link's promiscuity counter also counts capturing
    programs.)"""
    return bool(bridge.flags & uapi.IFF_PROMISC)


def refuse_router_advertisements(mode: Mode, bridge: Link) -> None:
    """Set the bridge's accept_ra to 0, so that no pod can change the host's routes. If the value is already 0, the mode
    caches this value while the bridge exists."""
    name = bridge.name
    refused = mode.recall(("accept_ra", bridge.index), lambda: mode.read_ipv6(name, "accept_ra") in ("0", "") or None)
    if not refused:
        mode.offer_ipv6(name, "accept_ra", "0")


def learn_from_checked_frames(mode: Mode, bridge: Link) -> None:
    """Make the bridge learn no MACs from frames to 01:80:c2:00:00:0X. Some of these frames, such as LLDP's, pass no
    nftables hook. If the bridge learned from such frames, a pod could send one with another pod's MAC, and receive that
    pod's traffic. Raises NetlinkError."""
    mode.recall(("no_linklocal_learn", bridge.index), lambda: bool(wire.exchange(
        mode.route, rtnl.learn_no_link_local(Batch(), bridge.index, what=f'set bridge "{bridge.name}"'))) or True)


def create(sock: Socket, conf: Conf, undo: Undo) -> Link | None:
    """Make the bridge and return its Link. If another ADD made the bridge first, return the Link of that bridge, or
    None if that bridge no longer exists. The bridge gets a fixed MAC, so that it does not take the MAC of a port.

    Raises CniError 2 if `vlan` is set and the kernel has no VLAN filtering.
    """
    batch = rtnl.new_bridge(Batch(), conf.name, address=veth.random_mac(), mtu=conf.mtu,
                            vlan_filtering=conf.vlans.wanted, snooping=not conf.unflooded,
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


def restore_unused(sock: Socket, bridge: Link) -> None:
    """Restore the bridge's flags up and promisc from `bridge`, unless another pod has a port on the bridge."""
    if find.link(sock, index=bridge.index) and not find.port_count(sock, bridge):
        change.link(sock, bridge.index, up=bridge.up, promisc=promiscuous(bridge),
                    what=f'set bridge "{bridge.name}" as it was')


def delete_unused(sock: Socket, name: str) -> None:
    """Delete a bridge that create() made, unless another pod has a port on the bridge."""
    bridge = find.link(sock, name)
    if bridge and not find.port_count(sock, bridge):
        change.delete_by_name(sock, name)


def add_port(req: Request, conf: Conf, port: Port, undo: Undo) -> None:
    """Make the pod's veth pair, whose host end is a port of the bridge.

    With disableFlooding the host end has no IPv6: the kernel's work for MLD and for routes to link-local addresses
    grows with each port of the bridge. Raises CniError 11 if the bridge is full (1,023 ports), and the exceptions of
    veth.add().
    """
    try:
        port.host, port.inside = veth.add(req, port.pod, undo, mtu=conf.mtu, master=port.bridge.index, mac=port.mac,
                                          ipv6=conf.ipv6 and not conf.unflooded)
    except wire.NetlinkError as e:
        if e.errno != EXFULL:
            raise
        raise full(port.bridge.name) from e
    if conf.hairpin or conf.isolated:           # a new port has neither flag
        what = f'failed to set bridge port flags of "{port.host.name}"'
        flags = {uapi.IFLA_BRPORT_MODE: conf.hairpin, uapi.IFLA_BRPORT_ISOLATED: conf.isolated}
        wire.exchange(port.pod.host, rtnl.set_bridge_port(Batch(), port.host.name, flags, what=what))


def full(name: str) -> CniError:
    """Return the CniError 11 for a bridge with the highest possible number of ports."""
    return CniError(errors.TRY_AGAIN_LATER, f'bridge "{name}" is full: a Linux bridge has {MAX_PORTS:,} ports',
                    "each pod takes one, and the kernel has no more: delete pods, give the network another bridge, "
                    "or use ptp, which has no bridge")


def status(req: Request, name: str) -> None:
    """For STATUS: raise CniError 50 if a link of another kind has the name. A missing bridge is no error, because ADD
    makes it. A full bridge is only a warning, because its pods work."""
    bridge = find.host_link(req.mode, name)
    if bridge is None:
        return
    check_kind(bridge, errors.PLUGIN_NOT_AVAILABLE)
    if find.port_count(req.mode.route, bridge) >= MAX_PORTS:
        req.warn(str(full(name)))
