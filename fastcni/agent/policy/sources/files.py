"""Read pods, namespaces and policies from a directory of JSON and YAML files, which `kubectl get -o yaml` may write."""

from __future__ import annotations

import errno
import os
import select
from collections import deque
from contextlib import ExitStack, closing
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.objects import PolicyError
from fastcni.agent.policy.sources.content import Content
from fastcni.agent.policy.sources.reader import SMALL_BYTES, Reader, read_file
from fastcni.daemon.stamp import stamp
from fastcni.runtime.directory_changes import DirectoryChanges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastcni.agent.policy.evaluate import Cluster
    from fastcni.agent.policy.sources.document_file import DocumentFile
    from fastcni.agent.policy.sources.reader import Read
    from fastcni.daemon.log import Logger
    from fastcni.daemon.stamp import Stamp

ENDINGS = (".json", ".yaml", ".yml")
RETRY_S = 1.0                   # seconds between checks for a missing directory, because no event reports a new one
READ_AGAIN_S = 10.0             # seconds before the agent reads an unreadable file again
WRITTEN_S = 10.0                # seconds that a program may have a file open for writing before this is an error
BEGIN_S, BEGIN_KEPT_S = 20.0, 2.0       # seconds that the constructor waits for files: without, with stored policies
STEPS_S = 0.005                 # seconds for changes of the Compiler before the agent answers requests


def read_cluster(directory: str) -> Cluster:
    """Read all documents of a directory and return their objects. Raises PolicyError, whose text names the file, and
    OSError."""
    content = Content(Compiler())
    for name in names(directory):
        read = read_file(directory, name)
        run(content.replace(os.path.join(directory, name), read.documents, read.broken))
    for path, texts in content.errors.items():
        raise PolicyError(f"{path}: {texts[0]}")
    return content.compiler.cluster


def names(directory: str) -> list[str]:
    return sorted(filter(is_ours, os.listdir(directory)))


def is_ours(name: str) -> bool:
    return name.endswith(ENDINGS) and not name.startswith(".")


def run(steps: Iterator[None]) -> None:
    """Run an iterator to its end."""
    deque(steps, 0)


