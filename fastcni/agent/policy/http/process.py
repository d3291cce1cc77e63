"""One process of HAProxy: its start, its end, and changes of its lists by the runtime API."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.policy.http import start_haproxy
from fastcni.agent.policy.http.configuration import LISTENERS, SIDES, STATS, TLS, WEBSOCKET

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fastcni.agent.policy.http.configuration import Configuration

PROGRAMS = ("haproxy", "setpriv")
# The kernel sends no signal if the parent ended before setpriv requested the signal
IF_PARENT_LIVES = '[ "$PPID" = "$0" ] && exec "$@"'
CAP_SETPCAP = 8
COMMANDS = 100                  # in one line (16 KiB) to the runtime API
ANSWER_S = 0.5                  # the answer of the runtime API; meanwhile this thread writes no rules
FINISH_S, ASK_S = 60.0, 1.0     # from finish() to the end of the process; between two checks for its connections
SESSION = re.compile(r"(?P<session>0x[0-9a-f]+): .* src=(?P<source>[0-9a-f.:]+):\d+ fe=\S+ be=(?P<backend>\S+) "
                     r"srv=(?P<server>\S+)")
DESTINATION = re.compile(r"^ *frontend=.* addr=(?P<address>[0-9a-f.:]+):(?P<port>\d+)$", re.MULTILINE)
NO_CONNECTIONS = "CurrConns: 0"         # of `show info`, which does not count those of the runtime API
ERRORS, MAX_ERROR = "errors", 2000      # the file of the process's output; how many characters an error text quotes


class HAProxyError(OSError):
    """HAProxy cannot be started, or does not accept a change."""


class Process:
    """A process that runs until end(), or until the thread that has made it ends. generation: its number. lists: its
    lists, by file. Raises HAProxyError.
    """

    def __init__(self, folder: Path, generation: int, descriptors: Iterable[int], wanted: Configuration) -> None:
        """Start HAProxy with the `haproxy.cfg` of the folder, which is the text of `wanted`."""
        if missing := [name for name in PROGRAMS if not shutil.which(name)]:
            raise HAProxyError(f"there is no program {missing[0]}: apt-get install haproxy util-linux")
        self.folder, self.generation = folder, generation
        self._finishing_until, self._ask_at = float("inf"), 0.0
        self.wanted, self.lists = wanted, {name: set(each) for name, each in wanted.lists.items()}
        command = ["setpriv", "--pdeathsig", "TERM", "--no-new-privs",
                   *(["--bounding-set=-all,+net_admin"] if may_limit() else []),
                   "sh", "-c", IF_PARENT_LIVES, str(os.getpid()),
                   *((sys.executable, "-I", "-S", start_haproxy.__file__) if start_haproxy.supported() else ()),
                   "haproxy", "-db", "-f", "haproxy.cfg"]
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
        """Return how the process has ended, "" if it runs."""
        if (status := self._child.poll()) is None:
            return ""
        text = (self.folder / ERRORS).read_text(errors="replace")[:MAX_ERROR].strip()
        how = f"exit status {status}" if status >= 0 else f"signal {-status}"
        return f"{how}{': ' + text.splitlines()[-1] if text else ''}"

    def end(self) -> None:
        """End the process and all its connections."""
        if self._child.poll() is None:
            self._child.kill()                          # a process that hangs heeds no other signal
            self._child.wait()
        self.release()

    def release(self) -> None:
        """Close the descriptors of a process that has ended."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        (self.folder / STATS.format(generation=self.generation)).unlink(missing_ok=True)

    @property
    def listens(self) -> bool:
        """Whether the runtime API answers, which it does some milliseconds after the start."""
        return (self.folder / STATS.format(generation=self.generation)).exists()

    def put(self, wanted: Mapping[str, set[str]]) -> None:
        """Make the process's lists those of `wanted`; lists that `wanted` lacks become empty. End connections that were
        judged once, if a request no longer applies to them."""
        had, has = self.lists, {name: wanted.get(name, set()) for name in self.lists}
        pending = list(changes(had, has))
        for at in range(0, len(pending), COMMANDS):
            self._change(pending[at:at + COMMANDS])
        self.lists = {name: set(each) for name, each in has.items()}
        if any(name != LISTENERS and had[name] - has[name] for name in had):
            self._end_judged_once(had)

    def _end_judged_once(self, had: Mapping[str, set[str]]) -> None:
        """End websockets and TLS if a request applied to the connection by the lists `had`, and no longer does: the
        websocket may have begun with this request."""
        for line in self._ask("show sess").splitlines():
            if (found := SESSION.match(line)) and (found["backend"] == TLS or found["server"] == WEBSOCKET):
                if not (end := DESTINATION.search(self._ask(f"show sess {found['session']}"))):
                    continue                            # the connection has ended
                on = found["source"], end["address"], int(end["port"]), found["backend"] == TLS
                if self.wanted.that_apply(had, *on) - self.wanted.that_apply(self.lists, *on):
                    self._ask(f"shutdown session {found['session']}")

    def finish(self) -> None:
        """Leave new connections to the next process, for which they wait. Existing connections end with their next
        answer."""
        self._change([f"shutdown frontend {side}" for side in SIDES])
        self._finishing_until = monotonic() + FINISH_S

    def end_finished(self) -> None:
        """After finish(), end the process if it has no connections, or if FINISH_S have passed. Asks each second."""
        if monotonic() >= self._ask_at:
            self._ask_at = monotonic() + ASK_S
            if monotonic() > self._finishing_until or NO_CONNECTIONS in self._ask("show info").splitlines():
                self.end()

    def _change(self, commands: Iterable[str]) -> None:
        if answer := self._ask("; ".join(commands)).strip():
            raise HAProxyError(f"HAProxy's runtime API: {answer[:MAX_ERROR]}")

    def _ask(self, command: str) -> str:
        """Return the answer of the runtime API."""
        path = self.folder / STATS.format(generation=self.generation)
        try:
            with socket.socket(socket.AF_UNIX) as it:
                it.settimeout(ANSWER_S)
                it.connect(str(path))
                it.sendall(command.encode() + b"\n")
                return b"".join(iter(lambda: it.recv(65536), b"")).decode(errors="replace")
        except OSError as e:
            raise HAProxyError(f"HAProxy's runtime API: {e}") from None


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
