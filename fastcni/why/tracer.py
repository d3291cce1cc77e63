"""Follow single packets through nftables: a table that marks them, and the kernel's trace messages about them.

The table belongs to its socket (NFT_TABLE_F_OWNER), so the kernel deletes the table when the process ends, even if it
is killed. The table's chains are the first and the last chain of each hook. So the trace also shows if something other
than nftables drops a packet between these two chains.
"""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import nft, nft_rules, nft_trace, uapi, wire
from fastcni.kernel.nft_trace import Trace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fastcni.kernel.nft_rules import Expression

    # (NFPROTO_*, {name of a hook: number}, the device if the family is netdev)
    Part = tuple[int, dict[str, int], str]

NFPROTO_ARP = 3

FIRST, LAST = "first", "last"
PRIORITIES = {FIRST: -(1 << 31), LAST: (1 << 31) - 1}
# Numbers of the hooks in the families inet and bridge
HOOKS = {"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4}
DEVICE_HOOKS = {"ingress": 0, "egress": 1}      # numbers of the hooks in the family netdev; egress since Linux 5.16
COMMENT = "fastcni why: deleted when the command ends"
BUFFER_BYTES = 4 << 20          # bytes of trace messages that the kernel queues
ETHER_TYPES = {4: uapi.ETH_P_IP, 16: uapi.ETH_P_IPV6}       # {length of an address: Ethernet type}


class Match:
    """The packets to follow. protocol: IPPROTO_*. source, destination: packed addresses, b"" for any address; at least
    one of them is needed. sport, dport: ports, 0 for any port."""

    __slots__ = ("destination", "dport", "protocol", "source", "sport")

    def __init__(self, protocol: int, source: bytes = b"", sport: int = 0, destination: bytes = b"",
                 dport: int = 0) -> None:
        self.protocol, self.source, self.destination = protocol, source, destination
        self.sport, self.dport = sport, dport

    def expressions(self) -> tuple[Expression, ...]:
        """Return the expressions: ip protocol <p> ip saddr <s> ip daddr <d> th sport <n> th dport <n>"""
        length = len(self.source or self.destination)
        found = [*nft_rules.ether_type(ETHER_TYPES[length]), nft_rules.meta(nft_rules.NFT_META_L4PROTO),
                 nft_rules.compare(bytes((self.protocol,)))]
        for field, value in ((nft_rules.SADDRS[length], self.source), (nft_rules.DADDRS[length], self.destination),
                             (nft_rules.TH_SPORT, self.sport.to_bytes(2, "big") if self.sport else b""),
                             (nft_rules.TH_DPORT, self.dport.to_bytes(2, "big") if self.dport else b"")):
            if value:
                found += [nft_rules.payload(field), nft_rules.compare(value)]
        return tuple(found)


def arp_expressions() -> tuple[Expression, ...]:
    """Return the expressions: meta protocol arp meta nftrace set 1"""
    return *nft_rules.ether_type(uapi.ETH_P_ARP), *nft_rules.set_nftrace(True)


class Tracer:
    """A table that marks packets in the calling thread's namespace, and the trace messages about these packets.

    table: the table's name. devices: the links to whose hooks of family netdev the table adds chains; all of them must
    exist. bridge: whether the table also has chains of the families bridge and arp. The constructor raises OSError:
    EOPNOTSUPP or EINVAL on a kernel without owned tables (before 5.12) or without nf_tables.
    """

    def __init__(self, table: str, *, bridge: bool = False, devices: Iterable[str] = ()) -> None:
        self.table = table
        self.chains: list[tuple[int, str]] = []
        self.events = wire.open_socket(uapi.NETLINK_NETFILTER, (nft_trace.NFNLGRP_NFTRACE,))
        try:
            wire.set_buffer_size(self.events, BUFFER_BYTES)
            self.owner = wire.open_socket(uapi.NETLINK_NETFILTER)
        except BaseException:
            self.events.close()
            raise
        parts = [(nft.NFPROTO_INET, HOOKS, "")]
        if bridge:
            parts += [(nft.NFPROTO_BRIDGE, HOOKS, ""), (NFPROTO_ARP, {"input": 0, "output": 1}, "")]
        for device in devices:
            parts += [(nft.NFPROTO_NETDEV, {hook: number}, device) for hook, number in DEVICE_HOOKS.items()]
        try:
            self._add_all(parts)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close both sockets. When the socket that owns the trace table is closed, the kernel deletes the table."""
        self.events.close()
        self.owner.close()

    def _add_all(self, parts: list[Part]) -> None:
        """Add all chains in one transaction, because each transaction waits for RCU. If the transaction fails, add the
        chains of each family and link separately. The trace then misses the families and links that this kernel does
        not support."""
        try:
            self._add(*parts)
            return
        except OSError:
            self._add(parts[0])
        for part in parts[1:]:
            try:
                self._add(part)
            except OSError:
                continue

    def _add(self, *parts: Part) -> None:
        batch = nft.start(Batch())
        added = []
        for family, hooks, device in parts:
            nft.add_table(batch, family, self.table, COMMENT, nft.NFT_TABLE_F_OWNER)
            for hook, number in hooks.items():
                for end, priority in PRIORITIES.items():
                    chain = f"{hook}-{end}-{device}" if device else f"{hook}-{end}"
                    nft.add_base_chain(batch, family, self.table, chain, kind="filter", hook=number, priority=priority,
                                       device=device)
                    if end == FIRST:
                        added.append((family, chain))
        wire.exchange(self.owner, nft.stop(batch))
        self.chains += added

    def mark(self, *matches: Match, arp: bool = False) -> None:
        """Begin to follow these packets. arp: also follow all ARP packets."""
        batch = nft.start(Batch())
        for family, chain in self.chains:
            if family != NFPROTO_ARP:
                for match in matches:
                    nft_rules.add_rule(batch, family, self.table, chain, *match.expressions(),
                                       *nft_rules.set_nftrace(True))
            if arp and family in (NFPROTO_ARP, nft.NFPROTO_BRIDGE, nft.NFPROTO_NETDEV):
                nft_rules.add_rule(batch, family, self.table, chain, *arp_expressions())
        wire.exchange(self.owner, nft.stop(batch))

    def hold(self, match: Match) -> None:
        """Drop these packets in the last chain of the hook postrouting."""
        batch = nft.start(Batch())
        nft_rules.add_rule(batch, nft.NFPROTO_INET, self.table, f"postrouting-{LAST}", *match.expressions(),
                           nft_rules.drop())
        wire.exchange(self.owner, nft.stop(batch))

    def read(self) -> Iterator[Trace]:
        """Yield the trace messages that have arrived. Raises OSError."""
        found: list[Trace] = []
        wire.drain(self.events, lambda kind, payload: found.append(Trace(payload)) if kind == nft_trace.NFT_MSG_TRACE
                   else None, lambda: None)
        yield from found
