"""Accept connections, read the request of each, and put the request on the queue.

Any number of threads may call wait(); the kernel wakes one of them for each event (epoll(7), EPOLLONESHOT). The thread
that accepts a connection also reads its request, which usually follows within microseconds. If the request does not
follow, epoll watches the connection. So a caller that only connects, or never reads, cannot block the acceptor.

Requests go onto the queue in the order of their connections. So before a thread reads a request, it reads the requests
that have arrived on earlier connections, whose threads have not woken up yet.
"""

from __future__ import annotations

import os
import select
from errno import EBUSY
from itertools import count
from socket import AF_UNIX, SOCK_NONBLOCK, SOCK_SEQPACKET, socketpair
from threading import Lock
from time import monotonic, sleep

from fastcni import plugins
from fastcni._run_token import await_event, await_message
from fastcni.daemon.log import RateLimited
from fastcni.handle import UPDATE, error_document
from fastcni.server.records.ended import Records
from fastcni.server.requests import protocol
from fastcni.server.requests.protocol import Connection
from fastcni.server.requests.request_queue import LIGHT_COMMANDS, Call
from fastcni.spec import errors, netavark
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

    from fastcni.daemon.log import Logger
    from fastcni.daemon.wakeup import Wakeup
    from fastcni.server.cpu_latency import LatencyRequest
    from fastcni.server.requests.protocol import Message
    from fastcni.server.requests.request_queue import RequestQueue

REQUEST_DELAY_MS = 1            # milliseconds: the request usually follows the connection within this time
ACCEPT_RETRY_S = 0.05
SILENT_TIMEOUT_S = 10.0         # seconds for a connection to send its request
MAX_SILENT = 1024               # limit of connections without a request: beyond the limit the oldest is closed
KEYED_COMMANDS = ("ADD", "DEL", "CHECK", UPDATE)
ONCE = select.EPOLLIN | select.EPOLLONESHOT


