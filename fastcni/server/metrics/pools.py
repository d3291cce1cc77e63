"""Define the result of counting a node's addresses and attachments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

COUNT_S = 15.0                  # seconds for which a count is valid
MAX_POOLS = 1000                # limit of the ranges in the metrics
UNKNOWN = "none"                # the name of the range for addresses outside of all ranges


@dataclass(frozen=True, slots=True)
class Pool:
    """A range of addresses. ipam: "host-local" or "cluster". network: the network's name; for "cluster" the address
    space. held, free: numbers of addresses; free is None if the range is unknown."""

    ipam: str
    network: str
    range: str
    held: int
    free: int | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """The result of a count. attachments: {network: number}. moment: when the server counted, in monotonic seconds."""

    pools: tuple[Pool, ...] = ()
    attachments: dict[str, int] = field(default_factory=dict)
    moment: float = 0.0


def cluster_pools(stores: Iterable[dict[str, Any]]) -> Iterator[Pool]:
    """Yield the ranges of cluster-wide addresses. stores: "cluster" of the status document, see server/status.py."""
    for store in stores:
        for space in store["spaces"]:
            for one in space["ranges"]:
                yield Pool("cluster", space["space"], one["range"], one["size"] - one["free"], one["free"])
