"""The door of the server: takes connections, reads the request of each, and puts it on the queue.

Any number of threads may stand at the door; the kernel wakes one for each event (epoll(7), EPOLLONESHOT). Who takes a
connection reads its request too, which is there within microseconds; one that is not is watched from then on. Nobody
who only connects, or never reads, can keep the door waiting.

Requests go onto the queue in the order of their connections: a thread that has one looks whether those of earlier
connections have come, too, for which other threads are about to wake up.
"""

import os
import select
from itertools import count
from socket import AF_UNIX, SOCK_NONBLOCK, SOCK_SEQPACKET, socketpair
from threading import Lock
from time import monotonic, sleep

from fastcni import plugins
from fastcni._netlink import await_event, await_message
from fastcni.handle import error_document
from fastcni.server import protocol
from fastcni.server.log import Seldom
from fastcni.server.protocol import Connection
from fastcni.server.request_queue import LIGHT, Call
from fastcni.spec import errors
from fastcni.spec.errors import CniError

PROMPT_MS = 1                   # for the request to follow the connection
PAUSE = 0.05                    # seconds, before the next try to take a connection
SILENT_SECONDS = 10.0           # for a connection to send its request
MOST_SILENT = 1024              # connections that have not; beyond them the oldest is closed
KEYED = ("ADD", "DEL", "CHECK")
ONCE = select.EPOLLIN | select.EPOLLONESHOT


