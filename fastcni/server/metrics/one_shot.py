"""Requests that went one-shot although a server was asked for, counted by the plugin files.

The file PATH.one-shot, beside the server's socket at PATH, has one byte for each of them: its reason. A server with
--metrics makes the file. A plugin file only appends to a file that is there (launcher/one_shot_count.h), so it counts
also while no server runs, and a node without metrics has no such file.
"""

from __future__ import annotations

import os
from stat import S_ISREG

SUFFIX = ".one-shot"
REASONS = {b"n": "no_server", b"b": "busy", b"u": "unread", b"d": "declined", b"t": "too_long", b"l": "lost"}
OTHER = "other"
SHORTEN_BYTES = 256 << 10       # a plugin file appends up to 1 MiB
PIECE_BYTES = 64 << 10


class OneShotCount:
    """The file at a server's socket. One thread calls read(). Raises OSError."""

    def __init__(self, socket_path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self.path = socket_path + SUFFIX
        self.file = os.open(self.path, flags, 0o600)
        found = os.fstat(self.file)
        if not S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()) or found.st_nlink != 1:
            os.close(self.file)
            raise PermissionError(0, "it is another user's, or no regular file", self.path)
        self.at = 0
        self.counts = dict.fromkeys((*REASONS.values(), OTHER), 0)

    def read(self) -> dict[str, int]:
        """{reason: requests}, from the first byte of the file on. A long file is emptied: a request that appends in the
        microseconds of this is not counted. Raises OSError."""
        while piece := os.pread(self.file, PIECE_BYTES, self.at):
            self.at += len(piece)
            left = len(piece)
            for letter, reason in REASONS.items():
                count = piece.count(letter)
                self.counts[reason] += count
                left -= count
            self.counts[OTHER] += left
        if self.at > os.fstat(self.file).st_size:       # another program has emptied it
            self.at = 0
        elif self.at >= SHORTEN_BYTES:
            os.ftruncate(self.file, 0)
            self.at = 0
        return self.counts

    def close(self) -> None:
        os.close(self.file)
