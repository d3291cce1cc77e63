"""Record when the addresses of a node's blocks were released, so that the node gives the address released longest ago.
The times are hints: without the file, only the order of addresses changes.

    0    magic, boot id         the times are of CLOCK_BOOTTIME, so a file of another boot is emptied
    48   confirmed, tried       milliseconds: when the store last confirmed this node, and when this node last asked
    64   seconds                4 bytes for each address: when it was released; 0: never; HELD: a pod has it

Every function needs the Space's lock. The file has this machine's byte order, because no other machine reads it.
"""

from __future__ import annotations

import posix
import sys
import time

MAGIC = b"fastcni1"
HEADER = 64
FIRST = HEADER + 4 * 256        # bytes of the first read: header and 256 times, usually all that a request needs
HELD = 0xFFFFFFFF
NAME = ".cluster/released"
FLAGS = posix.O_RDWR | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NOFOLLOW


class Released:
    """The table of released addresses. It opens its file at the first use, because opening takes some microseconds.
    first: the file's first bytes, with the header; b"": not read yet. Methods raise OSError."""

    __slots__ = ("boot", "fd", "first", "directory")

    def __init__(self) -> None:
        self.directory = self.fd = -1
        self.boot, self.first = b"", b""

    def _open(self) -> None:
        if self.fd < 0:
            self.fd = posix.open(NAME, FLAGS, 0o600, dir_fd=self.directory)

    def read_head(self) -> None:
        """Read the header. Empty the file if it is from another boot. Raises OSError."""
        if self.first:
            return
        self._open()
        self.first = posix.pread(self.fd, FIRST, 0)
        mark = MAGIC + self.boot
        if len(self.first) < HEADER or not self.first.startswith(mark):
            posix.ftruncate(self.fd, 0)
            self.first = mark.ljust(HEADER, b"\0")
            posix.pwrite(self.fd, self.first, 0)

    def close(self) -> None:
        if self.fd >= 0:
            posix.close(self.fd)
        self.directory, self.fd, self.first = -1, -1, b""

    def confirmed(self) -> float:
        """Return the CLOCK_BOOTTIME, in seconds, at which the store last confirmed this node; 0: not in this boot."""
        self.read_head()
        return int.from_bytes(self.first[48:56], sys.byteorder) / 1000

    def tried(self) -> float:
        """Return the CLOCK_BOOTTIME, in seconds, at which the store was last asked to confirm this node; 0: not in this
        boot."""
        self.read_head()
        return int.from_bytes(self.first[56:64], sys.byteorder) / 1000

    def note_confirmed(self, ok: bool) -> None:
        """Record now as the time of the last request to the store; if `ok`, also as the time of the last
        confirmation."""
        self.read_head()
        now = int(boottime() * 1000).to_bytes(8, sys.byteorder)
        posix.pwrite(self.fd, now * 2 if ok else now, 48 if ok else 56)
        self.first = b""

    def give(self, place: int) -> None:
        """Record that a pod has the address at `place`."""
        self._write(place, HELD)

    def release(self, place: int) -> None:
        """Record that the address at `place` is released now."""
        self._write(place, int(boottime()) + 1)

    def _write(self, place: int, seconds: int) -> None:
        self._open()
        posix.pwrite(self.fd, seconds.to_bytes(4, sys.byteorder), HEADER + 4 * place)
        self.first = b""

    def read(self, place: int, count: int) -> bytes:
        """Return the entries of `count` addresses from `place` on, 4 bytes each: the time of the release in seconds; 0:
        never; HELD: a pod has it."""
        self.read_head()
        at, size = HEADER + 4 * place, 4 * count
        data = self.first[at:at + size] if at + size <= FIRST else posix.pread(self.fd, size, at)
        return data.ljust(size, b"\0")

    def latest(self, place: int, count: int) -> float:
        """Return the latest release of the `count` addresses from `place` on, in seconds; 0: none of them was
        released."""
        return max((one for one in memoryview(self.read(place, count)).cast("I") if one != HELD), default=0)


def boottime() -> float:
    """Return the seconds since the boot, including suspend (CLOCK_BOOTTIME). Unlike the wall clock, this clock cannot
    be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
