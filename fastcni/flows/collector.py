"""Collect the flows of this node: drops from nftables traces, connections from conntrack events, and HTTP requests."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from errno import EINVAL, EOPNOTSUPP, EPROTONOSUPPORT
from typing import TYPE_CHECKING

from fastcni.agent.policy.state import TIER_CHAINS
from fastcni.flows import packets, table
from fastcni.flows.connections import Connections
from fastcni.flows.flow import ALLOWED, DROPPED, HTTP, ISOLATION, POLICY, End, Flow
from fastcni.flows.isolation import Isolation
from fastcni.flows.pods import Pods
from fastcni.flows.policies import Policies
from fastcni.flows.requests import Requests
from fastcni.flows.traces import Asking, Drop, Traces
from fastcni.kernel import conntrack, nft_trace, uapi, wire
from fastcni.spec.address import ip_text, read_ip

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fastcni.flows.packets import Packet

# the receive buffer as the kernel counts its size: table.PACKETS packets, each 20 messages of 1 kB
TRACE_BYTES = 8 << 20
UNSUPPORTED = (EINVAL, EOPNOTSUPP, EPROTONOSUPPORT)


class Unsupported(OSError):
    """An error: the kernel cannot trace packets for this process. The text says why."""


class Collector:
    """The collector of flows in the calling thread's network namespace. Raises Unsupported, and OSError.

    cache_dirs: the directories where runtimes store the results of ADD. agents: the sockets of agents with policies.
    """

    def __init__(self, cache_dirs: Sequence[str], agents: Iterable[str]) -> None:
        self.pods, self.traces = Pods(cache_dirs), Traces()
        self.isolation = Isolation(self.pods)
        self.sock = wire.open_socket(uapi.NETLINK_NETFILTER)
        agents = tuple(agents)
        self.policies = Policies(self.sock, agents)
        self.requests = Requests(agents)
        self.tracing = wire.open_socket(uapi.NETLINK_NETFILTER, (nft_trace.NFNLGRP_NFTRACE,))
        self.connections = Connections()
        wire.set_buffer_size(self.tracing, TRACE_BYTES)
        try:
            table.write(self.sock)
        except wire.NetlinkError as e:
            self.close()
            if e.errno in UNSUPPORTED:
                raise Unsupported(f"flows needs nf_tables of Linux 5.12 or later, for tables that end with their "
                                  f"process: {e}") from e
            raise

    def close(self) -> None:
        """Stop collecting. The kernel removes the nftables tables when their socket is closed."""
        for sock in (self.sock, self.tracing, self.connections.sock, self.isolation.sock):
            sock.close()
        self.requests.close()

    @property
    def sampled(self) -> bool:
        """Return whether the node has so many new connections that only a sample is read."""
        return self.connections.sampled

    def collect(self, wait_s: float) -> list[Flow]:
        """Return the flows since the last call. Wait at most wait_s seconds for the first flow; then return []."""
        if not self.sampled and not select.select(
                [self.tracing, self.connections.sock, *self.requests.socks], [], [], wait_s)[0]:
            return []
        self.connections.wait()
        self.pods.refresh()
        return [*self._drops(), *self._connections(), *self._requests()]

    def _drops(self) -> Iterator[Flow]:
        found: list[Drop | Asking] = []

        def note(kind: int, payload: bytes) -> None:
            if kind == nft_trace.NFT_MSG_TRACE and (it := self.traces.note(nft_trace.Trace(payload))):
                found.append(it)

        wire.drain(self.tracing, note, self.traces.followed.clear)
        for it in found:
            it = it._replace(packet=self.pods.meant(it.packet))
            if it.packet.on_link:
                continue
            if isinstance(it, Drop):
                yield self._dropped(it)
            elif self.isolation.drops(it):
                yield self._flow(it.packet, DROPPED, ISOLATION)

    def _dropped(self, drop: Drop) -> Flow:
        names = ""
        if drop.by == POLICY:
            names = (self.policies.of_rule(drop.chain, drop.handle) if drop.chain.startswith(TIER_CHAINS) else "") or (
                self.policies.restricting(drop.family, drop.base, drop.packet.source, drop.packet.destination))
        return self._flow(drop.packet, DROPPED, drop.by, names, drop.where)

    def _connections(self) -> Iterator[Flow]:
        for payload in self.connections.read():
            if payload[0] in conntrack.CTA_IP_SRC and any(map(self.pods.at, conntrack.read_ends(payload))):
                packet = packets.of_connection(conntrack.Flow(payload))
                allowing = [self.policies.of_rule(*rule) for rule in self.traces.allowing(packet)]
                names = ", ".join(dict.fromkeys(filter(None, allowing)))
                yield self._flow(packet, ALLOWED, POLICY if names else "", names)

    def _requests(self) -> Iterator[Flow]:
        for it in self.requests.read():
            source, destination = read_ip(it["source"]), read_ip(it["destination"])
            yield Flow(round(time.time(), 3), it["verdict"], POLICY if it["policy"] else HTTP, it["policy"], "http",
                       self._end(source, it["source_port"]), self._end(destination, it["port"]),
                       request={key: it[key] for key in ("method", "host", "path", "status", "reason")})

    def _flow(self, packet: Packet, verdict: str, by: str, policy: str = "", where: str = "") -> Flow:
        return Flow(round(time.time(), 3), verdict, by, policy, packet.protocol,
                    self._end(packet.source, packet.source_port),
                    self._end(packet.destination, packet.port), where)

    def _end(self, packed: bytes, port: int | None) -> End:
        pod = self.pods.at(packed)
        return End(pod.name if pod else "", pod.network if pod else "", pod.container if pod else "",
                   ip_text(packed), port)
