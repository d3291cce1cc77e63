"""How many requests run at once, and which of them hang.

A request hangs when it has been in one place for longer than HANGS_S: in a program, in a lock, in the kernel. Then it
does not count against the workers: another request runs in its place, up to HANGING times as many as there are workers.
When a SHARE of the workers has been in one kind of wait for longer than STUCK_S for one network, a further request of
that network which would have to wait goes one-shot, or is refused where one-shot would wait for the same.
"""

from time import monotonic

from fastcni._netlink import give_turn, take_turn
from fastcni.kernel import waiting
from fastcni.spec import errors
from fastcni.spec.errors import CniError

HANGS_S = 1.0
STUCK_S = 5.0                   # thirty runs of iptables, one after another, take two seconds
SHARE = 4                       # the fourth part of the workers
HANGING = 4                     # times the workers
RESERVED = 1                    # for light requests beside all others
IN_VAIN = (waiting.LOCK,)       # one-shot would wait for the same
BOUNDED = (waiting.PROGRAM, waiting.LOCK, waiting.BUS)          # the others are short, or the kernel's own


class Running(waiting.Request):
    """A call that runs. kind: what it waits for, "" where it works. since: when it began to."""

    def __init__(self, slots, call):
        self.slots, self.call = slots, call
        self.caller = call.what[0].fileno()
        self.kind, self.since = "", monotonic()

    def admit(self, kind):
        stuck = self.slots.stuck_in(kind, self.call.network)
        if not stuck:
            return
        why = f"{stuck} requests hang in the same wait ({kind})"
        if kind in IN_VAIN:
            raise CniError(errors.TRY_AGAIN_LATER, f'network "{self.call.network}": {why}',
                           "the server's log says of each that ends what it waited for")
        raise waiting.Crowded(why)

    def pause(self, kind):
        if self.slots.moves(self, kind):
            self.slots.ring()
        give_turn()

    def resume(self):
        """If need be as one more than may work."""
        take_turn()
        self.slots.moves(self, "")


class Slots:
    """size: requests that may run at once; of these `busy` may work while the others wait. More would only wait for
    each other: for Python's lock, and for the kernel's (RTNL). queue and its lock: see there. ring(): have a thread
    look for a call to take."""

    def __init__(self, size, busy, queue, lock, ring):
        self.size, self.busy, self.queue, self.lock, self.ring = size, busy, queue, lock, ring
        self.running = {}               # Running: None; the one that has been longest in its place comes first
        self.working = 0                # those that wait for nothing

    def take(self):
        """The next call that may run, as a Running; None when none may. done() has to follow."""
        with self.lock:
            total, working = self._room()
            if total > 0 and working > 0:
                call = self.queue.take()
            elif total > -RESERVED:
                call = self.queue.take(light=True)
            else:
                call = None
            if not call:
                return None
            running = Running(self, call)
            self.running[running] = None
            self.working += 1
            return running

    def done(self, running):
        """It has ended: the next of its attachment can run."""
        with self.lock:
            del self.running[running]
            self.working -= not running.kind
            self.queue.done(running.call)

    def moves(self, running, kind):
        """It waits for `kind` from now on, or works again. Whether others wait for a worker."""
        with self.lock:
            self.working += (not kind) - (not running.kind)
            running.kind, running.since = kind, monotonic()
            del self.running[running]
            self.running[running] = None
            return self.queue.waiting > 0

    def stuck_in(self, kind, network):
        """How many calls of that network are stuck in that kind of wait, 0 where one more may begin it."""
        with self.lock:
            stuck = self._longer_than(STUCK_S)
        if kind not in BOUNDED:
            return 0
        same = sum(each.kind == kind and each.call.network == network for each in stuck)
        return same if same >= max(1, self.size // SHARE) else 0

    @property
    def least(self):
        """How many threads there should be when no call hangs: one for each that may run, one that takes the next."""
        return self.size + RESERVED + 1

    def wanted(self):
        """How many there should be now."""
        with self.lock:
            return self.least + min(len(self._hanging()), HANGING * self.size)

    def next_deadline(self):
        """Seconds until a call may run that cannot now, or has waited too long; None when none waits."""
        with self.lock:
            patience = self.queue.next_deadline()
            if patience is None:
                return None
            oldest = next((each for each in self.running if each.since + HANGS_S > monotonic()), None)
        return min(patience, max(0.0, oldest.since + HANGS_S - monotonic())) if oldest else patience

    def _room(self):
        """(calls that may run beside those that do, that may work)."""
        hanging = self._hanging()
        idle = sum(not each.kind for each in hanging)           # they hang without having said that they wait
        return (self.size + min(len(hanging), HANGING * self.size) - len(self.running),
                self.busy + idle - self.working)

    def _hanging(self):
        return self._longer_than(HANGS_S)

    def _longer_than(self, seconds):
        """Those that have been in one place for so long."""
        found, now = [], monotonic()
        for each in self.running:
            if now - each.since <= seconds:
                break
            found.append(each)
        return found
