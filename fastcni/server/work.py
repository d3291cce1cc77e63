"""Workers: threads that take a request each, and answer it.

A worker that is free stands at the door and serves what comes there itself: no request is handed from one thread to
another. One more worker than may work at once makes sure that somebody is always at the door. Workers take turns
(_turns.pxi): while one waits for the kernel another goes on, and not at each of its system calls.
"""

import os
import threading
from time import monotonic, sleep

import orjson

from fastcni import _door, plugins
from fastcni._netlink import give_turn, take_turn
from fastcni.handle import error_document, handle
from fastcni.kernel import netns, uapi, wire
from fastcni.server import protocol, reception
from fastcni.spec import errors, json
from fastcni.spec.errors import CniError

PAUSE = 0.05                    # seconds after a fault at the door
PROMPT = 0.001                  # seconds; who has not waited longer is taken to be there still
spent = threading.local()       # .seconds: {netlink protocol: of the request that this thread works on}, else None


def observe(protocol_number, seconds):
    """For wire.observe."""
    counted = getattr(spent, "seconds", None)
    if counted is not None:
        counted[protocol_number] = counted.get(protocol_number, 0.0) + seconds


class Workers:
    """size: requests that may run at once; of these `busy` may work while the others wait, for an announcement or a
    program. More would only wait for each other: for Python's lock, and for the kernel's (RTNL).
    desk and its lock, door, hosts, crew: see there. env: the environment of programs that requests start."""

    def __init__(self, size, busy, desk, lock, door, hosts, crew, env, log):
        self.size, self.busy, self.desk, self.lock, self.door = size, busy, desk, lock, door
        self.working = 0
        self.hosts, self.crew, self.env, self.log = hosts, crew, env, log
        self.stopping = False
        self.threads = []

    def start(self):
        for _ in range(self.size + 1):
            self._start_one()

    def _start_one(self):
        thread = threading.Thread(target=self._work, name="worker", daemon=True)
        self.threads.append(thread)
        thread.start()

    def stop(self, *, to_the_last):
        """Have every worker end when nothing is left to do; see Reception.stop."""
        self.door.stop(to_the_last=to_the_last)
        self.stopping = True
        self.door.ring()

    def join(self, seconds):
        """Wait for the workers' end; False when some have not come to it."""
        deadline = monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0.0, deadline - monotonic()))
        return not any(thread.is_alive() for thread in self.threads)

    def _work(self):
        lost = None
        take_turn()
        while not lost:
            try:
                call = self._next()
            except Exception:                   # a fault of ours; the door stays open
                self.log.exception("a fault of the server")
                sleep(PAUSE)
                continue
            if not call:
                give_turn()
                return
            try:
                self._serve(call)
            except netns.Lost as e:
                lost = e
            except Exception:                   # a fault of ours: this caller finds its connection closed
                self.log.exception("a fault of the server", **words(call))
            finally:
                with self.lock:
                    self.working -= 1
                    self.desk.done(call)
        # Not before done(): the other one looks for what that lets run.
        self.log.error("a worker cannot return to its namespace; another takes its place", error=str(lost))
        give_turn()
        self.threads.remove(threading.current_thread())
        self._start_one()

    def _next(self):
        """The next call, None when there will be no more."""
        while not (call := self._take()):
            if self.stopping and not self.door.expects and not self.desk.waiting:
                self.door.ring()        # for the next one to end
                return None
            with self.lock:
                deadline = self.desk.next_deadline()
            self.door.look_out(deadline)
        return call

    def pause(self):
        """For kernel.waiting: this thread's request waits, so another one may be worked on."""
        if getattr(spent, "seconds", None) is None:
            return                      # a thread of the crew
        with self.lock:
            self.working -= 1
            others = self.desk.waiting > 0
        if others:
            self.door.ring()
        give_turn()

    def resume(self):
        """It goes on, if need be as one more than may work."""
        if getattr(spent, "seconds", None) is not None:
            take_turn()
            with self.lock:
                self.working += 1

    def _take(self):
        with self.lock:
            late = self.desk.impatient()
            call = self.desk.take() if self.desk.running < self.size and self.working < self.busy else None
            self.working += call is not None
        for each in late:
            waited = f"waited {each.waited:.1f} s for one of {self.size} workers of the fastcni server"
            self.log.warning("refused: waited too long", **words(each))
            reception.refuse(each, waited)
        return call

    def _serve(self, call):
        """Run one call, answer it, log it."""
        conn, message = call.what
        queued, started = call.waited, monotonic()
        said = Answer(conn)
        try:
            if queued > PROMPT and _door.is_closed(conn.fileno()):
                self.log.warning("its caller is gone: not run", **words(call))
                return
            try:
                self._run(call, said)
            except OSError as e:                # a namespace that is none, or that we may not enter
                self.log.warning("declined", **words(call), why=str(e))
                said.decline()
                return
            except netns.Lost as e:
                said.say(1, error_document(CniError(errors.INTERNAL, f"the fastcni server: {e}")))
                raise
        finally:
            message.close()
            conn.close()
        self._report(call, said, queued, monotonic() - started)

    def _run(self, call, said):
        _, message = call.what
        fds, own = {}, message.own
        if message.netns is not None and netns.identity(message.netns)[0] == self.hosts.device:
            fds["netns"], message.netns = message.netns, None
        visit = self.hosts.visit(own)
        with visit as host:
            visit.namespace.watch.heed(call, host)
            spent.seconds = said.spent
            try:
                reply = handle(message.plugin, {**self.env, **message.env}, message.stdin, fds, host=host,
                               aside=self.crew, deliver=said.deliver, decode=self.door.configurations)
            finally:
                spent.seconds = None
            said.in_ipam = host.in_ipam
            visit.clean = reply.status == 0     # after an error a socket may have something left to say
            said.say(reply.status, reply.stdout, reply.stderr)

    def _report(self, call, said, queued, took):
        values = words(call) | {"ms": ms(took), "queue_ms": ms(queued), "ipam_ms": ms(said.in_ipam),
                                "netlink_ms": ms(said.spent.get(uapi.NETLINK_ROUTE, 0)),
                                "nftables_ms": ms(said.spent.get(uapi.NETLINK_NETFILTER, 0))}
        if said.unheard:
            taken_back = "; the ADD is taken back" if call.command == "ADD" else ""
            self.log.warning(f"its caller is gone{taken_back}", **values)
        elif said.status:
            self.log.warning("failed", **values, error=said.error)
        else:
            self.log.info("done", **values)


