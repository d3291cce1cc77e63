"""Run the HTTP proxy: one HAProxy process on the node, while a policy has HTTP rules.

The agent owns the listening sockets and passes them to the process. While the agent restarts the process, new
connections wait in the sockets' queues. Without these sockets, nftables drops the connections that need the proxy
(redirect.py).
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

DIRECTORY = "http"                 # next to the directory of the attachments' records
LOOPBACK = ("127.0.0.1", "::1")
BACKLOG = 4096
IPV6_TRANSPARENT = 75           # linux/in6.h
TRANSPARENT = {socket.AF_INET: (socket.IPPROTO_IP, socket.IP_TRANSPARENT),
               socket.AF_INET6: (socket.IPPROTO_IPV6, IPV6_TRANSPARENT)}
BEGIN_S = 0.01                  # seconds between two checks whether a new process has its runtime API
MIN_RETRY_S, MAX_RETRY_S = 0.1, 4.0     # seconds from the end of a process to the next start; the pause doubles
STEADY_S = 30.0                 # after a process that ran for these seconds, the pause is MIN_RETRY_S again
LOOK_S = 1.0                    # seconds between two checks of the routes, and of the listeners of the log
CHANGE_S = 0.1                  # seconds that a change of the kernel's rules waits for the change of HAProxy's maps
MAX_LABELS = 1000               # names of previous rules that the log of requests still knows


class Proxy:
    """The part of the policy service that runs HAProxy; policy/parts.py has the protocol."""

    def __init__(self, engine: Engine, settings: Settings, log: Logger) -> None:
        self.engine, self.log = engine, log
        engine.prepare = self.prepare
        self.directory = Path(settings.state).parent / DIRECTORY
        self.due = 0.0
        self.wanted: Configuration | None = None
        self.process: Process | None = None
        self._begun = 0.0                               # when the process started, monotonic
        self._changes = ThreadPoolExecutor(1, "http-proxy")
        self._change: Future[None] | None = None        # a change of the maps that has not ended yet
        self._retry_s, self._retry_at = MIN_RETRY_S, 0.0
        self._sockets: dict[str, list[socket.socket]] = {}
        self._direct: list[socket.socket] = []          # sockets that are not transparent, see redirect.py
        self._linger_until = float("inf")               # when to close _direct after the last HTTP rule, monotonic
        self._access: AccessLog | None = None
        self._denied = 0                                # denied requests that previous AccessLogs have counted
        self._routed = True                             # whether routes may exist, also of a previous agent
        self._bridged: set[str] = set()                 # pods that the log has named in http_rules_on_bridge
        self._cut: set[str] = set()                     # addresses that the log has named in http_rules_cut
        self._poll = select.epoll()

    def fileno(self) -> int:
        return self._poll.fileno()

    def figures(self) -> dict[str, int]:
        return {"http_requests_denied": self._denied + (self._access.counts["dropped"] if self._access else 0)}

    def close(self) -> None:
        """End the process. The nftables rules stay, and drop connections that need the proxy until the next agent has
        started a process."""
        self._end()
        self._changes.shutdown()
        for it in self._direct:
            it.close()
        with suppress(OSError):         # the next agent deletes the routes, or uses them
            redirect.del_routes()
        self._poll.close()

    def changed(self) -> None:
        """Do nothing, because prepare() has already applied the change."""

    def prepare(self, new_chains: Iterable[str]) -> None:
        """Apply a change of the policies to the proxy, before the engine writes the change to the kernel. Otherwise the
        proxy would deny requests that the new rules allow. new_chains: the names of chains that the change adds."""
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
        except OSError as e:            # for example: no socket can be made, or the disk is full
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
        shutil.rmtree(self.directory, ignore_errors=True)          # files of a killed agent
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
        """Change the maps of the running process to those of `wanted`, or start a process with them."""
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
        """Change the maps of `process` in another thread, so that a slow process does not delay this thread for more
        than CHANGE_S. If the process does not accept the change, end the process, because it would allow requests that
        are no longer allowed."""
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
        """Give the log of requests the names of the rules in `wanted`. The log keeps the names of the last MAX_LABELS
        previous rules."""
        assert self._access
        former = [each for each in self._access.labels.items() if each[0] not in wanted.labels]
        self._access.labels = {**dict(former[-MAX_LABELS:]), **wanted.labels}

    def _forget(self, process: Process) -> None:
        if process.descriptor >= 0:
            self._poll.unregister(process.descriptor)
        process.end()
        if self._change:                # the change fails soon, because the process has ended
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
        """Log the pods that have HTTP rules and are attached to a bridge: their connections cannot reach the proxy."""
        compiler = self.engine.compiler
        chains = {name for name, chain in compiler.state.chains.items()
                  if any(jump.startswith(HTTP_CHAINS) for jump in chain.jumps)}
        found = {it.pod for it in compiler.attachments.values() if it.port and it.port.bridged and any(
            compiler.state.elements[name].get(packed) in chains
            for packed in it.addresses for name in ("in4", "in6", "out4", "out6"))}
        for pod in sorted(found - self._bridged):
            self.log.error("http_rules_on_bridge", pod=pod, do="use ptp",
                           effect="connections of this pod to which HTTP rules apply get no answer")
        self._bridged = found

    def _name_cut(self, wanted: Configuration) -> None:
        """Log the addresses whose lists had more than MAX_NAMES names, which is more than HAProxy can compare."""
        for each in sorted(wanted.cut - self._cut):
            self.log.error("http_rules_cut", address=each, most=MAX_NAMES,
                           effect="further policies and peers with HTTP rules do not count for this address")
        self._cut = wanted.cut


def listen(transparent: bool = True) -> list[socket.socket]:
    """Return listening sockets on LOOPBACK. transparent: tproxy can give the sockets connections to any address. Raises
    OSError."""
    return list(filter(None, (listen_on(text, transparent) for text in LOOPBACK)))


def listen_on(text: str, transparent: bool) -> socket.socket | None:
    """Return a listening socket on the loopback address `text`; None if IPv6 is disabled. Raises OSError."""
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
    """Return (packed address, port) of each socket."""
    return tuple((read_ip(it.getsockname()[0]), it.getsockname()[1]) for it in sockets)