class Acceptor:
    """listener: a listening SEQPACKET socket, non-blocking. uids: the user ids that are served. awake: what keeps
    processors awake."""

    def __init__(self, listener, queue, lock, uids, awake, log):
        self.listener, self.queue, self.lock, self.uids, self.log = listener, queue, lock, uids, log
        self.awake = awake
        self.run, self.numbers = os.urandom(2).hex(), count(1)      # a request id is unique, also after a restart
        self.user_refused, self.queue_full = Seldom(log.warning), Seldom(log.warning)
        self.accept_failed = Seldom(log.error)
        self.order = Lock()
        self.prompt = {}                # connections that threads wait for, the oldest first; the values say nothing
        self.silent = {}                # descriptor -> (connection, since when) of those that epoll waits for
        self.events = select.epoll()
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.events.register(self.bell, ONCE)
        self.events.register(listener, ONCE)
        self.open = True
        self.own = None                 # the connection of our last request to ourselves

    @property
    def expects(self):
        """Connections whose request has not come."""
        return len(self.prompt) + len(self.silent)

    def ring(self):
        """Have one thread come back from look_out(); from any thread."""
        os.eventfd_write(self.bell, 1)

    def look_out(self, seconds):
        """Take what comes first within so many seconds (None: for ever)."""
        limits = [limit for limit in (seconds, self._next_silence()) if limit is not None]
        fd = await_event(self.events.fileno(), int(min(limits) * 1000) + 1 if limits else -1)
        if fd in self.silent:
            conn, _ = self.silent.pop(fd)
            with self.order:
                self._read(conn)
        elif fd == self.bell:
            os.eventfd_read(self.bell)
            self.events.modify(self.bell, ONCE)
        elif fd >= 0 and self.open:
            self._accept()
        if self.silent:
            self._close_silent()

    def ask(self):
        """Send ourselves a VERSION request: our end of its connection, a socket that is never waited for. The answer
        comes when a worker has taken the request from the queue."""
        ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK)
        ours.send(protocol.request("loopback", {"CNI_COMMAND": "VERSION"}))
        self.own = Connection(theirs.detach())
        self._watch(self.own)
        return ours

    def stop(self, *, to_the_last):
        """No more connections are taken; with to_the_last those that wait for it still are."""
        with self.order:
            self.open = False
            self.events.unregister(self.listener)
        while to_the_last and (conn := self._take()):
            self._watch(conn)
        self.listener.close()

    def close(self):
        self.events.close()
        os.close(self.bell)

    def _accept(self):
        """Take the next connection, and its request if that comes at once."""
        with self.order:
            conn = self._take() if self.open else None
            if self.open:
                self.events.modify(self.listener, ONCE)     # the next one wakes another thread
            if not conn:
                return
            self.prompt[conn] = None
            self._read_up_to(conn)
            if conn not in self.prompt:
                return                  # most have sent their request by now
            fd = conn.fileno()          # now: the thread of a later one may read and close it
        await_message(fd, PROMPT_MS)
        with self.order:
            if conn not in self.prompt:
                return                  # the thread of a later connection has read it
            self._read_up_to(conn)
            if conn in self.prompt:
                del self.prompt[conn]
                self._watch(conn)

    def _read_up_to(self, conn):
        """Read the requests that have come of the connections up to this one, in their order."""
        for each in list(self.prompt):
            if self._read(each):
                del self.prompt[each]
            if each is conn:
                return

    def _watch(self, conn):
        self.silent[conn.fileno()] = conn, monotonic()
        self.events.register(conn, ONCE)

    def _take(self):
        """The next connection; None when there is none."""
        while True:
            try:
                conn = protocol.accept(self.listener)
            except OSError as e:        # no descriptor left: those in line go on waiting
                self.accept_failed("accept_failed", error=e.strerror)
                sleep(PAUSE)
                return None
            if not conn:
                return None
            if conn.uid in self.uids:
                return conn
            self.user_refused("user_refused", uid=conn.uid, pid=conn.pid)
            conn.close()                # unread: the launcher goes one-shot

    def _read(self, conn):
        """Read a connection's request. False when it has not come."""
        try:
            message = protocol.receive(conn)
        except protocol.Lost:
            conn.close()
        except (protocol.Declined, OSError) as e:
            self.log.warning("request_declined", pid=conn.pid, why=str(e))
            decline(conn)
        else:
            if message is None:
                return False
            self._put(conn, message)
        return True

    def _put(self, conn, message):
        why = unfit(message)
        if why:
            self.log.info("request_declined", pid=conn.pid, why=why)
            message.close()
            decline(conn)
            return
        self.awake.hold()
        message.id, message.pid = f"{self.run}-{next(self.numbers)}", conn.pid
        command = message.env["CNI_COMMAND"]
        light = command in LIGHT or message.plugin == "loopback"
        call = Call(key_of(message), command, (conn, message), light)
        with self.lock:
            if self.queue.put(call, always=conn is self.own):    # else a busy server would look like one that hangs
                return
        why = f"{self.queue.room} requests wait for the fastcni server already"
        refuse(call, why)
        self.queue_full("request_refused", id=message.id, pid=message.pid, why=why)

    def _next_silence(self):
        """Seconds until a silent connection is closed, None without one."""
        for _, since in self.silent.values():
            return max(0.0, since + SILENT_SECONDS - monotonic())
        return None

    def _close_silent(self):
        for fd, (conn, since) in list(self.silent.items()):
            if len(self.silent) <= MOST_SILENT and since + SILENT_SECONDS > monotonic():
                return
            if self.silent.pop(fd, None):       # no other thread was quicker
                conn.close()


def key_of(message):
    """What a request must not be run beside: (container id, ifname); None where it is about none. Its configuration,
    which can be large, is decoded by the worker that serves it, under no lock."""
    if message.env["CNI_COMMAND"] not in KEYED:
        return None
    return message.env.get("CNI_CONTAINERID", ""), message.env.get("CNI_IFNAME", "")


def unfit(message):
    """Why a request has to go one-shot, "" where we can serve it."""
    if message.plugin not in plugins.TABLE:
        return f"no plugin {message.plugin!r}"
    if not message.env.get("CNI_COMMAND"):
        return "no command"
    if any(not folder.startswith("/") for folder in message.env.get("CNI_PATH", "/").split(":")):
        return "a CNI_PATH relative to its caller"
    return ""


def decline(conn):
    """Send the caller one-shot."""
    try:
        protocol.answer(conn, protocol.DECLINED)
    except OSError:
        return                          # it is gone
    finally:
        conn.close()


def refuse(call, why):
    """Answer a call that is not to be run: code 11, try again later."""
    conn, message = call.what
    message.close()
    error = CniError(errors.TRY_AGAIN_LATER, why, "the node has more to do than it can; it is safe to try again")
    try:
        protocol.answer(conn, 1, error_document(error))
    except OSError:
        return                          # it is gone
    finally:
        conn.close()
