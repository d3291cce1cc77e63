"""Start the processes of a simulation, and read their processor time and memory."""

import signal
import subprocess
import time
from pathlib import Path


class Process:
    """A process, which __exit__() ends. log: a file for the process's stderr."""

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
        """Return the seconds of processor time that the process has used."""
        return cpu_s(self.popen.pid)

    def memory_mb(self):
        return memory_mb(self.popen.pid)

    def tail(self):
        return self.log.read_text(errors="replace")[-500:]


def cpu_s(pid):
    """Return the seconds of processor time that a process has used, with more digits than /proc/PID/stat.

    The clock id is that of clock_getcpuclockid(3), MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED).
    """
    return time.clock_gettime(~pid << 3 | 2)


def memory_mb(pid):
    """Return the resident memory of a process in MB."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1e3
