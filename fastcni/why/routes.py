"""Examine the hops on routes: the pod's route and source address, the node's forwarding, rp_filter and route.

Each function takes a Path and returns the Fault of its hop, or None.
"""

from __future__ import annotations

import os
from errno import EINVAL, ENETUNREACH

from fastcni._netlink import attributes
from fastcni._rtnetlink import rtmsg
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kernel.rtnl import Link, Route
from fastcni.kit.links import find
from fastcni.spec import address as addresses
from fastcni.why import layer2, packet_path
from fastcni.why.ends import BRIDGE, NODE, PARENT, POD, End
from fastcni.why.links import replace_routes, with_gateways
from fastcni.why.path import Path, setting
from fastcni.why.report import Fault

SPECIAL = {packet_path.RTN_BLACKHOLE: "blackhole", packet_path.RTN_UNREACHABLE: "unreachable",
           packet_path.RTN_PROHIBIT: "prohibit"}
RULE_ACTIONS = {6: "blackhole", 7: "unreachable", 8: "prohibit"}        # FR_ACT_*, linux/fib_rules.h
FRA_DST, FRA_SRC, FRA_PRIORITY = 1, 2, 6
INTERNAL = ("openvswitch", "tun")         # kinds of the links that Open vSwitch adds to the node
OF_THE_KERNEL = 2               # RTPROT_KERNEL: the protocol of routes that the kernel adds with an address


def best_route(sock: wire.Socket, packed: bytes) -> Route | None:
    """Return the route with the longest prefix that contains an address, in all tables but the table local; None if
    no route does."""
    found = [route for _, payload in wire.dump(sock, uapi.RTM_GETROUTE, rtmsg(rtnl.family_of(packed), 0),
                                               "list routes") if (route := rtnl.read_route(payload))]
    fitting = [it for it in found if it.table != uapi.RT_TABLE_LOCAL and holds(it.dst, it.prefix, packed)]
    return max(fitting, key=lambda it: it.prefix, default=None)


def route_text(sock: wire.Socket, route: Route) -> str:
    """Return a route in the form of `ip route`, to be used in `ip route del`."""
    words = [SPECIAL[route.kind]] if route.kind in SPECIAL else []
    words.append(f"{addresses.ip_text(route.dst)}/{route.prefix}" if route.prefix else "default")
    if route.gateway:
        words += ["via", addresses.ip_text(route.gateway)]
    link = find.link(sock, index=route.index) if route.index and route.kind not in SPECIAL else None
    if link:
        words += ["dev", link.name]
    if route.table not in (uapi.RT_TABLE_MAIN, 0):
        words += ["table", str(route.table)]
    return " ".join(words)


def refusing_rule(sock: wire.Socket, source: bytes, destination: bytes) -> tuple[int, str] | None:
    """Return (priority, text) of the first rule of ip-rule(8) that rejects a packet; None if no rule does."""
    for _, payload in wire.dump(sock, uapi.RTM_GETRULE, rtmsg(rtnl.family_of(destination), 0), "list rules"):
        found = attributes(payload, 12)
        if payload[7] not in RULE_ACTIONS or not (holds(found.get(FRA_SRC, b""), payload[2], source)
                                                  and holds(found.get(FRA_DST, b""), payload[1], destination)):
            continue
        number = rtnl.u32(found[FRA_PRIORITY]) if FRA_PRIORITY in found else 0
        named = "from all" if FRA_SRC not in found else f"from {addresses.ip_text(found[FRA_SRC])}/{payload[2]}"
        return number, f"{number}: {named} {RULE_ACTIONS[payload[7]]}"
    return None


def holds(network: bytes, prefix: int, packed: bytes) -> bool:
    return not network or (bool(packed) and addresses.network(network, prefix) == addresses.network(packed, prefix))


def refused(hop: str, where: str, end: End | None, sock: wire.Socket, source: bytes,
            destination: bytes) -> Fault | None:
    """Return the Fault of a rule or a route that rejects packets. end: the rule or route is in this end's namespace;
    None: on the node. where: the namespace's name in the Fault."""
    enter = end.enter if end else ""
    family = "-6 " if len(destination) == 16 else ""
    if rule := refusing_rule(sock, source, destination):
        return Fault(hop, f"a rule of {where} refuses packets to {addresses.ip_text(destination)}", rule[1],
                     f"hand-written (ip {family}rule)", f"{enter}ip {family}rule del priority {rule[0]}")
    route = best_route(sock, destination)
    if route is not None and route.kind in SPECIAL:
        text = route_text(sock, route)
        return Fault(hop, f"a route of {where} refuses packets to {addresses.ip_text(destination)}", text,
                     f"hand-written (ip {family}route)", f"{enter}ip {family}route del {text}")
    return None


