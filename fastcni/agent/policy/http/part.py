"""Run the HTTP proxy: one process a node, while a policy has rules by HTTP requests.

While the proxy does not run, nftables drops the connections that need the proxy (redirect.py). The agent has the
listening sockets: while the agent starts a process again, connections wait in the sockets' queues.
"""

from __future__ import annotations

import select
import shutil
import socket
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from errno import EADDRNOTAVAIL, EAFNOSUPPORT
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.policy.http import redirect
from fastcni.agent.policy.http.access_log import AccessLog
from fastcni.agent.policy.http.configuration import EVERYWHERE, LISTENERS, MARKS, MAX_NAMES, Configuration, text
from fastcni.agent.policy.http.process import CONFIGURATION, Process
from fastcni.agent.policy.state import HTTP_CHAINS
from fastcni.spec.address import read_ip

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni.agent.policy.engine import Engine
    from fastcni.agent.policy.service import Settings
    from fastcni.daemon.log import Logger

DIRECTORY = "http"                 # next to that of attachments
LOOPBACK = ("127.0.0.1", "::1")
BACKLOG = 4096
IPV6_TRANSPARENT = 75           # linux/in6.h
TRANSPARENT = {socket.AF_INET: (socket.IPPROTO_IP, socket.IP_TRANSPARENT),
               socket.AF_INET6: (socket.IPPROTO_IPV6, IPV6_TRANSPARENT)}
BEGIN_S = 0.01                  # between two questions to the runtime API of a new process
MIN_RETRY_S, MAX_RETRY_S = 0.1, 4.0     # until a process that has ended is started again
STEADY_S = 30.0                 # a process that has run so long starts again without delay
LOOK_S = 1.0                    # between two checks of the routes and listeners
CHANGE_S = 0.1                  # how long the kernel's rules wait for a change of the process's maps
MAX_LABELS = 1000


