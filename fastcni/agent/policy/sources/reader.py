"""Read files with documents in separate processes, so that no file blocks the agent or exceeds the limits.

    reader = Reader("/etc/fastcni/policies")
    reader.ask(["web.yaml"])
    ...                                         # wait until reader.fileno() is readable
    for read in reader.take():
        read.documents                          # [("document 1", b'{"kind":"NetworkPolicy",...}')]

The agent starts one process that has imported the parser. In 1 ms this process forks a child, which reads a few files.
The kernel ends a child that exceeds the limits below on processor time, elapsed time or memory. If the process ends or
does not answer, the agent starts it again, after a pause that grows until a file was read. The process has the high
priority of the threads that enforce policies. A child keeps this priority only for its first file, if that file is
small. So a change of one file takes effect soon on a busy node, but large or many files do not slow other programs.
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
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from fastcni.agent.policy.child import Child
from fastcni.agent.policy.priority import raise_priority, usual_priority
from fastcni.agent.policy.sources.documents import encode, foreign, misspelled, reduced
from fastcni.agent.policy.sources.lease import is_written
from fastcni.agent.policy.sources.parse import MAX_BYTES, ParseError, parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PROCESSOR_S, ELAPSED_S = 3.0, 30.0              # limits for one file
MEMORY_BYTES = 96 << 20                         # limit of a child, without the memory that it shares with its parent
SMALL_BYTES = 1 << 16           # a file of this size takes the parser at most 20 ms of processor time
MAX_CHILDREN = 4
MAX_FILES = 64                                  # the maximum of files that one child reads
REQUEST_BYTES = 1 << 17         # a file name of 255 bytes may take six times as many bytes in the JSON of a request
READY = b"1"
START_S = 10.0                                  # seconds that the process may take to be ready, on a busy node
ANSWER_S = 5.0                                  # seconds that a child may take to begin, on a busy node
FIRST_PAUSE_S = 0.1                             # the first pause before the agent starts the process again
MAIN = ("import sys; sys.path[:] = {path!r}; from fastcni.agent.policy.sources.reader import serve; "
        "serve({fd}, {directory!r})")


class Read(NamedTuple):
    """The documents of a file. name: the file's name. documents: (where, document as encode() writes it). broken:
    (where, why) for the parts that cannot be parsed. again: whether to try again even if the file does not change.
    written: a program has the file open for writing, so the child has not read it."""

    name: str
    documents: list[tuple[str, bytes]]
    broken: list[tuple[str, str]]
    again: bool = False
    written: bool = False


def failed(name: str, why: str) -> Read:
    return Read(name, [], [("", why)], again=True)


# -- in the child ------------------------------------------------------------------------------------------------------

def read_file(directory: str, name: str) -> Read:
    """Read the documents of a file. Raises OSError, MemoryError."""
    # O_NONBLOCK: the open of a FIFO must not block
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
    """Read the documents of a file within the time limits. If a timer expires, its signal ends this process, also
    within the parser."""
    signal.setitimer(signal.ITIMER_PROF, PROCESSOR_S)
    signal.setitimer(signal.ITIMER_REAL, ELAPSED_S)
    try:
        return read_file(directory, name)
    except MemoryError:
        return failed(name, f"needs more than {MEMORY_BYTES >> 20} MB of memory to be read")
    except OSError as e:
        return failed(name, e.strerror or str(e))


def serve(fd: int, directory: str) -> None:
    """Run the process: fork a child for each request, until the agent closes its socket. fd: the process's socket."""
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
                sock.close()                                    # so that the agent notices when the parent ends
                work(fds[0], directory, json.loads(data))
            os.close(fds[0])
    os.killpg(0, signal.SIGKILL)


def is_small(directory: str, name: str) -> bool:
    try:
        return os.stat(os.path.join(directory, name)).st_size <= SMALL_BYTES
    except OSError:
        return False


def work(fd: int, directory: str, names: list[str]) -> None:
    """Read these files in the child: write READY to `fd`, then for each file a line of JSON and its documents, one a
    line. Then end this process."""
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
    """A child, seen from the agent. fd: the pipe for its answer. names: the files without an answer yet, in order. due:
    when the child counts as lost, unless another part of its answer comes; monotonic seconds. begun: whether the child
    runs. data: the part of the answer that take() has not returned."""

    fd: int
    names: list[str]
    due: float
    begun: bool = False
    data: bytearray = field(default_factory=bytearray)

    def take(self, data: bytes) -> Iterator[Read]:
        """Add the next part of the child's answer, and yield the files that this part completes."""
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