def pod_route(path: Path) -> Fault | None:
    end, way = path.source, path.pod_way
    if end.kind != POD or end.link is None:
        return None
    to = path.asked_text
    if way.errno == ENETUNREACH:
        commands = replace_routes(end, path.v6)
        why, do = ("", commands) if commands else no_route(end, path.v6)
        return Fault("pod route", f"{end.name} has no route to {to}{why}", do=do)
    errno = way.errno or packet_path.way(end.sock, path.asked, source=end.packed).errno
    if errno:
        found = refused("pod route", end.name, end, end.sock, end.packed, path.asked)
        return found or Fault("pod route", f"{end.name} cannot route packets to {to}: {os.strerror(errno)}",
                              do=f"see `{end.enter}ip route get {to}`")
    link = find.link(end.sock, index=way.index)
    route = best_route(end.sock, path.asked)
    if link is None or route is None or link.name == "lo":
        return None
    gateways = {it["gw"] for it in with_gateways(end)} | {str(it.get("gateway")) for it in end.result("ips")}
    own = way.gateway and end.attachment and end.attachment.cached and end.link.index == way.index
    if own and addresses.ip_text(way.gateway) not in gateways and route.protocol != OF_THE_KERNEL:
        text = route_text(end.sock, route)
        known = next((it["gw"] for it in with_gateways(end) if (":" in it["gw"]) == path.v6 and it["gw"]), "")
        instead = f"{end.enter}ip route replace {text.split(' ')[0]} via {known} dev {end.ifname}"
        return Fault("pod route", f"{end.name} sends packets to {to} by {addresses.ip_text(way.gateway)}, which is no "
                     "gateway of its ADD", text,
                     do=instead if known else f"{end.enter}ip route del {text}")
    return None


def no_route(end: End, v6: bool) -> tuple[str, str]:
    """Return two parts of a Fault: why the result of the pod's ADD has no route of a family, and what to do."""
    ipams = [ipam for it in end.plugins() if isinstance(ipam := it.get("ipam"), dict)]
    routes = [route for ipam in ipams if isinstance(found := ipam.get("routes"), list) for route in found]
    again = "delete the pod and add it again"
    if any(isinstance(it, dict) and it.get("dst") == ("::/0" if v6 else "0.0.0.0/0") for it in routes):
        return (", and the result of its ADD no longer has the default route of its network's ipam: a further network "
                "had replaced it", again)
    return ", and its network's configuration gives it none", f"give the network's ipam a route to it, {again}"


def pod_source(path: Path) -> Fault | None:
    """Return the Fault if the kernel chooses a source address that is not in the result of the pod's ADD."""
    end, way = path.source, path.pod_way
    if end.kind != POD or way.errno or end.link is None or end.link.index != way.index:
        return None
    chosen = path.sent_from if path.probe and path.probe.source else way.source
    known = {addresses.read_ip(str(it["address"]).partition("/")[0]) for it in end.result("ips")} or {end.packed}
    if not chosen or chosen in known:
        return None
    route = best_route(end.sock, path.asked)
    text = route_text(end.sock, route) if route else "default"
    return Fault("pod source", f"{end.name} sends with the source address {addresses.ip_text(chosen)}, which is not of "
                 "its ADD: no answer can return", f"{text} src {addresses.ip_text(chosen)}",
                 do=f"{end.enter}ip route replace {text} src {end.text}")


def rp_filter(path: Path, *, reply: bool = False) -> Fault | None:
    """Return the Fault if rp_filter drops the packet, because the node's route to its source leads to another link.
    reply: examine the answer instead of the packet."""
    source, link = sender(path, reply)
    if path.v6 or link is None or not source:
        return None
    values = {name: setting(f"net/ipv4/conf/{name}/rp_filter") for name in ("all", link.name)}
    strictest = max(values.values(), default="0")
    back = packet_path.way(path.node, source)
    if strictest not in ("1", "2") or (back.index == link.index and not back.errno) or (
            strictest == "2" and not back.errno):
        return None
    ip = addresses.ip_text(source)
    leads = find.link(path.node, index=back.index) if back.index else None
    route = best_route(path.node, source)
    do = f"sysctl -w net.ipv4.conf.{link.name}.rp_filter=2"
    if back.errno:
        do = f"ip route add {ip} dev {link.name}"
    elif route is not None and route.prefix == 8 * len(source) and route.protocol != OF_THE_KERNEL:
        do = f"ip route del {route_text(path.node, route)}"
    elif strictest == "1" and values["all"] == "2":
        do = "sysctl -w net.ipv4.conf.all.rp_filter=2"
    return Fault("rp_filter", f"the node drops packets of {ip} that come by {link.name}: its route to {ip} leads "
                 f"{'to ' + leads.name if leads else 'nowhere'}",
                 f"net.ipv4.conf.{'all' if values['all'] == strictest else link.name}.rp_filter = {strictest}", do=do)