class Proxy:
    """A Part, see parts.py."""

    def __init__(self, engine: Engine, settings: Settings, log: Logger) -> None:
        self.engine, self.log = engine, log
        engine.prepare = self.prepare
        self.directory = Path(settings.state).parent / DIRECTORY
        self.due = 0.0
        self.wanted: Configuration | None = None
        self.process: Process | None = None
        self._begun = 0.0                               # when the process started, monotonic
        self._changes = ThreadPoolExecutor(1, "http-proxy")
        self._change: Future[None] | None = None        # that the process has not answered yet
        self._retry_s, self._retry_at = MIN_RETRY_S, 0.0
        self._sockets: dict[str, list[socket.socket]] = {}
        self._direct: list[socket.socket] = []          # sockets that are not transparent, see redirect.py
        self._linger_until = float("inf")               # after the last rule by HTTP requests
        self._access: AccessLog | None = None
        self._denied = 0                                # requests, before this log
        self._routed = True                             # an agent before this one may have left routes
        self._bridged: set[str] = set()                 # pods that were named in the log
        self._cut: set[str] = set()                     # addresses that were named in the log
        self._poll = select.epoll()

    def fileno(self) -> int:
        return self._poll.fileno()

    def figures(self) -> dict[str, int]:
        return {"http_requests_denied": self._denied + (self._access.counts["dropped"] if self._access else 0)}

    def close(self) -> None:
        """End the process. The rules stay: connections that need the proxy are dropped until the next agent has started
        one."""
        self._end()
        self._changes.shutdown()
        for it in self._direct:
            it.close()
        with suppress(OSError):         # the next agent deletes the routes, or uses them
            redirect.del_routes()
        self._poll.close()

    def changed(self) -> None:
        """Do nothing, because prepare() has followed the change."""

    def prepare(self, new_chains: Iterable[str]) -> None:
        """Follow a change before it is written to the kernel, so that the proxy does not refuse requests of connections
        that the new rules allow. new_chains: names of new chains."""
        state = self.engine.compiler.state
        known = {*self.engine.rules.http, *new_chains}
        if any(name.startswith(HTTP_CHAINS) and name in state.chains for name in known):
            self.wanted = Configuration(state)
            self._name_bridged()
            self._name_cut(self.wanted)
        elif self.wanted or self._routed:
            self.wanted = None
        else:
            return
        try:
            self._keep()
        except OSError as e:            # the kernel gives no socket, or the disk is full
            self.log.error("http_proxy_missing", error=str(e), effect="connections with HTTP rules get no answer")
            self.due = monotonic() + MAX_RETRY_S

    def attend(self) -> None:
        self._poll.poll(0)
        self._keep()

    def _keep(self) -> None:
        if self._access:
            self._access.take()
        if self.wanted:
            if not self._sockets:
                self._open()
            self._routed = True
            redirect.put_routes(it.family for each in self._sockets.values() for it in each)
            assert self._access
            self.wanted.maps[LISTENERS] = dict.fromkeys(EVERYWHERE, "all") if self._access.listening else {}
            self._follow(self.wanted)
        else:
            self._end()
            if self._routed:
                redirect.del_routes()
                self._routed = False
            if monotonic() >= self._linger_until:
                self._end_lingering()
        self.due = min(monotonic() + LOOK_S, self._next()) if self.wanted else self._linger_until

    def _next(self) -> float:
        """Return when attend() is next needed for the process, in monotonic seconds."""
        if self.process is None:
            return self._retry_at
        behind = self.wanted and (self.process.ended or self.process.maps != self.wanted.maps)
        return monotonic() + BEGIN_S if behind else float("inf")

    def _open(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)          # a killed agent has left it
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._access = AccessLog(self.directory)
            self._poll.register(self._access.fileno(), select.EPOLLIN)
            self._sockets = {side: listen() for side in MARKS}
            self._direct = self._direct or listen(transparent=False)
            self._linger_until = float("inf")
            self.engine.rules.divert({**{MARKS[side]: ends(each) for side, each in self._sockets.items()},
                                      redirect.DIRECT: ends(self._direct)})
        except OSError:
            self._end()
            raise

    def _end_lingering(self) -> None:
        self._linger_until = float("inf")
        for it in self._direct:
            it.close()
        self._direct = []
        self.engine.rules.divert({})

    def _follow(self, wanted: Configuration) -> None:
        """Change the maps of the process, or start a process."""
        if self.process and (how := self.process.ended):
            self._forget(self.process)
            self.process = None
            self._retry_s = MIN_RETRY_S if monotonic() - self._begun > STEADY_S else min(2 * self._retry_s, MAX_RETRY_S)
            self._retry_at = monotonic() + self._retry_s
            self.log.error("http_proxy_ended", how=how, effect="connections with HTTP rules get no answer",
                           again_s=round(self._retry_s, 1))
        if self.process:
            self._put(self.process, wanted)
        elif monotonic() >= self._retry_at:
            self._start(wanted)

    def _put(self, process: Process, wanted: Configuration) -> None:
        """Change the maps of a process, in another thread: while the process is slow, this thread follows other
        changes. End a process that does not accept a change, because it would allow requests that are no longer
        allowed."""
        if self._change is None and process.maps != wanted.maps and process.listens:
            self._label(wanted)
            self._change = self._changes.submit(process.put, wanted)
            wait((self._change,), CHANGE_S)
        if self._change and self._change.done():
            e, self._change = self._change.exception(), None
            if e and not process.ended:
                self.log.error("http_proxy_refused", error=str(e))
                process.end()

    def _start(self, wanted: Configuration) -> None:
        for name, each in wanted.maps.items():
            (self.directory / name).write_text("".join(f"{key} {value}\n" for key, value in each.items()))
        listening = {side: tuple(it.fileno() for it in each) for side, each in self._sockets.items()}
        (self.directory / CONFIGURATION).write_text(text(listening))
        try:
            self.process = Process(self.directory, [it for each in listening.values() for it in each], wanted)
        except OSError as e:
            self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)
            self._retry_at = monotonic() + self._retry_s
            self.log.error("http_proxy_missing", error=str(e), effect="connections with HTTP rules get no answer")
            return
        self._begun = monotonic()
        self._poll.register(self.process.descriptor, select.EPOLLIN)
        self._label(wanted)
        self.log.info("http_proxy_started", pid=self.process.pid, rules=len(set(wanted.labels.values())))

    def _label(self, wanted: Configuration) -> None:
        """Name the rules of these ids in the log of requests, and those of the last MAX_LABELS former ids."""
        assert self._access
        former = [each for each in self._access.labels.items() if each[0] not in wanted.labels]
        self._access.labels = {**dict(former[-MAX_LABELS:]), **wanted.labels}

    def _forget(self, process: Process) -> None:
        if process.descriptor >= 0:
            self._poll.unregister(process.descriptor)
        process.end()
        if self._change:                # the end of the process ends its wait for an answer
            wait((self._change,))
            self._change = None

    def _end(self) -> None:
        if self.process:
            self._forget(self.process)
        self.process = None
        self._retry_s, self._retry_at = MIN_RETRY_S, 0.0
        if self._sockets:
            for it in (it for each in self._sockets.values() for it in each):
                it.close()
            self._sockets = {}
            self.engine.rules.listeners = {redirect.DIRECT: ends(self._direct)}
            self._linger_until = monotonic() + redirect.LINGER_S
        if self._access:
            self._denied += self._access.counts["dropped"]
            self._poll.unregister(self._access.fileno())
            self._access.close()
            self._access = None
            shutil.rmtree(self.directory, ignore_errors=True)

    def _name_bridged(self) -> None:
        """Log which pods with HTTP rules are at a bridge: none of their connections gets to the proxy."""
        compiler = self.engine.compiler
        chains = {name for name, chain in compiler.state.chains.items()
                  if any(jump.startswith(HTTP_CHAINS) for jump in chain.jumps)}
        found = {it.pod for it in compiler.attachments.values() if it.port and it.port.bridged and any(
            compiler.state.elements[name].get(packed) in chains
            for packed in it.addresses for name in ("in4", "in6", "out4", "out6"))}
        for pod in sorted(found - self._bridged):
            self.log.error("http_rules_on_bridge", pod=pod, do="use ptp",
                           effect="the connections of this pod that HTTP rules are about are closed")
        self._bridged = found

    def _name_cut(self, wanted: Configuration) -> None:
        """Log the addresses to which more rules apply than HAProxy can compare."""
        for each in sorted(wanted.cut - self._cut):
            self.log.error("http_rules_cut", address=each, most=MAX_NAMES,
                           effect="further policies and peers with HTTP rules do not count for this address")
        self._cut = wanted.cut


def listen(transparent: bool = True) -> list[socket.socket]:
    """Return sockets on LOOPBACK. transparent: they get connections to any address, by tproxy. Raises OSError."""
    return list(filter(None, (listen_on(text, transparent) for text in LOOPBACK)))


def listen_on(text: str, transparent: bool) -> socket.socket | None:
    """Return a socket on a loopback address, None if IPv6 is disabled. Raises OSError."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        it = socket.socket(family, socket.SOCK_STREAM)
    except OSError as e:
        if e.errno == EAFNOSUPPORT:
            return None
        raise
    try:
        it.setsockopt(*TRANSPARENT[family], transparent)
        it.bind((text, 0))
        it.listen(BACKLOG if transparent else 0)
    except OSError as e:
        it.close()
        if family == socket.AF_INET6 and e.errno == EADDRNOTAVAIL:
            return None
        raise
    return it


def ends(sockets: Iterable[socket.socket]) -> tuple[tuple[bytes, int], ...]:
    """Return the addresses, packed, and ports of sockets."""
    return tuple((read_ip(it.getsockname()[0]), it.getsockname()[1]) for it in sockets)
