"""Read, update and remove a node's datapath ebpf, for `fastcni datapath`, doctor and uninstall."""

from __future__ import annotations

import posix
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from fastcni._netlink import Batch
from fastcni.agent.policy import flowtable
from fastcni.kernel import conntrack, tc, uapi, wire
from fastcni.kernel.bpf import objects
from fastcni.kernel.bpf.redirect_programs import DIGEST
from fastcni.kernel.wire import Socket
from fastcni.kit.datapath import filters, pins, redirect, restrict
from fastcni.kit.datapath.maps import ADDRESS_BYTES, POD_BYTES, RESTRICTED, Flow, u32, unmapped
from fastcni.kit.links import find, routing


class Pod(NamedTuple):
    """An address in the map of pods. link: the index of the host end of the pod's link. restricted: whether a policy
    restricts the pod."""

    link: int
    restricted: bool


@dataclass(frozen=True, slots=True)
class Flowtable:
    """The flowtable of `fastcni agent --flowtable`. links: number of pods' links in the flowtable. connections: number
    of connections between these pods that the kernel has offloaded to a flowtable."""

    links: int
    connections: int


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the datapath. pods: {packed address: Pod}, the map of pods. entries: number of elements in the map
    of flows. flows: the redirected flows; the flows with the most packets come first."""

    pods: dict[bytes, Pod]
    entries: int
    flows: list[Flow]

    @property
    def restricted(self) -> int:
        """Return the number of addresses that policies restrict."""
        return sum(pod.restricted for pod in self.pods.values())


def read(sock: Socket) -> Status | None:
    """Return the state in the socket's network namespace; None if no pod has used the datapath. Raises OSError."""
    opened = pins.open_maps(sock)
    if opened is None:
        return None
    with opened:
        pods = {unmapped(key): Pod(u32(value, 0), bool(u32(value, 4) & RESTRICTED))
                for key, value in objects.elements(opened.pods, ADDRESS_BYTES, POD_BYTES)}
        entries = list(redirect.flows(opened))
    flows = sorted((flow for flow in entries if flow.ports[0]), key=lambda flow: -sum(flow.packets))
    return Status(dict(sorted(pods.items())), len(entries), flows)


def read_flowtable(sock: Socket) -> Flowtable | None:
    """Return the state of the agent's flowtable; None if there is no flowtable. Raises OSError.

    conntrack does not say which flowtable has a connection, and other programs may have flowtables, too. So count only
    connections between addresses whose routes use links of the agent's flowtable.
    """
    with wire.open_socket(uapi.NETLINK_NETFILTER) as netfilter:
        names = flowtable.links_in_kernel(netfilter)
        if names is None:
            return None
        indexes = {link.index for link in find.all_links(sock) if link.name in names}
        addresses = {route.dst for route, _ in routing.routes(sock, find.FAMILIES) if route.index in indexes}
        return Flowtable(len(names), conntrack.count_offloaded(netfilter, addresses))


def pinned(sock: Socket) -> list[str]:
    """Return the directory of the pins as a list, [] if it does not exist."""
    return [pins.directory(sock)] if pins.exist(sock) else []


def links(sock: Socket, found: Status | None) -> list[int]:
    """Return the indexes of links: the existing host ends in the map of pods, and the links that have filters of the
    datapath. Raises OSError."""
    named = {pod.link for pod in found.pods.values()} if found else set()
    return sorted(named.intersection(link.index for link in find.all_links(sock)).union(filters.linked(sock)))


def load(sock: Socket, warn: Callable[[str], object]) -> int:
    """Load this version's programs, and attach them to the links of all pods. Return the number of links. Raises
    OSError, Unavailable.

    Redirected flows of a link that had lost its filters then pass through the host's stack, because a policy may have
    begun to forbid these flows.
    """
    with pins.open_or_load(sock, warn) as opened:
        wanted = links(sock, read(sock))
        lost = set(wanted) - filters.linked(sock).keys()
        for flow in list(redirect.flows(opened)) if lost else ():
            if not lost.isdisjoint(flow.ifindexes):
                objects.delete(opened.flows, flow.key)
        for index in lost:
            wire.attempt(sock, tc.new_clsact(Batch(), index, f"add qdisc clsact to link {index}"))
        count = filters.replace(sock, wanted, opened.programs)
    where = pins.directory(sock)
    for name in posix.listdir(where):
        kind, _, version = name.partition("-")
        if kind in filters.PARENTS and version != DIGEST:
            posix.unlink(f"{where}/{name}")
    return count


def remove(sock: Socket) -> tuple[int, int]:
    """Remove the datapath. Return (number of links that had filters, number of flows that now pass through the host's
    stack). Raises OSError."""
    flows, opened = 0, pins.open_maps(sock)
    if opened:
        with opened, wire.open_socket(uapi.NETLINK_NETFILTER) as netfilter:
            restrict.restrict_all(opened)
            flows = len(restrict.hand_back(netfilter, opened))
    count = sum(filters.leave(sock, index) for index in filters.linked(sock))
    for where in pinned(sock):
        for name in posix.listdir(where):
            posix.unlink(f"{where}/{name}")
        posix.rmdir(where)
    return count, flows
