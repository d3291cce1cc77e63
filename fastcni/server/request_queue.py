"""Where requests wait for a worker: in which order, how many, how long. Bytes and sockets are not its business.

Requests for one attachment run one after another, in the order in which they came; so do those of two networks for
the same interface of a pod, since the network's name is not known here yet. Of those that could run, ADD and
what else somebody waits for goes before DEL and GC: a pod that starts is waited for, one that is gone is not. Once a
DEL has waited for OVERTAKEN_S, it is every other one's turn. VERSION, STATUS and loopback need nearly nothing: they go
first, and can be taken when no other request can.
"""

from collections import deque
from time import monotonic

LATER = ("DEL", "GC")
LIGHT = ("VERSION", "STATUS")
OVERTAKEN_S = 1.0


class Call:
    """A request that waits or runs.

    key      what it must not be run beside: (container id, ifname); None: nothing
    command  CNI_COMMAND
    arrived  monotonic seconds
    network  the network's name, once a worker has read the configuration; "" before, and where key is None
    what     the door's own: the message and its connection
    light    it needs nearly nothing
    """

    __slots__ = ("key", "command", "arrived", "what", "light", "network", "ready", "gone")

    def __init__(self, key, command, what, light=False):
        self.key, self.command, self.what, self.light = key, command, what, light
        self.arrived, self.network = monotonic(), ""
        self.ready = self.gone = False      # it could run; it runs, or has left

    @property
    def attachment(self):
        """(network, container id, ifname), None where no network is known."""
        return (self.network, *self.key) if self.key and self.network else None

    @property
    def waited(self):
        """Seconds since it came."""
        return monotonic() - self.arrived


class RequestQueue:
    """Not safe for threads by itself: its user holds a lock around every call."""

    def __init__(self, *, room=1024, patience=60.0):
        self.room, self.patience = room, patience
        self.waiting = self.running = 0
        self._now, self._later, self._light = deque(), deque(), deque()         # what could run
        self._turns = False             # the last one that was taken is a DEL that had waited long
        self._behind = {}               # key of what runs or could run -> deque of calls that came after it
        self._arrivals = deque()        # what waits, oldest first; also calls that have left since

    def put(self, call, *, always=False):
        """Take a call in. False: there is no room, unless it is to be taken in `always`."""
        if self.waiting >= self.room and not always:
            return False
        self.waiting += 1
        self._arrivals.append(call)
        if call.key is None:
            self._line_up(call)
        elif call.key in self._behind:
            self._behind[call.key].append(call)
        else:
            self._behind[call.key] = deque()
            self._line_up(call)
        return True

    def take(self, *, light=False):
        """The next call to run, or the next light one; None when none can. done(call) has to follow."""
        while queue := self._light if light else self._next_queue():
            call = queue.popleft()
            if not call.gone:
                self._turns = queue is self._later
                self.waiting -= 1
                self.running += 1
                call.gone = True
                while self._arrivals and self._arrivals[0].gone:
                    self._arrivals.popleft()
                return call
        return None

    def _next_queue(self):
        if self._light:
            return self._light
        overtaken = self._later and not self._turns and self._later[0].waited > OVERTAKEN_S
        return self._later if overtaken else self._now or self._later

    def done(self, call):
        """A call that was taken has ended: the next of its attachment can run."""
        self.running -= 1
        self._free(call.key)

    def impatient(self):
        """The calls that have waited for longer than their patience; they are out of the queue."""
        found = []
        while self._arrivals and (self._arrivals[0].gone or self._arrivals[0].waited > self.patience):
            call = self._arrivals.popleft()
            if not call.gone:
                call.gone = True
                self.waiting -= 1
                found.append(call)
                if call.ready:
                    self._free(call.key)
        return found

    def next_deadline(self):
        """Seconds until somebody's patience ends, None when nobody waits."""
        for call in self._arrivals:
            if not call.gone:
                return max(0.0, self.patience - call.waited)
        return None

    def _line_up(self, call):
        call.ready = True
        (self._light if call.light else self._later if call.command in LATER else self._now).append(call)

    def _free(self, key):
        if key is None:
            return
        behind = self._behind[key]
        while behind:
            call = behind.popleft()
            if not call.gone:
                self._line_up(call)
                return
        del self._behind[key]
