"""Stop or kill a process of a test."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from fastcni.testing.witnesses import eventually


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def stop(pid):
    """Send SIGSTOP, and wait until the process has stopped. The kernel gives the signal to one thread; until this
    thread runs, the other threads continue."""
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: states(pid) == {"T"}), states(pid)


def states(pid):
    """Return the states of a process's threads, "T" for a stopped thread, as in proc(5)."""
    found = set()
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):       # a thread that has just ended
            found.add(path.read_text().rpartition(")")[2].split()[0])
    return found
