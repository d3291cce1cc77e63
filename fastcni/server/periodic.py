"""Do the server's periodic work: record that this process is not stopped, report to systemd's watchdog, and free unused
memory and descriptors."""

from __future__ import annotations

import os
import threading
from time import monotonic

from fastcni._abandoned import note_running
from fastcni.kit.call.deadlines import STALL_S
from fastcni.server.requests import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from socket import socket

    from fastcni.daemon.log import Logger
    from fastcni.server.idle import IdleExit

BEAT_S = 1.0                    # seconds between two calls of note_running(); far less than STALL_S
TIDY_S = 5.0


class Upkeep:
    """The thread that does the periodic work once a second.

    tidy(): called every tidy_s seconds, frees unused resources. watchdog: a Watchdog. idle: an IdleExit.
    """

    def __init__(self, tidy: Callable[[], None], watchdog: Watchdog, idle: IdleExit, log: Logger, *,
                 tidy_s: float = TIDY_S) -> None:
        self.tidy, self.watchdog, self.idle, self.log, self.tidy_s = tidy, watchdog, idle, log, tidy_s
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self) -> None:
        note_running(STALL_S)
        self.thread.start()

    def stop(self) -> None:
        self.ended.set()
        self.thread.join()

    def _run(self) -> None:
        due = monotonic() + self.tidy_s
        while not self.ended.wait(min(BEAT_S, self.tidy_s)):
            try:
                note_running()
                self.watchdog.poll()
                self.idle.poll()
                if monotonic() >= due:
                    due = monotonic() + self.tidy_s
                    self.tidy()
            except Exception:           # if the thread ended, systemd would kill the server
                self.log.exception("server_fault")


class Watchdog:
    """The reports to systemd that the server works (sd_notify(3), WatchdogSec=). Each report follows a probe that a
    worker has answered.

    notify(text): sends to systemd. probe(): see Acceptor.probe(). timeout_s: systemd's timeout; 0: systemd expects no
    reports.
    """

    def __init__(self, notify: Callable[[str], object], probe: Callable[[], socket], timeout_s: float) -> None:
        self.notify, self.probe, self.interval_s = notify, probe, timeout_s / 4
        self.answer: socket | None = None       # the connection of a probe without an answer
        self.due = monotonic()                  # when to send the next probe

    def poll(self) -> None:
        """Send a probe when the next probe is due, or read the answer to the last probe. Never blocks."""
        if not self.interval_s or (self.answer is None and monotonic() < self.due):
            return
        if self.answer is None:
            self.answer = self.probe()
        try:
            answer = self.answer.recv(protocol.HEAD.size)
        except BlockingIOError:
            return                      # report to systemd only after the probe's answer
        self.answer.close()
        self.answer = None
        if len(answer) == protocol.HEAD.size and protocol.HEAD.unpack(answer)[2] == 0:
            self.due = monotonic() + self.interval_s
            self.notify("WATCHDOG=1")


def watchdog_seconds(env: Mapping[str, str]) -> float:
    """Return the timeout of systemd's watchdog for this process, in seconds; 0.0 without a watchdog."""
    usec, pid = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
    return int(usec) / 1e6 if usec.isdigit() and pid in ("", str(os.getpid())) else 0.0
