"""Workers: the loss of a worker, or of something that it needs."""

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest
from lab.node import Inside, links, run
from unit.server.local import Local

from fastcni.kernel import netns, waiting
from fastcni.server.requests import configurations, hosts, protocol, slots, workers
from fastcni.server.requests.mode import WarmMode
from fastcni.testing.witnesses import eventually


def lose_one(monkeypatch, node, command="VERSION"):
    """Make one worker fail when it leaves a namespace."""
    real, lost = netns.inside.__exit__, threading.Lock()

    def leave(self, kind, error, trace):
        real(self, kind, error, trace)
        if threading.current_thread().name == "worker" and lost.acquire(blocking=False):
            raise netns.Lost("cannot return to the home network namespace: made up")

    monkeypatch.setattr(netns.inside, "__exit__", leave)


def test_a_worker_that_cannot_return_fails_its_request_and_is_replaced(node, pod, local, monkeypatch):
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
    # these requests are answered although nothing else wakes a worker
    assert [each.answer().status for each in sent[1:3]] == [0, 0]
    assert time.monotonic() - started < 5 and sent[3].answer().status == 1
    assert eventually(lambda: server.lines("level=error", "event=worker_replaced") and server.workers == threads)
    server.ok("DEL", node.conf(isGateway=True), pod)
    assert before
    assert node.held() == {}
    assert not [name for name in links() if name.startswith("veth")]


def namespace_of(thread):
    return os.stat(f"/proc/self/task/{thread.native_id}/ns/net").st_ino


def fail_to_return(monkeypatch, server, errno=1):
    """Make the next worker that returns from a pod fail at each attempt."""
    real, failing = netns.setns, []

    def setns(fd):
        thread = threading.current_thread()
        if thread.name == "worker" and os.fstat(fd).st_ino == os.fstat(server.hosts.home).st_ino:
            if not failing:
                failing.append(thread)
            if failing[0] is thread:
                raise OSError(errno, os.strerror(errno))
        real(fd)

    monkeypatch.setattr(netns, "setns", setns)


@pytest.mark.parametrize("kind", ["bridge", "ptp"])
def test_a_worker_left_in_a_pod_is_replaced_by_one_in_the_servers_namespace(node, pod, local, monkeypatch, kind):
    """Once, the lost worker started its own successor, which began in the pod's namespace and did the work of the host
    there. An ADD found no master, and a DEL succeeded but left rules and links behind."""
    server, conf = local(workers=1), node.conf(isGateway=True, ipMasq=True, type=kind)
    server.ok("ADD", conf, pod)
    server.ok("DEL", conf, pod)
    before = node.left(pod)
    with monkeypatch.context() as patch:
        fail_to_return(patch, server)
        assert server.refused("ADD", conf, pod)["code"] == 999
        assert eventually(lambda: server.lines("event=worker_replaced")
                          and server.workers == server.queue.min_threads)
        home = os.fstat(server.hosts.home).st_ino
        assert eventually(lambda: {namespace_of(thread) for thread in server.pool.threads} == {home}, 5)
        server.ok("DEL", conf, pod)
    for _ in range(6):                  # more requests than the server has threads
        server.ok("ADD", conf, pod)
        server.ok("DEL", conf, pod)
    assert node.left(pod) == before


def test_another_error_does_not_hide_that_a_worker_is_lost(node, pod, local, monkeypatch):
    """Once, if closing the worker's mode failed, this error replaced Lost, and the worker continued in the pod's
    namespace."""
    def close(self):
        raise OSError(5, "made up")

    server, real = local(workers=1), netns.inside.__exit__

    def stay(self, kind, error, trace):
        raise netns.Lost("made up")

    with monkeypatch.context() as patch:
        patch.setattr(WarmMode, "close", close)
        patch.setattr(netns.inside, "__exit__", stay)
        server.call("ADD", node.conf(), pod)
        patch.setattr(netns.inside, "__exit__", real)
        for _ in range(4):
            server.call("VERSION", node.conf())
    home = os.fstat(server.hosts.home).st_ino
    assert eventually(lambda: {namespace_of(thread) for thread in server.pool.threads} == {home}, 5)


