"""Change many nftables elements in few transactions. Split a transaction if a Batch is full or the kernel rejects an
item."""

from __future__ import annotations

from fastcni._netlink import Batch, BatchFull
from fastcni.kernel import nft, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from fastcni.kernel.wire import NetlinkError, Socket

    Fill = Callable[[Batch, Sequence[Any]], object]


def in_one(sock: Socket, items: Sequence[Any], fill: Fill) -> list[NetlinkError]:
    """Send fill(batch, items) as one transaction, or as several if a Batch is too small. Return the kernel's errors."""
    batch = nft.start(Batch())
    try:
        fill(batch, items)
        nft.stop(batch)
    except BatchFull:
        if len(items) < 2:
            raise
        half = len(items) // 2
        return in_one(sock, items[:half], fill) or in_one(sock, items[half:], fill)
    return wire.attempt(sock, batch)[1]


def in_halves(sock: Socket, items: Sequence[Any], fill: Fill, *fine: int) -> int:
    """Send items like in_one(). If the kernel rejects a transaction, send each half of its items again, so that one bad
    item does not keep the kernel from accepting the other items.

    Return the number of items that the kernel accepted. Raises NetlinkError if the kernel rejects a single item, except
    for the errnos in `fine`.
    """
    refused = in_one(sock, items, fill)
    if refused and len(items) > 1:
        half = len(items) // 2
        return in_halves(sock, items[:half], fill, *fine) + in_halves(sock, items[half:], fill, *fine)
    if not refused:
        return len(items)
    wire.raise_first(refused, fine)
    return 0


def by_set(items: Iterable[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """Group items by their first member: return {set: [the other members of each item]}."""
    found: dict[str, list[Any]] = {}
    for name, *rest in items:
        found.setdefault(name, []).append(rest)
    return found
