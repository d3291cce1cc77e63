"""Define Child: a process that runs code of the agent, a socket to this process, and the pauses between its starts."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

MAX_PAUSE_S = 30.0              # the longest pause before the process is started again


class Child:
    """A process and the socket to it. One thread calls all methods.

    task: what the process does, for `why`. why: why the process does not work at present; "" if it works or is
    starting. sock: None if no process runs. poll: an epoll object that has `sock`.
    """

    def __init__(self, task: str, first_pause_s: float) -> None:
        self.task, self.why, self.poll = task, "", select.epoll()
        self.sock: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pause, self._until = first_pause_s, 0.0

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when the process has sent a message or has ended."""
        return self.poll.fileno()

    def close(self) -> None:
        """End the process."""
        self._end()
        self.poll.close()

    def _run(self, main: str, descriptors: Collection[int] = (), **arguments: object) -> None:
        """Start the process. main: its code, in which str.format() replaces path, fd (the process's end of the socket)
        and `arguments`. descriptors: further descriptors of the process. Raises OSError."""
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.setblocking(False)
        self.poll.register(self.sock, select.EPOLLIN)
        with theirs:
            code = main.format(path=sys.path, fd=theirs.fileno(), **arguments)
            self._process = subprocess.Popen([sys.executable, "-I", "-c", code], stdin=subprocess.DEVNULL,
                                             stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno(), *descriptors],
                                             start_new_session=True)

    def _end(self) -> None:
        if self.sock:
            self.sock.close()
        if self._process:
            os.killpg(self._process.pid, signal.SIGKILL)        # until wait(), no other process gets this id
            self._process.wait()
        self.sock = self._process = None

    def _lose(self, what: str) -> None:
        """End the process. The caller starts it again after a pause, at `_until`. what: the reason, which becomes the
        attribute `why`."""
        self._end()
        self.why = f"the process that {self.task} {what}; it is started again"
        self._until = monotonic() + self._pause
        self._pause = min(2 * self._pause, MAX_PAUSE_S)
