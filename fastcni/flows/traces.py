"""Read the kernel's trace messages about the packets that table.py selects: which chain drops a packet, or which rules
of policies allow it.

In each base chain, a packet's first message has the headers; later messages have only the packet's number. A message
with the verdict drop names the chain that drops the packet. A message with the verdict accept names the policy's rule
for ingress that allows the packet. A rule for egress returns, and then the pod's chain goes to the chain `allowed`.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from fastcni.agent.policy.rules import EGRESS_CHAIN, INGRESS_CHAIN
from fastcni.agent.policy.ruleset import FAMILY, TABLE
from fastcni.agent.policy.state import POD_CHAINS
from fastcni.flows import packets
from fastcni.flows.flow import FIREWALL, ISOLATION, POLICY
from fastcni.flows.table import ASKED, PREFIX, name
from fastcni.kernel import nft
from fastcni.kit.firewall import table
from fastcni.kit.firewall.ingress import iptables, nftables

if TYPE_CHECKING:
    from fastcni.flows.packets import Packet
    from fastcni.kernel.nft_trace import Trace

# Seconds for which the rules that accepted one packet also count for other packets of its flow
ALLOWED_S = 10.0
MAX_PACKETS = 4096              # the most packets in memory; all messages about a packet arrive within microseconds
ISOLATING = {(table.FAMILY, table.TABLE, nftables.CHAIN),
             (table.BRIDGE_FAMILY, table.TABLE, nftables.PORTS)}
ISOLATING_CHAINS = (iptables.STAGE_1, iptables.STAGE_2)


class Drop(NamedTuple):
    """A packet that a chain drops. base: the base chain through which the packet came to `chain`; in the table of
    policies, the chain `egress` or `ingress` if the packet passed one of them. handle: the handle of the rule; 0 if the
    chain's policy drops the packet."""

    packet: Packet
    family: int
    table: str
    chain: str
    base: str
    handle: int = 0

    @property
    def by(self) -> str:
        """Return the origin of the chain that drops the packet: POLICY, FIREWALL or ISOLATION."""
        if self.table.startswith(TABLE):
            return POLICY
        if self.chain in ISOLATING_CHAINS or (self.family, self.table, self.chain) in ISOLATING:
            return ISOLATION
        return FIREWALL

    @property
    def where(self) -> str:
        """Return the chain with its family and table, such as "ip filter DOCKER"."""
        return f"{nft.FAMILIES.get(self.family, self.family)} {self.table} {self.chain}"


class Asking(NamedTuple):
    """An ARP request or a neighbour solicitation that arrives at a bridge. iif: the interface index of the port where
    it arrives."""

    iif: int
    packet: Packet


class Followed:
    """A packet whose trace messages arrive. base: as in Drop. returned: (chain, handle) of the last rule of policies
    that returned. allowed: (chain, handle) of the policies' rules that allow the packet."""

    __slots__ = ("allowed", "base", "packet", "returned")

    def __init__(self, packet: Packet) -> None:
        self.packet, self.base, self.returned = packet, "", ("", 0)
        self.allowed: list[tuple[str, int]] = []


class Traces:
    """The packets in the trace messages. note() reads the messages in their order. followed: {packet's number: packet}.

    allowed: {packet without its source port: (monotonic time when the entry ends, rules that allow the packet)}. The
    kernel traces about one packet of a flow each second, so the entry is used for the flow's other packets."""

    def __init__(self) -> None:
        self.followed: dict[int, Followed] = {}
        self.allowed: dict[Packet, tuple[float, list[tuple[str, int]]]] = {}

    def note(self, trace: Trace) -> Drop | Asking | None:
        """Read a trace message. Return the drop or the request for a MAC that it reports; None for other messages."""
        if trace.table.startswith(PREFIX):
            packet = (packets.read(trace.network, trace.transport) if trace.chain == ASKED and trace.table == name()
                      else None)
            return Asking(trace.iif, packet) if packet else None
        if trace.network:
            self._begin(trace)
        followed = self.followed.get(trace.id)
        if followed is None:
            return None
        of_policies = trace.family == FAMILY and trace.table == TABLE
        if of_policies and trace.chain in (EGRESS_CHAIN, INGRESS_CHAIN):
            followed.base = trace.chain
        if trace.verdict == nft.NF_DROP:
            del self.followed[trace.id]
            return Drop(followed.packet, trace.family, trace.table, trace.chain, followed.base, trace.handle)
        if trace.handle and of_policies:
            self._note_policy(followed, trace)
        return None

    def _begin(self, trace: Trace) -> None:
        """Read a packet's first message in a base chain. If the packet's number had other headers before, the packet is
        new, because the kernel reuses numbers."""
        followed, packet = self.followed.get(trace.id), packets.read(trace.network, trace.transport)
        if packet is None:
            self.followed.pop(trace.id, None)
            return
        if followed is None or followed.packet != packet:
            if len(self.followed) >= MAX_PACKETS:
                self.followed.clear()
            followed = self.followed[trace.id] = Followed(packet)
        followed.base = trace.chain

    def _note_policy(self, followed: Followed, trace: Trace) -> None:
        """Read the verdict of a rule in the table of policies. A rule for ingress accepts the packet. A rule for egress
        marks the packet and returns; a rule of the pod's chain then goes to the chain ALLOWED. Pass also returns, but
        sets no mark (rules.py)."""
        if trace.verdict == nft.NFT_RETURN:
            followed.returned = trace.chain, trace.handle
        elif trace.verdict == nft.NFT_GOTO and trace.chain.startswith(POD_CHAINS):
            self._allow(followed, *followed.returned)
        elif trace.verdict == nft.NF_ACCEPT and trace.chain != followed.base:      # `base` has no rule of a policy
            self._allow(followed, trace.chain, trace.handle)

    def _allow(self, followed: Followed, chain: str, handle: int) -> None:
        followed.allowed.append((chain, handle))
        if len(self.allowed) >= MAX_PACKETS:
            self.allowed.clear()
        self.allowed[followed.packet._replace(source_port=None)] = monotonic() + ALLOWED_S, followed.allowed

    def allowing(self, packet: Packet) -> list[tuple[str, int]]:
        """Return (chain, handle) of the rules of policies that allow a packet of this flow; [] if they are unknown."""
        until, rules = self.allowed.get(packet._replace(source_port=None), (0.0, []))
        return rules if until >= monotonic() else []
