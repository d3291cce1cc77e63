"""Waits: for an announcement, a program, a lock, a bus. Each has a limit, and ends when the request's caller leaves.

A server gives each worker thread a Request. It knows the caller's connection, and lets the server run another request
during a wait. Without a Request there is no caller that can leave, and a wait lasts until its limit.
"""

from __future__ import annotations

from _thread import _local
from time import monotonic

from fastcni._run_token import await_input
from fastcni._system import try_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

# Seconds; docs/server-waits.md has the table of them.
DELEGATE_TIMEOUT_S = 240.0      # for a foreign IPAM plugin; the slowest known one, dhcp, tries for 208 s
PROGRAM_TIMEOUT_S = 60.0        # iptables and other tools
LOCK_TIMEOUT_S = 30.0           # for a lock that only root can hold
NAMESPACE_LOCK_TIMEOUT_S = 2.0  # for a lock that a pod can hold, too
ROLLBACK_TIMEOUT_S = 10.0       # the limit of any of these while an ADD is rolled back
FIRST_PAUSE_S, MAX_PAUSE_S = 0.001, 0.02       # between two tries
GONE = 2                        # of await_input()

# Kinds of waits. A pod can hold the lock of its namespace, so waits for that refuse no other request.
ANNOUNCEMENT, PROGRAM, LOCK, NAMESPACE_LOCK, BUS = "announcement", "program", "lock", "namespace lock", "bus"
IPAM, DELEGATE = "ipam", "delegate"     # phases of a request, beside PROGRAM, see Request.spent()
STORE = "store"                 # for an answer of a store of cluster-wide addresses: a few seconds at most
DHCP = "dhcp daemon"            # for a lease
AGENT = "policy agent"          # for network policies: until it knows the pod
OVSDB = "ovsdb"                 # for Open vSwitch: its database answers, its daemon has set up a port


class CallerGone(Exception):
    """The caller of the request has left: the request need not be answered."""

    def __str__(self) -> str:
        return "the caller has left"


class Crowded(BaseException):
    """Too many requests are in the same kind of wait: this one goes one-shot, from its beginning.

    Not an Exception, so that no error handler catches it.
    """


class Request:
    """The request that a thread works on, as kernel/ notifies and asks it. This base class is for a thread without a
    caller.

    caller  the descriptor of the caller's connection, -1: none
    show    a function that is given each netlink datagram: (">" sent or "<" received, bytes); None: nothing is shown
    """

    caller = -1
    show: Callable[[str, bytes], None] | None = None

    def admit(self, kind: str) -> None:
        """Check whether this request may wait for `kind` now. Raises Crowded, or CniError 11 if one-shot would wait,
        too."""

    def pause(self, kind: str) -> None:
        """Note that it begins to wait."""

    def resume(self) -> None:
        """Note that it works again."""

    def spent(self, what: int | str, started: int) -> None:
        """Note a phase of the request that ends now. what: the number of a netlink protocol, IPAM, DELEGATE or PROGRAM.
        started: its begin, of perf_counter_ns()."""

    def step(self, text: str) -> None:
        """Note a step of the request that is no netlink message: a program that is run, the rollback."""


class Here(_local):
    """The state of the calling thread. rolling_back: its work must be completed even if the caller has left."""

    request, rolling_back = Request(), False


here = Here()


class waiting:
    """`with waiting():` around a blocking call."""

    __slots__ = ("kind",)

    def __init__(self, kind: str = ANNOUNCEMENT) -> None:
        self.kind = kind

    def __enter__(self) -> None:
        here.request.pause(self.kind)

    def __exit__(self, *_: object) -> None:
        here.request.resume()


class rolling_back:
    """`with rolling_back():` no wait ends because the caller has left, and none is longer than ROLLBACK_TIMEOUT_S."""

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before, here.rolling_back = here.rolling_back, True

    def __exit__(self, *_: object) -> None:
        here.rolling_back = self.before


def caller() -> int:
    """The descriptor of the caller's connection, to watch during a wait; -1: none."""
    return -1 if here.rolling_back else here.request.caller


def check_caller() -> None:
    """Raises CallerGone if the caller has left."""
    if (fd := caller()) >= 0 and await_input(-1, fd, 0) == GONE:
        raise CallerGone


def admit(kind: str) -> None:
    """Call it before the first step that would need a rollback. Raises Crowded, or CniError 11."""
    if not here.rolling_back:
        here.request.admit(kind)


def limit(seconds: float) -> float:
    """The limit of a wait now: `seconds`, or less during a rollback."""
    return min(seconds, ROLLBACK_TIMEOUT_S) if here.rolling_back else seconds


def readable(fd: int, seconds: float | None, kind: str) -> bool:
    """Wait until `fd` is readable, for so many seconds at most (None: no limit). Return whether it is.

    A descriptor of -1 only waits. Raises CallerGone.
    """
    deadline = None if seconds is None else monotonic() + seconds
    with waiting(kind):
        while True:
            # Rounded up: otherwise the last millisecond would be many waits of 0 ms.
            left = 1 << 30 if deadline is None else max(0, int((deadline - monotonic()) * 1000) + 1)
            came = await_input(fd, caller(), left)
            if came == GONE:
                raise CallerGone
            if came == 1 or (deadline is not None and monotonic() >= deadline):
                return came == 1


def until(attempt: Callable[[], T], seconds: float, kind: str) -> T:
    """Call attempt() until it returns something true, for so many seconds at most. Return its last value.

    Raises CallerGone, and what attempt() raises.
    """
    deadline, pause = monotonic() + seconds, FIRST_PAUSE_S
    with waiting(kind):
        while not (found := attempt()) and (left := deadline - monotonic()) > 0:
            if await_input(-1, caller(), int(min(pause, left) * 1000) + 1) == GONE:
                raise CallerGone
            pause = min(2 * pause, MAX_PAUSE_S)
    return found


def lock(fd: int, seconds: float, kind: str = LOCK) -> bool:
    """Take the exclusive flock(2) of an open file. False if another process still has it after so many seconds.

    flock(2) can wait by itself, but neither so long nor until the caller leaves. Raises OSError, CallerGone, and as
    admit().
    """
    if try_lock(fd):                    # the usual case: the lock is free
        return True
    admit(kind)
    return until(lambda: try_lock(fd), limit(seconds), kind)
