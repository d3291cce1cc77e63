"""Periodic work: the server shows that it is not stopped, reports to systemd's watchdog, and frees what it no longer
needs."""

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

BEAT_S = 1.0                    # far less than STALL_S
TIDY_S = 5.0


class Upkeep:
    """The thread that does what is due, once a second.

    tidy(): frees what is no longer needed, every tidy_s seconds. watchdog: a Watchdog. idle: an IdleExit.
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
    """Reports to systemd that the server works (sd_notify(3), WatchdogSec=), each time that a worker has answered a
    probe.

    notify(text): sends to systemd. probe(): see Acceptor.probe(). timeout_s: systemd's; 0: it expects no reports.
    """

    def __init__(self, notify: Callable[[str], object], probe: Callable[[], socket], timeout_s: float) -> None:
        self.notify, self.probe, self.interval_s = notify, probe, timeout_s / 4
        self.answer: socket | None = None       # the connection of a probe that has no answer yet
        self.due = monotonic()                  # when to send the next probe

    def poll(self) -> None:
        """Send a probe when one is due, or read the answer; never waits."""
        if not self.interval_s or (self.answer is None and monotonic() < self.due):
            return
        if self.answer is None:
            self.answer = self.probe()
        try:
            answer = self.answer.recv(protocol.HEAD.size)
        except BlockingIOError:
            return                      # without an answer there is no report
        self.answer.close()
        self.answer = None
        if len(answer) == protocol.HEAD.size and protocol.HEAD.unpack(answer)[2] == 0:
            self.due = monotonic() + self.interval_s
            self.notify("WATCHDOG=1")


def watchdog_seconds(env: Mapping[str, str]) -> float:
    """The timeout of systemd's watchdog for this process, in seconds; 0.0 without one."""
    usec, pid = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
    return int(usec) / 1e6 if usec.isdigit() and pid in ("", str(os.getpid())) else 0.0
