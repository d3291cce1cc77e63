"""Stop or kill a process that a test has started."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from fastcni.testing.witnesses import eventually


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def stop(pid):
    """Send SIGSTOP, and wait until all threads of the process have stopped. The kernel delivers the signal to one
    thread, and the other threads keep running until this thread runs."""
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: states(pid) == {"T"}), states(pid)


def states(pid):
    """Return the states of a process's threads, as in proc(5). "T" is a stopped thread."""
    found = set()
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):       # the thread has just ended
            found.add(path.read_text().rpartition(")")[2].split()[0])
    return found
