"""Examine the hops of a packet that the node does not route: links on a parent (macvlan, ipvlan, VLAN), and the layer-2
networks of both pods.

Each function takes a Path and returns the Fault of its hop, or None.
"""

from __future__ import annotations

from fastcni.kernel import kinds, uapi
from fastcni.kit.links import find
from fastcni.why.ends import BRIDGE, OVS, POD
from fastcni.why.path import Path
from fastcni.why.report import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.why.ends import End

NO_CARRIER = ("not-present", "down", "lower-layer-down")       # operstates in which a link sends nothing
# {kind of links that exchange no packet with their parent: type and mode of a link by which the node reaches them}
HIDDEN = {"macvlan": "macvlan mode bridge", "macvtap": "macvlan mode bridge", "ipvlan": "ipvlan mode l2",
          "ipvtap": "ipvlan mode l2"}
PASSES = {"vepa": "sends all packets to the switch behind {}, which has to return them (hairpin)",
          "private": "exchanges no packet with other pods on {}", "passthru": "uses {} alone"}
SHIM = "shim0"                              # the name of a link by which the node would reach the pod


def parent(path: Path, end: End) -> Fault | None:
    """Return the Fault if the parent of the pod's link is down or has no carrier."""
    hop = "target parent link" if end is path.target else "parent link"
    if end.parent is None or end.link is None:
        return None
    what = f"{end.parent.name}, the parent of {end.ifname} of {end.name},"
    if not end.parent.up:
        return Fault(hop, f"{what} is down", f"{end.parent.name}: state DOWN", do=f"ip link set {end.parent.name} up")
    state = uapi.OPERSTATES[end.parent.operstate]
    if state in NO_CARRIER:
        return Fault(hop, f"{what} has no carrier", f"{end.parent.name}: operstate {state}",
                     do=f"check the cable or the switch of {end.parent.name}: `ethtool {end.parent.name}`")
    return None


def own_parent(path: Path) -> Fault | None:
    """Return the Fault if the source's next hop is an address of the node on a link out of reach of the pod's link."""
    if path.source.parent is None or not path.to_node:
        return None
    by = path.arrives_by
    return None if by and by.kind in HIDDEN else not_to_parent(path, "parent link", path.source)


def target_parent(path: Path) -> Fault | None:
    """Return the Fault if the target's parent is down, or if the node itself sends to the target by this parent."""
    end, by = path.target, None if path.switch else path.leaves_by()
    if found := parent(path, end):
        return found
    if end.parent is None or by is None or by.index != end.parent.index:
        return None
    return not_to_parent(path, "target parent link", end)


def not_to_parent(path: Path, hop: str, end: End) -> Fault | None:
    """Return the Fault of packets between a pod's link and the node, which has the parent of the link. None for a VLAN,
    whose packets reach the parent."""
    if end.link is None or end.parent is None or end.link.kind not in HIDDEN:
        return None
    own = HIDDEN[end.link.kind]
    there = next((it for it in find.all_links(path.node) if it.kind == own.split(" ")[0]
                  and it.peer == end.parent.index and not it.peer_elsewhere), None)
    name = there.name if there else SHIM
    make = "" if there else f"ip link add {name} link {end.parent.name} type {own} && ip link set {name} up && "
    return Fault(hop, f"{end.ifname} of {end.name} is a {end.link.kind} on {end.parent.name}: the kernel passes no "
                 "packets between such a link and the node that has its parent",
                 f"{end.ifname}: {end.link.kind} on {end.parent.name}",
                 do=f"{make}ip route replace {end.text} dev {name}")


def modes(path: Path) -> Fault | None:
    """Return the Fault of a macvlan whose mode lets no packets pass between pods of one parent."""
    for end in (path.source, path.target) if path.direct else ():
        mode = kinds.macvlan_mode(end.link) if end.link and end.link.kind == "macvlan" else ""
        if mode in PASSES:
            assert end.parent
            return Fault("macvlan mode", f"{end.ifname} of {end.name} is a macvlan of mode {mode}, which "
                         + PASSES[mode].format(end.parent.name), f"{end.ifname}: macvlan mode {mode}",
                         do=f"{end.enter}ip link set {end.ifname} type macvlan mode bridge")
    return None


def other_network(path: Path) -> Fault | None:
    """Return the Fault if the pods are in different layer-2 networks, although their networks have the same
    subnet."""
    own, other = path.switch, path.target.switch
    if own is None or own == other or path.pod_way.gateway:
        return None
    source, target = path.source, path.target
    where = f"on {other}" if other else "behind a route of this node"
    return Fault("layer-2 network", f"{source.name} asks for the MAC of {target.text} on {own}, and {target.name} is "
                 f"{where}: the networks {source.network} and {target.network} have the same subnet",
                 f"{source.network}: on {own}; {target.network}: {where}",
                 do=f"give {source.network} and {target.network} different subnets and a gateway, delete the pods and "
                    "add them again")


def no_gateway(path: Path) -> Fault | None:
    """Return the Fault if the node has no address in the target's layer-2 network."""
    end = path.target
    if end.kind != POD or end.switch is None or (end.switch.kind == BRIDGE and end.has_gateway) or (
            end.switch.kind not in (BRIDGE, OVS)):
        return None
    do = (f'set "isGateway": true in the configuration of {end.network}, delete the pod and add it again'
          if end.switch.kind == BRIDGE else
          f"ask from a pod of {end.network}, or give this node a port in its VLAN, with an address: `ovs-vsctl "
          f"add-port {end.switch.name} gw0 -- set interface gw0 type=internal`")
    return Fault("host route", f"this node has no address in the network {end.network}, so only hosts on {end.switch} "
                 f"reach {end.name}", str(end.switch), do=do)
