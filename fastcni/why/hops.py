"""List the hops of a connection in one table, in the order of the packet's path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fastcni.why import answers, firewalls, layer2, links, openvswitch, routes
from fastcni.why.ends import BRIDGE, ITSELF, NODE, OUTSIDE, OVS, PARENT, POD, End
from fastcni.why.path import Path
from fastcni.why.report import Fault
from fastcni.why.spy import (
    ACCEPTED,
    ARRIVED,
    BACK,
    BRIDGED,
    DELIVERED,
    FILTERED,
    LEFT,
    ROUTED,
    ROUTING,
    SENT,
)

ALWAYS = 1000                           # a progress that no packet reaches: the hop is always examined


@dataclass(frozen=True, slots=True)
class Hop:
    """A hop. name: as docs/why.md lists it. passed: if the packet's progress is at least this, the packet passed the
    hop. look(path): returns the hop's Fault, or None. sources, targets: the kinds of ends with which the hop exists.
    when(path): returns whether the path has the hop."""

    name: str
    passed: int
    look: Callable[[Path], Fault | None]
    sources: tuple[str, ...] = (POD, NODE, OUTSIDE)
    targets: tuple[str, ...] = (POD, NODE, OUTSIDE)
    when: Callable[[Path], bool] = lambda path: True


def nothing(path: Path) -> Fault | None:
    """Return None. Faults of this hop show only in the trace."""
    return None


def of_source(look: Callable[[Path, End], Fault | None]) -> Callable[[Path], Fault | None]:
    return lambda path: look(path, path.source)


def of_target(look: Callable[[Path, End], Fault | None]) -> Callable[[Path], Fault | None]:
    return lambda path: look(path, path.target)


def at_hook(*hooks: str, stage: int, reply: bool = False) -> Callable[[Path], Fault | None]:
    """Return a function that examines legacy iptables in these hooks, if the packet was last seen at `stage`, before
    the hooks' last chains. reply: examine the answer instead of the packet."""
    def look(path: Path) -> Fault | None:
        if path.progress != stage + (BACK if reply else 0):
            return None
        return next((found for hook in hooks if (found := firewalls.by_counters(path, hook, reply=reply))), None)

    return look


def when_back(look: Callable[..., Fault | None], stage: int) -> Callable[[Path], Fault | None]:
    """Return a function that examines the way back, if the answer was last seen at `stage`."""
    return lambda path: look(path, reply=True) if path.progress == BACK + stage else None


def routed(path: Path) -> bool:
    """Return whether the packet takes the routes of the node."""
    return path.switch is None


def switched(path: Path) -> bool:
    """Return whether the packet stays in the layer-2 network of the source pod, without a route of the node."""
    return path.switch is not None


def seen_by_node(path: Path) -> bool:
    """Return whether the packet passes chains of the node, because the node routes it or a Linux bridge forwards it."""
    return path.switch is None or path.switch.kind == BRIDGE


def source_on(*kinds: str) -> Callable[[Path], bool]:
    return lambda path: path.source.switch is not None and path.source.switch.kind in kinds


def target_on(*kinds: str) -> Callable[[Path], bool]:
    return lambda path: path.target.switch is not None and path.target.switch.kind in kinds


def with_veth(path: Path) -> bool:
    return path.source.switch is None or path.source.switch.kind in (BRIDGE, OVS)


def target_with_veth(path: Path) -> bool:
    return path.target.switch is None or path.target.switch.kind in (BRIDGE, OVS)


def both_on_ovs(path: Path) -> bool:
    return path.direct and source_on(OVS)(path)


