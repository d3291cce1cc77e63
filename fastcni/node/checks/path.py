"""Check the path of packets: from the pod over its veth pair and its bridge to the link of the default route."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastcni.kernel import uapi, wire
from fastcni.kernel.rtnl import Link
from fastcni.kit.links import find, routing
from fastcni.node.attachments import listeners
from fastcni.node.attachments.address_dirs import sections
from fastcni.node.attachments.attachment import RUNNING
from fastcni.node.attachments.topology import ON_A_LINK
from fastcni.node.checks.findings import ERROR, WARNING, Finding, Node, plural, some
from fastcni.node.checks.pods import PodLink
from fastcni.spec import address

# Flags of a bridge port: (field of Link, key of the plugin bridge, effect if another program clears the flag)
FLAGS = (("isolated", "portIsolation", "other pods of the bridge reach the pod"),
         ("hairpin", "hairpinMode", "the pod does not reach itself by its host ports"))
AGAIN = "delete the pod, so that the runtime creates a new pod"


def shell(commands: Iterable[str], most: int = 6) -> str:
    """Return commands as one shell line. If commands are left out, the line ends with a comment that says so."""
    found = list(dict.fromkeys(commands))
    more = f"  # and likewise for the others: {len(found) - most} more commands" if len(found) > most else ""
    return "; ".join(found[:most]) + more


def bridges(node: Node) -> Iterator[Finding]:
    """The bridges of running pods exist, are up, and have the addresses that the pods use as gateways."""
    by_bridge: dict[str, list[PodLink]] = defaultdict(list)
    for it in node.pods:
        if it.bridge:
            by_bridge[it.bridge].append(it)
    links = {link.name: link for link in node.links}
    for name, found in by_bridge.items():
        bridge = links.get(name)
        gateways = dict.fromkeys(ip for it in found for ip in gateways_of(it))
        there = addresses_of(bridge) if bridge else set()
        lost = [f"ip address add {cidr} dev {name}" for ip, cidr in gateways if ip not in there]
        if bridge is None:
            ports = [command for it in found for command in join(it)]
            yield Finding(ERROR, f"the bridge {name} of {plural(len(found), 'running pod')} does not exist",
                          "pods of this bridge reach nothing",
                          shell([f"ip link add {name} type bridge", f"ip link set {name} up", *lost, *ports],
                                len(lost) + len(ports) + 2))
        elif not bridge.up:
            yield Finding(ERROR, f"the bridge {name} of {plural(len(found), 'running pod')} is down",
                          "pods of this bridge reach nothing", shell([f"ip link set {name} up", *lost]))
        elif lost:
            yield Finding(ERROR,
                          f"the bridge {name} lacks the address of the gateway of {plural(len(found), 'running pod')}",
                          "pods of this bridge reach nothing beyond the bridge", shell(lost))


def gateways_of(link: PodLink) -> Iterator[tuple[str, str]]:
    """Yield (address, address with prefix length) of each gateway that the pod's ADD gave to the bridge itself. With a
    VLAN, the gateway is on another link."""
    config, result = link.attachment.config, link.attachment.result
    flannel = next(sections(config, "flannel"), {}).get("delegate") or {}
    keys = next(sections(config, "bridge"), None) or {"isGateway": True, **flannel}         # default of flannel
    if (keys.get("isGateway") or keys.get("isDefaultGateway")) and not keys.get("vlan"):
        for ip in result.get("ips", ()):
            if gateway := ip.get("gateway"):
                yield address.ip_text(address.read_ip(gateway)), f"{gateway}/{ip['address'].partition('/')[2]}"


def addresses_of(link: Link) -> set[str]:
    """Return the addresses of a link of the host. Raises NetlinkError."""
    with wire.open_socket() as sock:
        return {address.ip_text(it.packed) for it in find.addresses(sock, link.index)}


def host_links(node: Node) -> Iterator[Finding]:
    """The host's link of each running pod is up: a port of its bridge with its flags, or the master of a macvlan."""
    indexes = {link.name: link.index for link in node.links}
    off = [it for it in node.pods if it.host and it.bridge in indexes and it.host.master != indexes[it.bridge]]
    down = [it for it in node.pods if it.host and not it.host.up]
    if off:
        yield Finding(ERROR, f"the host's link of {pods(off)} is not on its bridge", "no packet reaches the pod",
                      shell(command for it in off for command in join(it)))
    if down:
        yield Finding(ERROR, f"the host's link of {pods(down)} is down", "no packet reaches the pod",
                      shell(f"ip link set {it.host.name} up" for it in down if it.host))
    yield from masters(node)
    yield from port_flags(node)


