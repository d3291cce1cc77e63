"""Connections that policies no longer allow are cut: their flows are deleted from conntrack.

The rules accept packets of known connections, so a connection would outlive the policy that allowed it. Without its
flow the next packet is looked at as a first one, and dropped (rules.py).
"""

from __future__ import annotations

from errno import ENOENT
from typing import TYPE_CHECKING

from fastcni._netlink import Batch
from fastcni.agent.policy import interpret
from fastcni.agent.policy.evaluate import Connection
from fastcni.agent.policy.state import IN, OUT, VERSIONS
from fastcni.kernel import conntrack, rtnl, uapi, wire

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastcni.agent.policy.state import Change, State
    from fastcni.kernel.conntrack import Flow
    from fastcni.kernel.wire import Socket

FAMILIES = (uapi.AF_INET, uapi.AF_INET6)
MAX_DELETED = 128               # flows in one send
MAPS = {f"{direction}{version}" for direction in (IN, OUT) for version in VERSIONS.values()}


def suspects(state: State, change: Change) -> set[bytes]:
    """The addresses whose connections a Change may forbid: of pods that lead to other chains, of peers and named ports
    that are gone, and of pods whose policies have other rules. `state`: after the change."""
    found: set[bytes] = set()
    for name in MAPS & change.added.keys():
        found.update(change.added[name])
    for name, keys in change.removed.items():
        if name not in MAPS:
            length = state.sets[name].length
            found.update(key[:length] for key in keys)
    if changed := change.chains.keys() - change.new_chains:
        for name in MAPS:
            found.update(packed for packed, chain in state.elements[name].items()
                         if changed.intersection(state.chains[chain].jumps))
    return found


def isolated(state: State) -> set[bytes]:
    """The addresses of all pods that a policy restricts."""
    return {packed for name in MAPS for packed in state.elements[name]}


def cut(sock: Socket, state: State, addresses: Collection[bytes]) -> int:
    """Delete the flows from or to these addresses that a State does not allow. Return how many. sock: of
    NETLINK_NETFILTER. Raises OSError."""
    found = [flow for flow in conntrack.list_flows(sock)
             if (flow.source in addresses or flow.replier in addresses) and not is_allowed(state, flow)]
    if found:
        own = node_addresses()
        found = [flow for flow in found if flow.source not in own and flow.replier not in own]
    for at in range(0, len(found), MAX_DELETED):
        batch = Batch()
        for flow in found[at:at + MAX_DELETED]:
            conntrack.delete(batch, flow)
        for e in wire.attempt(sock, batch)[1]:
            if e.errno != ENOENT:
                raise e
    return len(found)


def is_allowed(state: State, flow: Flow) -> bool:
    """By the addresses after translation of the destination, and before that of the source."""
    return len(flow.source) != len(flow.replier) or interpret.allows(
        state, Connection(flow.source, flow.replier, flow.protocol, flow.replier_port))


def node_addresses() -> set[bytes]:
    """All addresses of the calling thread's namespace: traffic between a pod and its own node is always allowed."""
    sock = wire.open_socket()
    try:
        return {rtnl.read_address(payload).packed for family in FAMILIES for _, payload in wire.dump(
            sock, uapi.RTM_GETADDR, rtnl.ifaddrmsg(family, 0, 0), "list addresses")}
    finally:
        sock.close()
