"""New connections, by events of conntrack. Of too many connections only a sample is read: those of short moments.

While a socket is in the group, the kernel makes an event for each connection, in 2 us of processor time, and a reader
needs 20 us for an event. So the socket of a busy node leaves the group for most of the time.
"""

from __future__ import annotations

import time

from fastcni.kernel import conntrack, uapi, wire

PAUSE_S = 0.1                   # between two readings; events wait in buffers meanwhile
MOMENT_S = 0.002                # of each PAUSE_S, in which the socket of a busy node listens
MAX_EVENTS = 75                 # in one reading; after more events the next readings are samples
CALM = 10                       # readings in a row without many events, after which all connections are seen again
BUFFER_BYTES = 256 << 10        # as the kernel counts: some 300 events


class Connections:
    """sock: readable if there are any. left: how many readings will still be samples."""

    def __init__(self) -> None:
        self.sock, self.left = wire.open_socket(uapi.NETLINK_NETFILTER, (conntrack.NFNLGRP_CONNTRACK_NEW,)), 0
        wire.set_buffer_size(self.sock, BUFFER_BYTES)

    @property
    def sampled(self) -> bool:
        """Whether some connections are not seen."""
        return self.left > 0

    def wait(self) -> None:
        """Let PAUSE_S pass."""
        if not self.sampled:
            time.sleep(PAUSE_S)
            return
        time.sleep(PAUSE_S - MOMENT_S)
        wire.join(self.sock, conntrack.NFNLGRP_CONNTRACK_NEW)
        time.sleep(MOMENT_S)
        wire.leave(self.sock, conntrack.NFNLGRP_CONNTRACK_NEW)

    def read(self) -> list[bytes]:
        """Return the events since the last call, as payloads."""
        found: list[bytes] = []
        lost: list[bool] = []
        wire.drain(self.sock, lambda _, payload: found.append(payload), lambda: lost.append(True))
        before = self.sampled
        if lost or len(found) > (MAX_EVENTS * MOMENT_S / PAUSE_S if before else MAX_EVENTS):
            self.left = CALM
        elif self.left:
            self.left -= 1
        if self.sampled != before:
            (wire.leave if self.sampled else wire.join)(self.sock, conntrack.NFNLGRP_CONNTRACK_NEW)
        return found
