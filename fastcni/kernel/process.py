"""Run one program until it ends. Its input and output are bytes.

The three standard streams are memory files, not pipes. So no thread has to read while the program runs, and a full pipe
never blocks the program. run() returns when the program ends, also if a grandchild keeps a stream open. A program that
opens /dev/stdout again writes from the beginning of the file.
"""

from __future__ import annotations

import errno
import posix
from _signal import SIGKILL
from time import perf_counter_ns

from fastcni._abandoned import check_request
from fastcni._processes import spawn
from fastcni.kernel import waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_OUTPUT = 16 << 20      # the most bytes of each stream; a CNI result has about 1 kB

KILL_TIMEOUT_S = 5.0        # seconds in which a killed program must end; its last system call may take long

# The names of signals that end programs, as a shell prints them. Other signals are printed by number.
SIGNALS = {
    1: "hangup", 2: "interrupt", 3: "quit", 4: "illegal instruction", 5: "trace/breakpoint trap",
    6: "aborted", 7: "bus error", 8: "floating point exception", 9: "killed",
    10: "user defined signal 1", 11: "segmentation fault", 12: "user defined signal 2",
    13: "broken pipe", 14: "alarm clock", 15: "terminated",
}


strays: list[int] = []             # pids of killed programs that did not end in time


class Finished:
    """How a program ended.

    status: the exit status, or minus the number of the signal that ended it.
    stdout, stderr: all bytes that the program wrote.
    cause: "" for exit status 0, otherwise "exit status 3" or "signal: killed" (with " (core dumped)" after a core
        dump).
    late: whether the program was killed because its timeout had passed.
    """

    __slots__ = ("cause", "late", "status", "stderr", "stdout")

    def __init__(self, status: int, stdout: bytes, stderr: bytes, cause: str, late: bool = False) -> None:
        self.status = status
        self.stdout = stdout
        self.stderr = stderr
        self.cause = cause
        self.late = late


def run(path: str, env: Mapping[str, str], stdin: bytes, argv: Sequence[str] = (), *,
        timeout: float | None, phase: str = waiting.PROGRAM) -> Finished:
    """Run the program at `path` with the environment `env` and the bytes `stdin`; return Finished.

    argv is the complete argument list, [path] if empty. timeout is in seconds, None: no limit. After the timeout the
    program and its process group get SIGKILL, and Finished.late is set. They also get SIGKILL when the caller of the
    request leaves. When this process ends, only the program gets SIGKILL. The child has the namespaces and the working
    directory of the calling thread. phase: the phase of the request to which the program's time is added, see
    waiting.Request.spent().

    Raises OSError if the program cannot be started or wrote more than MAX_OUTPUT, ValueError if `env` has a NUL or an
    invalid variable name, waiting.CallerGone if the caller has left. See memfd_create(2), pidfd_open(2).
    """
    check_request()
    files = []
    try:
        for name in ("stdin", "stdout", "stderr"):
            files.append(memory_file(name))
        if stdin:
            write_all(files[0], stdin)
            posix.lseek(files[0], 0, 0)
        reap_strays()
        started = perf_counter_ns()
        waiting.here.request.step(f"run {' '.join(argv or (path,))}")
        try:
            wait_status, late = start_and_wait(path, argv or (path,), env, files, timeout)
        finally:
            waiting.here.request.spent(phase, started)
        status, cause = read_wait_status(wait_status)
        waiting.here.request.step(f"{path}: {cause or 'exit status 0'}")
        stdout, stderr = read_back(files[1], path, "stdout"), read_back(files[2], path, "stderr")
        return Finished(status, stdout, stderr, cause, late)
    finally:
        for fd in files:
            posix.close(fd)


def memory_file(name: str) -> int:
    """Open an empty memory file. The descriptor is above 2, because the child's dup2() replaces descriptors 0 to 2."""
    fd = posix.memfd_create(name)
    if fd > 2:
        return fd
    # Only needed if this process was started with a closed standard stream.
    import fcntl
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        posix.close(fd)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view):]


def read_back(fd: int, path: str, stream: str) -> bytes:
    size = posix.fstat(fd).st_size
    if size > MAX_OUTPUT:
        raise OSError(errno.EFBIG, f"{path} wrote {size} bytes to {stream}, more than {MAX_OUTPUT}")
    parts, offset = [], 0
    while part := posix.pread(fd, MAX_OUTPUT - offset, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def start_and_wait(path: str, argv: Sequence[str], env: Mapping[str, str], files: Sequence[int],
                   timeout: float | None) -> tuple[int, bool]:
    """Start a program with the three `files` as its streams, wait for its end and reap it. Return (its wait status,
    whether it was killed after the timeout)."""
    pids: list[int] = []
    try:
        spawn(path, argv, env, pids, *files)
        late = not ends_within(pids[0], timeout and waiting.limit(timeout))
    # For example CallerGone, KeyboardInterrupt, no free descriptor: leave no program running
    except BaseException:
        for pid in pids:
            end(pid)
        raise
    if late:
        return end(pids[0]), True
    try:
        return posix.waitpid(pids[0], 0)[1], False
    except ChildProcessError as e:
        e.add_note("other code has reaped the child: is SIGCHLD ignored in this process?")
        raise


def ends_within(pid: int, seconds: float | None) -> bool:
    """Return whether the child ends within `seconds` (None: no limit). The child is not reaped."""
    try:
        fd = posix.pidfd_open(pid)
    except OSError as e:
        # pidfd_open(2) fails before Linux 5.3, or a seccomp filter forbids the call
        if e.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        return waiting.until(lambda: has_ended(pid), float("inf") if seconds is None else seconds, waiting.PROGRAM)
    try:
        return waiting.readable(fd, seconds, waiting.PROGRAM)
    finally:
        posix.close(fd)


def has_ended(pid: int) -> bool:
    return posix.waitid(posix.P_PID, pid, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT) is not None


def end(pid: int) -> int:
    """Kill a child and its process group; return the child's wait status. If the child does not end in time,
    reap_strays() reaps it later."""
    try:
        posix.killpg(pid, SIGKILL)
        with waiting.rolling_back():            # continue even if the caller leaves
            if not ends_within(pid, KILL_TIMEOUT_S):
                strays.append(pid)
                return SIGKILL
        return posix.waitpid(pid, 0)[1]
    except OSError:             # already reaped
        return SIGKILL


def reap_strays() -> None:
    """Reap killed programs that did not end in time."""
    for pid in (*strays,):
        try:
            if posix.waitpid(pid, posix.WNOHANG)[0]:
                strays.remove(pid)
        except (ChildProcessError, ValueError):         # another thread has reaped the program
            continue


def read_wait_status(wait_status: int) -> tuple[int, str]:
    """Return (status, cause) of a wait(2) status, as in Finished."""
    if posix.WIFSIGNALED(wait_status):
        number = posix.WTERMSIG(wait_status)
        core = " (core dumped)" if posix.WCOREDUMP(wait_status) else ""
        return -number, f"signal: {SIGNALS.get(number) or f'signal {number}'}{core}"
    status = posix.WEXITSTATUS(wait_status)
    return status, f"exit status {status}" if status else ""
