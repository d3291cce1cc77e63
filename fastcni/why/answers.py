"""Examine the hops behind the last firewall: NAT, conntrack, the listening socket, the MTU and the hosts outside.

Each function takes a Path and returns the Fault of its hop, or None.
"""

from __future__ import annotations

from errno import EMSGSIZE

from fastcni.kernel import conntrack, nft_trace, uapi, wire
from fastcni.kernel.rtnl import family_of
from fastcni.node.attachments import listeners
from fastcni.node.attachments.attachment import Inventory
from fastcni.selftest import icmp
from fastcni.spec import address as addresses
from fastcni.why import firewalls, links, packet_path
from fastcni.why.ends import ITSELF, NODE, OUTSIDE, POD, End, own_addresses
from fastcni.why.path import Path, setting
from fastcni.why.probe import CONNECTED, REFUSED
from fastcni.why.report import Fault
from fastcni.why.spy import LEFT, ON_NODE, Seen

COUNT, MAX = "net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max"
SMALLEST = 64                   # bytes of an IP packet that every link transports
ECHO_S = 0.7                    # seconds to wait for an echo reply


def conntrack_full(path: Path) -> Fault | None:
    """Return the Fault if conntrack has no room for the connection."""
    count, most = setting(COUNT), setting(MAX)
    if not count or not most or int(count) < int(most):
        return None
    return Fault("conntrack", f"conntrack is full: {count} of {most} connections, so the node drops first packets",
                 f"net.netfilter.nf_conntrack_max = {most}",
                 do=f"sysctl -w net.netfilter.nf_conntrack_max={2 * int(most)}")


def conntrack_stale(path: Path) -> Fault | None:
    """Return the Fault of a conntrack entry that sends packets of this connection to another target than a new
    connection reaches."""
    if path.target.kind == ITSELF:
        return None
    own = path.probe.port if path.probe else 0
    with wire.open_socket(uapi.NETLINK_NETFILTER) as sock:
        found = packet_path.tracked(sock, family_of(path.asked), path.number, path.asked_port)
    for it in found:
        flow = it.flow
        if flow.destination == path.asked and flow.source == path.sent_from and flow.source_port != own and (
                flow.replier, flow.replier_port) != (path.target.packed, path.port):
            where = f"{addresses.ip_text(flow.replier)}:{flow.replier_port}"
            return Fault("conntrack", f"conntrack still sends the connection from port {flow.source_port} to {where}; "
                         f"a new connection goes to {path.target.text}:{path.port}",
                         f"{path.protocol} src={addresses.ip_text(flow.source)} dst={path.asked_text} "
                         f"sport={flow.source_port} dport={flow.port}, replies from {where}",
                         do=f"conntrack -D -p {path.protocol} -s {addresses.ip_text(flow.source)} -d {path.asked_text} "
                            f"--sport {flow.source_port} --dport {flow.port}")
    return None


def forget_own(path: Path) -> None:
    """Delete the conntrack entry that the probe has made on the node."""
    if path.flow is None:
        return
    from fastcni._netlink import Batch

    with wire.open_socket(uapi.NETLINK_NETFILTER) as sock:
        wire.attempt(sock, conntrack.delete(Batch(), path.flow.flow))       # the entry may have ended already


def last_translation(path: Path, hooks: tuple[str, ...]) -> Seen | None:
    """Return the trace message of the last rule of another program that translated the packet: the rule ended a chain
    in one of these hooks without dropping the packet. None: the trace shows no such rule."""
    if path.spy is None:
        return None
    return next((it for it in reversed(path.spy.seen) if it.where == ON_NODE and it.hook in hooks and not it.reply
                 and not path.spy.is_own(it.event) and it.event.kind == nft_trace.NFT_TRACETYPE_RULE
                 and it.event.verdict == 1 and it.event.handle), None)


