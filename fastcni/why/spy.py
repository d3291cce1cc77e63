"""Follow the packets of one connection by nftables' trace: in the source pod, on the node and in the target pod."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from fastcni.kernel import nft
from fastcni.kernel.nft_trace import Trace
from fastcni.selftest import namespaces
from fastcni.why.tracer import NFPROTO_ARP, Match, Tracer

SOURCE, ON_NODE, TARGET = "source", "node", "target"            # where a packet was seen

# How far the first packet came, in the order of its path. The progress of an answer is BACK plus one of these stages.
START, SENT, ARRIVED, BRIDGED, ROUTING, ROUTED, FILTERED, LEFT, DELIVERED, ACCEPTED = range(10)
BACK = 20
INET_STAGES = {"prerouting-first": BRIDGED, "prerouting-last": ROUTING, "forward-first": ROUTED, "input-first": ROUTED,
               "output-first": ROUTED, "forward-last": FILTERED, "input-last": FILTERED, "output-last": FILTERED,
               "postrouting-last": LEFT}
BRIDGE_STAGES = {"prerouting-first": ARRIVED, "prerouting-last": BRIDGED, "forward-first": ROUTED,
                 "forward-last": FILTERED, "postrouting-last": LEFT}
POD_STAGES = {(SOURCE, False, "postrouting-last"): SENT, (SOURCE, False, "input-last"): ACCEPTED,
              (TARGET, False, "prerouting-first"): DELIVERED,
              (TARGET, False, "input-last"): ACCEPTED, (TARGET, True, "output-first"): BACK,
              (TARGET, True, "postrouting-last"): BACK + SENT, (SOURCE, True, "prerouting-first"): BACK + DELIVERED,
              (SOURCE, True, "input-last"): BACK + ACCEPTED}

ETHERNET_IPV4 = b"\0\1\x08\0"        # the first bytes of ARP for IPv4 (RFC 826)
# Make tables' names unique: the kernel deletes a table only some time after its socket was closed
NUMBERS = count()


@dataclass(frozen=True, slots=True)
class Seen:
    """One trace message. where: SOURCE, ON_NODE or TARGET. reply: whether the packet is an answer. hook: the hook of
    the chain, "" if the trace does not show it. arp: whether the packet is ARP."""

    where: str
    reply: bool
    hook: str
    event: Trace
    arp: bool = False


@dataclass(slots=True)
class Place:
    tracer: Tracer
    hooks: dict[int, str] = field(default_factory=dict)         # {packet's id: hook in which the packet is}
    replies: dict[int, bool] = field(default_factory=dict)      # {packet's id: whether it is an answer}
    arps: dict[int, bool] = field(default_factory=dict)         # {packet's id: whether it is ARP}


class Spy:
    """The tracers in all namespaces of a connection. Call close() at the end. seen: the trace messages, in order.

    port: the own port of the source's socket. answers_to: further ports to which answers go, because masquerade chose
    them. routed: whether the source's link is on a bridge, and the node routes the packet. to_node: whether the target
    is the node.
    """

    def __init__(self, own: dict[str, int], *, bridge: bool, devices: Collection[str]) -> None:
        """Create the tracers. own: {SOURCE, ON_NODE or TARGET: a descriptor of the namespace}. Raises OSError."""
        self.table = f"fastcni-why-{os.getpid()}-{next(NUMBERS)}"
        self.own, self.port = own, 0
        self.answers_to: set[int] = set()
        self.routed = self.to_node = False
        self.seen: list[Seen] = []
        self.places: dict[str, Place] = {}
        try:
            for where, namespace in own.items():
                names = devices if where == ON_NODE else ()
                tracer = partial(Tracer, f"{self.table}-{where}", bridge=bridge and where == ON_NODE, devices=names)
                self.places[where] = Place(namespaces.call(namespace, tracer))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for place in self.places.values():
            place.tracer.close()

    def mark(self, where: str, *matches: Match, arp: bool = False) -> None:
        """Begin to follow these packets in the namespace `where`, if the connection has that namespace."""
        if place := self.places.get(where):
            place.tracer.mark(*matches, arp=arp)

    def hold(self, match: Match) -> None:
        """Drop these packets after all other chains, so that they do not leave the node."""
        self.places[ON_NODE].tracer.hold(match)

    def read(self) -> None:
        """Read the trace messages that have arrived."""
        for where, place in self.places.items():
            for event in place.tracer.read():
                self._note(where, place, event)

    def _note(self, where: str, place: Place, event: Trace) -> None:
        if event.network:               # the first message of a chain has the packet's headers
            place.arps[event.id] = event.family == NFPROTO_ARP or event.network[:4] == ETHERNET_IPV4
        if len(event.transport) >= 4:
            ports = int.from_bytes(event.transport[:2], "big"), int.from_bytes(event.transport[2:4], "big")
            place.replies[event.id] = ports[0] != self.port and ports[1] in {self.port, *self.answers_to}
        if self.is_own(event):
            place.hooks[event.id] = event.chain.split("-")[0]
        hook = place.hooks.get(event.id, "")
        self.seen.append(Seen(where, place.replies.get(event.id, False), hook, event, place.arps.get(event.id, False)))

    @property
    def progress(self) -> int:
        """Return how far the packet, or its answer, came: a stage; for an answer, BACK plus a stage.

        br_netfilter passes frames for other MACs through the chains of family inet, too. Such a frame is only bridged.
        """
        # If an answer begins in the node's output chains, but the node is no end, a rule that rejects has sent it.
        refusals = set() if self.to_node else {it.event.id for it in self.seen if it.reply and it.where == ON_NODE
                                               and it.hook == "output" and it.event.family == nft.NFPROTO_INET}
        found = max((stage(it) for it in self.seen if self.is_own(it.event) and not (
            it.reply and it.event.id in refusals)), default=START)
        bridged = [it for it in self.seen if it.event.family == nft.NFPROTO_BRIDGE and not it.arp and not it.reply]
        if self.routed and bridged and not any(it.hook == "input" for it in bridged):
            return min(found, BRIDGED)
        return found

    def crossed(self, device: str, hook: str, *, arp: bool = False) -> bool:
        """Return whether a packet of the connection was seen at a hook of a link: "ingress" or "egress". arp: whether
        ARP counts, too."""
        return any(it.event.family == nft.NFPROTO_NETDEV and it.event.chain == f"{hook}-last-{device}"
                   and (arp or not it.arp) for it in self.seen)

    def destination(self) -> tuple[bytes, int] | None:
        """Return the address and port of the packet when the node's chains last saw it, that is, after DNAT. None:
        no chain of the node saw the packet."""
        for it in reversed(self.seen):
            event = it.event
            if it.where == ON_NODE and not it.reply and not it.arp and event.network and len(event.transport) >= 4:
                packed = event.network[16:20] if event.network[0] >> 4 == 4 else event.network[24:40]
                return packed, int.from_bytes(event.transport[2:4], "big")
        return None

    def end(self) -> Seen | None:
        """Return the trace message that a rule or policy dropped the packet, or its answer; None without such a
        message.

        A bridge sends copies of a packet to several ports. A dropped copy does not count if another copy arrived.
        """
        reached = any(stage(it) >= DELIVERED for it in self.seen if not it.reply and self.is_own(it.event))
        drops = [it for it in reversed(self.seen) if it.event.drops and not it.arp and not self.is_own(it.event)]
        first = (it for it in drops if not it.reply and (it.where != ON_NODE or not reached))
        return next(first, None) or next((it for it in drops if it.reply), None) or self.queued()

    def queued(self) -> Seen | None:
        """Return the trace message that a rule put the packet, or its answer, into a queue, if the packet was not seen
        afterwards.
        """
        last = {(it.where, it.event.id): it for it in self.seen}
        return next((it for it in reversed(last.values()) if it.event.queue is not None), None)

    def is_own(self, event: Trace) -> bool:
        """Return whether a chain of the spy's own tables caused a message."""
        return event.table.startswith(f"{self.table}-")

    def dropped_arp(self) -> Seen | None:
        return next((it for it in reversed(self.seen) if it.event.drops and it.arp), None)


def stage(seen: Seen) -> int:
    """Return the progress that a message from the spy's own tables proves."""
    if seen.arp:
        return START
    if seen.where != ON_NODE:
        return POD_STAGES.get((seen.where, seen.reply, seen.event.chain), START)
    known = {nft.NFPROTO_INET: INET_STAGES, nft.NFPROTO_BRIDGE: BRIDGE_STAGES}.get(seen.event.family)
    found = known.get(seen.event.chain, START) if known else (ARRIVED if seen.hook == "ingress" else START)
    return found + BACK if seen.reply and found else found


