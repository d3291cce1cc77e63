"""Calls of plugins as processes, from the spawn to the exit status, as a container runtime sees them.

One thread starts and reaps them all: with two processors, threads that fight for Python's lock would be measured too.
"""

import os
import time
from contextlib import suppress


class CallFailed(Exception):
    """A plugin refused; the text says which, and what it said."""


class Running:
    """A process: pid, started (seconds), out (a memory file with all that it prints), what (words for an error)."""

    __slots__ = ("pid", "started", "out", "what")

    def __init__(self, path, env, stdin, what):
        given, self.out, self.what = os.memfd_create("stdin"), os.memfd_create("out"), what
        os.write(given, stdin)
        os.lseek(given, 0, os.SEEK_SET)
        streams = [(os.POSIX_SPAWN_DUP2, fd, stream) for stream, fd in enumerate((given, self.out, self.out))]
        self.started = time.perf_counter()
        self.pid = os.posix_spawn(path, [path], env, file_actions=streams)
        os.close(given)

    def close(self, status):
        """What it said, 4 KiB at most. Raises CallFailed unless the wait status is 0."""
        said = os.pread(self.out, 4096, 0)
        os.close(self.out)
        if status:
            raise CallFailed(f"{self.what}: exit status {os.waitstatus_to_exitcode(status)}: "
                             f"{said.decode('utf-8', 'replace').strip()}")
        return said


def one(start):
    """Run the process that start() starts: (milliseconds, what it said). Raises CallFailed."""
    running = start()
    _, status = os.waitpid(running.pid, 0)
    took = time.perf_counter() - running.started
    return took * 1e3, running.close(status)


class Flow:
    """Many processes: ms (of each, in the order of their ends), seconds (of all), cpu (seconds, user and system, of
    them and of what they have waited for)."""

    __slots__ = ("ms", "seconds", "cpu")

    def __init__(self, starts, at_once):
        """Run the processes that the functions `starts` start, at most so many at once. Raises CallFailed for the
        first that failed, when all have ended."""
        self.ms, self.cpu, running, failed = [], 0.0, {}, None
        starts = iter(starts)
        started = time.perf_counter()
        try:
            while True:
                while len(running) < at_once and not failed and (start := next(starts, None)):
                    it = start()
                    running[it.pid] = it
                if not running:
                    break
                pid, status, used = os.wait4(0, 0)          # of our process group: a server has its own
                took = time.perf_counter()
                if pid in running:
                    it = running.pop(pid)
                    self.ms.append((took - it.started) * 1e3)
                    self.cpu += used.ru_utime + used.ru_stime
                    try:
                        it.close(status)
                    except CallFailed as e:
                        failed = failed or e
        finally:
            for it in running.values():                     # interrupted: the terminal has told them, too
                with suppress(ChildProcessError):           # reaped just before
                    os.waitpid(it.pid, 0)
                os.close(it.out)
        self.seconds = time.perf_counter() - started
        if failed:
            raise failed
