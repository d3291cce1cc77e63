"""The datapath ebpf and the agent's flowtable on the way between two pods: which packets skip the node's hops.

The node sees the first packets of a connection, so the probe meets the rule that drops them. The datapath redirects the
packets that follow. docs/datapath.md has the details.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from fastcni.agent.policy import flowtable
from fastcni.kernel import uapi, wire
from fastcni.kernel.bpf import objects
from fastcni.kit.datapath import filters, pins
from fastcni.kit.datapath.maps import IPPROTO_TCP, POD_BYTES, RESTRICTED, Flow, mapped, u32
from fastcni.kit.datapath.redirect import flows
from fastcni.why.ends import POD
from fastcni.why.records import Redirect

if TYPE_CHECKING:
    from fastcni.kit.datapath.pins import Pins
    from fastcni.why.path import Path

LOAD = "`fastcni datapath load` adds them again"


def forget_verdicts(path: Path) -> None:
    """Let the node see the first packets of the next connection to the target's port. Within a second after another
    connection the datapath would redirect these packets, so they would not pass a rule that was added meanwhile."""
    try:
        opened = pins.open_maps(path.node)
        if opened is None:
            return
        with opened:
            for flow in list(to_port(opened, path)):
                if not flow.ports[0]:
                    objects.delete(opened.flows, flow.key)
    except OSError:
        return                              # read() reports it


def read(path: Path, *, arrived: bool) -> Redirect | None:
    """Return what the datapath does with the connection of the probe, None if one of the ends is no pod of the
    datapath. Forget the flow of a datagram."""
    if path.source.kind != POD or path.target.kind != POD or path.probe is None:
        return None
    own: list[Flow] = []
    others: list[Flow] = []
    try:
        opened = pins.open_maps(path.node)
        if opened is None:
            return None
        with opened:
            pods = [objects.look_up(opened.pods, mapped(packed), POD_BYTES)
                    for packed in (path.sent_from, path.target.packed)]
            for flow in list(to_port(opened, path)) if all(pods) else ():
                if flow.ends[0] == path.sent_from and is_redirected(flow):
                    (own if flow.ports[0] in (0, path.probe.port) else others).append(flow)
                if path.protocol == "udp" and flow.ports[0] == path.probe.port:
                    objects.delete(opened.flows, flow.key)
    except OSError as e:
        return Redirect(False, f"the maps of the datapath cannot be read: {e.strerror}")
    source, target = pods
    if source is None or target is None:
        return None
    return Redirect(bool(own), reason(path, source, target) if arrived and not own else "", len(others),
                    total(flow.packets for flow in others), total(flow.bytes for flow in others))


def in_flowtable(path: Path) -> bool:
    """Return whether the agent's flowtable has the links of both ends. Raises
    OSError."""
    if not (path.source.kind == path.target.kind == POD and path.source.host and path.target.host):
        return False
    with closing(wire.open_socket(uapi.NETLINK_NETFILTER)) as sock:
        links = flowtable.links_in_kernel(sock) or ()
    return path.source.host.name in links and path.target.host.name in links


def total(counts: Iterable[list[int]]) -> tuple[int, int]:
    """Return the sums of the first and of the second numbers."""
    found = list(counts)
    return sum(first for first, _ in found), sum(second for _, second in found)


def is_redirected(flow: Flow) -> bool:
    """Return whether packets of a flow are redirected, or of the next connection to its port if it has one port."""
    return any(flow.seen) if flow.protocol != IPPROTO_TCP or not flow.ports[0] else all(flow.seen)


def to_port(opened: Pins, path: Path) -> Iterator[Flow]:
    """Yield the flows in the map to the target's port, of the connection's protocol."""
    for flow in flows(opened):
        if (flow.protocol, flow.ends[1], flow.ports[1]) == (path.number, path.target.packed, path.port):
            yield flow


def reason(path: Path, source: bytes, target: bytes) -> str:
    """Return why a connection that was made is not redirected. source, target: struct pod of its ends."""
    for end, pod in ((path.source, source), (path.target, target)):
        if u32(pod, 4) & RESTRICTED:
            return f"a policy restricts {end.name}"
    if path.translated or path.seen_as != path.sent_from:
        return "the node translates its addresses"
    for end in (path.source, path.target):
        if end.host and not filters.exist(path.node, end.host.index):
            return f"{end.host.name} has lost its filters; {LOAD}"
    if u32(source, 8) != u32(target, 8):
        return "the links of the two pods have different MTUs"
    return "the map of flows is full, or a program changes the connection's first packets"
