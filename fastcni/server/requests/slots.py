"""Limit how many requests run at the same time, and find the requests that hang.

A request hangs when one wait or system call has taken longer than HANGS_S: for a program, for a lock, in the kernel. A
hanging request uses no worker's slot: another request runs in its place, up to MAX_HANGING times the number of workers.
If a quarter of the workers wait for one network in one kind of wait for longer than STUCK_S, the network's next request
that would begin this wait goes one-shot. If a one-shot request would have to wait, too, because the wait is for a lock,
the request fails with code 11.
"""

from __future__ import annotations

from time import monotonic

from fastcni._run_token import give_token, take_token
from fastcni._steps import Steps
from fastcni.kernel import waiting
from fastcni.server.records.ended import Phases
from fastcni.server.records.stories import MAX_BYTES
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.server.requests.request_queue import Call, RequestQueue

HANGS_S = 1.0
STUCK_S = 5.0                   # seconds in a wait; thirty runs of iptables, one after another, take two seconds
STUCK_SHARE = 4                 # 1 / 4 of the workers may be stuck in one wait
MAX_HANGING = 4                 # limit of hanging requests that give up their slot, in multiples of the workers
RESERVED = 1                    # workers for light requests, in addition to all other workers
SAME_ONE_SHOT = (waiting.LOCK,)         # kinds of waits that also a one-shot request would have
# Kinds of waits in which the stuck calls of a network are limited. Other waits are short, or in the kernel
BOUNDED = (waiting.PROGRAM, waiting.LOCK, waiting.BUS, waiting.DHCP, waiting.AGENT, waiting.OVSDB)


class Running(waiting.Request):
    """A running call, to which its thread reports waits and spent time.

    kind: the kind of the call's wait, "" while the call works. since: when the call began to wait or work, in monotonic
    seconds. phases: see server/records/ended.py.
    """

    spent: Callable[..., None]

    def __init__(self, queue: RequestQueue, call: Call) -> None:
        self.queue, self.call, self.caller = queue, call, call.connection.fd
        self.kind, self.since = "", monotonic()
        self.phases = phases = Phases()
        self.spent = phases.note
        if queue.recording:
            self.show = phases.steps = Steps(MAX_BYTES)

    def step(self, text: str) -> None:
        if self.show:
            self.show("!", text.encode("utf-8", "replace"))

    def admit(self, kind: str) -> None:
        stuck = self.queue.stuck_in(kind, self.call.network)
        if not stuck:
            return
        why = f"{stuck} requests hang in the same wait ({kind})"
        if kind in SAME_ONE_SHOT:
            raise CniError(errors.TRY_AGAIN_LATER, f'network "{self.call.network}": {why}',
                           "the server logs the wait of each request when the request ends")
        raise waiting.Crowded(why)

    def pause(self, kind: str) -> None:
        self.queue.begin_wait(self, kind)
        give_token()

    def resume(self) -> None:
        take_token()
        self.queue.end_wait(self)


class Slots:
    """The running calls, counted against two limits. Only the RequestQueue calls these methods, under its lock.

    workers: how many calls may run at the same time. busy: how many of these calls may work while the other calls wait;
    more working calls would only wait for each other's locks, the GIL and the kernel's RTNL.
    """

    def __init__(self, workers: int, busy: int) -> None:
        self.workers, self.busy = workers, busy
        self.min_threads = workers + RESERVED + 1       # one for each call that may run, and one to take the next call
        self.running: dict[Running, None] = {}  # the call that has waited or worked longest is the first
        self.working = 0                # calls that do not wait

    def free(self) -> tuple[bool, bool]:
        """Return (whether any call may run, whether a light call may run)."""
        left, working = self.workers - len(self.running), self.working
        if left <= 0 or working >= self.busy:
            hanging = self._longer_than(HANGS_S)
            left += min(len(hanging), MAX_HANGING * self.workers)
            working -= sum(not each.kind for each in hanging)           # calls that hang outside of a wait
        return left > 0 and self.busy > working, left > -RESERVED

    def begin(self, running: Running) -> None:
        self.running[running] = None
        self.working += 1

    def move(self, running: Running, kind: str) -> None:
        """Record that a call begins a wait of this kind, or works again (kind "")."""
        self.working += (not kind) - (not running.kind)
        running.kind, running.since = kind, monotonic()
        del self.running[running]
        self.running[running] = None

    def end(self, running: Running) -> None:
        del self.running[running]
        self.working -= not running.kind

    def stuck_in(self, kind: str, network: str) -> int:
        """Return how many calls of `network` are stuck in a wait of kind `kind`; 0 if a further call may begin such a
        wait."""
        if kind not in BOUNDED:
            return 0
        stuck = sum(each.kind == kind and each.call.network == network for each in self._longer_than(STUCK_S))
        return stuck if stuck >= max(1, self.workers // STUCK_SHARE) else 0

    def wanted_threads(self) -> int:
        """Return min_threads, plus one for each hanging call that another call replaces."""
        return self.min_threads + min(len(self._longer_than(HANGS_S)), MAX_HANGING * self.workers)

    def next_hang(self) -> float | None:
        """Return the seconds until the next call begins to hang; None if all running calls hang."""
        now = monotonic()
        since = next((each.since for each in self.running if each.since + HANGS_S > now), None)
        return None if since is None else max(0.0, since + HANGS_S - now)

    def _longer_than(self, seconds: float) -> list[Running]:
        """Return the calls that have been in one wait, or working, for longer than `seconds`."""
        found, now = [], monotonic()
        for each in self.running:
            if now - each.since <= seconds:
                break
            found.append(each)
        return found