class Files:
    """The Source that keeps a Compiler equal to the files of a directory; see Content for unreadable files. Pods that
    do not come from files, such as pods of ADDs, stay.

    Another process reads the files that have changed and that no program has open for writing (reader.py). The
    constructor waits some seconds for all files. While the directory is missing, all policies stay as they were; after
    a restart, the stored policies apply (document_file.py). Without stored policies, `complete` stays False while the
    directory is missing or a file is unreadable, because the previous policies are unknown; `away` says why. If the
    directory is no longer a mount point, it counts as missing, because the directory below the mount has other files.

    former: whether the Compiler began with stored objects. errors: {place: texts}. due: when to call attend() without a
    change, in monotonic seconds.
    """

    def __init__(self, directory: str, compiler: Compiler, kept: DocumentFile | None = None) -> None:
        self.directory, self.kept = directory, kept
        self.content = Content(compiler, kept.changed if kept else None)
        self.complete, self.former, self.due = False, False, 0.0
        self._missing = ""                                      # why the directory cannot be listed
        self._unsure = ""                                       # why the policies are unknown
        self._identity: tuple[int, int] | None = None           # identity() of the listed directory
        self._mounted = False                                   # whether the directory was a mount point
        self._had = False                                       # whether the files had policies
        self._lost = True                                       # whether the directory has to be listed again
        self._stamps: dict[str, Stamp | None] = {}              # {file name: its stamp at the last read}
        self._links: set[str] = set()                           # symbolic links, whose targets have other names
        self._again: dict[str, float] = {}                      # {file name: when to read the file again, monotonic}
        self._written: dict[str, float] = {}                    # {file name: start of a program's write, monotonic}
        self._steps: deque[Iterator[None]] = deque()            # changes of the Compiler
        with ExitStack() as opened:
            self.poll = opened.enter_context(closing(select.epoll()))
            self._changes = opened.enter_context(closing(DirectoryChanges()))
            self._reader = opened.enter_context(closing(Reader(directory)))
            self.poll.register(self._changes.descriptor, select.EPOLLIN)
            self.poll.register(self._reader.fileno(), select.EPOLLIN)
            self._begin()
            self._opened = opened.pop_all()

    def _begin(self) -> None:
        if self.kept:
            former = self.kept.read()
            self.former, self._mounted = former is not None, self.kept.mounted
            for place, lines in (former or {}).items():
                run(self.content.replace(place, [("", line) for line in lines]))
                self._stamps[os.path.basename(place)] = None
            self._had = bool(self.content.compiler.cluster.policies)
        self.attend(float("inf"))
        until = monotonic() + (BEGIN_KEPT_S if self.former else BEGIN_S)
        while self.busy and not self._reader.why and (now := monotonic()) < until:
            select.select([self._reader], [], [], max(0.0, min(until, self._reader.due) - now))
            self.attend(float("inf"))

    @property
    def busy(self) -> bool:
        """Whether changes of files are not yet in the Compiler."""
        return bool(self._steps) or self._reader.busy

    @property
    def small(self) -> bool:
        """Whether a file of at most SMALL_BYTES is being read."""
        return any(len(found) > 2 and found[2] <= SMALL_BYTES for found in map(self._stamps.get, self._reader.names())
                   if found)

    @property
    def away(self) -> str:
        """Why the files cannot be read at present, or ""."""
        return self._missing or (f"{self.directory}: {self._reader.why}" if self._reader.why else "") or self._unsure

    @property
    def errors(self) -> dict[str, list[str]]:
        found = {path: [f"{path}: {text}" for text in texts] for path, texts in self.content.told().items()}
        if away := self.away:
            effect = "the policies stay as they were" if self.complete else "no pod is added"
            found[self.directory] = [f"{away}; {effect}"]
        return found

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when attend() has work."""
        return self.poll.fileno()

    def close(self) -> None:
        self._opened.close()
        if self.kept:
            self.kept.close()

    def attend(self, seconds: float = STEPS_S) -> None:
        """Ask the reader for the files that have changed, and put the content of read files into the Compiler, for at
        most `seconds`. If changes remain, `due` becomes 0."""
        changed = self._changes.take()
        if (self._lost or "" in changed or identity(self.directory) != self._identity
                or (self._links and not all(map(is_ours, changed)))):
            changed = self._list()
        now = monotonic()
        if not self._lost:
            self._look(set(filter(is_ours, changed)) | {name for name, due in self._again.items() if due <= now})
        for read in self._reader.take():
            if os.path.lexists(path := os.path.join(self.directory, read.name)):      # if not, _look() forgets the file
                if read.again:
                    self._again[read.name] = now + (RETRY_S if read.written else READ_AGAIN_S)
                if not self._waits(read, now):
                    self._steps.append(self.content.replace(path, read.documents, read.broken))
        while self._steps and monotonic() < now + seconds:
            if next(self._steps[0], self) is self:
                self._steps.popleft()
        if not (self.busy or self._lost):
            self._unsure = "" if self.complete or self.former else self._unknown()
            self.complete = not self._unsure
            if self.kept and self.complete:
                self.kept.follow(self.content)
                self._tell_gone(self.kept.log)
        elif self._lost and self.former:
            self.complete = True
        self.due = 0.0 if self._steps else min([now + RETRY_S, self._reader.due, *self._again.values()])

    def _waits(self, read: Read, now: float) -> bool:
        """Return whether to wait until the program closes the file that it writes; closing counts as a change of the
        file. Before the source is complete, the agent does not wait."""
        if not read.written:
            self._written.pop(read.name, None)
            return False
        return now < self._written.setdefault(read.name, now) + WRITTEN_S and self.complete

    def _unknown(self) -> str:
        """If no policies are stored, return why the policies are unknown, or "" if they are known. An unreadable file
        may have policies, and a directory without policies may be the wrong directory."""
        if self.content.unsure:
            return f"{min(self.content.unsure)}: the previous version is not known"
        if self.kept and self.kept.lost and not self.content.compiler.cluster.policies:
            return (f"{self.directory}: has no policy, and {self.kept.path} cannot be read; if you want no policies, "
                    f"remove {self.kept.path}")
        return ""

    def _tell_gone(self, log: Logger) -> None:
        """Log that the last policy was removed. This may be a mistake: for example, a mount hides the files."""
        had, self._had = self._had, bool(self.content.compiler.cluster.policies)
        if had and not self._had:
            log.warning("policies_gone", folder=self.directory, effect="no policy protects a pod any longer")

    def _list(self) -> set[str]:
        """Watch and list the directory; return the names of files that were changed, added or removed since the last
        list. If the directory is missing, set `_missing` and `_lost`."""
        try:
            self._changes.add(self.directory)    # watch a new directory before its files are listed
            self._identity = identity(self.directory)
            self._look_for_mount()
            there = set(names(self.directory))
        except OSError as e:
            self._missing, self._lost = f"{self.directory}: {e.strerror}", True
            return set()
        self._missing, self._lost = "", False
        return {name for name in there | self._stamps.keys()
                if name not in there or self._stamps.get(name) != stamp(os.path.join(self.directory, name))}

    def _look_for_mount(self) -> None:
        """Raise OSError if the directory was a mount point and no longer is one."""
        mounted = os.path.ismount(os.path.realpath(self.directory))
        if self._mounted and not mounted:
            known = f", or remove {self.kept.path} and restart the agent to use no mount" if self.kept else ""
            raise OSError(errno.ENXIO, f"no longer a mount point: mount the directory again{known}")
        self._mounted = mounted
        if self.kept and self.kept.mounted != mounted:
            self.kept.mounted = mounted
            self.kept.changed()

    def _look(self, changed: set[str]) -> None:
        """Ask the reader for the changed files that exist, and forget the changed files that no longer exist."""
        ask = []
        for name in sorted(changed):
            self._again.pop(name, None)
            self._links.discard(name)
            if os.path.lexists(path := os.path.join(self.directory, name)):
                self._stamps[name] = stamp(path)
                ask.append(name)
                if os.path.islink(path):
                    self._links.add(name)
            elif name in self._stamps and identity(self.directory) == self._identity:
                del self._stamps[name]
                self._written.pop(name, None)
                if self.kept and path in self.content.places:
                    self.kept.log.info("policy_file_gone", path=path)
                self._steps.append(self.content.replace(path, ()))
        if ask:
            self._reader.ask(ask)


def identity(directory: str) -> tuple[int, int] | None:
    """Return (device, inode) of a directory, which change if a link or a mount leads to another directory; None if the
    directory is missing."""
    try:
        it = os.stat(directory)
    except OSError:
        return None
    return it.st_dev, it.st_ino
