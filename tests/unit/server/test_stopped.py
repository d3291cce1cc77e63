"""A server that is stopped for a while, for instance by SIGSTOP, a frozen cgroup or a debugger. The tests cover the
answers that its callers get, and the work that it may still do when it continues."""

import json
import os
import select
import signal
import socket
import subprocess
import threading
import time

import pytest
from lab.node import elements
from stopping import stop
from unit.server.client import OFTEN_TIDY, Server
from unit.server.local import Local

from fastcni._abandoned import note_running
from fastcni.kernel import wire
from fastcni.kit.call.deadlines import STALL_S
from fastcni.launcher import pack
from fastcni.launcher.install import base_interpreter, checked_interpreter
from fastcni.server.periodic import Watchdog, watchdog_seconds
from fastcni.server.requests import protocol
from fastcni.testing.witnesses import eventually

UNREAD, ANSWER, QUICK = 1.5, 5.0, 3.0           # seconds: the deadlines in the plugin files of these tests
SLOW_LOCAL = """#!/bin/sh
if [ "$CNI_COMMAND" = {command} ] && rm {directory}/slow 2> /dev/null; then
    echo started > {directory}/slow.log
    sleep 1.5
fi
FASTCNI_SOCKET= exec {directory}/host-local
"""


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """Return the directory of plugin files that have short deadlines."""
    directory = tmp_path_factory.mktemp("hasty")
    image = pack.pack(checked_interpreter(base_interpreter()), (UNREAD, ANSWER, QUICK))
    for name in ("bridge", "host-local", "portmap"):
        (directory / name).write_bytes(image)
        (directory / name).chmod(0o755)
    return directory


