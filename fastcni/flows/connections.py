"""Read new connections from conntrack events. On a busy node, read only a sample: the events of short moments.

While a socket is in the multicast group, the kernel makes an event for each new connection, which takes 2 us of
processor time; reading an event takes 20 us. So on a busy node, the socket is outside the group most of the time.
"""

from __future__ import annotations

import time

from fastcni.kernel import conntrack, uapi, wire

PAUSE_S = 0.1                   # seconds between two calls of read(); the kernel buffers events
MOMENT_S = 0.002                # seconds of each PAUSE_S in which the socket is in the group, on a busy node
MAX_EVENTS = 75                 # if read() gets more events than this, the next calls read only samples
CALM = 10                       # calls of read() in a row with few events, after which all connections are read again
BUFFER_BYTES = 256 << 10        # the receive buffer as the kernel counts its size: about 300 events


class Connections:
    """The socket for conntrack's events of new connections. sock: readable when events have arrived. left: how many of
    the next calls of read() read only samples."""

    def __init__(self) -> None:
        self.sock, self.left = wire.open_socket(uapi.NETLINK_NETFILTER, (conntrack.NFNLGRP_CONNTRACK_NEW,)), 0
        wire.set_buffer_size(self.sock, BUFFER_BYTES)

    @property
    def sampled(self) -> bool:
        """Return whether read() returns only a sample of the connections."""
        return self.left > 0

    def wait(self) -> None:
        """Sleep for PAUSE_S. If only samples are read, join the group for the last MOMENT_S."""
        if not self.sampled:
            time.sleep(PAUSE_S)
            return
        time.sleep(PAUSE_S - MOMENT_S)
        wire.join(self.sock, conntrack.NFNLGRP_CONNTRACK_NEW)
        time.sleep(MOMENT_S)
        wire.leave(self.sock, conntrack.NFNLGRP_CONNTRACK_NEW)

    def read(self) -> list[bytes]:
        """Return the payloads of the events since the last call, and decide whether the next calls read samples."""
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
