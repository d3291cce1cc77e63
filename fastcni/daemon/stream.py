"""Write lines to stderr. If a write would block for long, drop the line.

A pipe, a terminal or a socket blocks the process that writes if the reader has stopped: a program behind `|`, Ctrl-S,
or a container runtime whose disk is full. A blocked line would stop the server with all its requests. A reader that is
only slow loses no line: a line waits for WAIT_MS, unless the line before waited in vain.
"""

from __future__ import annotations

import os
import select
from stat import S_ISREG
from threading import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

# UTF-8 has 4 bytes at most for a character. If poll(2) reports a pipe as writable, a write of 4,096 bytes (PIPE_BUF)
# does not block, pipe(7)
MAX_CHARACTERS = 1024
WAIT_MS = 100


class Stream:
    """A stream for lines, for any number of threads. A line that cannot be written is lost, for example because the
    disk is full, so that no request fails because of the log."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.lock = file, Lock()
        self.cut = False                # whether the last line is incomplete
        self.patience = WAIT_MS         # milliseconds for which the next line may wait
        self.poll = make_poll(file)

    def write(self, line: str) -> bool:
        """Write a line. Return False if the line is lost."""
        text = f"{line}\n"
        with self.lock:
            if self.cut:
                text = f"\n{text}"
            try:
                for at in range(0, len(text), MAX_CHARACTERS):
                    if self.poll and not self.poll.poll(self.patience):
                        self.cut |= at > 0
                        self.patience = 0
                        return False
                    self.file.write(text[at:at + MAX_CHARACTERS])
                    self.file.flush()
            except OSError:
                return False
            self.cut, self.patience = False, WAIT_MS
            return True


def make_poll(file: TextIO) -> select.poll | None:
    """Return an object that polls whether a write to the file would block; None: no write blocks."""
    try:
        fd = file.fileno()
        if S_ISREG(os.fstat(fd).st_mode):
            return None
    except OSError:                     # the stream has no descriptor
        return None
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return poll
