"""Examine the hops on links: the pod's link, the host's end of the veth, the bridge and its port, neighbours, the FDB.

Each function takes a Path and returns the Fault of its hop, or None.
"""

from __future__ import annotations

from errno import ENODEV

from fastcni.kernel import uapi, wire
from fastcni.kernel.rtnl import Address, Link
from fastcni.kit.links import find
from fastcni.spec import address as addresses
from fastcni.why import firewalls, packet_path
from fastcni.why.ends import POD, End
from fastcni.why.path import Path, setting
from fastcni.why.report import Fault
from fastcni.why.spy import START

BRIDGE_FILTER = "net/bridge/bridge-nf-call-iptables"


def prefix(path: Path, end: End) -> str:
    """Return the beginning of the hop names of an end: "target " or ""."""
    return "target " if end is path.target else ""


def add_routes(end: End) -> str:
    """Return " && ..." to append to a shell command that sets the end's link up, because a link that goes down loses
    its routes. Return "" if the end has no routes."""
    found = replace_routes(end)
    return f" && {found}" if found else ""


def replace_routes(end: End, v6: bool | None = None) -> str:
    """Return a shell command that adds the routes of the pod's ADD again. v6: only routes of IPv6 (True) or of IPv4
    (False); None: all routes."""
    wanted = [it for it in with_gateways(end) if v6 in (None, ":" in it["dst"])]
    return " && ".join(f"{end.enter}ip route replace {it['dst']}" + (f" via {it['gw']}" if it["gw"] else "")
                       + f" dev {end.ifname}" for it in wanted)


def with_gateways(end: End) -> list[dict[str, str]]:
    """Return the routes in the result of ADD, each with its gateway: {"dst": ..., "gw": ...}."""
    ips = end.result("ips")
    found = []
    for it in end.result("routes"):
        gateways = [ip.get("gateway") for ip in ips if ip.get("gateway")
                    and (":" in str(ip["gateway"])) == (":" in str(it.get("dst")))]
        gateway = it.get("gw") or (gateways[0] if gateways else "")
        found.append({"dst": str(it.get("dst")), "gw": str(gateway)})
    return found


def pod_link(path: Path, end: End) -> Fault | None:
    if end.kind != POD:
        return None
    hop = f"{prefix(path, end) or 'pod '}link"
    if end.link is None:
        return Fault(hop, f"{end.name} has no link {end.ifname}: another program deleted it or moved it",
                     do="delete the pod and add it again")
    if not end.link.up:
        return Fault(hop, f"the link {end.ifname} of {end.name} is down", f"{end.ifname}: state DOWN",
                     do=f"{end.enter}ip link set {end.ifname} up{add_routes(end)}")
    return None


def loopback(path: Path) -> Fault | None:
    """Return the Fault if lo is down, by which a pod reaches its own addresses."""
    end, link = path.source, find.link(path.source.sock, "lo")
    if link is not None and link.up:
        return None
    return Fault("pod link", f"the link lo of {end.name} is down, by which a pod reaches its own addresses; the plugin "
                 "loopback sets it up", "lo: state DOWN", do=f"{end.enter}ip link set lo up")


def pod_address(path: Path, end: End) -> Fault | None:
    if end.kind != POD or end.link is None:
        return None
    hop = f"{prefix(path, end) or 'pod '}address"
    wanted = [it for it in end.result("ips") if (":" in str(it.get("address"))) == path.v6]
    there = {it.packed for it in end.addresses}
    texts = [str(it["address"]) for it in wanted] or ([f"{end.text}/{8 * len(end.packed)}"] if end.packed else [])
    for text in texts:
        if addresses.read_ip(text.partition("/")[0]) not in there:
            off = path.v6 and end.inside(lambda: setting(f"net/ipv6/conf/{end.ifname}/disable_ipv6")) == "1"
            first = f"{end.enter}sysctl -w net.ipv6.conf.{end.ifname}.disable_ipv6=0 && " if off else ""
            nodad = " nodad" if path.v6 else ""
            return Fault(hop, f"the link {end.ifname} of {end.name} lacks the address {text} of its ADD"
                         + (": IPv6 is disabled on this link" if off else ""),
                         f"net.ipv6.conf.{end.ifname}.disable_ipv6 = 1" if off else "",
                         do=f"{first}{end.enter}ip address add {text} dev {end.ifname}{nodad}{add_routes(end)}")
    if not texts:
        return Fault(hop, f"{end.name} has no address of {'IPv6' if path.v6 else 'IPv4'}",
                     do="give its network a range of that family, delete the pod and add it again")
    return None