def join(link: PodLink) -> Iterator[str]:
    """Yield the commands that make the host's link a port of its bridge, and set the flags that a new port lacks."""
    if link.host:
        yield f"ip link set {link.host.name} master {link.bridge}"
        yield from (f"bridge link set dev {link.host.name} {flag} on" for flag, key, _ in FLAGS
                    if keys_of(link).get(key) is True)


def masters(node: Node) -> Iterator[Finding]:
    """Yield a finding for each link of the host that is down although pods have a macvlan, an ipvlan or a VLAN on
    it."""
    by_index = {link.index: link for link in node.links}
    found: dict[str, list[PodLink]] = defaultdict(list)
    for it in node.pods:
        link = it.link
        master = by_index.get(link.peer) if link and link.kind in ON_A_LINK and link.peer_elsewhere else None
        if master and not master.up:
            found[master.name].append(it)
    for name, on_it in found.items():
        yield Finding(ERROR, f"{name}, the master of {pods(on_it)}, is down", "no packet of the pod leaves this node",
                      f"ip link set {name} up")


def port_flags(node: Node) -> Iterator[Finding]:
    """Yield a finding for each flag that the bridge ports of pods have lost."""
    for flag, key, effect in FLAGS:
        lost = [it for it in node.pods if it.host and it.host.master and keys_of(it).get(key) is True
                and not getattr(it.host, flag)]
        if lost:
            yield Finding(ERROR, f"the bridge port of {pods(lost)} has {flag} off, and its network has {key}", effect,
                          shell(f"bridge link set dev {it.host.name} {flag} on" for it in lost if it.host))


def keys_of(link: PodLink) -> Mapping[str, Any]:
    """Return the configuration of the plugin bridge that the pod's ADD had, {} if it is unknown."""
    return next(sections(link.attachment.config, "bridge"), {})


def pod_links(node: Node) -> Iterator[Finding]:
    """Running pods have the interface, the addresses and the routes that ADD gave them."""
    gone = [it for it in node.pods if it.link is None]
    if gone:
        yield Finding(ERROR, f"the interface of {pods(gone)} does not exist", "the pod has no network by this "
                      "interface", AGAIN)
    lacking = [it for it in node.pods if it.lacks]
    if lacking:
        yield Finding(ERROR, f"{pods(lacking)} lack{'s' * (len(lacking) == 1)} addresses or routes of the result of "
                      "ADD, or the interface is down", "connections of the pod fail",
                      shell(command for it in lacking for command in it.lacks))