class Reader(Child):
    """Reads files of a directory in other processes. One thread makes the Reader and calls all methods.

    due: when to call take() without an event, in monotonic seconds.
    """

    def __init__(self, directory: str) -> None:
        super().__init__("reads files", FIRST_PAUSE_S)
        self.directory, self._ready = directory, False
        self._jobs: dict[int, Job] = {}
        self._failed: list[Read] = []
        self._asked: dict[str, None] = {}                       # names that no child has yet, in order
        self._start()

    def _start(self) -> None:
        """Start the process. It must report READY before `_until`."""
        self._until = monotonic() + START_S
        try:
            self._run(MAIN, directory=self.directory)
        except OSError as e:
            self._lose(f"cannot be started: {e.strerror or e}")

    @property
    def due(self) -> float:
        if not self._ready:
            return self._until
        return min((job.due for job in self._jobs.values()), default=float("inf"))

    @property
    def busy(self) -> bool:
        """Whether take() has not yet returned all files that were asked for."""
        return bool(self._asked or self._jobs or self._failed)

    def names(self) -> set[str]:
        """Return the names of the files that were asked for and are not read yet."""
        return {*self._asked, *(name for job in self._jobs.values() for name in job.names)}

    def _end(self) -> None:
        """End the processes, and put the files that they have not read back into `_asked`."""
        super()._end()
        for job in self._jobs.values():
            os.close(job.fd)
        self._asked = {**dict.fromkeys(name for job in self._jobs.values() for name in job.names), **self._asked}
        self._jobs.clear()
        self._ready = False

    def ask(self, names: Iterable[str]) -> None:
        """Let children read these files. If a child is reading a file at this moment, another child reads the file
        again."""
        self._asked.update(dict.fromkeys(names))
        self._submit()

    def take(self) -> list[Read]:
        """Return the files that were read since the last call. A file does not wait for the other files of its
        child."""
        found, self._failed = self._failed, []
        for fd, _ in self.poll.poll(0):
            if job := self._jobs.get(fd):
                data = os.read(fd, 1 << 20)
                found += job.take(data)
                if not data:
                    found += self._ended(job)
            elif self.sock and fd == self.sock.fileno():
                self._listen()
        if monotonic() >= self.due:
            self._overdue()
        self._submit()
        return found

    def _listen(self) -> None:
        """Receive READY from the process, or notice that the process has ended."""
        assert self.sock
        try:
            self._ready = self.sock.recv(1) == READY
        except ConnectionError:
            self._ready = False
        if self._ready:
            self.why = ""
        else:
            self._lose("has ended")

    def _overdue(self) -> None:
        """Start the process, or end a process that does not answer. If a child exceeds its time, its first file without
        an answer counts as the cause."""
        if not (self.sock or self._ready):
            self._start()
            return
        now = monotonic()
        for job in [job for job in self._jobs.values() if job.begun and job.due <= now]:
            self._failed += self._ended(job)
        self._lose("does not answer")

    def _ended(self, job: Job) -> list[Read]:
        """Forget a child that has ended. If its answer is incomplete, return the first file without an answer as
        failed, because this file is the cause, and ask for the child's other files again."""
        del self._jobs[job.fd]
        os.close(job.fd)
        if not job.names:
            self._pause = FIRST_PAUSE_S
            return []
        self._asked = {**dict.fromkeys(job.names[1:]), **self._asked}
        return [failed(job.names[0], f"its reader was ended: more than {PROCESSOR_S:g} s of processor time, "
                       f"{ELAPSED_S:g} s or {MEMORY_BYTES >> 20} MB")]

    def _submit(self) -> None:
        """Give the waiting files to new children, at most MAX_CHILDREN at the same time. A file that a child is reading
        waits, so that take() returns its latest content last."""
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
        assert self.sock
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            socket.send_fds(self.sock, [json.dumps(names).encode()], [theirs])
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._jobs[ours] = Job(ours, names, monotonic() + ANSWER_S)
        self.poll.register(ours, select.EPOLLIN)
