"""Workers: threads that take a request each, and answer it.

A worker that is free stands at the door and serves what comes there itself: no request is handed from one thread to
another. There is always one worker more than requests run, to take the next one. Workers take turns (_run_token.pyx):
while one waits for the kernel another goes on, and not at each of its system calls.
"""

import os
import threading
from time import monotonic, sleep

from fastcni import _acceptor, plugins, third_party
from fastcni._abandoned import Abandoned, begin_request, end_request
from fastcni._run_token import give_token, take_token
from fastcni.handle import Reply, error_document, handle
from fastcni.kernel import netns, uapi, waiting
from fastcni.kit.call.deadlines import REQUEST_S
from fastcni.server import acceptor, protocol
from fastcni.server.log import RateLimited
from fastcni.spec import errors
from fastcni.spec.errors import CniError

PAUSE = 0.05                    # seconds after a fault at the door


class Workers:
    """queue, acceptor, hosts, background: see there. configurations: those that requests have brought. env: the
    environment of programs that requests start."""

    def __init__(self, queue, acceptor, hosts, background, configurations, env, log):
        self.queue, self.acceptor = queue, acceptor
        self.hosts, self.background, self.configurations = hosts, background, configurations
        self.env, self.log = env, log
        self.stopping = False
        self.threads = []
        self.no_thread = RateLimited(log.warning)

    def start(self) -> None:
        """Raises RuntimeError where not even one thread can be started."""
        while len(self.threads) < self.queue.wanted_threads() and self._start_one():
            continue
        if not self.threads:
            raise RuntimeError("cannot start a thread")

    def _start_one(self):
        """Whether a thread could be started."""
        thread = threading.Thread(target=self._work, name="worker", daemon=True)
        self.threads.append(thread)
        try:
            thread.start()
        except RuntimeError as e:
            self.threads.remove(thread)
            self.no_thread("no_thread", workers=len(self.threads), why=str(e))
            return False
        return True

    def keep(self) -> None:
        """Start threads for those that could not be started or were lost; from time to time."""
        while not self.stopping and len(self.threads) < self.queue.wanted_threads() and self._start_one():
            continue

    def stop(self, *, accept_waiting: bool) -> None:
        """Have every worker end when nothing is left to do; see Acceptor.stop."""
        self.acceptor.stop(accept_waiting=accept_waiting)
        self.stopping = True
        self.queue.wake()

    def join(self, seconds: float) -> bool:
        """Wait for the workers' end; False when some have not come to it."""
        deadline = monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0.0, deadline - monotonic()))
        return not any(thread.is_alive() for thread in self.threads)

    def _work(self):
        try:
            netns.ensure(self.hosts.home)       # the thread that started this one may have lost its way back
        except netns.Lost as e:
            self.threads.remove(threading.current_thread())
            self.no_thread("no_thread", workers=len(self.threads), why=str(e))
            return                              # keep() starts another one
        lost = None
        take_token()
        while not lost:
            try:
                call = self._next()
            except Exception:                   # a fault of ours; the door stays open
                self.log.exception("server_fault")
                sleep(PAUSE)
                continue
            if not call:
                give_token()
                return
            try:
                self._serve(call)
            except netns.Lost as e:
                lost = e
            except Exception:                   # a fault of ours: this caller finds its connection closed
                self.log.exception("server_fault", **fields(call.call))
            finally:
                self.queue.done(call)
        # Not before done(): the other one looks for what that lets run.
        self.log.error("worker_replaced", error=str(lost))
        give_token()
        self.threads.remove(threading.current_thread())
        self._start_one()

    def _next(self):
        """The next Running, None for this thread to end."""
        while not (running := self._take()):
            if self.stopping and not self.acceptor.unread and not self.queue.waiting:
                self.queue.wake()        # for the next one to end
                return None
            if len(self.threads) > self.queue.min_threads and len(self.threads) > self.queue.wanted_threads():
                self.threads.remove(threading.current_thread())     # those that hung do not any more
                return None
            self.acceptor.wait(self.queue.next_deadline())
        if len(self.threads) <= self.queue.running:
            self._start_one()
        return running

    def _take(self):
        for each in self.queue.expired():
            waited = f"waited {each.waited:.1f} s for {self._what_for(each)}"
            self._decode(each)                  # the log names the network
            self.log.warning("request_refused", **fields(each), why=waited)
            acceptor.refuse(each, waited)
        return self.queue.take()

    def _what_for(self, call):
        if call.runnable:
            return f"one of {self.queue.workers} workers of the fastcni server"
        return "an earlier request of the same attachment, which has not ended"

    def _decode(self, call):
        """Read the configuration of a request that is about an attachment: the decode of handle(). It tells the call's
        network, too."""
        if call.key is None:
            return self.configurations.decode
        call.network, decode = self.configurations.read(call.message.stdin)
        return decode

    def _serve(self, running):
        """Run one call, answer it, log it."""
        call = running.call
        conn, message = call.connection, call.message
        queued, started = call.waited, monotonic()
        said = Answer(conn)
        waiting.here.request = running
        begin_request(conn.fileno(), REQUEST_S - queued)
        try:
            if _acceptor.is_closed(conn.fileno()):      # it may have left before the request was read: see protocol.py
                self._decode(call)              # the log names the network
                self.log.warning("caller_gone", **fields(call), run=False)
                return
            try:
                self._run(call, said, self._decode(call))
            except (OSError, waiting.Crowded) as e:     # a namespace that is none, or that we may not enter
                self.log.warning("request_declined", **fields(call), why=str(e))
                said.decline()
                return
            except Abandoned as e:
                self.log.warning("request_abandoned", **fields(call), why=str(e))
                return
            except netns.Lost as e:
                said.say(1, error_document(CniError(errors.INTERNAL, f"the fastcni server: {e}")))
                raise
        finally:
            end_request()
            del waiting.here.request
            message.close()
            conn.close()
        self._report(running, said, queued, monotonic() - started)

    def _run(self, call, said, decode):
        message = call.message
        visit = self.hosts.visit(message.caller_netns)
        with visit as mode:
            visit.namespace.watch.note(call, mode)
            mode.begin(decode, message, said)
            reply = handle(message.plugin, {**self.env, **message.env}, message.stdin, mode)
            mode.forget_request()
            visit.clean = reply.status == 0     # after an error a socket may have something left to say
            said.say(reply.status, reply.stdout, reply.stderr)

    def _report(self, running, said, queued, took):
        call, times = running.call, running.times
        if call.connection is self.acceptor.probe_connection:
            return                      # the watchdog's: it comes all the time
        values = fields(call) | {"ms": ms(took), "queue_ms": ms(queued), "ipam_ms": ms(times.get("ipam", 0)),
                                "netlink_ms": ms(times.get(uapi.NETLINK_ROUTE, 0)),
                                "nftables_ms": ms(times.get(uapi.NETLINK_NETFILTER, 0))}
        if said.unheard:
            self.log.warning("caller_gone", **values, run=True)
        elif said.status:
            self.log.warning("request_failed", **values, error=said.error)
        else:
            self.log.info("request_done", **values)


