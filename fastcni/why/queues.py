"""Queues of nfnetlink, by which rules hand packets to a process: which process reads a queue."""

from __future__ import annotations

from fastcni.why.ends import End

TABLE = "/proc/thread-self/net/netfilter/nfnetlink_queue"       # a line a queue: its number, the reader's port ID, ...


def sentence(queue: int | None, end: End | None) -> tuple[str, str]:
    """Return what a rule does with a packet: ("dropped", ""), or the text for a queue and the process that reads it.

    queue: the queue's number, None for a rule that drops. end: whose namespace the rule is in, None: the node's.
    """
    if queue is None:
        return "dropped", ""
    port = end.inside(lambda: reader(queue)) if end else reader(queue)
    if port is None:
        return f"put into queue {queue}", ", and no process reads this queue"
    return f"put into queue {queue}", (f", and the process that reads this queue (netlink port {port}, usually its "
                                       "PID) does not let the packet pass")


def reader(queue: int) -> int | None:
    """Return the netlink port ID of a queue's reader in the calling thread's namespace, None if there is no reader."""
    try:
        with open(TABLE, encoding="ascii") as file:
            rows = [line.split() for line in file]
    except FileNotFoundError:               # the kernel has no queues
        return None
    return next((int(row[1]) for row in rows if int(row[0]) == queue), None)
