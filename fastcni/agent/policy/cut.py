"""Connections that policies no longer allow are cut: their flows are deleted from conntrack.

The rules accept packets of known connections, so a connection would outlive the policy that allowed it. Without its
flow the next packet is looked at as a first one, and dropped (rules.py).
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from errno import ENOENT
from typing import TYPE_CHECKING

from fastcni._netlink import Batch
from fastcni.agent.policy import interpret
from fastcni.agent.policy.evaluate import Connection
from fastcni.agent.policy.state import MAPS, PORT_SETS
from fastcni.kernel import conntrack, rtnl, uapi, wire
from fastcni.server.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from fastcni.agent.policy.state import Change, State
    from fastcni.kernel.conntrack import Flow
    from fastcni.kernel.wire import Socket

FAMILIES = (uapi.AF_INET, uapi.AF_INET6)
MAX_DELETED = 128               # flows in one send


class Listing:
    """Lists all flows in a thread. The kernel takes 5 to 10 ms for the list, even without flows; no ADD waits for it.

    Made in a thread that is in the node's namespace; the same thread calls all methods.
    """

    def __init__(self) -> None:
        self._sock = wire.open_socket(uapi.NETLINK_NETFILTER)
        self._wakeup = Wakeup()
        self._thread = ThreadPoolExecutor(1, "flows")
        self._flows: Future[list[Flow]] | None = None

    def fileno(self) -> int:
        """The descriptor to wait on: it is readable when `ended`."""
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
        """Whether take() does not wait."""
        return self._flows is not None and self._flows.done()

    def begin(self) -> None:
        self._flows = self._thread.submit(self._list)

    def _list(self):
        try:
            return conntrack.list_flows(self._sock)
        finally:
            self._wakeup.wake()

    def take(self) -> list[Flow]:
        """Wait for the flows that begin() asked for. Raises OSError."""
        assert self._flows
        flows, self._flows = self._flows, None
        try:
            return flows.result()
        finally:
            self._wakeup.clear()


def suspects(state: State, change: Change) -> set[bytes]:
    """The addresses whose connections a Change may forbid: of pods that lead to other chains, of peers and named ports
    that are gone, and of pods whose policies have other rules. `state`: after the change."""
    found: set[bytes] = set()
    for name in MAPS & change.added.keys():
        found.update(change.added[name])
    for name, keys in change.removed.items():
        if name not in MAPS and name not in PORT_SETS:
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


def cut(sock: Socket, flows: Iterable[Flow], state: State, addresses: Collection[bytes]) -> int:
    """Delete those of the flows from or to these addresses that a State does not allow. Return how many. sock: of
    NETLINK_NETFILTER. Raises OSError."""
    found = [flow for flow in flows
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
