"""Run one program to its end, with bytes in and bytes out; knows nothing of what the bytes mean.

The three standard streams are memory files, not pipes. Nothing has to be pumped while the program
runs, a full pipe can never block it, and a grandchild that keeps a stream open cannot hold us: the
run is over when the program itself is. One limit follows: a program that opens its /dev/stdout
anew, instead of writing to the one it was given, starts at the beginning of the file again.
"""

import posix
import time

from fastcni.kernel.waiting import waiting

MAX_OUTPUT = 16 << 20      # bytes of each stream that are read back; a CNI result is about 1 kB

SIGKILL, SIGPIPE, SIGXFSZ = 9, 13, 25       # signal(7)
EFBIG = 27                                  # errno(3)

# What a shell user calls the signals that end programs; the others are shown by number.
SIGNALS = {
    1: "hangup", 2: "interrupt", 3: "quit", 4: "illegal instruction", 5: "trace/breakpoint trap",
    6: "aborted", 7: "bus error", 8: "floating point exception", 9: "killed",
    10: "user defined signal 1", 11: "segmentation fault", 12: "user defined signal 2",
    13: "broken pipe", 14: "alarm clock", 15: "terminated",
}


class Finished:
    """How a program ended.

    status: the exit status, or minus the number of the signal that ended it.
    stdout, stderr: bytes, everything that was written.
    cause: "" for exit status 0, else "exit status 3" or "signal: killed"
        (with " (core dumped)" where one was written).
    """

    __slots__ = ("cause", "status", "stderr", "stdout")

    def __init__(self, status, stdout, stderr, cause):
        self.status = status
        self.stdout = stdout
        self.stderr = stderr
        self.cause = cause


def run(path, env, stdin, argv=(), timeout=None):
    """Run the program at `path` with the environment `env` and the bytes `stdin`; return Finished.

    argv is the whole argument list, [path] when empty. timeout is in seconds; at its end the program
    itself gets SIGKILL (its children do not) and cause is "signal: killed". OSError says that it could
    not be started or that it wrote more than MAX_OUTPUT; ValueError that a NUL or an unusable
    variable name stands in `env`. The child is in the namespaces and the working directory of the
    calling thread. See posix_spawn(3), memfd_create(2), pidfd_open(2).
    """
    files = []
    try:
        for name in ("stdin", "stdout", "stderr"):
            files.append(memory_file(name))
        if stdin:
            write_all(files[0], stdin)
            posix.lseek(files[0], 0, 0)
        # Python ignores these two signals, and an ignored signal stays ignored across exec.
        pid = posix.posix_spawn(
            path, list(argv) or [path], env,
            file_actions=[(posix.POSIX_SPAWN_DUP2, fd, stream) for stream, fd in enumerate(files)],
            setsigdef=(SIGPIPE, SIGXFSZ),
        )
        status, cause = read_wait_status(wait(pid, timeout))
        stdout, stderr = read_back(files[1], path, "stdout"), read_back(files[2], path, "stderr")
        return Finished(status, stdout, stderr, cause)
    finally:
        for fd in files:
            posix.close(fd)


def memory_file(name):
    """Open an empty memory file; the descriptor is above 2, so that no dup2 can write over it."""
    fd = posix.memfd_create(name)
    if fd > 2:
        return fd
    # Only when the caller itself was started with a standard stream closed.
    import fcntl
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        posix.close(fd)


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view):]


def read_back(fd, path, stream):
    size = posix.fstat(fd).st_size
    if size > MAX_OUTPUT:
        raise OSError(EFBIG, f"{path} wrote {size} bytes to {stream}, more than {MAX_OUTPUT}")
    parts, offset = [], 0
    while part := posix.pread(fd, MAX_OUTPUT - offset, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def wait(pid, timeout):
    """Return the wait status of our child `pid`; whatever happens here, the child is gone afterwards."""
    try:
        with waiting():
            if timeout is not None and not ends_within(pid, timeout):
                posix.kill(pid, SIGKILL)
            return posix.waitpid(pid, 0)[1]
    except ChildProcessError as e:
        e.add_note("the exit status was taken by someone else: is SIGCHLD ignored in this program?")
        raise
    except BaseException:          # KeyboardInterrupt, or no descriptor left: leave no stray program behind
        try:
            posix.kill(pid, SIGKILL)
            posix.waitpid(pid, 0)
        except OSError:
            pass                   # it was reaped already
        raise


def ends_within(pid, seconds):
    """Whether the child ends within so many seconds; it is not reaped."""
    import select

    fd = posix.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + seconds
        # rounded up, or the last millisecond would be spent turning round and round
        while (left := deadline - time.monotonic()) > 0:
            if poll.poll(min(int(left * 1000) + 1, 1 << 30)):
                return True
        return bool(poll.poll(0))
    finally:
        posix.close(fd)


def read_wait_status(wait_status):
    """Return (status, cause) of a wait(2) status, as Finished has them."""
    if posix.WIFSIGNALED(wait_status):
        number = posix.WTERMSIG(wait_status)
        core = " (core dumped)" if posix.WCOREDUMP(wait_status) else ""
        return -number, f"signal: {SIGNALS.get(number) or f'signal {number}'}{core}"
    status = posix.WEXITSTATUS(wait_status)
    return status, f"exit status {status}" if status else ""
