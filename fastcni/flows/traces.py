"""The decisions of this node's rules about the packets that table.py selects, from the kernel's trace messages.

The first message of a packet in each base chain has the headers, later ones only the packet's number. One message shows
a drop; the rules of policies that a packet passes show what lets it through.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from fastcni.agent.policy.ruleset import FAMILY, TABLE
from fastcni.flows import packets
from fastcni.flows.records import FIREWALL, ISOLATION, POLICY
from fastcni.flows.table import ASKED, PREFIX, name
from fastcni.kernel import nft
from fastcni.kit.firewall import table
from fastcni.kit.firewall.ingress import iptables, nftables

if TYPE_CHECKING:
    from fastcni.flows.packets import Packet
    from fastcni.kernel.nft_trace import Trace

ALLOWED_S = 10.0                # how long the trace of one packet stands for other packets of its flow
MAX_PACKETS = 4096              # packets followed at once; a packet's messages arrive within microseconds
ISOLATING = {(table.FAMILY, table.TABLE, nftables.CHAIN),
             (table.BRIDGE_FAMILY, table.TABLE, nftables.PORTS)}
ISOLATING_CHAINS = (iptables.STAGE_1, iptables.STAGE_2)


class Drop(NamedTuple):
    """A packet that a chain drops. base: the base chain that led to it. handle: of the rule."""

    packet: Packet
    family: int
    table: str
    chain: str
    base: str
    handle: int = 0

    @property
    def by(self) -> str:
        """POLICY, FIREWALL or ISOLATION."""
        if self.table.startswith(TABLE):
            return POLICY
        if self.chain in ISOLATING_CHAINS or (self.family, self.table, self.chain) in ISOLATING:
            return ISOLATION
        return FIREWALL

    @property
    def where(self) -> str:
        """The chain, as in "ip filter DOCKER"."""
        return f"{nft.FAMILIES.get(self.family, self.family)} {self.table} {self.chain}"


class Asking(NamedTuple):
    """An ARP request or a neighbour solicitation that a bridge gets. iif: the index of its port."""

    iif: int
    packet: Packet


class Followed:
    """A packet that passes chains. base: the base chain. allowed: (chain, handle) of the rules of policies that
    accepted it."""

    __slots__ = ("packet", "base", "allowed")

    def __init__(self, packet: Packet) -> None:
        self.packet, self.base = packet, ""
        self.allowed: list[tuple[str, int]] = []


class Traces:
    """note() takes one message after the other. allowed: by packet, without its source port: until when it is known
    which rules of policies it passes, and these. One packet of each such flow is traced in a second."""

    def __init__(self) -> None:
        self.followed: dict[int, Followed] = {}
        self.allowed: dict[Packet, tuple[float, list[tuple[str, int]]]] = {}

    def note(self, trace: Trace) -> Drop | Asking | None:
        """Return the drop, or the request for a MAC, that a message reports."""
        if trace.table.startswith(PREFIX):
            packet = (packets.read(trace.network, trace.transport) if trace.chain == ASKED and trace.table == name()
                      else None)
            return Asking(trace.iif, packet) if packet else None
        if trace.network:
            self._begin(trace)
        followed = self.followed.get(trace.id)
        if followed is None:
            return None
        if trace.verdict == nft.NF_DROP:
            del self.followed[trace.id]
            return Drop(followed.packet, trace.family, trace.table, trace.chain, followed.base, trace.handle)
        if trace.verdict == nft.NF_ACCEPT and trace.handle and trace.family == FAMILY and trace.table == TABLE:
            self._allow(followed, trace)
        return None

    def _begin(self, trace: Trace) -> None:
        """The first message in a base chain. The kernel gives the number of a packet to a later packet again."""
        followed, packet = self.followed.get(trace.id), packets.read(trace.network, trace.transport)
        if packet is None:
            self.followed.pop(trace.id, None)
            return
        if followed is None or followed.packet != packet:
            if len(self.followed) >= MAX_PACKETS:
                self.followed.clear()
            followed = self.followed[trace.id] = Followed(packet)
        followed.base = trace.chain

    def _allow(self, followed: Followed, trace: Trace) -> None:
        if trace.chain == followed.base:       # not of a policy: the pod's own lease, and so on
            return
        followed.allowed.append((trace.chain, trace.handle))
        if len(self.allowed) >= MAX_PACKETS:
            self.allowed.clear()
        self.allowed[followed.packet._replace(source_port=None)] = monotonic() + ALLOWED_S, followed.allowed

    def allowing(self, packet: Packet) -> list[tuple[str, int]]:
        """Return the rules of policies that let a packet through."""
        until, rules = self.allowed.get(packet._replace(source_port=None), (0.0, []))
        return rules if until >= monotonic() else []
