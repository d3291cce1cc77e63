"""Show each netlink message of the calling thread, if the variable FASTCNI_WIRE asks for this."""

from __future__ import annotations

import sys

from fastcni.kernel import waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Traced(waiting.Request):
    """A Request that shows the netlink messages of its thread: write(bytes) gets the text of each datagram."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.write = write

    def show(self, way: str, data: bytes) -> None:
        self.write(rows(way, data).encode())


def rows(way: str, data: bytes) -> str:
    """Return a datagram as text: each message in rows of four bytes, `way` in front."""
    lines = []
    at = 0
    while at < len(data):
        size = max(int.from_bytes(data[at:at + 4], sys.byteorder), 16)
        lines.append(f"{way} netlink message of {size} bytes")
        lines += [f"{way}   {data[i:i + 4].hex(' ')}" for i in range(at, min(at + size, len(data)), 4)]
        at += size + 3 & ~3
    return "".join(f"{line}\n" for line in lines)
