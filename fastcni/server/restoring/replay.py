"""Replay pods' rules in iptables, in firewalld and in an administrator's chains from the runtimes' result caches.

The server has no copy of these rules. A replay begins only when signs of a loss have lasted for a short time, because a
reload or a DEL consists of many transactions. See docs/server-restore.md; restore_states.py has the states.
"""

from __future__ import annotations

import os
from math import inf
from threading import Thread
from time import monotonic

from fastcni.daemon.backoff import MAX_DELAY_S, Backoff
from fastcni.kernel import netns
from fastcni.kit.call import names
from fastcni.server.restoring.restore_states import (
    BEGUN,
    ENDED,
    IDLE,
    LOST,
    MAYBE_LOST,
    MAYBE_NEEDED,
    NEEDED,
    NOT_STARTED,
    PRESENT,
    RUNNING,
    Machine,
)
from fastcni.server.restoring.table_mirror import OWN_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from fastcni.daemon.log import Logger
    from fastcni.runtime.records import Attachment
    from fastcni.runtime.restore import Restored
    from fastcni.server.restoring.iptables_watch import IptablesWatch
    from fastcni.server.restoring.table_mirror import TableMirror

    DeletedAt = Callable[[Attachment], float]
    Run = Callable[[DeletedAt], Restored]

DELAY_S, DELAY_AFTER_DEL_S = 0.02, 0.5
MAX_ERRORS = 3                  # limit of the errors in the log line of a replay
MAX_REPEATS = 5                 # repetitions of a failed replay, during which firewalld may have started or ended
FAILED_BEFORE = "rules that the last replay could not restore"
AT_START = "start"              # the reason for the replay at the server's start, without a notification


class Replay:
    """The replays of one network namespace.

    home: a descriptor of the namespace, for the caller to close. run(deleted_at): replays in the calling thread's
    namespace, and returns a runtime.restore.Restored; None: this server replays nothing. deleted_at: the argument of
    run(). iptables, mirror: the namespace's IptablesWatch and TableMirror. ended(outcome): called in the replay's
    thread when the replay has ended, with "done" or "failed". at_start: whether to replay once without a loss, because
    rules may have been flushed while no server ran.
    """

    def __init__(self, home: int, run: Run | None, deleted_at: DeletedAt, iptables: IptablesWatch, mirror: TableMirror,
                 ended: Callable[[str], None], log: Logger, *, at_start: bool) -> None:
        self.home, self.run, self.deleted_at, self.ended, self.log = home, run, deleted_at, ended, log
        self.iptables, self.mirror, self.at_start = iptables, mirror, at_start
        self.machine, self.backoff, self.since = Machine(IDLE), Backoff(), 0.0
        self.failures = 0               # the number of failed replays since the last success

    @property
    def idle(self) -> bool:
        """Return whether no replay runs or is scheduled."""
        return self.machine.state == IDLE

    @property
    def running(self) -> bool:
        return self.machine.state == RUNNING

    def proceed(self, now: float) -> float:
        """Begin a replay if one is due. Return when to call proceed() again without a notification; infinite: never."""
        if not self.run or self.running:
            return inf
        self._note_losses(now)
        if self.machine.state == IDLE:
            return inf
        delay = DELAY_S if self.machine.state == NEEDED else DELAY_AFTER_DEL_S
        begin = max(self.since + delay, self.backoff.until)
        if now < begin:
            return begin
        gone, began = self.iptables.take_missing(), self.iptables.take_began()
        if self.at_start and not gone:
            gone = AT_START
        self.at_start = False
        if not gone and not began:
            self.machine.on(PRESENT)
            return inf
        if gone != AT_START:
            self.backoff.begin()
        return self._start(self.run, gone, began)

    def _note_losses(self, now: float) -> None:
        if self.machine.state == IDLE and (self.at_start or self.iptables.suspicious):
            self.since = now
            self.machine.on(LOST if self.at_start or self.iptables.certain else MAYBE_LOST)
        elif self.machine.state == MAYBE_NEEDED and self.iptables.certain:
            self.machine.on(LOST)

    def _start(self, run: Run, gone: str, began: str) -> float:
        """Start the thread of a replay. If that fails, record the loss again, and return when to try again."""
        self.machine.on(BEGUN)
        self.mirror.keep_deletions = True
        by, home = self.iptables.by, -1
        try:
            home = os.dup(self.home)
            marks = b"" if gone else self.mirror.marks()
            Thread(target=self._work, args=(run, home, gone, began, by, marks), name="replay", daemon=True).start()
        except (OSError, RuntimeError) as e:    # no free descriptor, or no further thread
            if home >= 0:
                os.close(home)
            self.machine.on(NOT_STARTED)
            self.iptables.suspect(gone or began, by)
            self.log.error("replay_failed", gone=gone or began, by=by, error=str(e))
            return monotonic() + MAX_DELAY_S
        return inf

    def _work(self, run: Run, home: int, gone: str, began: str, by: str, marks: Collection[bytes]) -> None:
        """Replay all lost rules. If no rule was lost, but another firewall begins to filter, replay only attachments of
        fastcni: other plugins add their own rules for their pods, and would not delete the rules of fastcni."""
        started, outcome, again = monotonic(), "failed", True

        def deleted_at(attachment: Attachment) -> float:
            ours = gone or names.hashes(
                attachment.network, attachment.container_id, attachment.ifname).encode() in marks
            return self.deleted_at(attachment) if ours else inf

        name_thread()
        try:
            with netns.inside(home):
                done = run(deleted_at)
            outcome = "failed" if done.failed else "done"
            again = any(each.plugin for each in done.failed)    # an error without a plugin lasts: a damaged file
            # A flush or a start of firewalld can interrupt a replay, so a first failure that a repetition can remove is
            # only a warning
            lasting = bool(done.failed) and (self.failures > 0 or not again)
            self._report(done, gone, began, by, lasting=lasting, netns=netns.identity(home)[1],
                         ms=round((monotonic() - started) * 1e3, 1))
        except (OSError, netns.Lost) as e:      # Lost: this thread cannot return to its namespace, and ends
            self.log.error("replay_failed", gone=gone or began, by=by, error=str(e))
        finally:
            os.close(home)
            self.failures = self.failures + 1 if again else 0
            if 0 < self.failures <= MAX_REPEATS:
                self.iptables.suspect(FAILED_BEFORE, by)
            self.machine.on(ENDED)
            self.ended(outcome)

    def _report(self, done: Restored, gone: str, began: str, by: str, *, lasting: bool, **where: object) -> None:
        """Log the result of a replay. lasting: whether the failures are errors that a repetition has not removed, or
        cannot remove."""
        fields = {"attachments": done.attachments, "plugins": done.plugins, "failed": len(done.failed),
                  "error": "; ".join(map(str, done.failed[:MAX_ERRORS])), **where}
        level = self.log.error if lasting else self.log.warning
        if began and (done.attachments or done.failed):
            level("pods_let_through", chain=began, by=by, **fields)
        if gone and gone != AT_START:
            level("rules_replayed", gone=gone, by=by, **fields)
        elif gone and (done.attachments or done.failed):
            (level if done.failed else self.log.info)("start_replay_done", **fields)


def name_thread() -> None:
    """Give the calling thread the name that identifies fastcni's own transactions in nftables' notifications."""
    try:
        with open("/proc/thread-self/comm", "w", encoding="ascii") as file:
            file.write(OWN_NAME)
    except OSError:
        return                          # the watch then attributes the transactions to another program
