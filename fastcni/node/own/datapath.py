"""The datapath ebpf of a node, for commands: its pods and flows, its update and its removal."""

from __future__ import annotations

import posix
from collections.abc import Callable
from dataclasses import dataclass
from errno import ENODEV

from fastcni._netlink import Batch
from fastcni.kernel import tc, uapi, wire
from fastcni.kernel.bpf import objects
from fastcni.kernel.bpf.redirect_programs import DIGEST
from fastcni.kernel.wire import Socket
from fastcni.kit.datapath import filters, pins, redirect, restrict
from fastcni.kit.datapath.maps import ADDRESS_BYTES, POD_BYTES, RESTRICTED, Flow, u32, unmapped
from fastcni.kit.links import find


@dataclass(frozen=True, slots=True)
class Status:
    """pods: packed addresses in the map. restricted: how many of these policies restrict. entries: in the map of flows.
    flows: those that are redirected, the ones with the most packets first."""

    pods: list[bytes]
    restricted: int
    entries: int
    flows: list[Flow]


def read(sock: Socket) -> Status | None:
    """Return the state of the socket's network namespace, None if no pod has had the datapath. Raises OSError."""
    opened = pins.open_maps(sock)
    if opened is None:
        return None
    with opened:
        pods = dict(objects.elements(opened.pods, ADDRESS_BYTES, POD_BYTES))
        entries = list(redirect.flows(opened))
    flows = sorted((flow for flow in entries if flow.ports[0]), key=lambda flow: -sum(flow.packets))
    return Status(sorted(map(unmapped, pods)), sum(u32(value, 4) & RESTRICTED for value in pods.values()), len(entries),
                  flows)


def pinned(sock: Socket) -> list[str]:
    """Return the folder of the pins as a list, [] if there is none."""
    try:
        where = pins.folder(sock)
    except OSError:                     # Linux before 5.14: no pod has the datapath
        return []
    return [where] if posix.access(where, posix.F_OK) else []


def links(sock: Socket) -> list[int]:
    """Return the indexes of the host ends that the map of pods names, as far as they exist. Raises OSError."""
    opened = pins.open_maps(sock)
    if opened is None:
        return []
    with opened:
        named = {u32(value, 0) for _, value in objects.elements(opened.pods, ADDRESS_BYTES, POD_BYTES)}
    return sorted(named.intersection(link.index for link in find.all_links(sock)))


def load(sock: Socket, warn: Callable[[str], object]) -> int:
    """Load this version's programs, and put them to the links of all pods. Return the number of links. Raises OSError,
    Unavailable."""
    count = 0
    with pins.open_or_load(sock, warn) as opened:
        for index in links(sock):
            try:
                if not filters.exist(sock, index):
                    wire.attempt(sock, tc.new_clsact(Batch(), index, f"add qdisc clsact to link {index}"))
                filters.replace(sock, index, opened.programs)
                count += 1
            except wire.NetlinkError as e:
                if e.errno != ENODEV:           # the pod was deleted
                    raise
    where = pins.folder(sock)
    for name in posix.listdir(where):
        kind, _, version = name.partition("-")
        if kind in filters.PARENTS and version != DIGEST:
            posix.unlink(f"{where}/{name}")
    return count


def remove(sock: Socket) -> tuple[int, int]:
    """Remove the datapath. Return the number of links that had filters, and of flows that pass through the host's stack
    now. Raises OSError."""
    opened = pins.open_maps(sock)
    if opened is None:
        return 0, 0
    count, where = 0, pins.folder(sock)
    netfilter = wire.open_socket(uapi.NETLINK_NETFILTER)
    try:
        with opened:
            restrict.restrict_all(opened)
            flows = restrict.hand_back(netfilter, opened)
            for index in links(sock):
                count += filters.leave(sock, index)
    finally:
        netfilter.close()
    for name in posix.listdir(where):
        posix.unlink(f"{where}/{name}")
    posix.rmdir(where)
    return count, flows