def translated(path: Path, hooks: tuple[str, ...], what: str) -> Fault:
    """Return the Fault of a translation. If the trace shows the rule that translated the packet, the Fault
    names this rule."""
    seen = last_translation(path, hooks)
    if seen is None:
        return Fault("NAT", what, do="see `conntrack -L`, `iptables-save -t nat`, `nft list ruleset`")
    found = firewalls.describe(path, seen)
    return Fault("NAT", what, found.rule, found.owner, found.do)


def destination_nat(path: Path) -> Fault | None:
    """Return the Fault if DNAT sends the packet to an address that is of no pod here and does not answer."""
    if not path.translated or path.target.kind != OUTSIDE or links.target_neighbour(path) is None:
        return None
    return translated(path, ("prerouting", "output"),
                      f"packets to {path.asked_text}:{path.asked_port} are sent on to {path.target.text}:{path.port}, "
                      "an address that no pod of this node has and that does not answer")


def source_nat(path: Path) -> Fault | None:
    """Return the Fault if the packet leaves the node with a source address to which the other hosts have no route."""
    if path.target.kind != OUTSIDE or path.source.kind != POD or not path.sent_from or path.progress < LEFT:
        return None
    seen, own = path.seen_as, {ip for _, ip in own_addresses()}
    for cidr in (str(it.get("address")) for it in path.source.result("ips")):
        packed, length = addresses.read_cidr(cidr)
        subnet = addresses.network(packed, length)
        if len(packed) == len(path.asked) and subnet == addresses.network(path.target.packed, length):
            ip, link = path.target.text, path.leaves_by()
            return Fault("outside host", f"{ip} is in the subnet {addresses.ip_text(subnet)}/{length} of "
                         f"{path.source.network}, and no pod of this node has it: the packet left this node by "
                         f"{link.name if link else 'the default route'}, and no answer came",
                         do=f"fastcni explain {ip}")
    if seen == path.sent_from:
        wants = any(it.get("ipMasq") for it in path.source.plugins())
        do = "fastcni restore" if wants else (
            f'set "ipMasq": true in the configuration of {path.source.network}, delete the pod and add it again; or '
            "give the outside hosts a route to the pods")
        return Fault("NAT", f"the packet leaves the node with the pod's own address {addresses.ip_text(seen)}, and no "
                     f"answer from {path.target.text} came back"
                     + (": the masquerade of ipMasq is missing" if wants else ": the network has no ipMasq"),
                     do=do)
    if addresses.ip_text(seen) not in own:
        return translated(path, ("postrouting",), f"the packet leaves the node with the source address "
                          f"{addresses.ip_text(seen)}, which is not of this node: no answer can return")
    return None


def host_port(path: Path, inventory: Inventory) -> Fault | None:
    """Return the Fault if the asked port of the node is a host port of a pod, but no rule leads to the pod."""
    if path.target.kind != NODE or path.translated:
        return None
    for it in inventory.attachments:
        for port in it.ports:
            if port.port == path.port and port.protocol == path.protocol and port.host_ip in ("", path.target.text,
                                                                                          "0.0.0.0", "::"):
                return Fault("NAT", f"port {path.port}/{path.protocol} of the node is a host port of pod "
                             f"{it.container_id[:12]}, and no rule of the firewall leads there", do="fastcni restore")
    return None


def listening(path: Path) -> Fault | None:
    """Return the Fault if no process listens at the target, or if the process accepts no connections."""
    end = path.target
    if end.kind == OUTSIDE:
        return None
    found = [it for it in end.inside(lambda: listeners.sockets(path.number)) if it.port == path.port]
    if any(len(path.asked) in it.lengths and it.packed in (end.packed, bytes(len(it.packed))) for it in found):
        return queue_full(path, end)
    others = "; ".join(map(str, end.inside(lambda: listeners.listening([path.port], path.protocol))))
    return Fault("listening socket", f"the packet arrives at {end.name}, and no process listens on {path.protocol} "
                 f"port {path.port} of {end.text}{'; ' if others else ''}{others}" + ("" if path.protocol == "udp" else
                                                         ": the answer is a reset (connection refused)"),
                 others,
                 do=f"start a process {'on' if end.kind == NODE else 'in'} {end.name} that listens on "
                    f"{path.port}/{path.protocol} of all addresses")


