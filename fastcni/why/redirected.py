"""Read from the datapath ebpf and the agent's flowtable which packets between two pods skip the node's hops.

The node sees the first packets of a connection, so a rule that drops them also drops the probe. The datapath redirects
the packets that follow. docs/datapath.md has the details.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fastcni.agent.policy import flowtable
from fastcni.kernel import uapi, wire
from fastcni.kernel.bpf import objects
from fastcni.kit.datapath import filters, pins
from fastcni.kit.datapath.maps import IPPROTO_TCP, POD_BYTES, RESTRICTED, Flow, mapped, u32
from fastcni.kit.datapath.redirect import flows
from fastcni.why.ends import POD
from fastcni.why.report import Redirect

if TYPE_CHECKING:
    from fastcni.kit.datapath.pins import Pins
    from fastcni.why.path import Path

LOAD = "`fastcni datapath load` adds them again"


def forget_verdicts(path: Path) -> None:
    """Delete the datapath's records of first packets to the target's port, so that the node sees the probe. Otherwise
    the datapath would redirect a probe that follows another connection within a second, and the probe would not meet a
    rule that was added in between."""
    try:
        opened = pins.open_maps(path.node)
        if opened is None:
            return
        with opened:
            for flow in list(to_port(opened, path)):
                if not flow.ports[0]:
                    objects.delete(opened.flows, flow.key)
    except OSError:
        return                              # read() reports the error


def read(path: Path, *, arrived: bool) -> Redirect | None:
    """Return how the datapath treats the probe's connection; None if an end is no pod of the datapath. For UDP, delete
    the probe's flow. arrived: whether the probe arrived."""
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
    """Return whether the agent's flowtable has the links of both ends. Raises OSError."""
    if not (path.source.kind == path.target.kind == POD and path.source.host and path.target.host):
        return False
    with wire.open_socket(uapi.NETLINK_NETFILTER) as sock:
        links = flowtable.links_in_kernel(sock) or ()
    return path.source.host.name in links and path.target.host.name in links


def total(counts: Iterable[list[int]]) -> tuple[int, int]:
    """Return (the sum of the first numbers, the sum of the second numbers)."""
    found = list(counts)
    return sum(first for first, _ in found), sum(second for _, second in found)


def is_redirected(flow: Flow) -> bool:
    """Return whether the datapath redirects packets of a flow. A flow without the source's port stands for the next
    connection to the target's port."""
    return any(flow.seen) if flow.protocol != IPPROTO_TCP or not flow.ports[0] else all(flow.seen)


def to_port(opened: Pins, path: Path) -> Iterator[Flow]:
    """Yield the flows in the map that go to the target's port by the connection's protocol."""
    for flow in flows(opened):
        if (flow.protocol, flow.ends[1], flow.ports[1]) == (path.number, path.target.packed, path.port):
            yield flow


def reason(path: Path, source: bytes, target: bytes) -> str:
    """Return why the datapath does not redirect a connection that arrived. source, target: struct pod of each end."""
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