class Acceptor:
    """The acceptor of connections.

    listener: a listening SEQPACKET socket, non-blocking. queue: a RequestQueue. wakeup: wakes a thread in wait().
    uids: the user ids whose requests are served. latency: a LatencyRequest. control: {name of a control request:
    function that answers the request, given the connection and its variables}. records: the Records of ended requests.
    """

    def __init__(self, listener: socket, queue: RequestQueue, wakeup: Wakeup, uids: frozenset[int],
                 latency: LatencyRequest, log: Logger) -> None:
        self.listener, self.queue, self.wakeup, self.uids, self.log = listener, queue, wakeup, uids, log
        self.latency = latency
        self.control: dict[str, Callable[[Connection, dict[str, str]], object]] = {}
        self.records = Records(log.exception)
        self.run, self.numbers = os.urandom(2).hex(), count(1)      # a request id is unique, also after a restart
        self.user_refused, self.queue_full = RateLimited(log.warning), RateLimited(log.warning)
        self.accept_failed = RateLimited(log.error)
        self.order = Lock()
        self.arriving: dict[Connection, None] = {}      # connections whose request a thread waits for, oldest first
        # {descriptor: (connection, since when)} of the connections that epoll watches
        self.silent: dict[int, tuple[Connection, float]] = {}
        self.events = select.epoll()
        self.events.register(wakeup, ONCE)
        self.events.register(listener, ONCE)
        self.listener_fd = listener.fileno()
        if latency.timer is not None:
            self.events.register(latency.timer, ONCE)
        self.open = True
        self.accepted = False           # whether a connection was accepted since IdleExit last set this to False
        self.probe_connection: Connection | None = None         # the connection of the last probe()

    @property
    def unread(self) -> int:
        """Return the number of connections whose request has not arrived."""
        return len(self.arriving) + len(self.silent)

    def wait(self, seconds: float | None) -> None:
        """Wait for the next event, for at most `seconds` (None: no limit), and handle it."""
        if self.silent and (silence := self._next_silence()) is not None:
            seconds = silence if seconds is None else min(seconds, silence)
        fd = await_event(self.events.fileno(), -1 if seconds is None else int(seconds * 1000) + 1)
        if fd == self.listener_fd and self.open:
            self._accept()
        elif fd in self.silent:
            conn, _ = self.silent.pop(fd)
            with self.order:
                self._read(conn)
        elif fd == self.wakeup.fd:
            self.wakeup.clear()
            self.events.modify(self.wakeup, ONCE)
        elif fd == self.latency.timer:
            with self.order:            # the lock under which threads call latency.hold()
                self.latency.release()
            self.events.modify(fd, ONCE)
        if self.silent:
            self._close_silent()

    def probe(self) -> socket:
        """Send a VERSION request to this server. Return the sender's end of the connection, a non-blocking socket. The
        answer arrives when a worker has taken the request from the queue."""
        probe, peer = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK)
        probe.send(protocol.request("loopback", {"CNI_COMMAND": "VERSION"}))
        self.probe_connection = Connection(peer.detach())
        self._watch(self.probe_connection)
        return probe

    def submit(self, plugin: str, env: dict[str, str], stdin: bytes, home: int) -> socket:
        """Put a request of the server itself onto the queue. Return the sender's end of the connection; closing that
        socket ends the request. home: a descriptor of the namespace in which the request runs. Raises OSError."""
        ours, peer = socketpair(AF_UNIX, SOCK_SEQPACKET)
        message = protocol.Message()
        message.plugin, message.env, message.stdin, message.netns = plugin, env, stdin, None
        message.id, message.pid = f"{self.run}-{next(self.numbers)}", os.getpid()
        conn = Connection(peer.detach(), os.geteuid(), message.pid)
        try:
            message.caller_netns = os.dup(home)
        except OSError:
            ours.close()
            raise
        if not self.queue.put(Call(key_of(message), env["CNI_COMMAND"], conn, message)):
            message.close()
            ours.close()
            raise OSError(EBUSY, f"{self.queue.size} requests wait already")
        self.queue.wake()
        return ours

    def stop(self, *, accept_waiting: bool) -> None:
        """Stop accepting connections; with `accept_waiting`, first accept the waiting connections."""
        with self.order:
            self.open = False
            self.events.unregister(self.listener)
        while accept_waiting and (conn := self._accept_one()):
            self._watch(conn)
        self.listener.close()

    def close(self) -> None:
        self.events.close()
        self.wakeup.close()
        self.latency.close()

    def _accept(self) -> None:
        """Accept the next connection, and read its request if that follows within REQUEST_DELAY_MS."""
        self.accepted = True
        with self.order:
            if not self.open:
                return
            conn = self._accept_one()
            self.events.modify(self.listener, ONCE)     # the next connection wakes another thread
            if not conn or self._read_up_to(conn):
                return                  # the usual case: the request was read
            self.arriving[conn] = None
            fd = conn.fd                # from here on the thread of a later connection may read and close conn
        await_message(fd, REQUEST_DELAY_MS)
        with self.order:
            if conn not in self.arriving:
                return                  # the thread of a later connection has read the request
            if not self._read_up_to(conn):
                self._watch(conn)
            del self.arriving[conn]

    def _read_up_to(self, conn: Connection) -> bool:
        """Read the requests that have arrived on the connections up to `conn`, in the order of the connections. Return
        False if the request of `conn` has not arrived."""
        for each in list(self.arriving):
            if each is conn:
                break
            if self._read(each):
                del self.arriving[each]
        return self._read(conn)

    def _watch(self, conn: Connection) -> None:
        self.silent[conn.fd] = conn, monotonic()
        self.events.register(conn, ONCE)

    def _accept_one(self) -> Connection | None:
        """Accept the next connection of a served user; None if no connection waits."""
        while True:
            try:
                conn = protocol.accept(self.listener)
            except OSError as e:        # no free descriptor: connections stay in the socket's backlog
                self.accept_failed("accept_failed", error=e.strerror)
                sleep(ACCEPT_RETRY_S)
                return None
            if not conn:
                return None
            if conn.uid in self.uids:
                return conn
            self.user_refused("user_refused", uid=conn.uid, pid=conn.pid)
            conn.close()                # the request stays unread, so the launcher goes one-shot

    def _read(self, conn: Connection) -> bool:
        """Read a connection's request. Return False if the request has not arrived."""
        try:
            message = protocol.receive(conn)
        except protocol.Lost:
            conn.close()
        except (protocol.Declined, OSError, MemoryError) as e:
            protocol.finish(conn, protocol.DECLINED)        # the caller goes one-shot
            self.log.warning("request_declined", pid=conn.pid, why=str(e) or "no memory")
        else:
            if message is None:
                return False
            self._put(conn, message)
        return True

    def _put(self, conn: Connection, message: Message) -> None:
        if answer_control := self.control.get(message.plugin):
            message.close()
            answer_control(conn, message.env)
            return
        why = as_cni(conn, message) or reason_to_decline(message)
        if why:
            self.log.info("request_declined", pid=conn.pid, why=why)
            message.close()
            protocol.finish(conn, protocol.DECLINED)
            return
        self.latency.hold()
        message.id, message.pid = f"{self.run}-{next(self.numbers)}", conn.pid
        command = message.env["CNI_COMMAND"]
        light = command in LIGHT_COMMANDS or message.plugin == "loopback"
        call = Call(key_of(message), command, conn, message, light)
        # A full queue accepts a probe, because otherwise a busy server would look like a hanging server.
        if self.queue.put(call, always=conn is self.probe_connection):
            return
        why = f"{self.queue.size} requests wait for the fastcni server already"
        refuse(call, why)
        self.records.report(call, str(errors.TRY_AGAIN_LATER), 0.0, error=why)
        self.queue_full("request_refused", id=message.id, pid=message.pid, why=why)

    def _next_silence(self) -> float | None:
        """Return the seconds until the oldest silent connection is closed; None if there is no silent connection."""
        for _, since in self.silent.values():
            return max(0.0, since + SILENT_TIMEOUT_S - monotonic())
        return None

    def _close_silent(self) -> None:
        for fd, (conn, since) in list(self.silent.items()):
            if len(self.silent) <= MAX_SILENT and since + SILENT_TIMEOUT_S > monotonic():
                return
            if self.silent.pop(fd, None):       # no other thread has handled the connection
                conn.close()