def queue_full(path: Path, end: End) -> Fault | None:
    """Return the Fault if connections wait in the queue of the listening socket, because its process accepts none."""
    if path.protocol != "tcp" or (path.probe and path.probe.outcome in (CONNECTED, REFUSED)):
        return None
    waiting = end.inside(lambda: accept_queue(path.port))
    if not waiting:
        return None
    return Fault("listening socket", f"the process that listens on port {path.port} does not accept connections: "
                 f"{waiting} wait in its queue", f"{waiting} connections in the accept queue",
                 do=f"check the process: `{end.enter}ss -lntp sport = :{path.port}`")


def accept_queue(port: int) -> int:
    """Return how many connections to a TCP port wait for accept(2), in the calling thread's namespace."""
    found = 0
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/thread-self/net/{table}", encoding="ascii") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == "0A":
                found += int(fields[4].partition(":")[2], 16)
    return found


def outside(path: Path) -> Fault | None:
    """Return the Fault if the packet left this node and no answer came. Nothing on this node shows the reason."""
    if path.target.kind != OUTSIDE or path.progress < path.left:
        return None
    link = path.leaves_by()
    device = link.name if link else "the uplink"
    refused = path.probe is not None and path.probe.outcome == REFUSED
    if path.switch:
        end = path.source
        return Fault("outside host", f"the packet left {end.name} by {path.switch}, and "
                     + (f"{path.target.text} answered that no process listens on port {path.port}" if refused else
                        f"no answer from {path.target.text} came"),
                     do=f"check that host, or see `{end.enter}tcpdump -ni {end.ifname} host {path.target.text}`")
    answer = "that the port is unreachable (ICMP)" if path.protocol == "udp" else "with a reset"
    what = (f"the packet left this node by {device}, and {path.target.text} answered {answer}: no process listens on "
            f"port {path.port} there" if refused else
            f"the packet left this node by {device} as {addresses.ip_text(path.seen_as)}, and no answer came")
    silent = "; a UDP server may stay silent" if path.protocol == "udp" and not refused else ""
    return Fault("outside host", what + silent,
                 do=f"check that host, or see `tcpdump -ni {device} host {path.target.text}`")


def mtu(path: Path) -> Fault | None:
    """Return the Fault if a packet as long as the pod's MTU is lost, and the pod does not learn that the packet is too
    long."""
    end = path.source
    if end.kind != POD or end.link is None or path.target.kind in (NODE, ITSELF) or not path.sent_from:
        return None
    size = end.link.mtu
    if arrives(end.namespace, path.target.text, SMALLEST) and not arrives(end.namespace, path.target.text, size):
        pods = [it for it in (end, path.target) if it.kind == POD]
        links = [link for link in (*(it.link for it in pods), *(it.host for it in pods), *(it.parent for it in pods),
                                   None if path.switch else path.leaves_by()) if link]
        narrow = min(links, key=lambda it: it.mtu, default=None)
        if narrow is None or narrow.mtu >= size:
            return Fault("MTU", f"a packet of {size} bytes, the MTU of {end.name}, is lost on its way to "
                         f"{path.target.text} without an ICMP message; short packets arrive",
                         f"{end.ifname}: mtu {size}", do=f"{end.enter}ip link set {end.ifname} mtu {size - 50}")
        return Fault("MTU", f"a packet of {size} bytes, the MTU of {end.name}, is lost: {narrow.name} on its way takes "
                     f"{narrow.mtu} bytes; short packets arrive", f"{narrow.name}: mtu {narrow.mtu}",
                     do=f"{end.enter}ip link set {end.ifname} mtu {narrow.mtu}")
    return None


def arrives(namespace: int, address: str, packet_bytes: int) -> bool:
    """Return whether a host answers an echo request of this size. Return True also if the kernel has learned that the
    size is too large for the path, because TCP then sends smaller packets. namespace: a descriptor."""
    try:
        return icmp.ping(namespace, address, ECHO_S, packet_bytes)
    except OSError as e:
        return e.errno == EMSGSIZE
