"""What the stores of claims have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

LEASE_S = 2                     # the least that etcd grants
RENEW_S = 0.5                   # between two renewals: three renewals in a row may fail
REQUEST_S, ENDPOINT_S = 1.0, 0.4        # for all endpoints, for one of several


class Claims(Protocol):
    """Methods raise Away if the store cannot be reached. One thread calls watch(), another one the others.

    node: the name of this node's record.
    """

    node: str

    def renew(self, held: Collection[bytes]) -> Mapping[bytes, float]:
        """Renew the claims of this node. held: the addresses that it has claimed. Return for each address until when no
        other node can claim it, monotonic; lost claims are left out."""
        ...

    def claim(self, address: bytes) -> float:
        """Claim an address that no node holds. Return until when no other node can claim it, monotonic; 0.0: another
        node was faster."""
        ...

    def release(self, addresses: Collection[bytes]) -> None:
        """Give up claims, so that other nodes need not wait for the end of the lease."""
        ...

    def holders(self) -> Mapping[bytes, str]:
        """Return the names of the nodes that have claimed addresses, as the last change that watch() has seen."""
        ...

    def free_at(self, address: bytes) -> float:
        """Return from when on claim() may succeed, monotonic: 0.0 if no node holds the address, or this node since
        before a restart; infinite while only a change, which watch() sees, can end another node's claim."""
        ...

    def watch(self, changed: Callable[[], object], stop: Callable[[], bool]) -> None:
        """Follow the claims of all nodes until stop(), also while the store is unavailable. Call changed() after each
        change, and after the first list."""
        ...

    def close(self) -> None: ...
