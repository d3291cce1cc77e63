"""Cut connections that policies no longer allow: find their flows, and delete the flows from conntrack.

The rules accept packets of known connections, so a connection would outlive the policy that allowed it. After the flow
is deleted, the connection's next packet counts as a first packet, and the rules drop it (rules.py). But an answer may
still be on its way. Conntrack would take this answer for the first packet of a connection in the other direction, which
the policies may allow. So before the agent deletes the flows, it adds elements to sets by which the rules drop such
answers.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from errno import ENOENT
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.policy import interpret
from fastcni.agent.policy.evaluate import Connection
from fastcni.agent.policy.marks import EITHER, PROXIED
from fastcni.agent.policy.own_addresses import node_addresses
from fastcni.agent.policy.priority import raise_priority
from fastcni.agent.policy.rules import CUT, CUT_ANY, IPPROTO_TCP
from fastcni.agent.policy.state import (
    FORWARDERS,
    MAPS,
    NODE_MAPS,
    PERMANENT,
    PORT_SETS,
    TIER_CHAINS,
    VERDICT_MAPS,
    VERSIONS,
)
from fastcni.daemon.wakeup import Wakeup
from fastcni.kernel import conntrack, uapi, wire
from fastcni.kernel.nft_elements import concat, protocol, read_service, service, split
from fastcni.kernel.nft_rules import IPPROTO_ICMPV6

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from fastcni.agent.policy.state import Change, State
    from fastcni.kernel.conntrack import Flow
    from fastcni.kernel.wire import Socket
    from fastcni.kit.datapath.maps import Flow as Redirected

MAX_DELETED = 128               # flows in one batch of netlink messages
MAX_ASKED = 4096                # the maximum of requests in tracked(); the next cut finds the remaining flows
IPPROTO_ICMP, IPPROTO_UDP, IPPROTO_DCCP, IPPROTO_SCTP, IPPROTO_UDPLITE = 1, 17, 33, 132, 136
ANSWERED_ONLY = {IPPROTO_ICMP, IPPROTO_TCP, IPPROTO_ICMPV6}
WITH_PORTS = {IPPROTO_UDP, IPPROTO_DCCP, IPPROTO_SCTP, IPPROTO_UDPLITE}      # with TCP's offsets of ports


class Listing:
    """Lists conntrack's flows in a separate thread, so that no ADD waits. The kernel takes 5 to 10 ms for the list,
    even without flows.

    One thread in the node's namespace makes the Listing and calls all methods. took_s: the time that the last list
    took.
    """

    def __init__(self) -> None:
        self._sock = wire.open_socket(uapi.NETLINK_NETFILTER)
        self._wakeup = Wakeup()
        self._thread = ThreadPoolExecutor(1, "flows", raise_priority)
        self._flows: Future[list[Flow]] | None = None
        self.took_s = 0.0

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when the list has ended."""
        return self._wakeup.fileno()

    def close(self) -> None:
        self._thread.shutdown()
        self._sock.close()
        self._wakeup.close()

    @property
    def begun(self) -> bool:
        return self._flows is not None

    @property
    def ended(self) -> bool:
        """Whether the list that begin() started has ended, so that take() does not wait."""
        return self._flows is not None and self._flows.done()

    def begin(self, ends: Collection[bytes]) -> None:
        """Start to list the flows from and to the addresses `ends`."""
        self._flows = self._thread.submit(self._list, ends)

    def _list(self, ends: Collection[bytes] | None) -> list[Flow]:
        began = monotonic()
        try:
            return conntrack.list_flows(self._sock, ends)
        finally:
            self.took_s = monotonic() - began
            self._wakeup.wake()

    def take(self) -> list[Flow]:
        """Wait for the list that begin() started, and return its flows. Raises OSError."""
        assert self._flows
        flows, self._flows = self._flows, None
        try:
            return flows.result()
        finally:
            self._wakeup.clear()


def suspects(state: State, change: Change) -> set[bytes]:
    """Return the addresses whose connections a Change may forbid: addresses of pods with other chains than before,
    removed peers and named ports, peers that a rule may deny now, and pods whose policies have new rules. state: the
    State after the change."""
    found: set[bytes] = set()
    for name in VERDICT_MAPS & change.added.keys():
        found.update(change.added[name])
    changed_sets = [(name, keys) for name, keys in change.removed.items() if name in state.sets]
    if denied := change.added.keys() - VERDICT_MAPS - PORT_SETS.keys() - PERMANENT:
        ordered = ordered_sets(state)
        changed_sets += [(name, change.added[name]) for name in denied if name in ordered]      # type: ignore[misc]
    for name, keys in changed_sets:
        if name not in VERDICT_MAPS and name not in PORT_SETS:
            length = state.sets[name].length
            found.update(key[:length] for key in keys)
    if changed := change.chains.keys() - change.new_chains:
        for name in VERDICT_MAPS:
            found.update(packed for packed, chain in state.elements.get(name, {}).items()
                         if changed.intersection(state.chains[chain].jumps))
    return found


def ordered_sets(state: State) -> set[str]:
    """Return the sets that rules of cluster policies use. A new element of such a set may forbid connections."""
    return {name for chain, it in state.chains.items() if chain.startswith(TIER_CHAINS)
            for line in it.lines for name in line.sets()}


