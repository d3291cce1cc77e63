"""One process of HAProxy: its start, its lists by the runtime API, its end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from fastcni.agent.policy.http.configuration import SIDES, STATS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PROGRAMS = ("haproxy", "setpriv")
# The kernel sends no signal for a parent that has ended before setpriv asks for it
IF_PARENT_LIVES = '[ "$PPID" = "$0" ] && exec "$@"'
CAP_SETPCAP = 8
COMMANDS, ANSWER_S = 100, 1.0   # of one line to the runtime API, which has 16 KiB; until it answers
ERRORS, MAX_ERROR = "errors", 2000      # the file that has what the process prints; characters of it


class HAProxyError(OSError):
    """HAProxy cannot be started, or does not take a change."""


class Process:
    """Runs until end(), or until the thread that has made it ends. generation: its number. lists: what it has, by file.

    Raises HAProxyError.
    """

    def __init__(self, folder: Path, generation: int, descriptors: Iterable[int], lists: Mapping[str, set[str]],
                 former: Process | None = None) -> None:
        """Start on `haproxy.cfg` of the folder. former: it is told to finish once the new one has its configuration."""
        if missing := [name for name in PROGRAMS if not shutil.which(name)]:
            raise HAProxyError(f"there is no program {missing[0]}: apt-get install haproxy util-linux")
        self.folder, self.generation = folder, generation
        self.lists = {name: set(each) for name, each in lists.items()}
        command = ["setpriv", "--pdeathsig", "TERM", "--no-new-privs",
                   *(["--bounding-set=-all,+net_admin"] if may_limit() else []),
                   "sh", "-c", IF_PARENT_LIVES, str(os.getpid()),
                   "haproxy", "-db", "-f", "haproxy.cfg", *(["-sf", str(former.pid)] if former else [])]
        with (folder / ERRORS).open("wb") as errors:
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd=folder,
                                           pass_fds=tuple(descriptors), start_new_session=True,
                                           env={"PATH": os.environ.get("PATH", os.defpath)})
        try:
            self.descriptor = os.pidfd_open(self._child.pid)
        except BaseException:
            self._child.kill()
            self._child.wait()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def ended(self) -> str:
        """How it has ended, "" if it runs."""
        if (status := self._child.poll()) is None:
            return ""
        text = (self.folder / ERRORS).read_text(errors="replace")[:MAX_ERROR].strip()
        how = f"exit status {status}" if status >= 0 else f"signal {-status}"
        return f"{how}{': ' + text.splitlines()[-1] if text else ''}"

    def end(self) -> None:
        """End it with all its connections."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(ANSWER_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self.release()

    def release(self) -> None:
        """Close what belongs to a process that has ended."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        (self.folder / STATS.format(generation=self.generation)).unlink(missing_ok=True)

    @property
    def listens(self) -> bool:
        """Whether the runtime API is there: it comes some milliseconds after the start."""
        return (self.folder / STATS.format(generation=self.generation)).exists()

    def put(self, wanted: Mapping[str, set[str]]) -> None:
        """Change the lists that it has, as `wanted`; those that `wanted` does not have become empty."""
        pending = list(changes(self.lists, wanted))
        for at in range(0, len(pending), COMMANDS):
            self._ask("; ".join(pending[at:at + COMMANDS]))
        self.lists = {name: set(wanted.get(name, ())) for name in self.lists}

    def stop_accepting(self) -> None:
        """Leave new connections to the next process. They wait for it."""
        self._ask("; ".join(f"disable frontend {side}" for side in SIDES))

    def _ask(self, commands: str) -> None:
        path = self.folder / STATS.format(generation=self.generation)
        try:
            with socket.socket(socket.AF_UNIX) as it:
                it.settimeout(ANSWER_S)
                it.connect(str(path))
                it.sendall(commands.encode() + b"\n")
                answer = b"".join(iter(lambda: it.recv(4096), b""))
        except OSError as e:
            raise HAProxyError(f"HAProxy's runtime API: {e}") from None
        if answer.strip():
            raise HAProxyError(f"HAProxy's runtime API: {answer.decode(errors='replace').strip()[:MAX_ERROR]}")


def changes(had: Mapping[str, set[str]], wanted: Mapping[str, set[str]]) -> Iterator[str]:
    """Commands that change lists. Removals come first."""
    for verb, less, more in (("del", wanted, had), ("add", had, wanted)):
        for name in sorted(had):
            yield from (f"{verb} acl {name} {text}" for text in sorted(more.get(name, set()) - less.get(name, set())))


def may_limit() -> bool:
    """Whether this process may take capabilities from a program that it starts."""
    status = Path("/proc/thread-self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> CAP_SETPCAP & 1)
