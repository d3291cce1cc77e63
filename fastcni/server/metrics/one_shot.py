"""Count the requests that went one-shot although a server should have run them. The plugin files write the counts.

The file PATH.one-shot, next to the server's socket at PATH, has one byte for each such request: the reason. A server
with --metrics creates the file; a plugin file only appends to an existing file (launcher/one_shot_count.h). So plugin
files count requests even while no server runs, and on a node without metrics they write no file.
"""

from __future__ import annotations

import os

from fastcni.daemon.listening import is_ours

SUFFIX = ".one-shot"
REASONS = {b"n": "no_server", b"b": "busy", b"u": "unread", b"d": "declined", b"t": "too_long", b"l": "lost"}
OTHER = "other"
SHORTEN_BYTES = 256 << 10       # read() empties the file at this size; a plugin file appends up to 1 MiB
PIECE_BYTES = 64 << 10


class OneShotCount:
    """The file next to a server's socket. Only one thread may call read(). The constructor raises OSError."""

    def __init__(self, socket_path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self.path = socket_path + SUFFIX
        self.file = os.open(self.path, flags, 0o600)
        if not is_ours(os.fstat(self.file)):
            os.close(self.file)
            raise PermissionError(0, "the file is another user's, or no regular file", self.path)
        self.at = 0
        self.counts = dict.fromkeys((*REASONS.values(), OTHER), 0)

    def read(self) -> dict[str, int]:
        """Return {reason: number of requests} since the file was created. If the file is long, empty it; a reason that
        a plugin file appends at the same time is lost. Raises OSError."""
        while piece := os.pread(self.file, PIECE_BYTES, self.at):
            self.at += len(piece)
            left = len(piece)
            for letter, reason in REASONS.items():
                count = piece.count(letter)
                self.counts[reason] += count
                left -= count
            self.counts[OTHER] += left
        if self.at > os.fstat(self.file).st_size:       # another program has emptied the file
            self.at = 0
        elif self.at >= SHORTEN_BYTES:
            os.ftruncate(self.file, 0)
            self.at = 0
        return self.counts

    def close(self) -> None:
        os.close(self.file)
