"""Threads for what no answer waits for; started as they are needed, at most so many, kept for the next time."""

from queue import SimpleQueue
from threading import Lock, Thread

from fastcni.kernel import netns


class Background:
    """background(fn, *args) runs it in a thread of the background; with all of them busy it waits for one. Where no
    thread can be started, as with pids.max, the caller runs it itself.

    home: a descriptor of the namespace for its threads. In that of a worker that starts one, which may be a pod's, they
    would keep it alive."""

    def __init__(self, most, home):
        self.most, self.home, self.size, self.free = most, home, 0, 0
        self.jobs, self.lock = SimpleQueue(), Lock()

    def __call__(self, fn, *args):
        with self.lock:
            if self.free > 0:
                self.free -= 1
                here = False
            else:
                here = self.size < self.most and not self._start_one()
        if here:
            run(fn, args)
        else:
            self.jobs.put((fn, args))

    def _start_one(self):
        """Whether a thread could be started."""
        try:
            Thread(target=self._work, name=f"defer-{self.size + 1}", daemon=True).start()
        except RuntimeError:
            return False
        self.size += 1
        return True

    def _work(self):
        self._go_home()
        while True:
            run(*self.jobs.get())
            with self.lock:
                self.free += 1


    def _go_home(self):
        """Where that fails, the thread works all the same: its jobs are about open sockets."""
        try:
            netns.ensure(self.home)
        except netns.Lost:
            return


def run(fn, args):
    try:
        fn(*args)
    except OSError:
        return                          # a socket closed meanwhile: whoever waited has seen more than we
