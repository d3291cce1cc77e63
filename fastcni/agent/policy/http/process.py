"""One process of HAProxy: its start, its end, and changes of its maps by the runtime API."""

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
CONFIGURATION = "haproxy.cfg"   # in the directory of the process
# The kernel sends no signal if the parent ended before setpriv requested the signal
IF_PARENT_LIVES = '[ "$PPID" = "$0" ] && exec "$@"'
CAP_SETPCAP = 8
LINE_BYTES = 16000              # of commands to the runtime API, which reads 16 KiB
ANSWER_S = 3.0                  # an answer of the runtime API; later the process counts as hanging
SESSION = re.compile(r"(?P<session>0x[0-9a-f]+): .* src=(?P<source>[0-9a-f.:]+):\d+ fe=\S+ be=(?P<backend>\S+) "
                     r"srv=(?P<server>\S+)")
DESTINATION = re.compile(r"^ *frontend=.* addr=(?P<address>[0-9a-f.:]+):(?P<port>\d+)$", re.MULTILINE)
VERSION = re.compile(r"New version created: (\d+)")     # the answer to `prepare map`
ERRORS, MAX_ERROR = "errors", 2000      # the file of the process's output; how many characters an error text quotes


class HAProxyError(OSError):
    """HAProxy cannot be started, or does not accept a change."""


class Process:
    """A process that runs until end(), or until the thread that has made it ends. maps: its maps. Raises HAProxyError.
    """

    def __init__(self, directory: Path, descriptors: Iterable[int], wanted: Configuration) -> None:
        """Start HAProxy with the `haproxy.cfg` of the directory, whose maps are those of `wanted`."""
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
        text = (self.directory / ERRORS).read_text(errors="replace")[:MAX_ERROR].strip()
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
        (self.directory / STATS).unlink(missing_ok=True)

    @property
    def listens(self) -> bool:
        """Whether the runtime API answers, which it does some milliseconds after the start."""
        return (self.directory / STATS).exists()

    def put(self, wanted: Configuration) -> None:
        """Make the process's maps those of `wanted`. End connections that were judged once, if a request no longer
        applies to them.

        New rules come first, because no pod has them, and former rules go last. Between two commands the process
        allows what the former and the new peers have in common. So it never allows a request that neither the former
        nor the new policies allow."""
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
        """Replace the content of a map in one step."""
        if not (version := VERSION.search(answer := self._ask(f"prepare map {name}"))):
            raise HAProxyError(f"HAProxy's runtime API: {answer[:MAX_ERROR]}")
        self._change((*(f"add map @{version[1]} {name} {key} {value}" for key, value in wanted.items()),
                      f"commit map @{version[1]} {name}"))

    def _end_judged_once(self, before: Configuration) -> None:
        """End websockets and TLS if a request of `before` applied to the connection, and no longer does: the websocket
        may have begun with this request."""
        for line in self._ask("show sess").splitlines():
            if (found := SESSION.match(line)) and (found["backend"] == TLS or found["server"] == WEBSOCKET):
                if not (end := DESTINATION.search(self._ask(f"show sess {found['session']}"))):
                    continue                            # the connection has ended
                on = found["source"], end["address"], int(end["port"]), found["backend"] == TLS
                if before.that_apply(*on) - self.wanted.that_apply(*on):
                    self._ask(f"shutdown session {found['session']}")

    def _change(self, commands: Iterable[str]) -> None:
        """Give the process commands that have no answer, in as few lines as possible."""
        line = b""
        for command in (*(each.encode() for each in commands), b""):
            if line and (not command or len(line) + len(command) > LINE_BYTES):
                if answer := self._ask(line.decode()).strip():
                    raise HAProxyError(f"HAProxy's runtime API: {answer[:MAX_ERROR]}")
                line = b""
            line += b"; " + command if line else command

    def _ask(self, command: str) -> str:
        """Return the answer of the runtime API."""
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
    """Yield commands that add the keys which maps lack."""
    for name in names:
        yield from (f"add map {name} {word(key)} {value}" for key, value in wanted[name].items()
                    if key not in had[name])


def removed(had: Maps, wanted: Maps, names: Iterable[str]) -> Iterator[str]:
    """Yield commands that remove the keys which maps are not to have."""
    for name in names:
        yield from (f"del map {name} {word(key)}" for key in had[name] if key not in wanted[name])


def narrowed(name: str, had: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    """Yield commands that take names from lists of a map. A key that `wanted` lacks leads to the names of a network
    that contains the key."""
    for key, value in had.items():
        if key not in wanted:
            yield f"del map {name} {key}"
        elif value != wanted[key]:
            both = set(value.split(":")) & set(wanted[key].split(":"))
            yield f"set map {name} {key} :{':'.join(sorted(filter(None, both)))}:"


def widened(name: str, had: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    """Yield commands that complete the lists of a map after narrowed()."""
    for key, value in wanted.items():
        if key not in had:
            yield f"add map {name} {key} {value}"
        elif value != had[key]:
            yield f"set map {name} {key} {value}"


def may_limit() -> bool:
    """Whether this process may take capabilities from a program that it starts."""
    status = Path("/proc/thread-self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> CAP_SETPCAP & 1)
