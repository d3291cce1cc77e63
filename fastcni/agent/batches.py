"""Collect many netlink requests for one send()."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from fastcni._netlink import Batch, BatchFull
from fastcni.kernel import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastcni.kernel.wire import NetlinkError, Socket

ELEMENTS = 250                  # elements in one netlink message, which has at most 32 KiB
Item = TypeVar("Item")


class NetlinkRequests:
    """Netlink requests in one or more Batches. first: the first Batch, which may already have messages."""

    def __init__(self, first: Batch | None = None) -> None:
        self.batches = [Batch() if first is None else first]

    def add(self, write: Callable[..., object], *args: object, **named: object) -> None:
        """Call write(batch, *args, **named) with the last Batch; if this Batch is full, with a new Batch."""
        try:
            write(self.batches[-1], *args, **named)
        except BatchFull:
            self.batches.append(Batch())
            write(self.batches[-1], *args, **named)

    def add_parts(self, write: Callable[..., object], family: int, table: str, name: str, items: Iterable[object],
                  **named: object) -> None:
        """Call add() with write, family, table, name and at most ELEMENTS of the items, until all items are added."""
        for some in parts(items):
            self.add(write, family, table, name, some, **named)

    def send(self, sock: Socket) -> list[NetlinkError]:
        """Send the requests, and return the kernel's errors."""
        return wire.attempt(sock, wire.Batches(self.batches))[1] if self.batches[0] else []


def parts(items: Iterable[Item], size: int = ELEMENTS) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `size` items."""
    each = iter(items)
    while some := list(islice(each, size)):
        yield some