def mtu(node: Node) -> Iterator[Finding]:
    """Packets as long as a pod's MTU pass its veth pair, its bridge and the link of the default route."""
    links = {link.name: link for link in node.links}
    unequal = [it for it in node.pods if it.link and it.host and it.link.mtu != it.host.mtu and not tuned(it)]
    unknown = {it.bridge for it in unequal}     # later the kernel adapts the MTU of these bridges
    if unequal:
        yield Finding(ERROR, f"the two ends of the veth pair of {pods(unequal)} have different MTUs",
                      "longer packets are dropped, and no message tells the sender",
                      shell(command for it in unequal for command in set_mtu(it, usual_mtu(node, it))))
    rest = [it for it in node.pods if it.link and not (it.host and it.link.mtu != it.host.mtu)]
    for name in dict.fromkeys(it.bridge for it in rest if it.bridge in links.keys() - unknown):
        own = links[name].mtu
        other = [it for it in rest if it.link and it.bridge == name and it.link.mtu != own]
        if other:
            least = min(it.link.mtu for it in other if it.link)
            yield Finding(WARNING, f"the bridge {name} has an MTU of {own}, {pods(other)} {least}",
                          "longer packets to a pod with the smaller MTU are dropped, and no message tells the sender",
                          shell([f"ip link set {name} mtu {min(least, own)}",
                                 *(command for it in other if it.link and it.link.mtu > own
                                   for command in set_mtu(it, own))]))
    uplink = default_link(links.values())
    wide = [it for it in rest if uplink and it.link and it.link.mtu > uplink.mtu and leaves_by_default(it)]
    if uplink and wide:
        yield Finding(WARNING, f"the MTU of {pods(wide)} is larger than {uplink.mtu}, the MTU of {uplink.name}, the "
                      "link of the default route",
                      f'longer packets to other hosts depend on ICMP messages; "mtu": {uplink.mtu} in the '
                      "network's configuration changes the MTU of pods that are added later",
                      shell(command for it in wide for command in set_mtu(it, uplink.mtu)))


def tuned(link: PodLink) -> bool:
    """Return whether the plugin tuning has made the MTU of the pod's end smaller than the MTU of the host's end."""
    tuned = sections(link.attachment.config, "tuning")
    return bool(link.link and link.host and link.link.mtu < link.host.mtu) and any("mtu" in keys for keys in tuned)


def usual_mtu(node: Node, pod: PodLink) -> int:
    """Return the most frequent MTU of the veth links on the pod's bridge; if several are equally frequent, the
    smallest."""
    there = [it for it in node.pods if it is pod or (it.bridge and it.bridge == pod.bridge)]
    found = Counter(link.mtu for it in there for link in (it.link, it.host) if link)
    return max(found, key=lambda value: (found[value], -value))


def set_mtu(link: PodLink, value: int) -> Iterator[str]:
    if link.host:
        yield f"ip link set {link.host.name} mtu {value}"
    yield link.inside(f"link set {link.attachment.ifname} mtu {value}")


def leaves_by_default(link: PodLink) -> bool:
    """Return whether the pod's packets to other hosts take the node's default route."""
    return link.host is not None and any(
        entry["dst"].endswith("/0") for entry in link.attachment.result.get("routes", ()))


def default_link(links: Iterable[Link]) -> Link | None:
    """Return the link of the node's default route with the lowest metric, IPv4 before IPv6; None without
    such a route. Raises NetlinkError."""
    by_index = {link.index: link for link in links}
    with wire.open_socket() as sock:
        for family in find.FAMILIES:
            for route, _ in routing.routes(sock, [family]):         # the kernel lists the routes by metric
                if not route.prefix and route.table == uapi.RT_TABLE_MAIN and route.index in by_index:
                    return by_index[route.index]
    return None


def host_ports(node: Node) -> Iterator[Finding]:
    """No process of the node listens on a host port that leads to a running pod."""
    mapped = [(it, port) for it in node.inventory.attachments if it.state == RUNNING for port in it.ports]
    if not mapped:
        return
    for listener in listeners.listening({port.port for _, port in mapped}):
        for it, port in mapped:
            length = len(address.read_ip(port.to)) if port.to else 4
            if (port.port, port.protocol) == (listener.port, listener.protocol) and listener.serves(
                    port.host_ip, length):
                yield Finding(WARNING, f"{listener}, and the port leads to pod {it.container_id[:12]}/{it.ifname}",
                              "packets from outside go to the pod, not to the process",
                              f"kill {listener.pid or 'PID'}  # or give the pod another host port")


def pods(found: list[PodLink]) -> str:
    """Return the pods as text, such as "pod c1/eth0" or "2 pods (c1/eth0, c2/eth0)"."""
    names = [it.name for it in found]
    return f"pod {names[0]}" if len(names) == 1 else f"{len(names)} pods ({some(names)})"
