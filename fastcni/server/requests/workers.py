"""Run the worker threads, each of which takes a request and answers it.

A free worker waits at the listener, and serves the request that it accepts: no request moves from one thread to
another. There is always one worker more than running requests, to take the next request. A worker runs while it has the
run token (_run_token.pyx). A worker passes the token to another worker when it waits, not at each system call.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import threading
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from fastcni import _acceptor, clients, kernel, kit, plugins, third_party
from fastcni._abandoned import Abandoned, begin_request, end_request
from fastcni._run_token import give_token, take_token
from fastcni.daemon.background import CANNOT_START
from fastcni.daemon.log import RateLimited
from fastcni.handle import UPDATE, error_document, handle, update
from fastcni.kernel import netns, waiting
from fastcni.kernel.uapi import NETLINK_NETFILTER, NETLINK_ROUTE
from fastcni.kernel.waiting import IPAM
from fastcni.kit.call.deadlines import REQUEST_S
from fastcni.kit.call.request import Reply
from fastcni.server.records.ended import ABANDONED, CALLER_GONE, DECLINED, FAULT, code_of
from fastcni.server.requests import acceptor, protocol
from fastcni.server.requests.hosts import Visit
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.daemon.background import Background
    from fastcni.daemon.log import Logger
    from fastcni.server.requests.acceptor import Acceptor
    from fastcni.server.requests.configurations import Configurations
    from fastcni.server.requests.hosts import Hosts
    from fastcni.server.requests.request_queue import Call, RequestQueue
    from fastcni.server.requests.slots import Running
    from fastcni.spec.config import Section

FAULT_PAUSE_S = 0.05            # seconds of pause after an exception in _next()
STARTING_PAUSE_S = 0.001        # seconds between two checks whether keep() has started a thread


class Workers:
    """The worker threads.

    configurations  decoded configurations of earlier requests
    env             the environment of the programs that requests start
    """

    def __init__(self, queue: RequestQueue, acceptor: Acceptor, hosts: Hosts, background: Background,
                 configurations: Configurations, env: dict[str, str], log: Logger) -> None:
        self.queue, self.acceptor = queue, acceptor
        self.hosts, self.background, self.configurations = hosts, background, configurations
        self.env, self.log = env, log
        self.stopping = False
        self.threads: list[threading.Thread] = []
        self.no_thread = RateLimited(log.warning)

    def start(self) -> None:
        """Start the threads. Raises RuntimeError if no thread can be started."""
        self.keep()
        if not self.threads:
            raise RuntimeError("cannot start a thread")

    def _start_one(self) -> bool:
        """Start a thread. Return False if Python cannot start a thread."""
        thread = threading.Thread(target=self._work, name="worker", daemon=True)
        self.threads.append(thread)
        try:
            thread.start()
        except CANNOT_START as e:       # the calling worker serves its request nevertheless
            self.threads.remove(thread)
            self.no_thread("no_thread", workers=len(self.threads), why=str(e) or "no memory")
            return False
        return True

    def keep(self) -> None:
        """Start missing threads. The server calls keep() periodically."""
        while not self.stopping and len(self.threads) < self.queue.wanted_threads() and self._start_one():
            continue

    def stop(self, *, accept_waiting: bool) -> None:
        """End the workers when no request is left; see Acceptor.stop()."""
        self.acceptor.stop(accept_waiting=accept_waiting)
        self.stopping = True
        self.queue.wake()

    def join(self, seconds: float) -> bool:
        """Wait for the end of the workers. Return False if a worker still runs after `seconds`."""
        deadline = monotonic() + seconds
        for thread in [*self.threads]:
            while thread.ident is None and thread in self.threads:      # keep() is about to start this thread
                sleep(STARTING_PAUSE_S)
            if thread.ident is not None:
                thread.join(max(0.0, deadline - monotonic()))
        return not any(thread.is_alive() for thread in self.threads)

    def _work(self) -> None:
        try:
            netns.ensure(self.hosts.home)       # the thread that started this one may be in another namespace
        except netns.Lost as e:
            self.threads.remove(threading.current_thread())
            self.no_thread("no_thread", workers=len(self.threads), why=str(e))
            return                              # keep() starts another thread
        lost = None
        take_token()
        while not lost:
            try:
                call = self._next()
            except Exception:                   # a defect of fastcni; the next request is served
                self.log.exception("server_fault")
                sleep(FAULT_PAUSE_S)
                continue
            if not call:
                give_token()
                return
            try:
                self._serve(call)
            except netns.Lost as e:
                lost = e
            except Exception:                   # a defect of fastcni: the caller's connection is closed
                self.log.exception("server_fault", **fields(call.call))
            finally:
                self.queue.done(call)
        # After done(): the new thread takes a request that done() has made runnable.
        self.log.error("worker_replaced", error=str(lost))
        give_token()
        self.threads.remove(threading.current_thread())
        self._start_one()

    def _next(self) -> Running | None:
        """Return the next Running; None: this thread must end."""
        queue = self.queue
        while not (running := self._take()):
            if self.stopping and not self.acceptor.unread and not queue.arrivals:
                queue.wake()            # wake the next worker, which then ends, too
                return None
            if len(self.threads) > queue.min_threads and len(self.threads) > queue.wanted_threads():
                self.threads.remove(threading.current_thread())     # fewer requests hang than before
                return None
            self.acceptor.wait(queue.next_deadline())
        if len(self.threads) <= queue.running:
            self._start_one()
        return running

    def _take(self) -> Running | None:
        if not self.queue.arrivals:
            return None                 # the thread that puts the next call on the queue also takes it
        if (running := self.queue.take()) or not (expired := self.queue.expired()):
            return running
        for each in expired:
            waited = f"waited {each.waited:.1f} s for {self._what_for(each)}"
            self._decode(each)                  # so that the log line has the network's name
            self.log.warning("request_refused", **fields(each), why=waited)
            acceptor.refuse(each, waited)
            self.acceptor.records.report(each, str(errors.TRY_AGAIN_LATER), each.waited, error=waited)
        return self.queue.take()

    def _what_for(self, call: Call) -> str:
        if call.runnable:
            return f"one of {self.queue.workers} workers of the fastcni server"
        return "an earlier request of the same attachment, which has not ended"

    def _decode(self, call: Call) -> Callable[[bytes], Section]:
        """Return the decode function of the request's mode. If the request is about an attachment, decode the
        configuration now, and record the network."""
        if call.key is None:
            return self.configurations.decode
        call.network, decode = self.configurations.read(call.message.stdin)
        return decode

    def _serve(self, running: Running) -> None:
        """Run a request, answer it, and log it."""
        call = running.call
        conn, message = call.connection, call.message
        started = monotonic()
        queued, answer = started - call.arrived, Answer(conn, message)
        outcome, error = FAULT, ""
        waiting.here.request = running
        begin_request(conn.fd, REQUEST_S - queued)
        try:
            # The caller left before the server had read the request: see protocol.py
            if _acceptor.is_closed(conn.fd):
                self._decode(call)      # so that the log line has the network's name
                self.log.warning("caller_gone", **fields(call), run=False)
                outcome = CALLER_GONE
                return
            try:
                self._run(call, answer, self._decode(call))
            except (OSError, waiting.Crowded) as e:     # for example, the worker cannot enter the namespace
                self.log.warning("request_declined", **fields(call), why=str(e))
                answer.send(protocol.DECLINED)
                outcome, error = DECLINED, str(e)
                return
            except Abandoned as e:
                outcome, error = ABANDONED, str(e)
                self.log.warning("request_abandoned", **fields(call), why=str(e))
                return
            except netns.Lost as e:
                answer.send(1, error_document(CniError(errors.INTERNAL, f"the fastcni server: {e}")))
                outcome = str(errors.INTERNAL)
                raise
            outcome = answer.outcome
        finally:
            end_request()
            del waiting.here.request
            message.close()
            conn.close()
            took = monotonic() - started
            is_probe = conn is self.acceptor.probe_connection       # the watchdog's probe, every few seconds
            if not is_probe:
                self.acceptor.records.report(call, outcome, queued, took, running.phases, error or answer.error)
        if not is_probe:
            self._report(running, answer, queued, took)

    def _run(self, call: Call, answer: Answer, decode: Callable[[bytes], Section]) -> None:
        message = call.message
        assert message.caller_netns is not None
        visit = Visit(self.hosts, message.caller_netns)
        with visit as mode:
            visit.namespace.watch.note(call, mode)
            mode.begin(decode, message, answer)
            serve = update if call.command == UPDATE else handle
            reply = serve(message.plugin, {**self.env, **message.env}, message.stdin, mode)
            mode.forget_request()
            visit.clean = reply.status == 0     # after an error a socket may have unread replies
            answer.send(reply.status, reply.stdout, reply.stderr)

    def _report(self, running: Running, answer: Answer, queued: float, took: float) -> None:
        spent = running.phases.sums.get
        values = {**fields(running.call), "ms": ms(took), "queue_ms": ms(queued), "ipam_ms": ns_as_ms(spent(IPAM, 0)),
                  "netlink_ms": ns_as_ms(spent(NETLINK_ROUTE, 0)), "nftables_ms": ns_as_ms(spent(NETLINK_NETFILTER, 0))}
        if answer.unsent:
            self.log.warning("caller_gone", **values, run=True)
        elif answer.status:
            self.log.warning("request_failed", **values, error=answer.error)
        elif answer.warning:
            self.log.warning("request_done", **values, warning=answer.warning)
        else:
            self.log.info("request_done", **values)


class Answer:
    """The answer to a caller. status: the exit status of the sent answer; None if no answer was sent. unsent: whether
    the caller had left before the answer. warning: the text for stderr.

    Before sending, an Answer closes the message's descriptor of CNI_NETNS if no plugin has used that descriptor: the
    caller may unmount the namespace immediately, and an open descriptor would make umount(2) fail with EBUSY.
    """

    status: int | None = None
    error, warning, unsent = "", "", False

    def __init__(self, conn: protocol.Connection, message: protocol.Message) -> None:
        self.conn, self.message = conn, message

    def deliver(self, reply: Reply) -> None:
        """Send the result of an ADD. Raises OSError if the caller has left."""
        self.message.close_netns()
        try:
            protocol.answer(self.conn, reply.status, reply.stdout, reply.stderr)
        except OSError:
            self.unsent = True
            raise
        self.status = reply.status
        if reply.stderr:
            self.warning = text_of(reply.stderr)

    def send(self, status: int, stdout: bytes = b"", stderr: bytes = b"") -> None:
        """Send the answer, unless deliver() has sent it, or the caller has left."""
        if self.status is not None or self.unsent:
            return
        self.message.close_netns()
        self.status = status
        if status:
            self.error = stdout.decode("utf-8", "replace")
        if stderr:
            self.warning = text_of(stderr)
        try:
            protocol.answer(self.conn, status, stdout, stderr)
        except OSError:
            self.unsent = True

    @property
    def outcome(self) -> str:
        """Return the request's outcome, see Ended."""
        if self.unsent:
            return CALLER_GONE
        return code_of(self.error) if self.status else "0"


