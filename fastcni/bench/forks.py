"""Count the processes and threads that given processes start. The kernel reports each start by its process connector
(linux/cn_proc.h).

An event names the parent and the child, so the processes and threads of other programs are not counted.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterable
from errno import ENOBUFS
from typing import TYPE_CHECKING

from fastcni.kernel import netns, wire

if TYPE_CHECKING:
    from fastcni.kernel.wire import Socket

CONNECTOR, GROUP = 11, 1        # NETLINK_CONNECTOR, CN_IDX_PROC
LISTEN, IGNORE = 1, 2           # PROC_CN_MCAST_*
FORK = 1                        # PROC_EVENT_FORK
# nlmsghdr; cn_msg: idx, val, seq, ack, len:u16, flags:u16; proc_event: what, cpu, timestamp_ns; fork_proc_event:
# parent_pid, parent_tgid, child_pid, child_tgid
ASK = struct.Struct("=IHHII IIIIHH I")
EVENT = struct.Struct("=16x 20x I 4x Q IIII")


def open_events(namespace: int) -> Socket | None:
    """Return a socket for process events, None if this kernel or container has no process events.

    namespace: a descriptor of the initial network namespace; other network namespaces have no process events.
    """
    try:
        with netns.inside(namespace):
            sock = wire.open_socket(CONNECTOR, groups=(GROUP,))
        sock.setsockopt(1, 33, 8 << 20)         # SOL_SOCKET, SO_RCVBUFFORCE
    except OSError:
        return None
    return sock


def _ask(sock: Socket, what: int) -> None:
    wire.send(sock, ASK.pack(ASK.size, 3, 0, 0, 0, GROUP, 1, 0, 0, 4, 0, what))


class Forks:
    """A counter of started processes and threads. `with Forks(namespace, roots) as forks:` counts, during the body, the
    starts by the processes `roots` (process ids) and by their descendants.

    processes, threads: the counts after the body, None if counting was not possible.
    """

    def __init__(self, namespace: int, roots: Iterable[int]) -> None:
        self.namespace, self.known = namespace, set(roots)
        self.processes: int | None = None
        self.threads: int | None = None

    def __enter__(self) -> Forks:
        self.sock = open_events(self.namespace)
        if self.sock:
            self.counts: list[int] | None = [0, 0]          # None: the kernel has dropped events
            _ask(self.sock, LISTEN)
            self.end = 0                # when the body ended, in ns of CLOCK_MONOTONIC as in events; 0: not yet
            self.sock.settimeout(0.2)
            self.reader = threading.Thread(target=self._read, args=(self.sock,), daemon=True)
            self.reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.sock:
            self.end = time.monotonic_ns()
            self.reader.join()
            if self.counts:
                self.processes, self.threads = self.counts
            _ask(self.sock, IGNORE)
            self.sock.close()

    def _read(self, sock: Socket) -> None:
        """Count events until the body has ended. After the end, stop at the first later event, or if no event arrives
        in time; on a busy node, a later event always arrives."""
        while True:
            try:
                data = sock.recv(65536)
            except TimeoutError:
                if self.end:
                    return
                continue
            except OSError as e:
                if e.errno != ENOBUFS:
                    raise
                self.counts = None
                return
            if self.counts and len(data) >= EVENT.size:
                what, moment, *processes = EVENT.unpack_from(data)
                if 0 < self.end < moment:
                    return
                self._count(self.counts, what, *processes)

    def _count(self, counts: list[int], what: int, _: int, parent: int, child: int, child_process: int) -> None:
        if what != FORK or parent not in self.known:
            return
        if child == child_process:
            self.known.add(child)
            counts[0] += 1
        else:
            counts[1] += 1
