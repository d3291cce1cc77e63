"""Collect many netlink requests for one send()."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni._netlink import Batch, BatchFull
from fastcni.kernel import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.kernel.wire import NetlinkError, Socket


class Requests:
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

    def send(self, sock: Socket) -> list[NetlinkError]:
        """Send the requests, and return the kernel's errors."""
        return wire.attempt(sock, wire.Batches(self.batches))[1] if self.batches[0] else []