def plugin(directory, server, command, conf, pod, **more):
    """Start a plugin file that calls the server, and runs one-shot if the server does not answer."""
    env = {"CNI_COMMAND": command, "CNI_CONTAINERID": "c-1", "CNI_IFNAME": "eth0", "CNI_NETNS": f"/run/netns/{pod}",
           "CNI_PATH": str(directory), "FASTCNI_SOCKET": str(server.path), "PATH": os.environ["PATH"], **more}
    running = subprocess.Popen([directory / conf["type"]], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    running.stdin.write(json.dumps(conf).encode())
    running.stdin.close()
    return running


def ended(running):
    """Wait until a plugin file has ended. Return its (exit status, document)."""
    output = running.stdout.read()
    return running.wait(60), json.loads(output) if output else None


def go_on(server):
    os.kill(server.process.pid, signal.SIGCONT)


def state(node, pod):
    """Return the state of a pod, on the host and in the pod."""
    return node.left(pod), node.held(), elements("pods4"), elements("hostports4")


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_a_continued_server_abandons_the_request_it_was_working_on(node, pod, start, hasty, command):
    """Once, the server continued the request, and then found that its caller had left. It rolled back the address and
    the firewall state of the pod's successor, which a one-shot ADD had made in the meantime."""
    server = start()
    (hasty / "slow-local").write_text(SLOW_LOCAL.format(command=command, directory=hasty))
    (hasty / "slow-local").chmod(0o755)
    conf = node.conf(isGateway=True, ipMasq=True)
    conf["ipam"]["type"] = "slow-local"
    if command == "DEL":
        assert ended(plugin(hasty, server, "ADD", conf, pod))[0] == 0
    (hasty / "slow").touch()
    (hasty / "slow.log").unlink(missing_ok=True)
    first = plugin(hasty, server, command, conf, pod)
    assert eventually((hasty / "slow.log").exists)
    stop(server.process.pid)
    stopped = time.monotonic()
    status, error = ended(first)
    # the plugin file repeats a DEL one-shot
    assert (status, error and error["code"]) == ((1, 11) if command == "ADD" else (0, None))
    assert ended(plugin(hasty, server, "DEL", conf, pod)) == (0, None)
    assert not node.held() and not elements("pods4")
    status, result = ended(plugin(hasty, server, "ADD", conf, pod))
    assert status == 0
    ports = {**conf, "type": "portmap", "prevResult": result,
             "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}
    assert ended(plugin(hasty, server, "ADD", ports, pod))[0] == 0
    before = state(node, pod)
    time.sleep(max(0.0, stopped + STALL_S + 1 - time.monotonic()))
    go_on(server)
    # The last step of a DEL is the release of the address, so nothing remains to abandon
    event = "request_abandoned" if command == "ADD" else "caller_gone"
    assert eventually(lambda: server.lines(f"event={event}", f"command={command}", "id=")), server.log_text()
    assert server.ok("VERSION", conf)
    assert state(node, pod) == before
    # the request reached the stopped server, but the server did not begin it
    assert not server.lines("event=request_done", "container=c-1", "plugin=portmap")
    assert server.ok("DEL", {**ports}, pod, cid="c-1") is None
    assert server.ok("DEL", {**conf, "prevResult": result}, pod, cid="c-1", env={"CNI_PATH": str(hasty)}) is None
    assert not node.held()
    assert not elements("pods4")
    assert not elements("hostports4")


def test_a_caller_of_a_stopped_server_gets_an_answer(node, pod, start, slow):
    server, (keys, env) = start(), slow(1)
    waiting = server.send("ADD", node.conf(**keys), pod, env=env)
    assert slow.started()
    stop(server.process.pid)
    time.sleep(STALL_S + 1)
    go_on(server)
    assert waiting.answer().status == 0


def test_a_server_stopped_for_longer_than_its_signal_wait_continues(tmp_path, node):
    """Once, if SIGCONT interrupted sigtimedwait(2) after its time limit, the call returned a random signal number. The
    server then ended with status 0, so systemd did not start it again."""
    with Server(tmp_path, program=["-c", OFTEN_TIDY]) as server:
        for _ in range(3):
            stop(server.process.pid)
            time.sleep(0.5)
            go_on(server)
            assert server.ok("VERSION", node.conf())
        assert server.process.poll() is None
        assert server.stop() == 0


# -- systemd's watchdog ----------------------------------------------------------------------------------------

@pytest.fixture
def systemd(tmp_path):
    """Yield systemd's end of NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(30)
        yield sock


def test_systemd_gets_reports_until_the_server_is_stopped(tmp_path, start, systemd):
    server = start(env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"})
    assert [systemd.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    assert not server.lines("command=VERSION")          # the watchdog's requests cause no log line
    stop(server.process.pid)
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            systemd.recv(100)                           # reports from before the stop
    systemd.settimeout(3)
    with pytest.raises(TimeoutError):
        systemd.recv(100)
    go_on(server)
    assert systemd.recv(100) == b"WATCHDOG=1"


def test_systemd_gets_no_report_from_a_server_whose_workers_hang(node, tmp_path, monkeypatch):
    """The main thread runs, but the queue or the workers hang, so the watchdog's request gets no answer."""
    notified = []
    server = Local(tmp_path, monkeypatch)
    with server:
        watchdog = Watchdog(notified.append, server.acceptor.probe, 0.04)
        assert eventually(lambda: watchdog.poll() or notified)
        with server.queue._lock:                          # as in a deadlock
            assert eventually(lambda: watchdog.poll() or watchdog.answer)
            notified.clear()
            time.sleep(0.3)
            watchdog.poll()
            assert not notified
        assert eventually(lambda: watchdog.poll() or notified)


def test_systemd_gets_reports_from_a_server_whose_queue_is_full(node, tmp_path, monkeypatch):
    """Once, a busy server refused its own watchdog's request, so systemd ended it after a minute."""
    notified = []
    with Local(tmp_path, monkeypatch) as server:
        server.queue.size = 0
        assert server.refused("VERSION", node.conf())["code"] == 11
        watchdog = Watchdog(notified.append, server.acceptor.probe, 0.04)
        assert eventually(lambda: watchdog.poll() or notified, 5)


def test_a_probe_of_the_watchdog_is_no_request_of_a_caller(node, tmp_path, monkeypatch):
    """Otherwise, log, history and metrics would contain a VERSION every few seconds."""
    notified, reports = [], []
    with Local(tmp_path, monkeypatch) as server:
        server.acceptor.records.receivers.append(reports.append)
        watchdog = Watchdog(notified.append, server.acceptor.probe, 0.04)
        assert eventually(lambda: watchdog.poll() or len(notified) >= 3)
        server.ok("STATUS", {"cniVersion": "1.1.0", "name": "lo", "type": "loopback"})
        assert eventually(lambda: reports and server.lines("request_done"))
    assert [each.call.command for each in reports] == ["STATUS"] and not server.lines("VERSION")


@pytest.mark.parametrize("answer, reports", [
    (protocol.HEAD.pack(protocol.MAGIC, protocol.VERSION, 0, 0), ["WATCHDOG=1"]),
    (protocol.HEAD.pack(protocol.MAGIC, protocol.VERSION, 1, 0), []), (b"fcni", []), (b"", [])])
def test_only_a_successful_probe_is_reported_and_the_next_one_is_later(answer, reports):
    probes, notified = [], []

    def probe():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        probes.append(theirs)
        return ours

    watchdog = Watchdog(notified.append, probe, 100.0)
    watchdog.poll()
    watchdog.poll()
    assert len(probes) == 1 and watchdog.answer
    probes[0].send(answer) if answer else probes[0].close()
    watchdog.poll()
    assert notified == reports and watchdog.answer is None
    watchdog.poll()
    assert len(probes) == (1 if reports else 2)
    if reports:
        assert 20 < watchdog.due - time.monotonic() <= 25
    else:
        watchdog.answer.close()
    probes[-1].close()


@pytest.mark.parametrize(("env", "seconds"), [
    ({}, 0), ({"WATCHDOG_USEC": "60000000"}, 60), ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "own"}, 60),
    ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, 0), ({"WATCHDOG_USEC": "soon"}, 0)])
