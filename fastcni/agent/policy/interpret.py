"""Compute from a State how the kernel's rules decide on a connection. With this module, cut.py finds the connections
that are no longer allowed, and tests compare the rules with evaluate.py."""

from __future__ import annotations

from operator import and_
from typing import TYPE_CHECKING

from fastcni.agent.policy import marks
from fastcni.agent.policy.marks import EITHER
from fastcni.agent.policy.objects import PROTOCOLS
from fastcni.agent.policy.ports import DHCP4
from fastcni.agent.policy.state import (
    ACCEPT,
    DROP,
    IN,
    LINK,
    LINK_LOCAL_MASK,
    OUT,
    PROXY,
    RETURN,
    TO_NODE,
    VERSIONS,
)
from fastcni.kernel.nft_elements import concat, service

if TYPE_CHECKING:
    from fastcni.agent.policy.evaluate import Connection
    from fastcni.agent.policy.state import Line, State

LEASE_PORTS = CLIENT, SERVER = 68, 67           # DHCP's UDP ports


def allows(state: State, connection: Connection, source_port: int = 0, proxied: int = 0) -> bool:
    """Return whether the rules accept the first packet of a connection. source_port: 0 if unknown. proxied: the marks
    of a connection through the HTTP proxy, else 0. The verdict PROXY allows only a connection through the proxy, in the
    directions that the marks name, or in both directions if the marks name none. The verdict ACCEPT allows any
    connection."""
    version = VERSIONS[len(connection.source)]
    if any(bytes(map(and_, packed, LINK_LOCAL_MASK)) in state.elements[LINK]
           for packed in (connection.source, connection.destination)):
        return False
    if concat(connection.source, connection.destination) in state.elements[f"self{version}"]:
        return True
    verdicts = (ACCEPT if asks_for_lease(state, connection, source_port) else
                verdict(state, state.elements[f"{OUT}{version}"].get(connection.source), connection.destination,
                        connection),
                ACCEPT if gives_lease(state, connection, source_port) else
                verdict(state, state.elements[f"{IN}{version}"].get(connection.destination), connection.source,
                        connection))
    judged = proxied & EITHER or (EITHER if proxied else 0)
    return all(each == ACCEPT or (each == PROXY and judged & mark)
               for each, mark in zip(verdicts, (marks.OUT, marks.IN), strict=True))


def asks_for_lease(state: State, connection: Connection, source_port: int) -> bool:
    """Return whether the rule with `udp sport 68 udp dport 67 ip saddr @dhcp4` matches."""
    return (connection.protocol, source_port, connection.port) == (PROTOCOLS["UDP"], CLIENT, SERVER) and (
        connection.source in state.elements[DHCP4])


def gives_lease(state: State, connection: Connection, source_port: int) -> bool:
    """Return whether the rule with `udp sport 67 udp dport 68 ip daddr @dhcp4` matches."""
    return (connection.protocol, source_port, connection.port) == (PROTOCOLS["UDP"], SERVER, CLIENT) and (
        connection.destination in state.elements[DHCP4])


def allows_to_node(state: State, connection: Connection, source_port: int = 0) -> bool:
    """Return whether the rules accept the first packet of a connection from a pod to its own node."""
    chains = state.elements.get(f"{TO_NODE}{VERSIONS[len(connection.source)]}", {})
    return asks_for_lease(state, connection, source_port) or (
        verdict(state, chains.get(connection.source), connection.destination, connection) == ACCEPT)


def verdict(state: State, chain: str | None, peer: bytes, connection: Connection) -> str:
    """Return the verdict of the chain `chain` and of the chains to which it jumps; ACCEPT if `chain` is None."""
    if chain is None:
        return ACCEPT
    for jump in state.chains[chain].jumps:
        found = next((line.verdict for line in state.chains[jump].lines if fits(state, line, peer, connection)), RETURN)
        if found != RETURN:
            return found
    return DROP if state.chains[chain].closed else ACCEPT


def fits(state: State, line: Line, peer: bytes, connection: Connection) -> bool:
    if line.length and line.length != len(connection.source):
        return False
    if line.peer and not contains(state, line.peer, peer):
        return False
    if line.domain and peer not in state.resolved.get(line.domain, {}).get(connection.source, ()):
        return False
    if line.protocol and line.protocol != connection.protocol:
        return False
    if line.first and not line.first <= connection.port <= line.last:
        return False
    if line.ports and not contains(state, line.ports, service(connection.port)):
        return False
    return not line.named or contains(state, line.named, concat(connection.destination, service(connection.port)))


def contains(state: State, name: str, key: bytes) -> bool:
    one = state.sets[name]
    return any(first <= key <= last for first, last in one.ranges) if one.ranges else key in state.elements[name]