def sender(path: Path, reply: bool) -> tuple[bytes, Link | None]:
    """Return (source address, the node's incoming link) of the packet; with `reply`, of its answer."""
    if not reply:
        return path.sent_from, path.arrives_by
    return path.target.packed, path.leaves_by()


def forwarding(path: Path, *, reply: bool = False) -> Fault | None:
    """Return the Fault if the node does not forward packets that arrive at the packet's link. reply: examine the answer
    instead of the packet."""
    _, link = sender(path, reply)
    if link is None or NODE in (path.source.kind, path.target.kind):
        return None
    name = "net.ipv6.conf.all.forwarding" if path.v6 else "net.ipv4.ip_forward"
    if setting(name) == "0":
        return Fault("forwarding", "the node does not forward packets", f"{name} = 0", do=f"sysctl -w {name}=1")
    one = f"net/ipv4/conf/{link.name}/forwarding"
    if not path.v6 and setting(one) == "0":
        return Fault("forwarding", f"the node does not forward packets that come by {link.name}",
                     f"{one.replace('/', '.')} = 0", do=f"sysctl -w {one}=1")
    return None


def host_route(path: Path) -> Fault | None:
    """Return the Fault if the node has no route to the target, or if the route leads to a wrong link."""
    target, ip = path.target, path.target.text
    way = packet_path.way(path.node, target.packed)
    if (way.errno or path.node_way.errno) and (
            found := refused("host route", "this node", None, path.node, path.sent_from, target.packed)):
        return found
    if way.errno == EINVAL:
        return None
    right = link_of_target(path, way.index)
    if (way.errno or (right and right.index != way.index)) and (found := layer2.no_gateway(path)):
        return found
    if way.errno and right is None and (down := link_down(path)):
        return Fault("host route", f"the node has no route to {ip}: its link {down} is down", f"{down}: state DOWN",
                     do=f"ip link set {down} up")
    if way.errno:
        do = f"ip route add {ip} dev {right.name}" if right else \
            "add a route: `ip route add default via GATEWAY`, with the gateway of this node's network"
        return Fault("host route", f"the node has no route to {ip}", do=do)
    if right is not None and way.index != right.index:
        wrong, route = find.link(path.node, index=way.index), best_route(path.node, target.packed)
        text = route_text(path.node, route) if route else ""
        more_special = route is not None and route.prefix == 8 * len(target.packed)
        return Fault("host route", f"the node's route to {ip} leads to {wrong.name if wrong else way.index}, and "
                     f"{target.name} is behind {right.name}", text,
                     do=f"ip route del {text}" if more_special else f"ip route add {ip} dev {right.name}")
    return None


def link_of_target(path: Path, index: int) -> Link | None:
    """Return the node's link behind which the target pod is. index: the link to which the node's route leads. None: the
    target is no pod, or no link is known to lead to it."""
    target = path.target
    if target.kind != POD or target.switch is None:
        return target.host if target.kind == POD else None
    if target.switch.kind == BRIDGE:
        return target.bridge
    if target.switch.kind == PARENT:
        return None
    found = find.link(path.node, index=index) if index else None
    return found if found and found.kind in INTERNAL else find.link(path.node, target.switch.name)


def link_down(path: Path) -> str:
    """Return the name of a link of the node that is down and has addresses, because its routes are lost; "" if no link
    is."""
    return next((link.name for link in find.all_links(path.node)
                 if not link.up and find.addresses(path.node, link.index)), "")


def target_route(path: Path) -> Fault | None:
    """Return the Fault if the target pod has no route back to the source address that it sees, or a route by another
    link."""
    target, back = path.target, path.seen_as
    if target.kind != POD or not back or target.link is None:
        return None
    way = packet_path.way(target.sock, back)
    if not way.errno:
        link = find.link(target.sock, index=way.index)
        if link is not None and link.index != target.link.index and link.name != "lo":
            route = best_route(target.sock, back)
            text = route_text(target.sock, route) if route else ""
            return Fault("target route", f"{target.name} answers to {addresses.ip_text(back)} by {link.name}, not by "
                         f"{target.ifname}", text, do=f"{target.enter}ip route del {text}")
        return None
    if found := refused("target route", target.name, target, target.sock, target.packed, back):
        return found
    return Fault("target route", f"{target.name} has no route back to {addresses.ip_text(back)}",
                 do=replace_routes(target, path.v6) or
                 f"give the network's ipam a route to {addresses.ip_text(back)}, delete the pod and add it again")