class Answer:
    """What was said to a caller."""

    def __init__(self, conn: protocol.Connection) -> None:
        self.conn, self.error, self.unheard = conn, "", False
        self.status: int | None = None

    def deliver(self, reply: Reply) -> None:
        """Send the result of an ADD. Raises OSError if the caller has left."""
        try:
            protocol.answer(self.conn, reply.status, reply.stdout, reply.stderr)
        except OSError:
            self.unheard = True
            raise
        self.status = reply.status

    def say(self, status: int, stdout: bytes = b"", stderr: bytes = b"") -> None:
        """Answer, unless deliver() has answered, or the caller has left."""
        if self.status is not None or self.unheard:
            return
        self.status, self.error = status, stdout.decode("utf-8", "replace") if status else ""
        try:
            protocol.answer(self.conn, status, stdout, stderr)
        except OSError:
            self.unheard = True

    def decline(self) -> None:
        self.say(protocol.DECLINED)


def fields(call):
    """The log fields that name a request."""
    message = call.message
    return {"id": message.id, "pid": message.pid, "command": call.command, "plugin": message.plugin,
            "network": call.network, "container": message.env.get("CNI_CONTAINERID", ""),
            "ifname": message.env.get("CNI_IFNAME", "")}


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def preload() -> None:
    """Import what any request may need."""
    for kind in plugins.BUILT_IN:
        plugins.load(kind)
    from fastcni.kit.call import checks  # noqa: F401
    from fastcni.kit.firewall import backends

    backends.preload()


def preload_third_party(log):
    """Import the plugins of other distributions. One that cannot be used is logged; its requests get code 50."""
    found = third_party.register()
    third_party.load(found)
    for plugin in found:
        if plugin.problem:
            log.error("plugin_unusable", plugin=plugin.kind, distribution=plugin.distribution, why=plugin.problem)


def environment() -> dict[str, str]:
    """What is left of our own environment for programs that requests start. They do not come back to us: with every
    worker waiting for one of them nobody could answer."""
    mine = {name: value for name, value in os.environ.items()
            if not name.startswith(("CNI_", "LISTEN_", "FASTCNI_")) and name != "NOTIFY_SOCKET"}
    return mine | {"FASTCNI_SOCKET": ""}
