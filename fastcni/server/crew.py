"""Threads for what no answer waits for; started as they are needed, at most so many, kept for the next time."""

from queue import SimpleQueue
from threading import Lock, Thread


class Crew:
    """crew(fn, *args) runs it in a thread of the crew; with all of them busy it waits for one."""

    def __init__(self, most):
        self.most, self.size, self.free = most, 0, 0
        self.jobs, self.lock = SimpleQueue(), Lock()

    def __call__(self, fn, *args):
        with self.lock:
            if self.free > 0:
                self.free -= 1
            elif self.size < self.most:
                self.size += 1
                Thread(target=self._work, name=f"aside-{self.size}", daemon=True).start()
        self.jobs.put((fn, args))

    def _work(self):
        while True:
            fn, args = self.jobs.get()
            try:
                fn(*args)
            except OSError:
                continue                # a socket closed meanwhile: whoever waited has seen more than we
            finally:
                with self.lock:
                    self.free += 1
