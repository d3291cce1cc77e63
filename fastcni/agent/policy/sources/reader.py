"""Read files with documents in separate processes, so that no file blocks the agent or exceeds the limits.

    reader = Reader("/etc/fastcni/policies")
    reader.ask(["web.yaml"])
    ...                                         # when the descriptor is readable
    for read in reader.take():
        read.documents                          # [("document 1", b'{"kind":"NetworkPolicy",...}')]

The agent starts one process, with the parser imported. This process forks a child for a few files, in 1 ms. The kernel
ends a child that needs more processor time, memory or time than the limits below. The agent restarts a process that has
ended or does not answer, after a pause that grows until a file was read. The process has the priority of the threads
that enforce policies. A child has this priority for its first file, if that file is small: on a busy node a change of
one file takes effect sooner, and a long file or many files take no processor time from other programs.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from fastcni.agent.policy.priority import raise_priority, usual_priority
from fastcni.agent.policy.sources.documents import encode, foreign, misspelled, reduced
from fastcni.agent.policy.sources.lease import is_written
from fastcni.agent.policy.sources.parse import MAX_BYTES, ParseError, parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PROCESSOR_S, ELAPSED_S = 3.0, 30.0              # for one file
MEMORY_BYTES = 96 << 20                         # of a child, without the memory that it shares with its parent
SMALL_BYTES = 1 << 16           # of a file; its limits let a parser use 20 ms of processor time for it
MAX_CHILDREN = 4
MAX_FILES = 64                                  # of a child
REQUEST_BYTES = 1 << 17                         # names have 255 bytes at most, in JSON six times as many
READY = b"1"
START_S = 10.0                                  # until the process is ready, on a busy node
ANSWER_S = 5.0                                  # until it has begun with a request, on a busy node
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 30.0          # before it is started again
MAIN = ("import sys; sys.path[:] = {path!r}; from fastcni.agent.policy.sources.reader import serve; "
        "serve({fd}, {directory!r})")


class Read(NamedTuple):
    """The documents of a file. documents: (where, document as encode() has written it). broken: (where, why) of
    what cannot be parsed. again: the reason may end without a change of the file. written: a program has the file open
    for writing, so it was not read."""

    name: str
    documents: list[tuple[str, bytes]]
    broken: list[tuple[str, str]]
    again: bool = False
    written: bool = False


def failed(name: str, why: str) -> Read:
    return Read(name, [], [("", why)], again=True)


# -- in the child ------------------------------------------------------------------------------------------------------

def read_file(directory: str, name: str) -> Read:
    """Raises OSError, MemoryError."""
    # of a FIFO, too
    fd = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return Read(name, [], [("", "no regular file")])
        if is_written(fd):
            return Read(name, [], [("", "a program has it open for writing")], again=True, written=True)
        data = file.read(MAX_BYTES + 1)
    documents, broken = [], []
    for where, each in parse(name, data):
        if isinstance(each, ParseError):
            broken.append((where, str(each)))
        elif kept := reduced(each):
            documents.append((where, encode(kept)))
        elif why := misspelled(each):
            broken.append((where, why))
        elif kept := foreign(each):
            documents.append((where, encode(kept)))
    return Read(name, documents, broken)


def read_bounded(directory: str, name: str) -> Read:
    """Read a file. The signals of the timers end this process, also within the parser."""
    signal.setitimer(signal.ITIMER_PROF, PROCESSOR_S)
    signal.setitimer(signal.ITIMER_REAL, ELAPSED_S)
    try:
        return read_file(directory, name)
    except MemoryError:
        return failed(name, f"needs more than {MEMORY_BYTES >> 20} MB of memory to be read")
    except OSError as e:
        return failed(name, e.strerror or str(e))


def serve(fd: int, directory: str) -> None:
    """Fork a child for each request, until the agent has closed its socket."""
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)               # the kernel forgets children that have ended
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    list(parse("warm.yaml", b"kind: Pod\nmetadata: {name: a}\n"))
    gc.freeze()
    raise_priority()
    with socket.socket(fileno=fd) as sock, suppress(ConnectionError):
        sock.send(READY)
        while True:
            data, fds, _, _ = socket.recv_fds(sock, REQUEST_BYTES, 1)
            if not data:
                break
            if os.fork() == 0:
                sock.close()                                    # so that the agent sees the end of the parent
                work(fds[0], directory, json.loads(data))
            os.close(fds[0])
    os.killpg(0, signal.SIGKILL)


def is_small(directory: str, name: str) -> bool:
    try:
        return os.stat(os.path.join(directory, name)).st_size <= SMALL_BYTES
    except OSError:
        return False


def work(fd: int, directory: str, names: list[str]) -> None:
    """Write READY, and for each file a header in JSON, and its documents in lines. Ends this process."""
    try:
        with open(fd, "wb") as pipe:
            pipe.write(READY)
            pipe.flush()
            if not is_small(directory, names[0]):
                usual_priority()
            for read in (read_bounded(directory, name) for name in names):
                usual_priority()
                body = b"".join(b"%s\t%s\n" % (where.encode(), line) for where, line in read.documents)
                header = {"name": read.name, "broken": read.broken, "again": read.again, "written": read.written,
                          "bytes": len(body)}
                pipe.write(json.dumps(header).encode() + b"\n" + body)
                pipe.flush()
    finally:
        os._exit(0)


# -- in the agent ------------------------------------------------------------------------------------------------------

@dataclass(slots=True)
class Job:
    """A child. names: of files that it has not answered, in their order. due: when it is lost without a further part of
    its answer, monotonic. begun: the child runs. data: the received part of its answer."""

    fd: int
    names: list[str]
    due: float
    begun: bool = False
    data: bytearray = field(default_factory=bytearray)

    def take(self, data: bytes) -> Iterator[Read]:
        """Add the next part of the answer, and yield the files whose answer is complete."""
        self.due = monotonic() + ELAPSED_S + ANSWER_S
        self.data += data if self.begun else data[len(READY):]
        self.begun = self.begun or bool(data)
        while (end := self.data.find(b"\n") + 1) and len(self.data) >= end + (
                header := json.loads(self.data[:end]))["bytes"]:
            body = bytes(self.data[end:end + header["bytes"]])
            del self.data[:end + header["bytes"]]
            self.names.remove(header["name"])
            yield Read(header["name"], [(where.decode(), line) for where, _, line in
                                        (each.partition(b"\t") for each in body.split(b"\n")[:-1])],
                       [(where, why) for where, why in header["broken"]], header["again"], header["written"])


class Reader:
    """Reads files of a directory. One thread makes the Reader and calls all methods.

    why: why no process reads files at present; "": one does, or is being started. due: when to call take() without an
    event, in monotonic seconds.
    """

    def __init__(self, directory: str) -> None:
        self.directory, self.poll = directory, select.epoll()
        self.why = ""
        self._jobs: dict[int, Job] = {}
        self._failed: list[Read] = []
        self._asked: dict[str, None] = {}                       # names without a child so far, in order
        self._sock: socket.socket | None = None                 # of the process; None: the process has to be started
        self._process: subprocess.Popen[bytes] | None = None
        self._ready, self._pause, self._until = False, FIRST_PAUSE_S, 0.0
        self._start()

    def _start(self) -> None:
        """Start the process, which has to report that it is ready until `_until`."""
        self._until = monotonic() + START_S
        try:
            self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._sock.setblocking(False)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c",
                     MAIN.format(path=sys.path, fd=theirs.fileno(), directory=self.directory)],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                    start_new_session=True)
            self.poll.register(self._sock, select.EPOLLIN)
        except OSError as e:
            self._lose(f"cannot be started: {e.strerror or e}")

    @property
    def due(self) -> float:
        if not self._ready:
            return self._until
        return min((job.due for job in self._jobs.values()), default=float("inf"))

    def fileno(self) -> int:
        """The descriptor to wait on for take()."""
        return self.poll.fileno()

    @property
    def busy(self) -> bool:
        """Whether answers are outstanding."""
        return bool(self._asked or self._jobs or self._failed)

    def names(self) -> set[str]:
        """The files without an answer so far."""
        return {*self._asked, *(name for job in self._jobs.values() for name in job.names)}

    def close(self) -> None:
        """End the processes."""
        self._end()
        self.poll.close()

    def _end(self) -> None:
        """End the processes. The files without an answer are requested again."""
        if self._sock:
            self._sock.close()
        if self._process:
            os.killpg(self._process.pid, signal.SIGKILL)        # the process exists until wait(), even if it has ended
            self._process.wait()
        for job in self._jobs.values():
            os.close(job.fd)
        self._asked = {**dict.fromkeys(name for job in self._jobs.values() for name in job.names), **self._asked}
        self._jobs.clear()
        self._sock = self._process = None
        self._ready = False

    def _lose(self, what: str) -> None:
        """Start the process again, after a pause."""
        self._end()
        self.why = f"the process that reads files {what}; it is started again"
        self._until = monotonic() + self._pause
        self._pause = min(2 * self._pause, MAX_PAUSE_S)

    def ask(self, names: Iterable[str]) -> None:
        """Read these files. A file that is being read is read again afterwards."""
        self._asked.update(dict.fromkeys(names))
        self._submit()

    def take(self) -> list[Read]:
        """The files that were read since the last call, each as soon as it was."""
        found, self._failed = self._failed, []
        for fd, _ in self.poll.poll(0):
            if job := self._jobs.get(fd):
                data = os.read(fd, 1 << 20)
                found += job.take(data)
                if not data:
                    found += self._ended(job)
            elif self._sock and fd == self._sock.fileno():
                self._listen()
        if monotonic() >= self.due:
            self._overdue()
        self._submit()
        return found

    def _listen(self) -> None:
        """Handle a message of the process: it is ready, or has ended."""
        assert self._sock
        try:
            self._ready = self._sock.recv(1) == READY
        except ConnectionError:
            self._ready = False
        if self._ready:
            self.why = ""
        else:
            self._lose("has ended")

    def _overdue(self) -> None:
        """Start the process, or end one that does not answer. If a child does not end, its first file is the cause."""
        if not (self._sock or self._ready):
            self._start()
            return
        now = monotonic()
        for job in [job for job in self._jobs.values() if job.begun and job.due <= now]:
            self._failed += self._ended(job)
        self._lose("does not answer")

    def _ended(self, job: Job) -> list[Read]:
        """Return the files of a child that has ended. If its answer is not complete, the first file without an answer
        is the cause."""
        del self._jobs[job.fd]
        os.close(job.fd)
        if not job.names:
            self._pause = FIRST_PAUSE_S
            return []
        self._asked = {**dict.fromkeys(job.names[1:]), **self._asked}
        return [failed(job.names[0], f"its reader was ended: more than {PROCESSOR_S:g} s of processor time, "
                       f"{ELAPSED_S:g} s or {MEMORY_BYTES >> 20} MB")]

    def _submit(self) -> None:
        """Give files to the free children. A file that a child is reading waits, so that its last content is reported
        last."""
        if not self._ready:
            return
        read_now = {name for job in self._jobs.values() for name in job.names}
        waiting = [name for name in self._asked if name not in read_now]
        while waiting and (free := MAX_CHILDREN - len(self._jobs)) > 0:
            count = min(-(-len(waiting) // free), MAX_FILES)
            names, waiting = waiting[:count], waiting[count:]
            for name in names:
                del self._asked[name]
            try:
                self._fork(names)
            except (BlockingIOError, ConnectionError) as e:     # the process does not answer, or was ended
                self._asked = {**dict.fromkeys(names), **self._asked}
                if not isinstance(e, BlockingIOError):
                    self._lose("has ended")
                return
            except OSError as e:
                self._failed += [failed(name, f"there is no reader for it: {e.strerror or e}") for name in names]

    def _fork(self, names: list[str]) -> None:
        assert self._sock
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            socket.send_fds(self._sock, [json.dumps(names).encode()], [theirs])
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._jobs[ours] = Job(ours, names, monotonic() + ANSWER_S)
        self.poll.register(ours, select.EPOLLIN)
