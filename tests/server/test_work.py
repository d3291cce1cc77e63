"""Workers: what happens when one of them, or what it needs, is lost."""

import os
import socket
import sys
import threading
import time

import pytest
from real_kernel.node import Inside, links, run
from server.client import eventually
from server.local import Local

from fastcni.kernel import netns
from fastcni.server import hosts, reception


@pytest.fixture
def local(node, tmp_path, monkeypatch, plugins):
    """local(**options): a server of this process; stopped at the end, all of its workers with it."""
    running = []

    def make(**options):
        running.append(Local(tmp_path, monkeypatch, **options).__enter__())
        running[-1].cni_path = plugins
        return running[-1]

    yield make
    for server in running:
        server.__exit__()
        assert not server.crashed


def lose_one(monkeypatch, node, command="VERSION"):
    """One worker that comes back from a namespace finds that it cannot."""
    real, lost = netns.inside.__exit__, threading.Lock()

    def leave(self, kind, error, trace):
        real(self, kind, error, trace)
        if threading.current_thread().name == "worker" and lost.acquire(blocking=False):
            raise netns.Lost("cannot return to the home network namespace: made up")

    monkeypatch.setattr(netns.inside, "__exit__", leave)


def test_a_worker_that_cannot_come_back_fails_its_request_and_another_takes_its_place(node, pod, local, monkeypatch):
    server = local(workers=2)
    before = server.ok("ADD", node.conf(isGateway=True), pod)
    server.ok("DEL", node.conf(isGateway=True), pod)
    threads = server.workers
    lose_one(monkeypatch, node)
    sent = [server.send(command, node.conf(isGateway=True), pod) for command in ("ADD", "DEL", "ADD", "CHECK")]
    error = sent[0].answer()
    assert error.status == 1 and error.document["code"] == 999
    assert "the fastcni server: cannot return to the home network namespace" in error.document["msg"]
    started = time.monotonic()
    assert [each.answer().status for each in sent[1:3]] == [0, 0]       # nobody has to wake those that came after it
    assert time.monotonic() - started < 5 and sent[3].answer().status == 1
    assert eventually(lambda: server.lines("level=error", "another takes its place") and server.workers == threads)
    server.ok("DEL", node.conf(isGateway=True), pod)
    assert before and node.held() == {} and not [name for name in links() if name.startswith("veth")]


def test_a_fault_of_ours_hangs_up_and_costs_no_worker(node, local, monkeypatch):
    server = local(workers=2)
    real, faults = hosts.Visit._namespace, [KeyError("made up"), KeyError("made up")]

    def namespace(self, key):
        if faults:
            raise faults.pop()
        return real(self, key)

    monkeypatch.setattr(hosts.Visit, "_namespace", namespace)
    threads = server.workers
    for _ in range(2):
        assert server.call("VERSION", node.conf()).status is None
    assert server.ok("VERSION", node.conf()) and server.workers == threads
    assert eventually(lambda: len(server.lines("a fault of the server", "plugin=bridge")) == 2)


@pytest.mark.parametrize("fmt", ["logfmt", "json"])
def test_names_that_are_no_text_are_logged_all_the_same(node, pod, local, fmt):
    """A container id of bytes that are no UTF-8 ended the worker that wrote its JSON line."""
    server = local(workers=2, fmt=fmt)
    threads = server.workers
    for _ in range(4):
        error = server.refused("ADD", node.conf(), pod, cid=os.fsdecode(b"c\xff"))
        assert error["code"] == 4
    assert server.ok("VERSION", node.conf()) and server.workers == threads
    assert eventually(lambda: len(server.lines("failed", "bridge", "net-a", "c?")) == 4)


