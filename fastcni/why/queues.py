"""Find the process that reads a queue of nfnetlink, into which a rule has put a packet."""

from __future__ import annotations

from fastcni.why.ends import End

TABLE = "/proc/thread-self/net/netfilter/nfnetlink_queue"       # a line for each queue: number, reader's port ID


def sentence(queue: int | None, end: End | None) -> tuple[str, str]:
    """Return two parts of a sentence about what a rule does with a packet: ("dropped", ""), or the queue and its
    reader.

    queue: the queue's number; None: the rule drops. end: the rule is in this end's namespace; None: on the node.
    """
    if queue is None:
        return "dropped", ""
    port = end.inside(lambda: reader(queue)) if end else reader(queue)
    if port is None:
        return f"put into queue {queue}", ", and no process reads this queue"
    return f"put into queue {queue}", (f", and the process that reads this queue (netlink port {port}, usually its "
                                       "PID) does not let the packet pass")


def reader(queue: int) -> int | None:
    """Return the netlink port ID of the process that reads a queue in the calling thread's namespace; None if no
    process reads the queue."""
    try:
        with open(TABLE, encoding="ascii") as file:
            rows = [line.split() for line in file]
    except FileNotFoundError:               # the kernel has no queues
        return None
    return next((int(row[1]) for row in rows if int(row[0]) == queue), None)
