"""Add a pod's link to the datapath "ebpf", an option of ptp; remove the link; delete old addresses and flows."""

from __future__ import annotations

from errno import E2BIG
from time import CLOCK_MONOTONIC, clock_gettime_ns

from fastcni.kernel import wire
from fastcni.kernel.bpf import objects
from fastcni.kernel.waiting import here
from fastcni.kit.call.conf import EBPF
from fastcni.kit.datapath import filters, pins
from fastcni.kit.datapath.maps import (
    ADDRESS_BYTES,
    FLOW_BYTES,
    IPPROTO_TCP,
    KEY_BYTES,
    POD_BYTES,
    Flow,
    mapped,
    pod_value,
    u32,
)
from fastcni.kit.links import find
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Protocol

    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.pod import PodLink
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.datapath.pins import Pins

    class Conf(Protocol):
        datapath: str

SECOND_NS = 10**9
VERDICT_NS, UDP_NS, CLOSED_NS = 5 * SECOND_NS, 30 * SECOND_NS, 120 * SECOND_NS      # age at which sweep() deletes flows


def add(req: Request, conf: Conf, link: PodLink, undo: Undo) -> None:
    """Redirect packets between the new pod and other pods of the datapath. If the kernel does not support the datapath,
    the pod's packets pass through the host's stack; warn if the configuration says "ebpf"."""
    sock, host, inside = link.pod.host, link.host, link.inside
    addresses = results.packed_ips(link.result)
    try:
        with pins.open_or_load(sock, req.warn) as opened:
            undo(withdraw, sock, addresses, host.index)
            value = pod_value(host.index, 0, host.mtu, inside.address, host.address)
            for packed in addresses:
                objects.update(opened.pods, mapped(packed), value)
            filters.add(sock, host, opened.programs)
    except (pins.Unavailable, OSError) as e:
        if isinstance(e, wire.AnswerLost):
            raise
        if not isinstance(e, pins.Unavailable):
            withdraw(sock, addresses, host.index)
        why = "the map of pods is full" if getattr(e, "errno", 0) == E2BIG else str(e)
        here.request.step(f"datapath: the host's stack alone: {why}")
        if conf.datapath == EBPF:
            req.warn(f'datapath "ebpf": packets of this pod pass through the host\'s stack: {why}')
        return
    here.request.step("datapath: ebpf")


def withdraw(sock: Socket, addresses: list[bytes], index: int) -> None:
    """Delete a pod's addresses from the map. index: the pod's host end; addresses of other links stay. Raises
    OSError."""
    if opened := pins.open_maps(sock):
        with opened:
            for packed in addresses:
                value = objects.look_up(opened.pods, mapped(packed), POD_BYTES)
                if value and u32(value, 0) == index:
                    objects.delete(opened.pods, mapped(packed))


def leave(sock: Socket, host: Link, result: dict[str, Any]) -> None:
    """Remove a pod from the datapath before its traffic is shaped, because a redirected packet passes no qdisc of the
    host end. Raises OSError."""
    withdraw(sock, results.packed_ips(result), host.index)
    filters.leave(sock, host.index)


def delete(req: Request, conf: Conf, found: Sequence[bytes], given: Sequence[bytes]) -> None:
    """Delete the addresses of a pod from the map, after the pod's link was deleted. If `found` is empty, delete all
    addresses whose links do not exist. Raises OSError."""
    if not found:
        gc(req, conf)
        return
    if opened := pins.open_maps(req.mode.route):
        with opened:
            for packed in found:
                value = objects.look_up(opened.pods, mapped(packed), POD_BYTES)
                if value and not wire.has_link(u32(value, 0)):      # a link that exists is another pod's
                    objects.delete(opened.pods, mapped(packed))


def gc(req: Request, conf: Conf) -> None:
    """Delete the addresses of pods that do not exist, and the flows that have ended. Raises OSError."""
    sweep(req.mode.route)


def check(req: Request, conf: Conf, link: PodLink) -> None:
    """Raise CniError 999 if the map `pods` has the pod of `link`, but the pod's host end lacks a filter. A pod that is
    not in the map is no error."""
    sock, host, result = link.pod.host, link.host, link.result
    if opened := pins.open_maps(sock):
        with opened:
            values = [objects.look_up(opened.pods, mapped(packed), POD_BYTES) for packed in results.packed_ips(result)]
        if any(value and u32(value, 0) == host.index for value in values) and not filters.exist(sock, host.index):
            raise CniError(errors.INTERNAL, f"ptp: {host.name} has no filters of the datapath ebpf",
                           f"see tc filter show dev {host.name} ingress; `fastcni datapath load` adds them again")


def sweep(sock: Socket) -> tuple[int, int]:
    """Delete addresses of pods that do not exist, and flows that have ended. Return (number of deleted addresses,
    number of deleted flows). Raises OSError."""
    opened = pins.open_maps(sock)
    if opened is None:
        return 0, 0
    with opened:
        pods, all_flows = dict(objects.elements(opened.pods, ADDRESS_BYTES, POD_BYTES)), list(flows(opened))
        if not pods and not all_flows:
            return 0, 0
        # Read the links after the maps, because ADD makes a link before its elements.
        links = {link.index for link in find.all_links(sock)}
        now = clock_gettime_ns(CLOCK_MONOTONIC)
        gone = [key for key, value in pods.items() if u32(value, 0) not in links]
        ended = [flow.key for flow in all_flows if has_ended(flow, now) or not links.issuperset(flow.ifindexes)]
        return (sum(objects.delete(opened.pods, key) for key in gone),
                sum(objects.delete(opened.flows, key) for key in ended))


def flows(opened: Pins) -> Iterator[Flow]:
    for key, value in objects.elements(opened.flows, KEY_BYTES, FLOW_BYTES):
        yield Flow(key, value)


def has_ended(flow: Flow, now: int) -> bool:
    """Return whether the redirection of a flow has ended, or will end soon."""
    age = now - max(flow.seen)
    if flow.protocol != IPPROTO_TCP:
        return age > UDP_NS
    if not flow.ports[0]:
        return age > VERDICT_NS
    return age > CLOSED_NS and (any(flow.closed) or not all(flow.seen))