HOPS = (
    Hop("pod link", SENT, of_source(links.pod_link), (POD,)),
    Hop("pod link", ACCEPTED, links.loopback, (POD,), (ITSELF,)),
    Hop("pod address", ALWAYS, of_source(links.pod_address), (POD,)),
    Hop("pod route", ARRIVED, routes.pod_route, (POD,)),
    Hop("pod source", ALWAYS, routes.pod_source, (POD,)),
    Hop("pod firewall", SENT, nothing, (POD,), (POD, NODE, OUTSIDE, ITSELF)),
    Hop("veth", ARRIVED, of_source(links.veth), (POD,), when=with_veth),
    Hop("ovs port", DELIVERED, of_source(openvswitch.port), (POD,), when=source_on(OVS)),
    Hop("parent link", DELIVERED, of_source(layer2.parent), (POD,), when=source_on(PARENT)),
    Hop("parent link", ACCEPTED, layer2.own_parent, (POD,), when=source_on(PARENT)),
    Hop("layer-2 network", DELIVERED, layer2.other_network, (POD,), (POD,), when=switched),
    Hop("macvlan mode", DELIVERED, layer2.modes, (POD,), (POD,), when=source_on(PARENT)),
    Hop("bridge port", ALWAYS, of_source(links.bridge_port), (POD,), when=source_on(BRIDGE)),
    Hop("bridge", ROUTING, of_source(links.bridge_up), (POD,), when=source_on(BRIDGE)),
    Hop("bridge VLAN", ROUTING, of_source(links.vlan), (POD,), when=source_on(BRIDGE)),
    Hop("gateway address", ROUTING, links.gateway, (POD,), when=routed),
    Hop("bridge port", FILTERED, links.isolated, (POD,), (POD,), when=source_on(BRIDGE)),
    Hop("bridge port", ALWAYS, links.hairpin, (POD,), (POD,), when=source_on(BRIDGE)),
    Hop("ARP chains", ARRIVED, nothing, (POD,), when=with_veth),
    Hop("netdev chains", BRIDGED, nothing, (POD,), when=with_veth),
    Hop("bridge chains", ROUTING, nothing, (POD,), when=source_on(BRIDGE)),
    Hop("output chains", FILTERED, at_hook("output", stage=ROUTED), (NODE,), when=routed),
    Hop("conntrack", ROUTED, answers.conntrack_full, when=seen_by_node),
    Hop("prerouting chains", ROUTING, at_hook("prerouting", stage=BRIDGED), (POD, OUTSIDE), when=seen_by_node),
    Hop("forwarding", ROUTED, routes.forwarding, (POD, OUTSIDE), (POD, OUTSIDE), when=routed),
    Hop("rp_filter", ROUTED, routes.rp_filter, (POD, OUTSIDE), when=routed),
    Hop("host route", ALWAYS, routes.host_route, when=routed),
    Hop("forward chains", FILTERED, at_hook("forward", stage=ROUTED), (POD, OUTSIDE), (POD, OUTSIDE),
        when=seen_by_node),
    Hop("input chains", FILTERED, at_hook("input", stage=ROUTED), (POD, OUTSIDE), (NODE,), when=routed),
    Hop("policy", FILTERED, nothing, when=seen_by_node),
    Hop("postrouting chains", LEFT, at_hook("postrouting", stage=FILTERED), targets=(POD, OUTSIDE), when=seen_by_node),
    Hop("NAT", ALWAYS, answers.destination_nat, when=routed),
    Hop("bridge FDB", DELIVERED, links.fdb, targets=(POD,), when=target_on(BRIDGE)),
    Hop("target link", DELIVERED, of_target(links.pod_link), targets=(POD,)),
    Hop("target veth", DELIVERED, of_target(links.veth), targets=(POD,), when=target_with_veth),
    Hop("target ovs port", DELIVERED, of_target(openvswitch.port), targets=(POD,), when=target_on(OVS)),
    Hop("target parent link", DELIVERED, layer2.target_parent, targets=(POD,), when=target_on(PARENT)),
    Hop("target bridge port", ALWAYS, of_target(links.bridge_port), targets=(POD,), when=target_on(BRIDGE)),
    Hop("target bridge", DELIVERED, of_target(links.bridge_up), targets=(POD,), when=target_on(BRIDGE)),
    Hop("target bridge VLAN", DELIVERED, of_target(links.vlan), targets=(POD,), when=target_on(BRIDGE)),
    Hop("target address", ACCEPTED, of_target(links.pod_address), targets=(POD,)),
    Hop("ovs VLAN", DELIVERED, openvswitch.vlan, (POD,), (POD,), when=both_on_ovs),
    Hop("OpenFlow rules", DELIVERED, openvswitch.rules, (POD,), (POD,), when=both_on_ovs),
    Hop("neighbour", ALWAYS, links.pod_neighbour, (POD,)),
    Hop("tc", ARRIVED, links.tc, (POD,), when=with_veth),
    Hop("node neighbour", DELIVERED, links.target_neighbour, targets=(POD, OUTSIDE), when=routed),
    Hop("target firewall", ACCEPTED, nothing, targets=(POD,)),
    Hop("listening socket", BACK + SENT, answers.listening, targets=(POD, NODE, ITSELF)),
    Hop("NAT", BACK, answers.source_nat, (POD,), (OUTSIDE,), when=routed),
    Hop("target route", BACK + SENT, routes.target_route, targets=(POD,)),
    Hop("rp_filter", BACK + ROUTED, when_back(routes.rp_filter, ROUTING), targets=(POD,), when=routed),
    Hop("forwarding", BACK + ROUTED, when_back(routes.forwarding, ROUTING), (POD, OUTSIDE), (POD,), when=routed),
    Hop("prerouting chains", BACK + ROUTING, at_hook("prerouting", stage=BRIDGED, reply=True), when=seen_by_node),
    Hop("forward chains", BACK + FILTERED, at_hook("forward", stage=ROUTED, reply=True), (POD, OUTSIDE),
        when=seen_by_node),
    Hop("input chains", BACK + FILTERED, at_hook("input", stage=ROUTED, reply=True), (NODE,), when=routed),
    Hop("output chains", BACK + FILTERED, at_hook("output", stage=ROUTED, reply=True), targets=(NODE,), when=routed),
    Hop("postrouting chains", BACK + LEFT, at_hook("postrouting", stage=FILTERED, reply=True), when=seen_by_node),
    Hop("outside host", ALWAYS, answers.outside, targets=(OUTSIDE,)),
)


def applying(path: Path) -> Iterator[Hop]:
    """Yield the hops that this connection has."""
    for hop in HOPS:
        if path.source.kind in hop.sources and path.target.kind in hop.targets and hop.when(path):
            yield hop


def names(path: Path) -> Iterator[str]:
    """Yield the names of the hops in the order of the path, each once."""
    yield from dict.fromkeys(hop.name for hop in applying(path))