def fields(call: Call) -> dict[str, Any]:
    """Return the log fields that name a request."""
    message = call.message
    return {"id": message.id, "pid": message.pid, "command": call.command, "plugin": message.plugin,
            "network": call.network, "container": message.env.get("CNI_CONTAINERID", ""),
            "ifname": message.env.get("CNI_IFNAME", "")}


def ms(seconds: float) -> float:
    """Return milliseconds, rounded to a microsecond. round() takes four times as long."""
    return int(seconds * 1e6 + 0.5) / 1e3


def ns_as_ms(nanoseconds: int) -> float:
    """Return nanoseconds as milliseconds, rounded to a microsecond."""
    return (nanoseconds + 500) // 1000 / 1e3


def preload() -> None:
    """Import every module that a request may need.

    Requests then import nothing, because an import can fail at any time, for example without a free descriptor.
    """
    for package in (kernel, clients, kit, plugins):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def preload_third_party(log: Logger) -> None:
    """Import the plugins of other distributions. A plugin that cannot be used is logged, and its requests get code
    50."""
    found = third_party.register()
    third_party.load(found)
    for plugin in found:
        if plugin.problem:
            log.error("plugin_unusable", plugin=plugin.kind, distribution=plugin.distribution, why=plugin.problem)


def environment() -> dict[str, str]:
    """Return the environment of programs that requests start: the server's environment without the server's own
    variables.

    FASTCNI_SOCKET is empty, so that these programs send no requests to the server: if all workers waited for programs,
    no worker could answer.
    """
    mine = {name: value for name, value in os.environ.items()
            if not name.startswith(("CNI_", "LISTEN_", "FASTCNI_")) and name != "NOTIFY_SOCKET"}
    return mine | {"FASTCNI_SOCKET": ""}


def text_of(stderr: bytes) -> str:
    """Return the warnings of a request in one line."""
    return stderr.decode("utf-8", "replace").strip().replace("\n", "; ")
