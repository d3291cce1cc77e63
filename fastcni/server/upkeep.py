"""What the server does beside requests: it shows that it is not stopped, tells systemd that it works, and tidies up."""

import os
import threading
from time import monotonic

from fastcni._netlink import sign_of_life
from fastcni.kit.call.deadlines import STALL_SECONDS
from fastcni.server import protocol

BEAT_SECONDS = 1.0              # far less than STALL_SECONDS
TIDY_SECONDS = 5.0


class Upkeep:
    """A thread. tidy(): lets go of what is not needed any more. watchdog: a Watchdog."""

    def __init__(self, tidy, watchdog, log, *, tidy_seconds=TIDY_SECONDS):
        self.tidy, self.watchdog, self.log, self.tidy_seconds = tidy, watchdog, log, tidy_seconds
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self):
        sign_of_life(STALL_SECONDS)
        self.thread.start()

    def stop(self):
        self.ended.set()
        self.thread.join()

    def _run(self):
        due = monotonic() + self.tidy_seconds
        while not self.ended.wait(min(BEAT_SECONDS, self.tidy_seconds)):
            try:
                sign_of_life()
                self.watchdog.look()
                if monotonic() >= due:
                    due = monotonic() + self.tidy_seconds
                    self.tidy()
            except Exception:           # the next time may go better; else systemd hears nothing more
                self.log.exception("server_fault")


class Watchdog:
    """Tells systemd that the server works (sd_notify(3), WatchdogSec=): only after a worker has answered a request that
    went through the queue. notify(text); ask(): see Acceptor.ask(); seconds: what systemd expects, 0: nothing."""

    def __init__(self, notify, ask, seconds):
        self.notify, self.ask, self.every = notify, ask, seconds / 4
        self.asked, self.due = None, monotonic()

    def look(self):
        """From time to time; never waits."""
        if not self.every or (self.asked is None and monotonic() < self.due):
            return
        if self.asked is None:
            self.asked = self.ask()
        try:
            answer = self.asked.recv(protocol.HEAD.size)
        except BlockingIOError:
            return                      # not yet: systemd hears nothing until it comes
        self.asked.close()
        self.asked = None
        if len(answer) == protocol.HEAD.size and protocol.HEAD.unpack(answer)[2] == 0:
            self.due = monotonic() + self.every
            self.notify("WATCHDOG=1")


def watchdog_seconds(env):
    """What systemd expects of this process."""
    usec, pid = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
    return int(usec) / 1e6 if usec.isdigit() and pid in ("", str(os.getpid())) else 0.0