def key_of(message: Message) -> tuple[str, str] | None:
    """Return (container id, ifname), see Call; None if the request is about no attachment. The configuration is not
    decoded here: it can be large, and the worker decodes it without a lock."""
    env = message.env
    if env["CNI_COMMAND"] not in KEYED_COMMANDS:
        return None
    return env.get("CNI_CONTAINERID", ""), env.get("CNI_IFNAME", "")


def as_cni(conn: Connection, message: Message) -> str:
    """Convert a request of netavark's protocol to CNI. Return why the request must go one-shot, or ""."""
    if message.plugin != netavark.NAME:
        return ""
    conn.shown = netavark.answer
    if message.env.get("CNI_COMMAND") == "VERSION":
        return ""
    if len(message.stdin) > netavark.MAX_BYTES:
        return f"{len(message.stdin)} bytes of podman's JSON"
    try:
        message.env, message.stdin = netavark.as_cni(message.env, message.stdin)
    except CniError as e:
        return str(e)
    return ""


def reason_to_decline(message: Message) -> str:
    """Return why a request must go one-shot; "" if the server can run it."""
    plugin, env = message.plugin, message.env
    if plugin not in plugins.TABLE and plugin not in plugins.OTHER:
        return f"no plugin {plugin!r}"
    command = env.get("CNI_COMMAND")
    if not command or command == UPDATE:
        return "no command"
    path = ":" + env.get("CNI_PATH", "/")
    # A slash follows each colon. VERSION runs no other plugin, and libcni sends it with CNI_PATH=dummy.
    if path.count(":") != path.count(":/") and command != "VERSION":
        return "a CNI_PATH relative to its caller"
    return ""


def refuse(call: Call, why: str) -> None:
    """Reject a call: answer with error code 11, try again later."""
    call.message.close()
    error = CniError(errors.TRY_AGAIN_LATER, why, "the node is overloaded; it is safe to try again")
    protocol.finish(call.connection, 1, error_document(error))