class Answer:
    """What was said to a caller, and what the request took."""

    def __init__(self, conn):
        self.conn, self.status, self.error, self.unheard = conn, None, "", False
        self.spent, self.in_ipam = {}, 0.0

    def deliver(self, reply):
        """For handle(): the result of an ADD. Raises OSError where nobody listens."""
        try:
            protocol.answer(self.conn, reply.status, reply.stdout, reply.stderr)
        except OSError:
            self.unheard = True
            raise
        self.status = reply.status

    def say(self, status, stdout=b"", stderr=b""):
        """Answer, unless deliver() has, or has found nobody there."""
        if self.status is not None or self.unheard:
            return
        self.status, self.error = status, stdout.decode("utf-8", "replace") if status else ""
        try:
            protocol.answer(self.conn, status, stdout, stderr)
        except OSError:
            self.unheard = True

    def decline(self):
        self.say(protocol.DECLINED)


def words(call):
    """What a log line says of a call."""
    _, message = call.what
    network = call.key[0] if call.key else ""
    return {"command": call.command, "plugin": message.plugin, "network": network,
            "container": message.env.get("CNI_CONTAINERID", ""), "ifname": message.env.get("CNI_IFNAME", "")}


def ms(seconds):
    return round(seconds * 1e3, 3)


def print_json(value):
    return orjson.dumps(value, option=orjson.OPT_INDENT_2)


def preload():
    """Import what any request may need; have wire tell where time goes, and results printed by what is warm here."""
    for kind in plugins.TABLE:
        plugins.load(kind)
    from fastcni.kit import checks  # noqa: F401
    from fastcni.kit.firewall import (  # noqa: F401
        flows,
        forward_firewalld,
        forward_iptables,
        forward_nft,
        forward_policies,
        ingress_iptables,
        ingress_nft,
        ipspoofcheck,
        localnet,
        masquerade_iptables,
        masquerade_nft,
        portmap_iptables,
        portmap_nft,
        spoofcheck,
    )

    wire.observe = observe
    json.printer = print_json


def environment():
    """What is left of our own environment for programs that requests start. They do not come back to us: with every
    worker waiting for one of them nobody could answer."""
    mine = {name: value for name, value in os.environ.items()
            if not name.startswith(("CNI_", "LISTEN_", "FASTCNI_")) and name != "NOTIFY_SOCKET"}
    return mine | {"FASTCNI_SOCKET": ""}