def veth(path: Path, end: End) -> Fault | None:
    if end.kind != POD or end.link is None or end.link.kind != "veth":
        return None
    hop = f"{prefix(path, end)}veth"
    if end.host is None:
        return Fault(hop, f"the host's end of the veth link of {end.name} is not in this network namespace",
                     do="delete the pod and add it again")
    if not end.host.up:
        return Fault(hop, f"{end.host.name}, the host's end of the veth link of {end.name}, is down",
                     f"{end.host.name}: state DOWN", do=f"ip link set {end.host.name} up")
    return None


def bridge_port(path: Path, end: End) -> Fault | None:
    wanted = end.bridge_name() if end.kind == POD else ""
    if not wanted or end.host is None:
        return None
    hop = f"{prefix(path, end)}bridge port"
    if end.bridge is None or end.bridge.name != wanted:
        here = f" but of {end.bridge.name}" if end.bridge else ""
        return Fault(hop, f"{end.host.name} of {end.name} is no port of the bridge {wanted}{here}",
                     do=f"ip link set {end.host.name} master {wanted}")
    values = packet_path.bridge_port(path.node, end.host.index)
    state = values.get(packet_path.IFLA_BRPORT_STATE, packet_path.BR_STATE_FORWARDING)
    if end.bridge.up and end.link is not None and end.link.up and state != packet_path.BR_STATE_FORWARDING:
        return Fault(hop, f"the port {end.host.name} of bridge {wanted} is {packet_path.BR_STATES.get(state, state)}, "
                     "not forwarding", f"{end.host.name}: state {packet_path.BR_STATES.get(state, state)}",
                     do=f"bridge link set dev {end.host.name} state 3")
    return None


def bridge_up(path: Path, end: End) -> Fault | None:
    if end.bridge is not None and not end.bridge.up:
        return Fault(f"{prefix(path, end)}bridge", f"the bridge {end.bridge.name} is down",
                     f"{end.bridge.name}: state DOWN", do=f"ip link set {end.bridge.name} up")
    return None


def isolated(path: Path) -> Fault | None:
    """Return the Fault if both ports are isolated, because the bridge then forwards no packets between them."""
    if not path.direct:
        return None
    ports = [end.host for end in (path.source, path.target) if end.host is not None]
    if len(ports) == 2 and all(packet_path.bridge_port(path.node, port.index).get(
            uapi.IFLA_BRPORT_ISOLATED) for port in ports):
        names = " and ".join(port.name for port in ports)
        return Fault("bridge port", f"the ports {names} are isolated (portIsolation): the bridge forwards nothing "
                     "between them", f"{ports[1].name}: isolated on",
                     do=f"bridge link set dev {ports[1].name} isolated off")
    return None


def hairpin(path: Path) -> Fault | None:
    """Return the Fault if a pod asks for itself by a host port and its bridge port has no hairpin. With br_netfilter,
    the port must send back the translated packet."""
    source, target = path.source, path.target
    same = source.attachment is not None and source.attachment == target.attachment
    if not (same and path.translated and source.bridge and source.host) or setting(BRIDGE_FILTER) != "1":
        return None
    if packet_path.bridge_port(path.node, source.host.index).get(uapi.IFLA_BRPORT_MODE):
        return None
    return Fault("bridge port", f"the port {source.host.name} does not send back what it receives, and {source.name} "
                 f"asks for itself by {path.asked_text}:{path.asked_port} (hairpinMode is off)",
                 f"{source.host.name}: hairpin off", do=f"bridge link set dev {source.host.name} hairpin on")


