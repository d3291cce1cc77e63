"""Processes of a simulation, their processor time and their memory."""

import signal
import subprocess
import time
from pathlib import Path


class Process:
    """A process that __exit__ ends. log: a file for its stderr."""

    def __init__(self, words, log, **named):
        self.log = Path(log)
        with open(log, "ab") as file:
            self.popen = subprocess.Popen([*map(str, words)], stderr=file, **{"stdout": subprocess.DEVNULL} | named)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.popen.send_signal(signal.SIGTERM)
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe:
                pipe.close()

    def cpu_s(self):
        """Seconds of processor time so far."""
        return cpu_s(self.popen.pid)

    def memory_mb(self):
        return memory_mb(self.popen.pid)

    def tail(self):
        return self.log.read_text(errors="replace")[-500:]


def cpu_s(pid):
    """Return the seconds of processor time of a process, as in /proc/PID/stat, but to the microsecond.

    clock_getcpuclockid(3) makes the same clock id: MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED).
    """
    return time.clock_gettime(~pid << 3 | 2)


def memory_mb(pid):
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1e3
