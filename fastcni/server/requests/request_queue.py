"""Queue the requests that wait for a worker, and choose the next request to run.

When a worker is free, the oldest light request runs next, otherwise the oldest ADD or CHECK, otherwise the oldest DEL
or GC. Requests whose attachment has an earlier unfinished request have to wait.

light       VERSION, STATUS and loopback need almost nothing. One worker is reserved for them.
oldest      Once a DEL or GC has waited for OVERTAKEN_S, every second request is a DEL or GC. ADD and CHECK go first
            because a pod cannot start before them; the pod of a DEL has ended.
attachment  The container id and the interface's name. The queue does not know the network's name yet.
free        See slots.py: a request that hangs occupies no worker.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from time import monotonic

from fastcni.server.requests.slots import Running, Slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.server.requests.protocol import Connection, Message

    Key = tuple[str, str]

DEFERRED_COMMANDS = ("DEL", "GC")
LIGHT_COMMANDS = ("VERSION", "STATUS")
OVERTAKEN_S = 1.0


class Call:
    """A request that waits or runs.

    key         (container id, ifname): requests with the same key run one after another. A request with key None may
                run at the same time as any other request
    command     CNI_COMMAND
    connection  the caller's connection
    message     the received request
    light       whether the request needs almost no time
    arrived     monotonic seconds
    network     the network's name after a worker has read the configuration; "" before, and if key is None
    """

    __slots__ = ("key", "command", "connection", "message", "light", "arrived", "network", "runnable", "left")

    def __init__(self, key: Key | None, command: str, connection: Connection, message: Message,
                 light: bool = False) -> None:
        self.key, self.command, self.light = key, command, light
        self.connection, self.message = connection, message
        self.arrived, self.network = monotonic(), ""
        # runnable: whether no earlier call has this key. left: whether the call has left the queue
        self.runnable = self.left = False

    @property
    def attachment(self) -> tuple[str, str, str] | None:
        """Return (network, container id, ifname); None while the network is unknown."""
        return (self.network, *self.key) if self.key and self.network else None

    @property
    def waited(self) -> float:
        """Return the seconds since the call arrived."""
        return monotonic() - self.arrived


class RequestQueue:
    """The requests from their arrival to their end. Any thread may call any method: each method is atomic.

    recording: whether the queue records the steps of requests, see stories.py. workers, busy: see Slots. size: limit of
    waiting requests. timeout_s: how long a request may wait. wake(): ends one worker's wait for events, so that the
    worker calls take().
    """

    def __init__(self, workers: int, busy: int, *, size: int = 1024, timeout_s: float = 60.0,
                 wake: Callable[[], None] = lambda: None) -> None:
        self.workers, self.size, self.timeout_s, self.wake = workers, size, timeout_s, wake
        self.recording = False
        self.arrivals: dict[Call, None] = {}            # the waiting calls, oldest first
        self._lock, self._slots = Lock(), Slots(workers, busy)
        self.min_threads = self._slots.min_threads      # threads that are needed while no call hangs
        # Runnable calls: light requests, ADD and CHECK, DEL and GC
        self._light: deque[Call] = deque()
        self._first: deque[Call] = deque()
        self._deferred: deque[Call] = deque()
        self._deferred_was_last = False         # whether the last taken call was a DEL or GC
        # {key of a runnable or running call: later calls with the key}
        self._behind: dict[Key, deque[Call]] = {}

    # Requests -------------------------------------------------------------------------------------

    def put(self, call: Call, *, always: bool = False) -> bool:
        """Add a call. Return False if the queue is full, unless `always` is true."""
        with self._lock:
            if len(self.arrivals) >= self.size and not always:
                return False
            self.arrivals[call] = None
            if (key := call.key) in self._behind:
                self._behind[key].append(call)
                return True
            if key:
                self._behind[key] = deque()
            self._make_runnable(call)
            return True

    def take(self) -> Running | None:
        """Take the call that runs next, and return its Running, for which the caller must call done(). None if no call
        may run, or if the oldest call has waited for longer than the timeout: then call expired() first."""
        with self._lock:
            if not self.arrivals or next(iter(self.arrivals)).arrived < monotonic() - self.timeout_s:
                return None
            call = self._choose()
            if call is None:
                return None
            running = Running(self, call)
            self._slots.begin(running)
            return running

    def _choose(self) -> Call | None:
        """Return the call that runs next, by the rules at the top of this module, or None."""
        any_may_run, light_may_run = self._slots.free()
        while True:
            if self._light and light_may_run:
                line = self._light
            elif not any_may_run:
                return None
            elif self._deferred and not self._deferred_was_last and self._deferred[0].waited > OVERTAKEN_S:
                line = self._deferred
            else:
                line = self._first or self._deferred
            if not line:
                return None
            call = line.popleft()
            if not call.left:
                self._deferred_was_last = line is self._deferred
                self._leave(call)
                return call

    def done(self, running: Running) -> None:
        """Record the end of a taken call, so that the next call of its attachment may run."""
        with self._lock:
            self._slots.end(running)
            self._release(running.call.key)

    def is_awaited(self, key: Key) -> bool:
        """Return whether a call waits for the end of an earlier call with this key."""
        with self._lock:
            return any(not call.left for call in self._behind.get(key, ()))

    def expired(self) -> list[Call]:
        """Remove the calls that have waited for longer than the timeout, and return them."""
        found: list[Call] = []
        with self._lock:
            latest = monotonic() - self.timeout_s
            for call in self.arrivals:
                if call.arrived >= latest:
                    break
                found.append(call)
            for call in found:
                self._leave(call)
                if call.runnable:
                    self._release(call.key)
        return found

    def _make_runnable(self, call: Call) -> None:
        call.runnable = True
        if call.light:
            self._light.append(call)
        elif call.command in DEFERRED_COMMANDS:
            self._deferred.append(call)
        else:
            self._first.append(call)

    def _leave(self, call: Call) -> None:
        call.left = True
        del self.arrivals[call]

    def _release(self, key: Key | None) -> None:
        """Make the next call with this key runnable."""
        if key is None:
            return
        behind = self._behind[key]
        while behind:
            call = behind.popleft()
            if not call.left:
                self._make_runnable(call)
                return
        del self._behind[key]

    # Workers --------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Return how many calls wait."""
        return len(self.arrivals)

    @property
    def running(self) -> int:
        """Return how many calls run."""
        return len(self._slots.running)

    @property
    def working(self) -> int:
        """Return how many running calls do not wait."""
        return self._slots.working

    def begin_wait(self, running: Running, kind: str) -> None:
        """Record that a running call begins a wait of kind `kind`: another call may run during the wait."""
        with self._lock:
            self._slots.move(running, kind)
            needed = bool(self.arrivals)
        if needed:
            self.wake()

    def end_wait(self, running: Running) -> None:
        """Record that a running call works again, even if then more than `busy` calls work."""
        with self._lock:
            self._slots.move(running, "")

    def stuck_in(self, kind: str, network: str) -> int:
        """Return how many calls of `network` are stuck in a wait of kind `kind`; 0 if a further call may begin such a
        wait."""
        with self._lock:
            return self._slots.stuck_in(kind, network)

    def wanted_threads(self) -> int:
        """Return how many worker threads the queue needs now."""
        with self._lock:
            return self._slots.wanted_threads()

    def next_deadline(self) -> float | None:
        """Return the seconds until the oldest call has waited too long, or a running call begins to hang; None if no
        call waits."""
        if not self.arrivals:
            return None
        with self._lock:
            if not self.arrivals:       # another thread has taken the call
                return None
            oldest, hang = next(iter(self.arrivals)), self._slots.next_hang()
        timeout = max(0.0, self.timeout_s - oldest.waited)
        return timeout if hang is None else min(timeout, hang)