def test_the_watchdog_interval_is_read_from_the_environment(env, seconds):
    own = {"WATCHDOG_PID": str(os.getpid())} if env.get("WATCHDOG_PID") == "own" else {}
    assert watchdog_seconds(env | own) == seconds


# -- stopped at each step --------------------------------------------------------------------------------------

PORTS = {"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}
RATES = {"ingressRate": 1 << 20, "ingressBurst": 1 << 20, "egressRate": 1 << 20, "egressBurst": 1 << 20}
CHAINED = {"portmap": {**PORTS}, "firewall": {"backend": "nftables"}, "bandwidth": {**RATES}, "tuning": {"mtu": 1400}}


class Stop:
    """Stops a worker before its n-th netlink request, until go_on() is called. The effect is that of a stopped
    process."""

    def __init__(self, monkeypatch):
        self.real, self.at = wire.send, 0
        self.reached, self.released = threading.Event(), threading.Event()
        monkeypatch.setattr(wire, "send", self._send)

    def _send(self, sock, data):
        if self.at and threading.current_thread().name == "worker":
            self.at -= 1
            if not self.at:
                self.reached.set()
                assert self.released.wait(30)
        self.real(sock, data)

    def arm(self, n):
        self.at = n
        self.reached.clear()
        self.released.clear()

    def go_on(self):
        self.released.set()


@pytest.fixture
def stall():
    """Make the server regard a stop of 50 ms as so long that callers have noticed it. Yield this time."""
    note_running(0.05)
    yield 0.05
    note_running(1e9)


@pytest.mark.parametrize("command", ["ADD", "DEL"])
@pytest.mark.parametrize("kind", ["bridge", "ptp", *CHAINED])
def test_a_successor_is_complete_wherever_the_server_stopped(node, pod, tmp_path, monkeypatch, plugins, stall, kind,
                                                                command):
    """Once, a late ADD of portmap removed the mapping of the pod's successor, and a late DEL removed all elements of
    the successor."""
    first = node.conf(isGateway=True, ipMasq=True, type=kind if kind == "ptp" else "bridge")
    with Local(tmp_path, monkeypatch) as server:
        stop, n, server.cni_path = Stop(monkeypatch), 0, plugins
        while True:
            n += 1
            conf = first
            if kind in CHAINED:
                conf = {**first, "type": kind, **CHAINED[kind], "prevResult": node.add(first, pod, cid="c-1")}
            if command == "DEL":
                node.ok("ADD", conf, pod, cid="c-1")
            stop.arm(n)
            sent = server.send(command, conf, pod, cid="c-1")
            assert eventually(lambda: stop.reached.is_set() or select.select([sent.conn], [], [], 0)[0])   # noqa: B023
            if not stop.reached.is_set():               # the command makes fewer than n requests
                answer = sent.answer()
                assert answer.status == 0 and n > 1, answer.stdout
                break
            sent.close()
            for each in (conf, first) if kind in CHAINED else (conf,):      # a runtime does the same after code 11
                node.ok("DEL", each, pod, cid="c-1")
            result = node.ok("ADD", first, pod, cid="c-1")
            if kind in CHAINED:
                node.ok("ADD", {**conf, "prevResult": result}, pod, cid="c-1")
            before = state(node, pod)
            time.sleep(2 * stall)
            stop.go_on()
            assert eventually(lambda: len(server.lines("event=request_abandoned")) == n), server.log_text()     # noqa: B023
            assert state(node, pod) == before, f"stopped before netlink request {n}"
            for each in (conf, first) if kind in CHAINED else (conf,):
                node.ok("DEL", each, pod, cid="c-1")
