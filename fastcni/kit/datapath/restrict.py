"""Restrict pods of the datapath when network policies apply to them: no program redirects flows of a restricted pod.

conntrack does not know a redirected connection. So before the packets of a connection pass through the host's stack
again, fastcni adds a conntrack entry for the connection, in the direction of its first packet. With this entry,
firewall rules see an established connection.
"""

from __future__ import annotations

from errno import EACCES, EPERM

from fastcni.kernel import conntrack, wire
from fastcni.kernel.bpf import objects
from fastcni.kit.datapath import filters, pins
from fastcni.kit.datapath.maps import (
    ADDRESS_BYTES,
    IPPROTO_TCP,
    POD_BYTES,
    RESTRICTED,
    mapped,
    u32,
    unmapped,
    with_flags,
)
from fastcni.kit.datapath.redirect import flows
from fastcni.kit.links import find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from fastcni.kernel.wire import Socket
    from fastcni.kit.datapath.maps import Flow
    from fastcni.kit.datapath.pins import Pins

MAX_ENTRIES = 128               # conntrack entries in one send()
ROUNDS = 3                      # a BPF program that started before the flag was set may add a flow after round 1


class Restricted:
    """The node's restricted pods, for one process. The map of pods has a flag for a restricted pod. sock: a
    NETLINK_NETFILTER socket.

    A process whose mount namespace lacks the node's bpffs, or that may not open the pins, cannot end the redirection of
    flows. Such a process instead removes the filters of links, which needs no bpffs. Without filters, all packets of
    these links pass through the host's stack.

    unseen      why the process cannot open the maps, "" if it can
    taken_out   number of links whose filters the process has removed
    reported    number of these links that take_count() has returned
    """

    def __init__(self) -> None:
        self.unseen, self.taken_out, self.reported = "", 0, 0
        self._out: frozenset[bytes] = frozenset()       # restricted addresses whose links are out of the datapath

    def put(self, sock: Socket, addresses: Collection[bytes]) -> list[Flow]:
        """Restrict the pods with these packed addresses, and no other pod. Call put() before writing the firewall rules
        for the addresses. Return the connections whose redirection put() has ended. Raises OSError."""
        opened = self._open(sock)
        if opened is None:
            self._take_out(addresses)
            return []
        with opened:
            begun = []
            for key, value in list(objects.elements(opened.pods, ADDRESS_BYTES, POD_BYTES)):
                wanted = RESTRICTED if (packed := unmapped(key)) in addresses else 0
                if u32(value, 4) != wanted:
                    objects.update(opened.pods, key, with_flags(value, wanted))
                    begun += [packed] if wanted else []
            return hand_back(sock, opened, frozenset(begun)) if begun else []

    def add(self, sock: Socket, addresses: Collection[bytes], link: str) -> None:
        """Restrict a new pod, which has no flows yet. link: the name of its host end, "" if it is unknown. Raises
        OSError."""
        opened = self._open(sock)
        if opened is None:
            self._take_one_out(addresses, link)
            return
        with opened:
            for packed in addresses:
                if value := objects.look_up(opened.pods, mapped(packed), POD_BYTES):
                    objects.update(opened.pods, mapped(packed), with_flags(value, RESTRICTED))

    def take_count(self) -> int:
        """Return the number of links that left the datapath since the last call."""
        count, self.reported = self.taken_out - self.reported, self.taken_out
        return count

    def check(self, sock: Socket) -> str:
        """Return why this process cannot end the redirection of flows. Return "" if the process can, or if no link
        redirects flows. Raises OSError."""
        if opened := self._open(sock):
            with opened:
                return ""
        return self.unseen if self.taken_out or with_route_socket(filters.linked) else ""

    def _open(self, sock: Socket) -> Pins | None:
        try:
            opened = pins.open_maps(sock)
        except OSError as e:
            if e.errno not in (EACCES, EPERM):
                raise
            opened, self.unseen = None, f"open the maps in {pins.ROOT}: {e.strerror}"
        else:
            self.unseen = "" if opened else f"{pins.ROOT} does not have the maps of this node"
        if opened:
            self._out = frozenset()
        return opened

    def _take_out(self, addresses: Collection[bytes]) -> None:
        """Remove the filters of all links if an address is newly restricted, because any link may have redirected flows
        to this address."""
        now = frozenset(addresses)
        if now - self._out:
            self.taken_out += with_route_socket(lambda route: sum(
                filters.leave(route, index) for index in filters.linked(route)))
        self._out = now

    def _take_one_out(self, addresses: Collection[bytes], link: str) -> None:
        """Remove the filters of a new pod's link, so that no flow from or to the pod begins to be redirected."""
        if not link:
            return                      # put() removes the filters of all links
        self.taken_out += with_route_socket(lambda route: (found := find.link(route, link)) is not None
                                            and filters.leave(route, found.index))
        self._out |= frozenset(addresses)


def with_route_socket(do: Callable[[Socket], Any]) -> Any:
    """Return do(sock) with a new route socket. Raises OSError."""
    sock = wire.open_socket()
    try:
        return do(sock)
    finally:
        sock.close()


def restrict_all(opened: Pins) -> None:
    """Restrict all pods in the map, so that no flow begins to be redirected. Raises OSError."""
    for key, value in list(objects.elements(opened.pods, ADDRESS_BYTES, POD_BYTES)):
        objects.update(opened.pods, key, with_flags(value, RESTRICTED))


def hand_back(sock: Socket, opened: Pins, addresses: frozenset[bytes] | None = None) -> list[Flow]:
    """End the redirection of flows from or to these addresses; None: of all flows. The flows' connections continue
    through the host's stack. Return these flows. Raises OSError.

    conntrack already knows UDP flows, because one packet of each UDP flow passes through the host's stack every 10 s.
    """
    ended: dict[bytes, Flow] = {}
    for _ in range(ROUNDS):
        found = [flow for flow in flows(opened) if addresses is None or not addresses.isdisjoint(flow.ends)]
        known = [flow for flow in found if flow.protocol == IPPROTO_TCP and flow.ports[0] and all(flow.seen)]
        for batch in wire.in_batches(known, lambda batch, flow: conntrack.put_established(
                batch, flow.ends, flow.ports), MAX_ENTRIES):
            wire.exchange(sock, batch)
        for flow in found:
            if objects.delete(opened.flows, flow.key) and flow.ports[0]:
                ended[flow.key] = flow
        if not found:
            break
    return list(ended.values())
