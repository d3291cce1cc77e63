"""Run plugins as processes, and measure the time of each call from the spawn to the exit status, as a runtime does.

One thread starts and reaps all processes. With several threads, the measured times would include waits for the GIL.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress


class CallFailed(Exception):
    """A plugin process failed. The text has the call, the exit status and the output."""


class Running:
    """A running plugin process. pid: its process id. started: its start, in seconds of time.perf_counter(). out: a
    memory file with its output. what: the call as text, for an error.

    then: for a call of a chain, a function that takes the output, and returns the function that starts the next call,
    or None after the last call. None for other calls."""

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
        """Close the file of the output, and return at most 4 KiB of the output. status: from waitpid(2). Raise
        CallFailed unless `status` is 0."""
        output = os.pread(self.out, 4096, 0)
        os.close(self.out)
        if status:
            raise CallFailed(f"{self.what}: exit status {os.waitstatus_to_exitcode(status)}: "
                             f"{output.decode('utf-8', 'replace').strip()}")
        return output


def one(start: Callable[[], Running]) -> tuple[float, bytes]:
    """Call start(), and wait for the process that it has started, and for each further process of its chain. Return
    (the sum of the processes' milliseconds, the output of the last process). Raise CallFailed."""
    took = 0.0
    following: Callable[[], Running] | None = start
    while following:
        running = following()
        _, status = os.waitpid(running.pid, 0)
        took += time.perf_counter() - running.started
        output = running.close(status)
        following = running.then(output) if running.then else None
    return took * 1e3, output


class Flow:
    """The times of many processes, or of many chains of processes. ms: the milliseconds of each process or chain, in
    the order in which they ended. seconds: from the first start to the last end. cpu: seconds of user and system time
    of the processes, and of the children that they have waited for."""

    __slots__ = ("ms", "seconds", "cpu")

    def __init__(self, starts: Iterable[Callable[[], Running]], at_once: int) -> None:
        """Run all processes, at most `at_once` at a time. starts: functions that each start a process or chain. When
        all processes have ended, raise CallFailed for the first process that failed."""
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
                pid, status, used = os.wait4(0, 0)          # 0: only children in this process group, so no server
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
            for it in running.values():                     # after Ctrl-C, which has also ended these processes
                with suppress(ChildProcessError):           # the loop has already reaped the process
                    os.waitpid(it.pid, 0)
                os.close(it.out)
        self.seconds = time.perf_counter() - started
        if failed:
            raise failed
