"""Follow one connection: send a packet, read how far the packet came, and find the hop at which it ends."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial

from fastcni.kernel import netns, uapi, wire
from fastcni.kernel.rtnl import family_of
from fastcni.node.attachments.attachment import Inventory
from fastcni.spec import errors
from fastcni.spec.errors import CniError
from fastcni.why import answers, ends, firewalls, hops, legacy, links, packet_path, proxied, redirected
from fastcni.why.ends import ITSELF, NODE, OUTSIDE, POD, End
from fastcni.why.inject import Injected
from fastcni.why.path import Path
from fastcni.why.probe import CONNECTED, REFUSED, SILENT, Probe
from fastcni.why.report import Fault, Report
from fastcni.why.spy import (
    ACCEPTED,
    ARRIVED,
    BACK,
    BRIDGED,
    DELIVERED,
    FILTERED,
    LEFT,
    ON_NODE,
    ROUTED,
    ROUTING,
    SENT,
    SOURCE,
    START,
    TARGET,
    Spy,
)
from fastcni.why.tracer import Match

# Seconds to wait for an answer; seconds until the kernel has repeated TCP's first packet
FIRST_WAIT_S, REPEAT_S = 0.4, 0.9
NEXT_REQUEST_S = 1.1                    # seconds until the kernel asks for a MAC again, which it does once a second
SETTLE_S = 0.05                         # seconds for the last trace messages of a packet that was dropped or rejected
MAC_BYTES = 6


def why(inventory: Inventory, source: End, asked: bytes, port: int, protocol: str) -> Report:
    """Follow a connection from one end to an address and port. Raises OSError, CniError."""
    with ExitStack() as opened:
        node = opened.enter_context(wire.open_socket())
        ends.require_one_host(source.sock if source.namespace >= 0 else node, asked)
        target = ends.itself(source, asked) or ends.end_at(inventory, asked, source.network)
        made = [target]
        opened.callback(lambda: ends.close(*made))
        path = Path(source, target, asked, port, port, protocol, node)
        if fault := gone(path):
            return Report(((fault.hop, False),), fault)
        attempt(path, opened)
        if retarget(path, inventory):               # after DNAT, continue with the target that the packet goes to
            made.append(path.target)
            if fault := gone(path):
                return report(path, fault)
            if not arrived(path):
                attempt(path, opened)
        path.redirect = redirected.read(path, arrived=arrived(path))
        path.flowtable = redirected.in_flowtable(path)
        fault = None if arrived(path) else find(path, inventory)
        if fault is None:
            fault = answers.conntrack_stale(path) or answers.mtu(path)
        answers.forget_own(path)
        found = report(path, fault)
    return behind_proxy(inventory, path, found) if found.reaches and proxied.taken(path) else found


def behind_proxy(inventory: Inventory, path: Path, found: Report) -> Report:
    """Follow the second part of a connection that the HTTP proxy has taken: from the node, in the proxy's place, to the
    target. Return the Report of both parts. found: the Report of the first part."""
    node = End(NODE, b"", None, netns.open_own())
    try:
        second = why(inventory, node, path.target.packed, path.port, path.protocol)
    finally:
        ends.close(node)
    return proxied.joined(found, second)


def gone(path: Path) -> Fault | None:
    """Return the Fault if the network namespace of an end does not exist; None if both exist."""
    for end in (path.source, path.target):
        if end.kind == POD and end.namespace < 0 and end.attachment:
            return Fault("pod namespace", f"the network namespace of {end.name} does not exist: "
                         f"{end.attachment.netns or 'its path is not known'}", do="delete the pod and add it again")
    return None


def attempt(path: Path, opened: ExitStack) -> None:
    """Send one packet and follow it. Set path.probe, path.spy, path.flow and the counters. If no answer comes, send a
    second packet: following its answer needs the conntrack entry that the first packet made."""
    own = netns.open_own()
    opened.callback(ends.close, End(NODE, b"", None, own))
    source = path.source.namespace if path.source.kind == POD else own
    places = {ON_NODE: own} | ({SOURCE: source} if path.source.kind == POD else {}) | (
        {TARGET: path.target.namespace} if path.target.kind == POD else {})
    if path.spy:
        path.spy.close()
    path.spy = spy = Spy(places, bridge=True, devices=list(path.devices()))
    opened.callback(spy.close)
    path.probe = probe = prober(path, source, spy)
    opened.callback(probe.close)
    spy.port = probe.port
    spy.to_node = path.target.kind == NODE
    spy.routed = path.source.kind == POD and path.source.bridge is not None and path.switch is None
    mark(path)
    path.before = legacy.read(path.v6)
    waits_for_mac = links.asks_for_mac(path)
    redirected.forget_verdicts(path)
    probe.send()
    probe.wait(FIRST_WAIT_S, partial(decided, spy))
    path.flow = flow_of(path)
    if probe.outcome == SILENT and (waits_for_mac or links.node_asks_for_mac(path)) and not spy.dropped_arp():
        probe.wait(NEXT_REQUEST_S, lambda: decided(spy) or spy.dropped_arp() is not None)
    if probe.outcome == SILENT and not decided(spy) and not arrived(path) and worth_waiting(path):
        mark_answers(path)
        probe.again()
        probe.wait(REPEAT_S, partial(decided, spy))
    if probe.outcome != CONNECTED:
        time.sleep(SETTLE_S)
    spy.read()
    path.flow = flow_of(path) or path.flow
    path.after = legacy.read(path.v6) if path.before else {}


def prober(path: Path, namespace: int, spy: Spy) -> Probe | Injected:
    """Return the sender of the packet: a socket; for an outside source, a link of the node into which the packet is
    put. Raises OSError, CniError."""
    udp = path.protocol == "udp"
    if path.source.kind != OUTSIDE:
        bind = path.source.text if path.source.kind == NODE and path.source.packed else ""
        return Probe(namespace, path.asked_text, path.asked_port, udp=udp, source=bind)
    link = path.arrives_by
    if link is None or len(link.address) != MAC_BYTES:
        raise CniError(errors.INVALID_ENVIRONMENT, f"this node has no Ethernet link to {path.source.text}, by which "
                       "its packets would come", f"`ip route get {path.source.text}` shows the link")
    made = Injected(link.index, link.address, path.source.packed, path.asked, path.asked_port, udp=udp)
    made.spy = spy
    return made


def decided(spy: Spy) -> bool:
    """Read the trace. Return whether it shows that a rule dropped the packet or its answer."""
    spy.read()
    return spy.end() is not None


def worth_waiting(path: Path) -> bool:
    """Return whether an answer may still come: whether the packet has left this node, or masquerade has chosen another
    port. With another port, the command can follow only the answer to the next packet."""
    assert path.probe
    return (path.target.kind == OUTSIDE and path.progress >= path.left) or bool(path.flow and (
        path.flow.seen_port not in (0, path.probe.port)))


def mark(path: Path) -> None:
    """Begin to follow the packets of the probe and the answers of the target, in each namespace."""
    assert path.spy and path.probe
    own = path.probe.port
    target = path.target.packed
    asked = Match(path.number, sport=own, destination=path.asked, dport=path.asked_port)
    answer = Match(path.number, source=path.asked, sport=path.asked_port, dport=own)
    back = Match(path.number, source=target, sport=path.port, dport=own)
    path.spy.mark(SOURCE, asked, answer)
    path.spy.mark(ON_NODE, asked, back, arp=True)
    path.spy.mark(TARGET, Match(path.number, sport=own, destination=target, dport=path.port), back)
    if path.source.kind == OUTSIDE:
        path.spy.hold(Match(path.number, source=path.asked, sport=path.asked_port, destination=path.source.packed,
                            dport=own))


def mark_answers(path: Path) -> None:
    """Begin to follow the packets to which masquerade gave another port, and the answers to that port."""
    if path.flow is None or path.spy is None or path.probe is None or path.flow.seen_port == path.probe.port:
        return
    flow, seen = path.flow.flow, path.flow.seen_port
    path.spy.answers_to.add(seen)
    back = Match(path.number, source=flow.replier, sport=flow.replier_port, dport=seen)
    path.spy.mark(TARGET, Match(path.number, sport=seen, destination=flow.replier, dport=flow.replier_port), back)
    path.spy.mark(ON_NODE, back)


def flow_of(path: Path) -> packet_path.Tracked | None:
    """Return the node's conntrack entry of the probe. None: no such entry exists, or the packet does not leave the
    pod."""
    assert path.probe
    if path.target.kind == ITSELF:
        return None
    with wire.open_socket(uapi.NETLINK_NETFILTER) as sock:
        try:
            found = packet_path.tracked(sock, family_of(path.asked), path.number, path.asked_port)
        except OSError:                 # the kernel has no conntrack
            return None
    return next((it for it in found if it.flow.source_port == path.probe.port
                 and it.flow.destination == path.asked), None)


def retarget(path: Path, inventory: Inventory) -> bool:
    """Make the end to which DNAT sends the packet the target. Return whether the target has changed."""
    assert path.spy
    found = (path.flow.flow.replier, path.flow.flow.replier_port) if path.flow else path.spy.destination()
    if found is None or not found[0] or found == (path.target.packed, path.port):
        return False
    path.target, path.port = ends.end_at(inventory, found[0], path.source.network), found[1]
    return True


def arrived(path: Path) -> bool:
    """Return whether the packet arrived: TCP is connected, UDP was answered, or a datagram reached a listening
    socket."""
    if path.probe is None or path.probe.outcome == CONNECTED:
        return path.probe is not None
    if path.protocol != "udp" or path.probe.outcome == REFUSED or path.target.kind == OUTSIDE:
        return False
    reached = path.progress >= ACCEPTED or (path.target.kind == NODE and path.progress >= FILTERED)
    return reached and answers.listening(path) is None


def find(path: Path, inventory: Inventory) -> Fault:
    """Return the Fault at which the packet ends."""
    if path.target.kind == NODE and (fault := answers.host_port(path, inventory)) and answers.listening(path):
        return fault
    # If lo is down, the packet goes to the gateway
    if path.target.kind == ITSELF and (fault := links.loopback(path)):
        return fault
    if traced := firewalls.by_trace(path):
        return traced
    refused = path.probe is not None and path.probe.outcome == REFUSED
    if refused and path.progress >= ACCEPTED and (fault := answers.listening(path)):
        return fault
    for hop in hops.applying(path):
        if path.progress < hop.passed and (fault := hop.look(path)):
            return fault
    return lost(path)


PLACES = ((BACK + LEFT, "between the node and the source"),
          (BACK + FILTERED, "behind the node's chains, on its way back"),
          (BACK + ROUTED, "in the node's chains, on its way back"), (BACK + SENT, "between the target and the node"),
          (BACK, "in the target pod, on its way back"), (ACCEPTED, "at the target's socket"),
          (DELIVERED, "in the target pod"), (LEFT, "between the node and the target"),
          (FILTERED, "in the node's postrouting"), (ROUTED, "in the node's chains"),
          (ROUTING, "at the node's routing"), (BRIDGED, "in the node's prerouting"), (ARRIVED, "at the bridge"),
          (SENT, "between the pod and the node"), (START, "before it left the pod"))


def lost(path: Path) -> Fault:
    """Return the Fault of a packet whose loss no hop explains."""
    where = next(text for stage, text in PLACES if path.progress >= stage)
    if path.switch and SENT <= path.progress < DELIVERED:
        where = f"behind {path.source.name}, in {path.switch}"
    what = "the answer" if path.progress >= BACK else "the packet"
    devices = " ".join(path.devices())
    return Fault("unknown", f"{what} is lost {where}, and nothing that this command knows drops it",
                 do=f"check tc, XDP and BPF programs: `bpftool net`, `tc -s qdisc`; links: {devices}")


def report(path: Path, fault: Fault | None) -> Report:
    """Return the Report of all hops of the path, up to the hop where the packet ends."""
    found = list(hops.names(path))
    if fault is None:
        return Report(tuple((name, True) for name in found), None, path.redirect, path.flowtable)
    before = found[:found.index(fault.hop)] if fault.hop in found else found
    return Report((*((name, True) for name in before), (fault.hop, False)), fault, path.redirect, path.flowtable)

