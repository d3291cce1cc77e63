"""Raise the priority of the threads that enforce policies, so that a busy node enforces a new policy as fast as an idle
node."""

from __future__ import annotations

import os

NICE = -10                      # nine times the CPU weight of other threads; a search for flows takes 10 ms of CPU time


def raise_priority() -> None:
    """Give the calling thread a high priority (NICE). Do nothing without CAP_SYS_NICE, which a container may lack."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, NICE)        # on Linux, the priority of this thread only
    except PermissionError:
        return


def usual_priority() -> None:
    """Give the calling thread the usual priority again."""
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
