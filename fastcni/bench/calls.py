"""Run plugins as processes, and measure each call from the spawn to the exit status, as a container runtime sees it.

One thread starts and reaps all processes. With several threads, the measurements would include their waits for the GIL.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress


class CallFailed(Exception):
    """A plugin failed. The text has the call, the exit status and the output."""


class Running:
    """A process: pid, started (seconds), out (a memory file with its output), what (the call, for an error).

    then: a function that gets the output, and returns the function that starts the next call of a chain, None after the
    last; None if the process is no call of a chain."""

    __slots__ = ("pid", "started", "out", "what", "then")

    def __init__(self, path: str, env: Mapping[str, str], stdin: bytes, what: str) -> None:
        given, self.out, self.what = os.memfd_create("stdin"), os.memfd_create("out"), what
        os.write(given, stdin)
        os.lseek(given, 0, os.SEEK_SET)
        self.then: Callable[[bytes], Callable[[], Running] | None] | None = None
        streams = [(os.POSIX_SPAWN_DUP2, fd, stream) for stream, fd in enumerate((given, self.out, self.out))]
        self.started = time.perf_counter()
        self.pid = os.posix_spawn(path, [path], env, file_actions=streams)
        os.close(given)

    def close(self, status: int) -> bytes:
        """Return the output, 4 KiB at most. Raise CallFailed unless the wait status is 0."""
        output = os.pread(self.out, 4096, 0)
        os.close(self.out)
        if status:
            raise CallFailed(f"{self.what}: exit status {os.waitstatus_to_exitcode(status)}: "
                             f"{output.decode('utf-8', 'replace').strip()}")
        return output


def one(start: Callable[[], Running]) -> tuple[float, bytes]:
    """Run the process that start() starts. Return (milliseconds, output). Raise CallFailed."""
    running = start()
    _, status = os.waitpid(running.pid, 0)
    took = time.perf_counter() - running.started
    return took * 1e3, running.close(status)


class Flow:
    """Many processes, or chains of processes. ms: the milliseconds of each, in the order of their ends. seconds: from
    the first start
    to the last end. cpu: seconds of user and system time, of the processes and of their children that they waited
    for."""

    __slots__ = ("ms", "seconds", "cpu")

    def __init__(self, starts: Iterable[Callable[[], Running]], at_once: int) -> None:
        """Run the processes that the functions `starts` start, at most `at_once` at a time. After all have ended,
        raise CallFailed for the first that failed."""
        self.ms: list[float] = []
        self.cpu, failed = 0.0, None
        running: dict[int, Running] = {}
        pending = iter(starts)
        started = time.perf_counter()
        try:
            while True:
                while len(running) < at_once and not failed and (start := next(pending, None)):
                    it = start()
                    running[it.pid] = it
                if not running:
                    break
                pid, status, used = os.wait4(0, 0)          # 0: a child in our process group; a server leads its own
                took = time.perf_counter()
                if pid in running:
                    it = running.pop(pid)
                    self.cpu += used.ru_utime + used.ru_stime
                    try:
                        output = it.close(status)
                        if it.then and (start := it.then(output)):
                            following = start()
                            following.started = it.started
                            running[following.pid] = following
                            continue
                    except CallFailed as e:
                        failed = failed or e
                    self.ms.append((took - it.started) * 1e3)
        finally:
            for it in running.values():                     # after an interrupt: the terminal sent SIGINT to them, too
                with suppress(ChildProcessError):           # already reaped
                    os.waitpid(it.pid, 0)
                os.close(it.out)
        self.seconds = time.perf_counter() - started
        if failed:
            raise failed
