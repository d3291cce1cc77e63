"""When the addresses of a node's blocks were released, so that the one released longest ago is given first. Hints: if
the file is lost, only the order changes.

    0    magic, boot id         of another boot: the file is emptied, since its times are of CLOCK_BOOTTIME
    48   confirmed, tried       milliseconds: when the store last knew this node, and when it was last asked
    64   16 cursors             16 bytes each: the address that was given last, of ranges by a hash
    320  seconds                4 bytes for each address: when it was released; 0 never, HELD while a pod has it

Every function needs the lock of the space. Numbers are little-endian.
"""

from __future__ import annotations

import posix
import time

MAGIC = b"fastcni1"
HEADER, CURSORS, CURSOR, COUNT = 320, 64, 16, 16
HELD = 0xFFFFFFFF
NAME = ".cluster/released"
FLAGS = posix.O_RDWR | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NOFOLLOW


class Released:
    """The open file. head: the bytes of its header."""

    __slots__ = ("fd", "head")

    def __init__(self) -> None:
        self.fd, self.head = -1, b""

    def open(self, folder: int, boot: bytes) -> None:
        """Open the file of a folder, empty if it is of another boot. Raises OSError."""
        self.fd = posix.open(NAME, FLAGS, 0o600, dir_fd=folder)
        self.head = posix.pread(self.fd, HEADER, 0)
        mark = MAGIC + boot
        if len(self.head) != HEADER or not self.head.startswith(mark):
            posix.ftruncate(self.fd, 0)
            self.head = mark.ljust(HEADER, b"\0")
            posix.pwrite(self.fd, self.head, 0)

    def close(self) -> None:
        if self.fd >= 0:
            posix.close(self.fd)
            self.fd = -1

    def confirmed(self) -> float:
        """The CLOCK_BOOTTIME, in seconds, at which the store last confirmed this node; 0: not in this boot."""
        return int.from_bytes(self.head[48:56], "little") / 1000

    def tried(self) -> float:
        """When the store was last asked for that."""
        return int.from_bytes(self.head[56:64], "little") / 1000

    def note_confirmed(self, ok: bool) -> None:
        """Note that the store was asked now, and whether it has confirmed this node."""
        now = int(boottime() * 1000).to_bytes(8, "little")
        posix.pwrite(self.fd, now * 2 if ok else now, 48 if ok else 56)
        self.head = posix.pread(self.fd, HEADER, 0)

    def cursor(self, range_hash: int, size: int) -> bytes:
        """The address of `size` bytes that was given last of a range; zeros: none."""
        at = CURSORS + CURSOR * (range_hash % COUNT)
        return self.head[at:at + size]

    def give(self, place: int, range_hash: int, packed: bytes) -> None:
        """Note that the address at `place` is given, as the last one of a range."""
        posix.pwrite(self.fd, packed, CURSORS + CURSOR * (range_hash % COUNT))
        posix.pwrite(self.fd, b"\xff\xff\xff\xff", HEADER + 4 * place)

    def release(self, place: int) -> None:
        posix.pwrite(self.fd, (int(boottime()) + 1).to_bytes(4, "little"), HEADER + 4 * place)

    def released_at(self, place: int) -> int:
        """When the address at `place` was released, 0: never."""
        seconds = int.from_bytes(posix.pread(self.fd, 4, HEADER + 4 * place), "little")
        return 0 if seconds == HELD else seconds

    def oldest(self, place: int, count: int) -> tuple[int, int]:
        """(when, index) of the one released longest ago of `count` addresses from `place` on; HELD: all are held."""
        data = posix.pread(self.fd, 4 * count, HEADER + 4 * place)
        if len(data) < 4 * count:
            return 0, len(data) // 4            # beyond the end of the file: never released
        seconds = [int.from_bytes(data[i:i + 4], "little") for i in range(0, len(data), 4)]
        when = min(seconds)
        return when, seconds.index(when)

    def latest(self, place: int, count: int) -> float:
        """When the last of `count` addresses from `place` on was released; 0: none was."""
        data = posix.pread(self.fd, 4 * count, HEADER + 4 * place)
        seconds = [int.from_bytes(data[i:i + 4], "little") for i in range(0, len(data), 4)]
        return max((one for one in seconds if one != HELD), default=0)


def boottime() -> float:
    """Seconds since the boot, time in suspend included: no one can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