def vlan(path: Path, end: End) -> Fault | None:
    """Return the Fault if the pod's port is in another VLAN than the other end, so that no packet passes."""
    if end.kind != POD or end.host is None or end.bridge is None or not end.bridge.vlan_filtering:
        return None
    own = untagged(path, end.host)
    other = path.source if end is path.target else path.target
    if own and path.switch and not path.direct:
        return None                     # this node does not know the other end's VLAN
    peer = untagged(path, other.host) if path.direct and other.host else untagged(path, end.bridge)
    if own == peer and own:
        return None
    hop = f"{prefix(path, end)}bridge VLAN"
    want = peer or 1
    return Fault(hop, f"the port {end.host.name} of {end.name} is in VLAN {own or 'none'}, the other end in "
                 f"{peer or 'none'}", f"{end.host.name}: VLAN {own or 'none'}",
                 do=f"bridge vlan add dev {end.host.name} vid {want} pvid untagged")


def untagged(path: Path, link: Link) -> int:
    """Return the PVID of a port, the VLAN of its untagged frames; 0 without a PVID."""
    return packet_path.pvid(path.node, link.index)


def gateway(path: Path) -> Fault | None:
    """Return the Fault if no link of this node has the address of the pod's gateway."""
    way, link = path.pod_way, path.arrives_by
    if path.source.kind != POD or way.errno or not way.gateway or link is None:
        return None
    there = [(name, it.packed, it.prefix) for name, it in own(path.node)]
    if any(packed == way.gateway for _, packed, _ in there):
        return None
    text = addresses.ip_text(way.gateway)
    if path.source.bridge is not None and not any(it.get("isGateway") or it.get("isDefaultGateway")
                                                  for it in path.source.plugins()):
        return None                     # another machine on the bridge is the gateway
    length = next((str(it["address"]).partition("/")[2] for it in path.source.result("ips")
                   if it.get("gateway") == text), str(8 * len(way.gateway)))
    length = length if path.source.bridge is not None else str(8 * len(way.gateway))
    return Fault("gateway address", f"{link.name} lacks the address {text}, the gateway of {path.source.name}",
                 do=f"ip address add {text}/{length} dev {link.name}")


def own(sock: wire.Socket) -> list[tuple[str, Address]]:
    return [(link.name, it) for link in find.all_links(sock) for it in find.addresses(sock, link.index)]


def asks_for_mac(path: Path) -> bool:
    """Return whether the source pod's kernel is asking for the MAC of its next hop. The kernel asks once a second, so
    the next packet may have to wait for a second."""
    if path.source.kind != POD or path.source.link is None or path.pod_way.errno:
        return False
    found = packet_path.neighbour(path.source.sock, path.source.link.index, path.next_hop)
    return bool(found and found.state & packet_path.NUD_INCOMPLETE)


def node_asks_for_mac(path: Path) -> bool:
    """Return whether this node's kernel is asking for the MAC of its next hop to the target."""
    link, way = path.leaves_by(), packet_path.way(path.node, path.target.packed)
    if link is None or link.name == "lo":
        return False
    found = packet_path.neighbour(path.node, link.index, way.gateway or path.target.packed)
    return bool(found and found.state & packet_path.NUD_INCOMPLETE)


def pod_neighbour(path: Path) -> Fault | None:
    """Return the Fault if the source pod has no MAC, or a wrong MAC, for its next hop."""
    if path.source.kind != POD or path.source.link is None or path.pod_way.errno:
        return None
    at = path.target.link if path.direct else None if path.switch else path.arrives_by
    return neighbour("neighbour", path, path.source, path.source.link.index, path.next_hop, at.address if at else b"",
                     path.source.ifname)


