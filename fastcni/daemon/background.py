"""Run jobs in background threads, so that no answer to a request waits for them.

The thread that became free last runs the next job, because its stack is still in the processor's caches. Each thread
waits at its own gate, so a job wakes only one thread. With one queue for all threads, such as queue.SimpleQueue, a
thread that takes a job would wake another thread, which then competes with the request for the GIL.
"""

from __future__ import annotations

from collections import deque
from threading import Lock, Thread

from fastcni._run_token import Gate
from fastcni.kernel import netns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fastcni.daemon.log import Logger

    Job = tuple[Callable[..., object], tuple[Any, ...]]

CANNOT_START = (RuntimeError, MemoryError)      # errors of Thread.start(), at pids.max and without memory
LONG_MS = 3600 * 1000           # the longest wait at a gate; after it the worker waits again


class Background:
    """The background threads. background(fn, *args) runs fn(*args) in a thread. A thread starts when it is needed, and
    then waits for further jobs.

    max_threads: the maximum number of threads. If all threads are busy, a job waits for a free thread. If no thread is
    free and Python cannot start a thread, for example because of pids.max, the caller runs the job. home: a descriptor
    of the server's network namespace. Each thread enters this namespace: a thread that stayed in the namespace of the
    worker that started it would keep a pod's namespace alive.

    An OSError ends a job, because the job's socket has been closed. The log reports other exceptions, which are faults
    of fastcni. After an exception the thread runs the next job.
    """

    def __init__(self, max_threads: int, home: int, log: Logger) -> None:
        self.max_threads, self.home, self.log, self.size = max_threads, home, log, 0
        self.free: list[Worker] = []            # the workers without a job; the last became free last
        self.waiting: deque[Job] = deque()
        self.lock = Lock()

    def __call__(self, fn: Callable[..., object], *args: Any) -> None:
        job = fn, args
        with self.lock:
            if self.free:
                self.free.pop().give(job)
                return
            if self.size >= self.max_threads:
                self.waiting.append(job)
                return
            if self._start_one(job):
                return
        self._run(fn, args)

    def _start_one(self, job: Job) -> bool:
        """Start a thread with its first job. Return False if Python cannot start a thread."""
        worker = Worker(job)
        try:
            Thread(target=self._work, args=(worker,), name=f"background-{self.size + 1}", daemon=True).start()
        except CANNOT_START:
            return False
        self.size += 1
        return True

    def _work(self, worker: Worker) -> None:
        self._enter_home()
        while True:
            self._run(*worker.take())
            with self.lock:
                if self.waiting:
                    worker.give(self.waiting.popleft())
                else:
                    self.free.append(worker)

    def _run(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            fn(*args)
        except OSError:
            return
        except Exception:
            self.log.exception("server_fault")

    def _enter_home(self) -> None:
        """Enter the server's namespace. If the thread cannot enter the namespace, the thread stays where it is, because
        its jobs use sockets that are already open."""
        try:
            netns.ensure(self.home)
        except netns.Lost:
            return


class Worker:
    """The gate at which a background thread gets its jobs, one at a time."""

    __slots__ = ("gate", "job")

    def __init__(self, job: Job) -> None:
        self.gate = Gate()
        self.give(job)

    def give(self, job: Job) -> None:
        """Pass the next job to the thread. The thread must have taken the previous job."""
        self.job = job
        self.gate.open()

    def take(self) -> Job:
        """Wait for the next job and return it. Keep no reference to the job."""
        while not self.gate.wait(LONG_MS):
            continue
        job = self.job
        del self.job
        return job


def enter_home(home: int, thread: str, log: Logger) -> bool:
    """Let the calling thread, which has just started, enter the server's network namespace. If the thread cannot, log
    the reason and return False. home: a descriptor of the namespace. thread: the thread's name in the log."""
    try:
        netns.ensure(home)
    except netns.Lost as e:
        log.warning("no_thread", thread=thread, why=str(e))
        return False
    return True


def start_thread(thread: Thread, log: Logger) -> bool:
    """Start a thread. If Python cannot start it, log the reason and return False; call start_thread() again later."""
    try:
        thread.start()
    except CANNOT_START as e:
        log.warning("no_thread", thread=thread.name, why=str(e) or "no memory")
        return False
    return True
