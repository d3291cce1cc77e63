"""Wait for a notification, a program, a lock or a bus. Each wait has a limit, and ends when the request's caller
leaves.

A server gives each worker thread a Request, which has the caller's connection, and lets the server run another request
during a wait. A thread without a Request has no caller, so its waits last until their limits.
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

# Limits of waits in seconds; docs/server-waits.md has the table of these limits.
DELEGATE_TIMEOUT_S = 240.0      # for other projects' IPAM plugins; the slowest known plugin, dhcp, tries for 208 s
PROGRAM_TIMEOUT_S = 60.0        # for iptables and other tools
LOCK_TIMEOUT_S = 30.0           # for a lock that only root can hold
NAMESPACE_LOCK_TIMEOUT_S = 2.0  # for a lock that a pod can hold, too
ROLLBACK_TIMEOUT_S = 10.0       # for each wait while an ADD is rolled back
FIRST_PAUSE_S, MAX_PAUSE_S = 0.001, 0.02       # the first and the longest pause between two tries of until()
GONE = 2                        # await_input() returns GONE if the caller has left

# Kinds of waits. The server does not limit how many requests wait for the lock of a namespace, because a pod can hold
# that lock.
ANNOUNCEMENT, PROGRAM, LOCK, NAMESPACE_LOCK, BUS = "announcement", "program", "lock", "namespace lock", "bus"
IPAM, DELEGATE = "ipam", "delegate"     # further phases of a request, see Request.spent()
STORE = "store"                 # wait until the store of cluster-wide addresses answers: a few seconds at most
DHCP = "dhcp daemon"            # wait until the dhcp daemon has a lease
AGENT = "policy agent"          # wait until the policy agent knows the pod
OVSDB = "ovsdb"                 # wait until Open vSwitch's database answers, or its daemon has set up a port


class CallerGone(Exception):
    """The caller has closed its connection, so no process reads the answer to the request."""

    def __str__(self) -> str:
        return "the caller has left"


class Crowded(BaseException):
    """Too many requests are in the same kind of wait: this request must start again as a one-shot request.

    Crowded is not an Exception, so that no error handler catches it.
    """


class Request:
    """The request that a thread works on, with the methods that kernel/ calls. This base class is for a thread without
    a caller.

    caller  the descriptor of the caller's connection, -1: none
    show    a function that gets each netlink datagram: (">" sent or "<" received, bytes); None: nothing is shown
    """

    caller = -1
    show: Callable[[str, bytes], None] | None = None

    def admit(self, kind: str) -> None:
        """Check whether this request may begin a wait of this kind now. Raises Crowded, or CniError 11 if a one-shot
        request would wait, too."""

    def pause(self, kind: str) -> None:
        """Record that the request begins to wait."""

    def resume(self) -> None:
        """Record that the request continues."""

    def spent(self, what: int | str, started: int) -> None:
        """Record that a phase of the request ends now. what: the number of a netlink protocol, IPAM, DELEGATE or
        PROGRAM. started: when the phase began, by perf_counter_ns()."""

    def step(self, text: str) -> None:
        """Record a step of the request that is no netlink message, such as a program or the rollback."""


class Here(_local):
    """The state of the calling thread. rolling_back: whether its work must be completed even if the caller has left.
    patient_until: its waits may last until this time of the monotonic clock, even if their own limits are earlier."""

    request, rolling_back, patient_until = Request(), False, 0.0


here = Here()


class waiting:
    """A context manager for a blocking call, `with waiting():`, which lets another request run."""

    __slots__ = ("kind",)

    def __init__(self, kind: str = ANNOUNCEMENT) -> None:
        self.kind = kind

    def __enter__(self) -> None:
        here.request.pause(self.kind)

    def __exit__(self, *_: object) -> None:
        here.request.resume()


class rolling_back:
    """A context manager for a rollback, `with rolling_back():`. Waits do not end when the caller leaves, and last at
    most ROLLBACK_TIMEOUT_S."""

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before, here.rolling_back = here.rolling_back, True

    def __exit__(self, *_: object) -> None:
        here.rolling_back = self.before


class patient:
    """A context manager for repeated requests to a busy service, `with patient(until):`. Waits may last until the time
    `until` of the monotonic clock. If the caller gave up and repeated the request, the service would have more work
    than with a late answer."""

    __slots__ = ("before", "until")

    def __init__(self, until: float) -> None:
        self.until = until

    def __enter__(self) -> None:
        self.before, here.patient_until = here.patient_until, self.until

    def __exit__(self, *_: object) -> None:
        here.patient_until = self.before


def caller() -> int:
    """Return the descriptor of the caller's connection, to watch during a wait; -1: none."""
    return -1 if here.rolling_back else here.request.caller


def check_caller() -> None:
    """Raise CallerGone if the caller has left."""
    if (fd := caller()) >= 0 and await_input(-1, fd, 0) == GONE:
        raise CallerGone


def admit(kind: str) -> None:
    """Check whether the request may begin a wait of this kind. Call admit() before the first step that would need a
    rollback. Raises Crowded, or CniError 11."""
    if not here.rolling_back:
        here.request.admit(kind)


def limit(seconds: float) -> float:
    """Return the limit of a wait: `seconds`, or less during a rollback, or more inside `patient`."""
    if here.rolling_back:
        return min(seconds, ROLLBACK_TIMEOUT_S)
    return max(seconds, here.patient_until - monotonic()) if here.patient_until else seconds


def readable(fd: int, seconds: float | None, kind: str) -> bool:
    """Wait until `fd` is readable, for at most `seconds` (None: no limit). Return whether it is readable.

    With fd -1, only wait. Raises CallerGone.
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
    """Call attempt() until it returns a true value, for at most `seconds`. Return its last value.

    Raises CallerGone, and the exceptions of attempt().
    """
    deadline, pause = monotonic() + seconds, FIRST_PAUSE_S
    with waiting(kind):
        while not (found := attempt()) and (left := deadline - monotonic()) > 0:
            if await_input(-1, caller(), int(min(pause, left) * 1000) + 1) == GONE:
                raise CallerGone
            pause = min(2 * pause, MAX_PAUSE_S)
    return found


def lock(fd: int, seconds: float, kind: str = LOCK) -> bool:
    """Take the exclusive flock(2) of an open file. Return False if another process still has the lock after `seconds`.

    A blocking flock(2) would have no time limit, and would not end when the caller leaves. Raises OSError, CallerGone,
    and the exceptions of admit().
    """
    if try_lock(fd):                    # the usual case: the lock is free
        return True
    admit(kind)
    return until(lambda: try_lock(fd), limit(seconds), kind)