def target_neighbour(path: Path) -> Fault | None:
    """Return the Fault if the node has no MAC, or a wrong MAC, for its next hop to the target."""
    link, way = path.leaves_by(), packet_path.way(path.node, path.target.packed)
    if link is None or link.name == "lo":
        return None
    expected = path.target.link.address if path.target.kind == POD and path.target.link else b""
    return neighbour("node neighbour", path, None, link.index, way.gateway or path.target.packed, expected, link.name)


def neighbour(hop: str, path: Path, end: End | None, index: int, packed: bytes, expected: bytes,
              device: str) -> Fault | None:
    """Return the Fault of the neighbour entry of `packed`. end: the entry is in this end's namespace; None: on the
    node. index, device: the link's index and name. expected: the right MAC; b"" if it is unknown."""
    enter, ip = end.enter if end else "", addresses.ip_text(packed)
    try:
        found = packet_path.neighbour(end.sock if end else path.node, index, packed)
    except wire.NetlinkError as e:
        if e.errno != ENODEV:
            raise
        return None
    if found and found.mac and expected and found.mac != expected and not found.state & (
            packet_path.NUD_FAILED | packet_path.NUD_INCOMPLETE):
        return Fault(hop, f"{device} has the MAC {found.mac.hex(':')} for {ip}, whose MAC is {expected.hex(':')}",
                     f"{ip} dev {device} lladdr {found.mac.hex(':')}",
                     do=f"{enter}ip neigh del {ip} dev {device}")
    if found is None or not found.state & (packet_path.NUD_FAILED | packet_path.NUD_INCOMPLETE):
        return None
    if path.spy and (seen := path.spy.dropped_arp()):
        return firewalls.describe(path, seen)
    kind = "neighbour solicitations" if len(packed) == 16 else "ARP"
    return Fault(hop, f"{ip} does not answer {kind} on {device}", f"{ip} dev {device} FAILED",
                 do=f"find the owner of {ip}: `fastcni explain {ip}`; see its link: "
                    f"`{enter}tcpdump -ni {device} arp or icmp6`")


def fdb(path: Path) -> Fault | None:
    """Return the Fault if the bridge does not send frames for the target's MAC to the target's port."""
    end = path.target
    if end.kind != POD or end.bridge is None or end.host is None or end.link is None:
        return None
    found = packet_path.station(path.node, end.bridge.index, end.link.address)
    mac = end.link.mac
    if found is not None and found.index != end.host.index and not (found.flags & uapi.NTF_SELF):
        wrong = find.link(path.node, index=found.index)
        name = wrong.name if wrong else str(found.index)
        return Fault("bridge FDB", f"the bridge {end.bridge.name} has the MAC {mac} of {end.name} behind {name}, and "
                     f"the pod is behind {end.host.name}", f"{mac} dev {name} master {end.bridge.name}",
                     do=f"bridge fdb del {mac} dev {name} master")
    values = packet_path.bridge_port(path.node, end.host.index)
    if found is None and values.get(uapi.IFLA_BRPORT_UNICAST_FLOOD) == 0:
        return Fault("bridge FDB", f"the bridge {end.bridge.name} does not know the MAC {mac} of {end.name}, and "
                     f"floods nothing to its port {end.host.name}", f"{end.host.name}: flood off",
                     do=f"bridge link set dev {end.host.name} flood on learning on")
    return None


def tc(path: Path) -> Fault | None:
    """Return the Fault if the packet passed the pod's chains but did not arrive behind tc of the host's end."""
    end = path.source
    if end.kind != POD or end.host is None or not path.spy or path.spy.crossed(end.host.name, "ingress"):
        return None
    if path.progress == START:
        return None
    return Fault("tc", f"the packet passed the chains of {end.name}, and did not arrive behind the filters of tc and "
                 f"XDP at {end.ifname} there and at {end.host.name}", "tc filter or XDP program",
                 do=f"see `{end.enter}tc filter show dev {end.ifname} egress`, `tc filter show dev {end.host.name} "
                    f"ingress`, `ip -d link show {end.host.name}`")