def isolated(state: State) -> set[bytes]:
    """Return the addresses of all pods that a policy restricts."""
    return {packed for name in MAPS for packed in state.elements[name]}


def tracked(sock: Socket, redirected: Sequence[Redirected]) -> list[Flow]:
    """Return conntrack's flows of the connections that the ebpf datapath redirected until now. A request for each of
    these flows takes less time than a list of all flows. Raises OSError."""
    asked = wire.in_batches(redirected[:MAX_ASKED], lambda batch, each: conntrack.get(
        batch, each.protocol, each.ends, each.ports), MAX_DELETED)
    return [conntrack.Flow(payload) for batch in asked for _, payload in wire.exchange(sock, batch, (ENOENT,))]


def forbidden(flows: Iterable[Flow], state: State) -> list[Flow]:
    """Return the flows in `flows` that the rules of `state` do not allow. Connections from the node itself are always
    allowed. Raises OSError."""
    decide = Decider(state)
    found = [flow for flow in flows if not decide.allows(flow)]
    if found and not decide.own:
        decide.own = node_addresses()
        found = [flow for flow in found if not decide.allows(flow)]
    return found


def delete(sock: Socket, flows: Sequence[Flow]) -> None:
    """Delete `flows` from conntrack. sock: a NETLINK_NETFILTER socket. Raises OSError."""
    for batch in wire.in_batches(flows, conntrack.delete, MAX_DELETED):
        wire.exchange(sock, batch, (ENOENT,))


class Decider:
    """Decides by a State whether connections are allowed, and caches the decisions: many connections have the same
    source, destination and port, such as queries to a name server.

    own: the node's addresses; empty if they have not been read yet. Raises OSError.
    """

    def __init__(self, state: State) -> None:
        self._state, self._known = state, dict[tuple[Connection, int, int], bool]()
        self.own = restricted_node(state)
        self._forwarders = state.elements.get(FORWARDERS, {})

    def allows(self, flow: Flow) -> bool:
        """Return whether the State allows the flow, by its source before SNAT and its destination after DNAT. For a DNS
        query that was redirected to this node, the destination is the resolver."""
        end, port = flow.replier, flow.replier_port
        if service(port) in self._forwarders and end in self.own:
            end, port = flow.destination, flow.port
        return len(flow.source) != len(end) or self.decide(
            Connection(flow.source, end, flow.protocol, port), flow.source_port,
            flow.mark & (PROXIED | EITHER) if flow.mark & PROXIED else 0)

    def decide(self, connection: Connection, source_port: int, proxied: int = 0) -> bool:
        """Return whether the State allows the connection. source_port: matters only for DHCP. proxied: see
        interpret.allows()."""
        if connection.source in self.own:
            return True
        if connection.destination in self.own:
            return interpret.allows_to_node(self._state, connection, source_port)
        key = connection, source_port if source_port in interpret.LEASE_PORTS else 0, proxied
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = interpret.allows(self._state, *key)
        return found


# -- answers that are dropped ------------------------------------------------------------------------------------------

def answers(flows: Iterable[Flow], by_ports: bool = True, own: Collection[bytes] = ()) -> dict[str, list[bytes]]:
    """Return the answers on deleted flows that the rules must drop, because conntrack would take them for first packets
    of new connections: {set: keys}, see rules.py.

    Other rules drop answers of ICMP, and answers of TCP unless the node itself sends them. by_ports: whether the keys
    have ports; without ports, one key stands for all flows of a protocol between two addresses. own: see Decider.
    """
    found: dict[str, list[bytes]] = {}
    for flow in flows:
        if flow.protocol in ANSWERED_ONLY and not (flow.protocol == IPPROTO_TCP and flow.replier in own):
            continue
        ends = flow.replier, flow.source, protocol(flow.protocol)
        version = VERSIONS[len(flow.source)]
        if by_ports and (flow.protocol in WITH_PORTS or flow.protocol == IPPROTO_TCP) and flow.source_port:
            name, key = CUT, concat(*ends, service(flow.replier_port), service(flow.source_port))
        else:
            name, key = CUT_ANY, concat(*ends)
        found.setdefault(f"{name}{version}", []).append(key)
    return {name: list(dict.fromkeys(keys)) for name, keys in found.items()}


def allowed_again(dropped: Mapping[str, list[bytes]], state: State, added: Collection[bytes]) -> dict[str, list[bytes]]:
    """Return the answers in `dropped` that the rules need no longer drop: `state` allows their connections again, or
    one of their addresses is in `added`, the addresses of new pods."""
    decide, found = Decider(state), {}
    for name, keys in dropped.items():
        length = 4 if name.endswith(VERSIONS[4]) else 16
        parts = {key: split(key, length, length, 1, *((2, 2) if len(key) > 2 * length + 4 else ())) for key in keys}
        if chosen := [key for key, (replier, source, number, *ports) in parts.items()
                      if replier in added or source in added or decide.decide(
                          Connection(source, replier, number[0], read_service(ports[0]) if ports else 0),
                          read_service(ports[1]) if ports else 0)]:
            found[name] = chosen
    return found


def restricted_node(state: State) -> Collection[bytes]:
    """Return the node's addresses if policies restrict packets from pods to their own node; otherwise (). Raises
    OSError."""
    return node_addresses() if NODE_MAPS & state.sets.keys() else ()