def test_background_threads_are_in_the_servers_namespace(node, pod, local, elsewhere):
    """Once, these threads began in the namespace of the worker that started them, and kept this namespace alive until
    the server ended."""
    server = local()
    with Inside(elsewhere):
        server.ok("ADD", node.conf(), pod)
        server.ok("DEL", node.conf(), pod)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("background-")]
    assert threads
    assert os.stat(f"/run/netns/{elsewhere}").st_ino not in {namespace_of(thread) for thread in threads}


def test_a_fault_of_fastcni_closes_the_connection_and_ends_no_worker(node, local, monkeypatch):
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
    assert eventually(lambda: len(server.lines("server_fault", "plugin=bridge")) == 2)


@pytest.mark.parametrize("fmt", ["logfmt", "json"])
def test_names_that_are_no_utf8_are_logged(node, pod, local, fmt):
    """Once, a container ID that is not UTF-8 ended the worker that wrote its JSON line."""
    server = local(workers=2, fmt=fmt)
    threads = server.workers
    for _ in range(4):
        error = server.refused("ADD", node.conf(), pod, cid=os.fsdecode(b"c\xff"))
        assert error["code"] == 4
    assert server.ok("VERSION", node.conf()) and server.workers == threads
    assert eventually(lambda: len(server.lines("request_failed", "bridge", "net-a", "c?")) == 4)


def test_a_log_without_a_reader_fails_no_request(node, pod, local, tmp_path):
    """If journald is killed, the log is a pipe without a reader. Once, each worker ended with its first line of log."""
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


def test_a_hanging_call_delays_only_its_request(node, local, monkeypatch):
    """The call hangs, as it does on a file system that does not answer."""
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


def test_successes_are_not_logged_as_warnings(node, pod, local):
    server = local(level="warning")
    server.ok("ADD", node.conf(), pod)
    server.ok("DEL", node.conf(), pod)
    server.refused("ADD", node.conf(), "/run/netns/none")
    assert eventually(lambda: server.lines("event=request_failed", "level=warning"))
    assert len(server.log_text().splitlines()) == 1


def no_threads(monkeypatch, name=""):
    """Make the start of each thread whose name begins with `name` fail, as the limit pids.max does. Return a function
    that ends this."""
    real = threading.Thread.start

    def start(self):
        if self.name.startswith(name):
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    return lambda: monkeypatch.setattr(threading.Thread, "start", real)


def test_threads_are_added_for_hanging_requests_and_end_with_them(node, pod, local, slow, monkeypatch):
    monkeypatch.setattr(slots, "HANGS_S", 0.05)
    server, (keys, env) = local(workers=2), slow(1000)
    before = server.workers
    sent = [server.send("ADD", node.conf(name=f"net-{n}", **keys), pod, ifname=f"net{n}", env=env) for n in range(6)]
    assert slow.started(6) and server.workers > before
    for each in sent:
        each.close()
    assert eventually(lambda: len(server.lines("event=caller_gone")) == 6)
    assert eventually(lambda: server.ok("VERSION", node.conf()) and server.workers == before)


def test_a_request_like_many_that_hang_goes_one_shot_unchanged(node, pod, local, slow, monkeypatch):
    monkeypatch.setattr(slots, "STUCK_S", 0.1)
    server, (keys, env) = local(workers=8), slow(1000)
    sent = [server.send("ADD", node.conf(**keys), pod, ifname=f"net{n}", env=env) for n in range(2)]
    assert slow.started(2) and eventually(lambda: server.queue.stuck_in(waiting.PROGRAM, "net-a") == 2)
    before = node.left(pod)
    for command in ("ADD", "DEL"):
        assert server.call(command, node.conf(**keys), pod, cid="more", env=env).status == 2
    assert len(server.lines("event=request_declined", "container=more", "2 requests hang in the same wait")) == 2
    assert node.left(pod) == before and not slow.started(3, seconds=0)
    server.ok("ADD", node.conf(), pod)  # this request needs no other program
    for each in sent:
        each.close()