def test_nobody_who_reads_the_log_costs_no_request(node, pod, local, tmp_path):
    """journald that is killed leaves a pipe without a reader: each worker ended with its first line."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    server = local(workers=2, log=tmp_path / "pipe")
    os.close(reader)
    threads = server.workers
    for _ in range(6):
        server.ok("VERSION", node.conf())
        server.ok("ADD", node.conf(), pod)
        server.ok("DEL", node.conf(), pod)
    assert server.workers == threads


def test_what_hangs_holds_up_its_own_request_alone(node, local, monkeypatch):
    """As a file system that does not answer would."""
    server = local(workers=2)
    real, hangs, go_on = hosts.Visit._namespace, threading.Lock(), threading.Event()

    def namespace(self, key):
        if hangs.acquire(blocking=False):
            go_on.wait(10)
        return real(self, key)

    monkeypatch.setattr(hosts.Visit, "_namespace", namespace)
    stuck = server.send("VERSION", node.conf())
    assert eventually(hangs.locked)
    started = time.monotonic()
    for _ in range(20):
        server.ok("VERSION", node.conf())
    took = time.monotonic() - started
    go_on.set()
    assert stuck.answer().status == 0 and took < 2


def test_successes_are_no_warnings(node, pod, local):
    server = local(level="warning")
    server.ok("ADD", node.conf(), pod)
    server.ok("DEL", node.conf(), pod)
    server.refused("ADD", node.conf(), "/run/netns/none")
    assert eventually(lambda: server.lines("event=failed", "level=warning")) and len(server.said().splitlines()) == 1


# -- connections that say nothing --------------------------------------------------------------------------------

def connect(server):
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    conn.connect(str(server.path))
    conn.settimeout(10)
    return conn


def test_who_says_nothing_is_closed_in_time_and_a_server_that_stops_waits_no_longer(node, local, monkeypatch):
    monkeypatch.setattr(reception, "SILENT_SECONDS", 0.3)
    server = local()
    with connect(server) as silent:
        assert silent.recv(1) == b""
    with connect(server) as silent:
        server.ok("VERSION", node.conf())
        server.__exit__()               # refuses to end with a worker that has not
        server.__enter__()
        assert silent.recv(1) == b""
    assert server.ok("VERSION", node.conf())


def test_many_who_say_nothing_cost_no_worker(node, local, monkeypatch):
    """Two workers that closed the same silent connection: the second of them ended with a KeyError."""
    monkeypatch.setattr(reception, "MOST_SILENT", 4)
    monkeypatch.setattr(reception, "SILENT_SECONDS", 0.02)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        server = local(workers=8, busy=8)
        threads = server.workers

        def knock():
            for _ in range(150):
                for conn in [connect(server) for _ in range(8)]:
                    conn.close()

        knocking = [threading.Thread(target=knock) for _ in range(3)]
        for thread in knocking:
            thread.start()
        for thread in knocking:
            thread.join()
        assert not server.crashed and server.workers == threads and server.ok("VERSION", node.conf())
    finally:
        sys.setswitchinterval(before)


# -- other namespaces --------------------------------------------------------------------------------------------

@pytest.fixture
def elsewhere():
    """A network namespace beside the server's; its name."""
    name = f"fcni-else-{os.urandom(4).hex()}"
    run("ip", "netns", "add", name)
    try:
        yield name
    finally:
        run("ip", "netns", "del", name)


def test_a_callers_namespace_is_kept_while_it_calls_and_then_let_go(node, pod, local, elsewhere, monkeypatch):
    server, conf = local(), node.conf(isGateway=True)
    server.ok("VERSION", conf)
    before, nodes = len(os.listdir("/proc/self/fd")), links()
    with Inside(elsewhere):
        server.ok("ADD", conf, pod)
        assert "br0" in links() and len(server.hosts.known) == 2
        server.hosts.tidy()
        assert len(server.hosts.known) == 2         # it was here a moment ago
        server.ok("DEL", conf, pod)
    assert set(links()) == set(nodes)
    monkeypatch.setattr(hosts, "LINGER", 0.0)
    assert eventually(lambda: server.hosts.tidy() or len(server.hosts.known) == 1)
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_a_namespace_in_use_is_not_let_go(node, pod, local, elsewhere, monkeypatch, slow):
    monkeypatch.setattr(hosts, "LINGER", 0.0)
    server, (keys, env) = local(), slow(0.4)
    with Inside(elsewhere):
        waiting = server.send("ADD", node.conf(isGateway=True, **keys), pod, env=env)
        assert slow.started()
        server.hosts.tidy()
        assert len(server.hosts.known) == 2 and waiting.answer().status == 0 and "br0" in links()


def test_callers_from_too_many_namespaces_go_one_shot(node, pod, local, elsewhere, monkeypatch):
    monkeypatch.setattr(hosts, "MOST", 0)
    server = local(workers=2)
    with Inside(elsewhere):
        assert [server.call("ADD", node.conf(), pod).status for _ in range(3)] == [2, 2, 2]
        assert links().keys() == {"lo"}
    assert server.ok("VERSION", node.conf()) and server.lines("declined", "network namespaces at once")
