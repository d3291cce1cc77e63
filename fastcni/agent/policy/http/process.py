"""Start and end a process of HAProxy, and change its maps by its runtime API."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fastcni.agent.policy.http import start_haproxy
from fastcni.agent.policy.http.configuration import LISTENERS, PEERS, PODS, RULES, STATS, TLS, WEBSOCKET
from fastcni.agent.policy.http.patterns import word

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fastcni.agent.policy.http.configuration import Configuration, Maps

PROGRAMS = ("haproxy", "setpriv")
CONFIGURATION = "haproxy.cfg"   # a file in the directory of the process
# The kernel sends no signal if the parent ended before setpriv requested the signal. So the shell compares its parent
# with "$0", the pid of the agent
IF_PARENT_LIVES = '[ "$PPID" = "$0" ] && exec "$@"'
CAP_SETPCAP = 8
LINE_BYTES = 16000              # the longest line of commands; the runtime API reads 16 KiB
ANSWER_S = 3.0                  # seconds to wait for an answer of the runtime API, before the process counts as hanging
SESSION = re.compile(r"(?P<session>0x[0-9a-f]+): .* src=(?P<source>[0-9a-f.:]+):\d+ fe=\S+ be=(?P<backend>\S+) "
                     r"srv=(?P<server>\S+)")
DESTINATION = re.compile(r"^ *frontend=.* addr=(?P<address>[0-9a-f.:]+):(?P<port>\d+)$", re.MULTILINE)
VERSION = re.compile(r"New version created: (\d+)")     # the answer to `prepare map`
ERRORS, MAX_ERROR = "errors", 2000      # the file of the process's output; how many characters an error text quotes


class HAProxyError(OSError):
    """An error when the agent starts HAProxy or changes its maps."""


class Process:
    """A process of HAProxy. It runs until end(), or until the thread that started it ends. maps: {file: {key: value}}
    of the running process. Raises HAProxyError."""

    def __init__(self, directory: Path, descriptors: Iterable[int], wanted: Configuration) -> None:
        """Start HAProxy with the files in `directory`: `haproxy.cfg`, and the maps of `wanted`. descriptors: the
        listening sockets."""
        if missing := [name for name in PROGRAMS if not shutil.which(name)]:
            raise HAProxyError(f"there is no program {missing[0]}: apt-get install haproxy util-linux")
        self.directory, self.wanted, self.maps = directory, wanted, copied(wanted.maps)
        command = ["setpriv", "--pdeathsig", "TERM", "--no-new-privs",
                   *(["--bounding-set=-all,+net_admin"] if may_limit() else []),
                   "sh", "-c", IF_PARENT_LIVES, str(os.getpid()),
                   *((sys.executable, "-I", "-S", start_haproxy.__file__) if start_haproxy.supported() else ()),
                   "haproxy", "-db", "-f", CONFIGURATION]
        with (directory / ERRORS).open("wb") as errors:
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                                           cwd=directory,
                                           pass_fds=tuple(descriptors), start_new_session=True,
                                           env={"PATH": os.environ.get("PATH", os.defpath)})
        self.pid = self._child.pid
        try:
            self.descriptor = os.pidfd_open(self.pid)
        except BaseException:
            self._child.kill()
            self._child.wait()
            raise

    @property
    def ended(self) -> str:
        """Return how the process has ended, such as "signal 9"; "" if it runs."""
        if (status := self._child.poll()) is None:
            return ""
        text = (self.directory / ERRORS).read_text(errors="replace")[:MAX_ERROR].strip()
        how = f"exit status {status}" if status >= 0 else f"signal {-status}"
        return f"{how}{': ' + text.splitlines()[-1] if text else ''}"

    def end(self) -> None:
        """End the process and all its connections."""
        if self._child.poll() is None:
            self._child.kill()                          # a hanging process does not react to other signals
            self._child.wait()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        (self.directory / STATS).unlink(missing_ok=True)

    @property
    def listens(self) -> bool:
        """Return whether the socket of the runtime API exists. HAProxy makes the socket some milliseconds after its
        start."""
        return (self.directory / STATS).exists()

    def put(self, wanted: Configuration) -> None:
        """Change the process's maps to those of `wanted`. End each websocket and TLS connection for which a matching
        request is no longer allowed.

        put() adds new rules first, because no pod refers to them yet, and removes previous rules last. In between, a
        peer's list has only the names that the previous and the new list have in common. So the process never allows a
        request that neither the previous nor the new policies allow."""
        had, before, maps = self.maps, self.wanted, wanted.maps
        less, more = (list(change(PEERS, had[PEERS], maps[PEERS])) for change in (narrowed, widened))
        self._change((*added(had, maps, (*RULES, LISTENERS)), *less))
        if had[PODS] != maps[PODS]:
            self._replace(PODS, maps[PODS])
        self._change((*more, *removed(had, maps, (*RULES, LISTENERS))))
        self.wanted, self.maps = wanted, copied(maps)
        if less or any(narrowed(PODS, had[PODS], maps[PODS])):
            self._end_judged_once(before)

    def _replace(self, name: str, wanted: Mapping[str, str]) -> None:
        """Replace all entries of the map `name` in one step."""
        if not (version := VERSION.search(answer := self._ask(f"prepare map {name}"))):
            raise HAProxyError(f"HAProxy's runtime API: {answer[:MAX_ERROR]}")
        self._change((*(f"add map @{version[1]} {name} {key} {value}" for key, value in wanted.items()),
                      f"commit map @{version[1]} {name}"))

    def _end_judged_once(self, before: Configuration) -> None:
        """End each websocket and TLS connection for which a matching request is no longer allowed. A websocket may have
        begun with a request that is no longer allowed. before: the previous configuration."""
        for line in self._ask("show sess").splitlines():
            if (found := SESSION.match(line)) and (found["backend"] == TLS or found["server"] == WEBSOCKET):
                if not (end := DESTINATION.search(self._ask(f"show sess {found['session']}"))):
                    continue                            # the connection has ended
                on = found["source"], end["address"], int(end["port"]), found["backend"] == TLS
                if before.that_apply(*on) - self.wanted.that_apply(*on):
                    self._ask(f"shutdown session {found['session']}")

    def _change(self, commands: Iterable[str]) -> None:
        """Send `commands` to the runtime API in as few lines as possible. Raises HAProxyError if the runtime API
        answers, because it answers only with an error."""
        line = b""
        for command in (*(each.encode() for each in commands), b""):
            if line and (not command or len(line) + len(command) > LINE_BYTES):
                if answer := self._ask(line.decode()).strip():
                    raise HAProxyError(f"HAProxy's runtime API: {answer[:MAX_ERROR]}")
                line = b""
            line += b"; " + command if line else command

    def _ask(self, command: str) -> str:
        """Send `command` to the runtime API, and return its answer. Raises HAProxyError."""
        path = self.directory / STATS
        try:
            with socket.socket(socket.AF_UNIX) as it:
                it.settimeout(ANSWER_S)
                it.connect(str(path))
                it.sendall(command.encode() + b"\n")
                return b"".join(iter(lambda: it.recv(65536), b"")).decode(errors="replace")
        except OSError as e:
            raise HAProxyError(f"HAProxy's runtime API: {e}") from None


def copied(maps: Maps) -> dict[str, dict[str, str]]:
    return {name: dict(each) for name, each in maps.items()}


def added(had: Maps, wanted: Maps, names: Iterable[str]) -> Iterator[str]:
    """Yield commands that add to the maps `names` the keys that only `wanted` has."""
    for name in names:
        yield from (f"add map {name} {word(key)} {value}" for key, value in wanted[name].items()
                    if key not in had[name])


def removed(had: Maps, wanted: Maps, names: Iterable[str]) -> Iterator[str]:
    """Yield commands that delete from the maps `names` the keys that `wanted` does not have."""
    for name in names:
        yield from (f"del map {name} {word(key)}" for key in had[name] if key not in wanted[name])


def narrowed(name: str, had: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    """Yield commands that delete from the lists of the map `name` the names that `wanted` does not have. A key that
    `wanted` lacks is deleted; HAProxy then uses the list of a network that contains the address."""
    for key, value in had.items():
        if key not in wanted:
            yield f"del map {name} {key}"
        elif value != wanted[key]:
            both = set(value.split(":")) & set(wanted[key].split(":"))
            yield f"set map {name} {key} :{':'.join(sorted(filter(None, both)))}:"


def widened(name: str, had: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    """Yield commands that set the complete lists of `wanted` in the map `name`, after the commands of narrowed()."""
    for key, value in wanted.items():
        if key not in had:
            yield f"add map {name} {key} {value}"
        elif value != had[key]:
            yield f"set map {name} {key} {value}"


def may_limit() -> bool:
    """Return whether this process has CAP_SETPCAP, so that it can limit the capabilities of a program it starts."""
    status = Path("/proc/thread-self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> CAP_SETPCAP & 1)