def test_a_request_for_a_lock_with_many_waiters_is_refused_at_once(node, pod, local, monkeypatch, tmp_path):
    monkeypatch.setattr(slots, "STUCK_S", 0.1)
    server, lock = local(workers=8), Path(node.conf()["ipam"]["dataDir"]) / "net-a" / "lock"
    lock.parent.mkdir(parents=True)
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sent = [server.send("ADD", node.conf(), pod, ifname=f"net{n}") for n in range(2)]
        assert eventually(lambda: server.queue.stuck_in(waiting.LOCK, "net-a") == 2)
        error = server.refused("ADD", node.conf(), pod)
        assert (error["code"], error["msg"]) == (11, 'network "net-a": 2 requests hang in the same wait (lock)')
    assert [each.answer().status for each in sent] == [0, 0]
    server.ok("ADD", node.conf(), pod)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_fewer_threads_than_wanted_are_a_warning_and_started_later(node, pod, local, monkeypatch, error):
    """Once, pids.max ended the server with a traceback. If memory was short, the server never answered the request that
    it had taken."""
    real, left = threading.Thread.start, [True] * 2

    def start(self):
        if self.name == "worker" and not (left and left.pop()):
            raise error
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    server = local(workers=4)
    assert server.workers == 2 and len(server.lines("event=no_thread", "level=warning")) == 1
    assert [server.send("VERSION", node.conf()).answer().status for _ in range(6)] == [0] * 6
    monkeypatch.setattr(threading.Thread, "start", real)
    server.pool.keep()
    assert server.workers == server.queue.min_threads


def test_the_end_waits_for_a_worker_that_is_being_started(node, tmp_path, monkeypatch):
    """keep() starts workers in another thread. Once, a SIGTERM at this moment ended the server with "cannot join
    thread"."""
    with Local(tmp_path, monkeypatch) as server:
        late = threading.Thread(target=server.pool._work, name="worker", daemon=True)
        server.pool.threads.append(late)
        monkeypatch.setattr(workers, "sleep", lambda seconds: late.start())
    assert late.ident is not None and not late.is_alive()


def test_a_request_that_cannot_be_read_for_lack_of_memory_goes_one_shot(node, pod, local, monkeypatch):
    """Once, the server kept the request's connection open, and the caller waited for the answer until its deadline."""
    server, real = local(), protocol.read
    failures = [MemoryError(), MemoryError()]

    def read(data, fds):
        if failures and b"ADD" in data:
            raise failures.pop()
        return real(data, fds)

    monkeypatch.setattr(protocol, "read", read)
    assert [server.call("ADD", node.conf(), pod).status for _ in range(2)] == [2, 2]
    assert eventually(lambda: len(server.lines("event=request_declined", 'why="no memory"')) == 2)
    assert node.held() == {}
    server.ok("ADD", node.conf(), pod)


def test_without_background_threads_requests_do_that_work_themselves(node, pod, local, monkeypatch):
    """Once, the pool counted a thread before it had started. After as many failures as the pool has threads, each DEL
    waited and then failed with code 11."""
    go_on = no_threads(monkeypatch, "background")
    server, conf = local(), node.conf(isGateway=True, ipMasq=True)
    for _ in range(12):                 # more than the pool has threads
        server.ok("ADD", conf, pod)
        server.ok("DEL", conf, pod)
    go_on()
    server.ok("ADD", conf, pod)
    server.ok("DEL", conf, pod)
    assert node.held() == {} and [name for name in links() if name.startswith("veth")] == []


def test_a_worker_returns_although_its_host_cannot_be_closed(node, pod, local, elsewhere, monkeypatch):
    """Once, the worker stayed in the caller's namespace and did the work of the next request there."""
    def close(self):
        raise RuntimeError("made up")

    server = local(workers=1)
    with monkeypatch.context() as broken:
        broken.setattr(WarmMode, "close", close)
        with Inside(elsewhere):
            for _ in range(4):
                assert server.call("ADD", node.conf(), "/run/netns/none").status in (1, None)
    for thread in server.pool.threads:
        assert os.stat(f"/proc/self/task/{thread.native_id}/ns/net").st_ino == os.fstat(server.hosts.home).st_ino
    assert all(not namespace.users for namespace in server.hosts.known.values())


