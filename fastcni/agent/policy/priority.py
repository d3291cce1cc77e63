"""The priority of the threads that enforce policies: on a busy node, forbidden packets pass no longer than else."""

from __future__ import annotations

import os

NICE = -10                      # nine times the weight of other threads; the search for flows takes 10 ms of work


def raise_priority() -> None:
    """Give the calling thread priority over other threads, if it may: a container may lack CAP_SYS_NICE."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, NICE)        # Linux: of the thread
    except PermissionError:
        return


def usual_priority() -> None:
    """Give the calling thread the usual priority again."""
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
