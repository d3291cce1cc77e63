"""End a server that has had no requests for a while, in the same way as SIGTERM does.

The server answers the requests that have arrived; later requests run one-shot or go to the next server.
"""

from __future__ import annotations

import os
import signal
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.daemon.log import Logger
    from fastcni.server.requests.acceptor import Acceptor
    from fastcni.server.requests.request_queue import RequestQueue


class IdleExit:
    """The idle exit. limit_s: seconds without a request until the exit; 0: never. The watchdog's probes do not delay
    the exit."""

    def __init__(self, acceptor: Acceptor, queue: RequestQueue, limit_s: float, log: Logger) -> None:
        self.acceptor, self.queue, self.limit_s, self.log = acceptor, queue, limit_s, log
        self.since = monotonic()

    def poll(self) -> None:
        """Send SIGTERM to this process if limit_s seconds have passed without a request. Never blocks."""
        if not self.limit_s:
            return
        accepted, self.acceptor.accepted = self.acceptor.accepted, False
        if accepted or self.acceptor.unread or self.queue.waiting or self.queue.running:
            self.since = monotonic()
        elif monotonic() - self.since >= self.limit_s:
            self.log.info("server_idle", seconds=round(monotonic() - self.since, 1))
            os.kill(os.getpid(), signal.SIGTERM)    # all threads block SIGTERM; serve() receives it by sigwait()
            self.limit_s = 0