def test_a_program_that_takes_too_long_is_killed_and_named(node, pod, local, slow, monkeypatch):
    monkeypatch.setattr(waiting, "DELEGATE_TIMEOUT_S", 0.3)
    server, (keys, env) = local(), slow(1000)
    before = node.left(pod)
    error = server.refused("ADD", node.conf(**keys), pod, env=env)
    assert error["code"] == 11 and error["msg"].endswith("slow-ipam did not answer ADD within 0.3 s, and was killed")
    assert node.left(pod) == before


class Decoder:
    """Is in the place of the server's decode_conf(). It counts the calls, and waits if a configuration contains
    "slow"."""

    def __init__(self, monkeypatch):
        self.real = configurations.decode_conf
        self.count, self.reached, self.go_on = 0, threading.Event(), threading.Event()
        monkeypatch.setattr(configurations, "decode_conf", self.decode)

    def decode(self, stdin):
        self.count += 1
        if b'"slow"' in stdin:
            self.reached.set()
            assert self.go_on.wait(30)
        return self.real(stdin)


def test_a_configuration_is_decoded_once_and_without_a_lock(node, pod, local, monkeypatch):
    """Once, the acceptor decoded the configuration under its lock to get the network's name, and the worker decoded it
    again."""
    server, decoder = local(), Decoder(monkeypatch)
    first = server.send("ADD", node.conf(isGateway=True) | {"name": "slow"}, pod)
    try:
        assert decoder.reached.wait(10)
        second = server.send("DEL", node.conf(isGateway=True) | {"name": "slow"}, pod)
        for _ in range(4):
            assert server.ok("VERSION", {"type": "bridge"})
        assert server.queue.waiting == 1     # requests of one attachment run one after another
    finally:
        decoder.go_on.set()
    assert (first.answer().status, second.answer().status) == (0, 0) and node.held() == {}
    decoder.count = 0
    for command in ("ADD", "CHECK", "DEL"):
        answer = server.call(command, node.conf(isGateway=True, prevResult={"cniVersion": "1.0.0"}), pod)
        assert answer.status == 0 or command == "CHECK"
    assert decoder.count == 3
    assert eventually(lambda: server.lines("event=request_done", "command=DEL", "network=net-a"))


# -- connections that say nothing --------------------------------------------------------------------------------


@pytest.fixture
def elsewhere():
    """Yield the name of a network namespace that is not the server's."""
    name = f"fcni-else-{os.urandom(4).hex()}"
    run("ip", "netns", "add", name)
    try:
        yield name
    finally:
        run("ip", "netns", "del", name)


def test_a_callers_namespace_is_released_after_its_last_call(node, pod, local, elsewhere, monkeypatch):
    server, conf = local(), node.conf(isGateway=True)
    server.ok("VERSION", conf)
    before, nodes = len(os.listdir("/proc/self/fd")), links()
    with Inside(elsewhere):
        server.ok("ADD", conf, pod)
        assert "br0" in links() and len(server.hosts.known) == 2
        server.hosts.tidy()
        assert len(server.hosts.known) == 2         # the namespace's last request ended only a moment ago
        server.ok("DEL", conf, pod)
    assert set(links()) == set(nodes)
    monkeypatch.setattr(hosts, "KEEP_S", 0.0)
    assert eventually(lambda: server.hosts.tidy() or len(server.hosts.known) == 1)
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_a_namespace_in_use_is_not_released(node, pod, local, elsewhere, monkeypatch, slow):
    monkeypatch.setattr(hosts, "KEEP_S", 0.0)
    server, (keys, env) = local(), slow(0.4)
    with Inside(elsewhere):
        waiting = server.send("ADD", node.conf(isGateway=True, **keys), pod, env=env)
        assert slow.started()
        server.hosts.tidy()
        assert len(server.hosts.known) == 2
        assert waiting.answer().status == 0
        assert "br0" in links()


def test_callers_from_too_many_namespaces_go_one_shot(node, pod, local, elsewhere, monkeypatch):
    monkeypatch.setattr(hosts, "MAX_NAMESPACES", 0)
    server = local(workers=2)
    with Inside(elsewhere):
        assert [server.call("ADD", node.conf(), pod).status for _ in range(3)] == [2, 2, 2]
        assert links().keys() == {"lo"}
    assert server.ok("VERSION", node.conf()) and server.lines("request_declined", "network namespaces at the same time")
