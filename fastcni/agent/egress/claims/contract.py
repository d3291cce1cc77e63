"""Define the contract of the stores of claims. A claim is a lease of LEASE_S seconds, by which one node holds an egress
address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

LEASE_S = 2                     # the shortest lease that etcd grants
RENEW_S = 0.5                   # seconds between two renewals, so that three renewals in a row may fail
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 1.0   # seconds before a lost watch is opened again: the pause doubles
REQUEST_S, ENDPOINT_S = 1.0, 0.4        # timeouts in seconds of a request, and of its try at one endpoint


class Claims(Protocol):
    """A store of claims. Methods raise Away if the store cannot be reached. One thread calls watch(), another thread
    the other methods.

    node: the name of this node's record.
    """

    node: str

    def renew(self, held: Collection[bytes]) -> Mapping[bytes, float]:
        """Renew the claims of this node. held: the addresses that this node has claimed. Return {address: the monotonic
        time until which no other node can claim it}. A lost claim is not in the result."""
        ...

    def claim(self, address: bytes) -> float:
        """Claim an address that no node holds. Return the monotonic time until which no other node can claim it; 0.0 if
        the claim failed, for example because another node was faster."""
        ...

    def release(self, addresses: Collection[bytes]) -> None:
        """Delete this node's claims of `addresses`, so that other nodes need not wait for the end of the lease."""
        ...

    def holders(self) -> Mapping[bytes, str]:
        """Return {address: name of the node that has claimed it}, as watch() has last read it."""
        ...

    def free_at(self, address: bytes) -> float:
        """Return the monotonic time from which claim() may succeed. 0.0: no node holds the address, or this node
        claimed the address before the agent restarted. inf: claim() must wait until watch() reports a
        change."""
        ...

    def watch(self, changed: Callable[[], object], stop: Callable[[], bool]) -> None:
        """Follow the claims of all nodes until stop() returns true, and reconnect if the store was unavailable. Call
        changed() after each change, and after each list of all claims."""
        ...

    def close(self) -> None: ...
