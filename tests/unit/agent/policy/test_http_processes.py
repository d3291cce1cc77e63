"""The HAProxy processes on the real kernel: changes of rules, and the end of connections. Needs root and haproxy."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from stopping import stop
from unit.agent.policy.http_pods import (
    ADDRESSES,
    CLIENTS,
    READ_ONLY,
    begin,
    begin_tls,
    begin_websocket,
    eventually_status,
    http,
    http_world,  # noqa: F401 - the fixture `world`
    passes,
    policy,
    read,
    request,
    status,
)

from fastcni.agent.policy.http import part, process, redirect
from fastcni.kernel import sysctl
from fastcni.testing.namespaces import Inside, run
from fastcni.testing.witnesses import eventually

pytestmark = [pytest.mark.needs("root"),
              pytest.mark.skipif(not shutil.which("haproxy"), reason="needs haproxy (apt-get install haproxy)")]


def test_websockets_and_tls_end_with_their_rule_and_those_of_other_rules_go_on(world):
    def rules(*requests):
        return (policy(ingress=[http({"path": "/keep"}, {"host": r"keep\.shop"}, fromEndpoints=CLIENTS)]),
                policy("more", ingress=[http(*requests, fromEndpoints=[{"matchLabels": {"app": "other"}}])]))
    proxy = begin(world, *rules({"path": "/end"}, {"host": r"end\.shop"}),
                  labels={"a": "client", "b": "web", "c": "other"})
    kept = begin_websocket(world, "/keep"), begin_tls(world, "keep.shop")
    ended = begin_websocket(world, "/end", "c"), begin_tls(world, "end.shop", "c")
    assert all(map(passes, kept + ended))
    pid = proxy.process.pid
    world.agent.write(*rules({"path": "/last"}))
    assert not any(it.recv(1) for it in ended), "the end of each connection, without another byte"
    assert proxy.process.pid == pid and all(map(passes, kept))


def test_websockets_and_tls_end_when_a_label_changes_which_another_rule_does_not_ask_for(world):
    """The kernel does not end the connection, because a rule still allows some requests. So the proxy must end it."""
    documents = policy(ingress=[http({"path": "/any"})]), policy("labelled", ingress=[http(
        {"path": "/socket"}, {"host": r"api\.shop"}, fromEndpoints=CLIENTS)])

    def pod(app):
        return {"kind": "Pod", "metadata": {"name": "c", "labels": {"app": app}}, "status": {
            "podIP": ADDRESSES["c"][0]}}
    proxy = begin(world, *documents, pod("client"))
    ended = begin_websocket(world, "/socket", "c"), begin_tls(world, "api.shop", "c")
    kept = begin_websocket(world, "/socket"), begin_tls(world, "api.shop")
    assert all(map(passes, kept + ended))
    pid = proxy.process.pid
    world.agent.write(*documents, pod("no"))
    assert not any(it.recv(1) for it in ended) and all(map(passes, kept))
    assert proxy.process.pid == pid


def test_a_start_that_fails_is_tried_again_with_the_newest_rules(world, monkeypatch):
    proxy = begin(world, READ_ONLY)
    monkeypatch.setattr(process, "PROGRAMS", ("no-such-program",))
    os.kill(proxy.process.pid, signal.SIGKILL)
    world.agent.write(READ_ONLY, policy("more", ingress=[http({"path": "/more"}, fromEndpoints=CLIENTS)]))
    assert eventually(lambda: "http_proxy_missing" in world.agent.events())
    monkeypatch.undo()
    assert eventually_status(world, 200, "a", "b", "GET /more") == 200


def test_without_the_proxy_connections_are_closed_and_it_comes_back(world):
    proxy = begin(world, READ_ONLY)
    old = world.connect("a", "b")
    old.sendall(request("GET /public/1"))
    assert status(read(old)) == 200
    former = proxy.process.pid
    os.kill(former, signal.SIGKILL)
    assert eventually(lambda: proxy.process and proxy.process.pid != former, 5)
    with contextlib.suppress(OSError):
        old.sendall(request("GET /public/2"))
    assert not read(old)
    assert world.ask("a", "b", "GET /public/3") == 200
    assert world.ask("a", "b", "POST /secret") == 403
    assert [line for _, line in world.servers["b"].seen] == [f"GET /public/{each} HTTP/1.1" for each in (1, 3)]


def test_an_ended_agent_opens_nothing_and_the_next_one_goes_on(world):
    proxy = begin(world, READ_ONLY)
    pid = proxy.process.pid
    world.agent.stop()
    assert not os.path.exists(f"/proc/{pid}")
    assert "4604750" not in run("ip", "rule") + run("ip", "route", "show", "table", "all")
    with pytest.raises(TimeoutError):
        world.connect("a", "b", seconds=0.5)
    world.agent.start()
    assert eventually_status(world, 200, "a", "b", "GET /public/x") == 200
    assert world.ask("a", "b", "GET /secret") == 403


@pytest.mark.parametrize("seconds", [0, 0.5])
def test_a_killed_agent_leaves_no_proxy(tmp_path, seconds):
    """The proxy of a killed agent would not know the rules of the next agent. seconds: the delay until the proxy asks
    the kernel for a signal at the agent's end. After a delay, the agent has already ended."""
    late = tmp_path / "bin" / "setpriv"
    late.parent.mkdir()
    late.write_text(f"#!/bin/sh\nsleep {seconds}\nexec {shutil.which('setpriv')} \"$@\"\n")
    late.chmod(0o755)
    (tmp_path / "haproxy.cfg").write_text("global\n stats socket unix@./stats.sock\n")
    code = ("import sys; from pathlib import Path; from types import SimpleNamespace as Wanted\n"
            "from fastcni.agent.policy.http.process import Process\n"
            "print(Process(Path(sys.argv[1]), (), Wanted(maps={})).pid, flush=True); sys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True, env={**os.environ, "PATH": f"{late.parent}:{os.environ['PATH']}"}) as agent:
        pid = int(agent.stdout.readline())
        proxy = os.pidfd_open(pid)
        agent.kill()
    try:
        assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(proxy, signal.SIGKILL)
        os.close(proxy)


def test_without_the_routing_rule_connections_are_closed_until_it_is_back(world, monkeypatch):
    proxy = begin(world, READ_ONLY)
    old = world.connect("a", "b")
    old.sendall(request("GET /public/1"))
    assert status(read(old)) == 200
    sysctl.write("net/ipv4/tcp_early_demux", "0")       # with early demux, the kernel would not forward such packets
    replaced = threading.Event()
    monkeypatch.setattr(part.redirect, "put_routes", lambda _: replaced.set())
    assert replaced.wait(30)            # before that, the agent's thread may be in the real put_routes()
    run("ip", "rule", "del", "pref", "90")
    with pytest.raises(TimeoutError):
        world.connect("a", "b", seconds=0.5)
    old.settimeout(0.5)
    old.sendall(request("GET /public/2"))
    with pytest.raises(TimeoutError):  # if the packet reached the server, the server would reset the unknown connection
        old.recv(1)
    assert len(world.servers["b"].seen) == 1
    monkeypatch.undo()
    proxy.due = 0.0
    assert eventually_status(world, 200, "a", "b", "GET /public/x") == 200


def test_with_the_last_http_rule_the_proxy_and_its_traces_go(world, monkeypatch):
    monkeypatch.setattr(redirect, "LINGER_S", 0.2)
    proxy = begin(world, READ_ONLY)
    pid = proxy.process.pid
    world.agent.write()
    assert eventually(lambda: proxy.process is None and not os.path.exists(f"/proc/{pid}"))
    assert eventually(lambda: "4604750" not in run("ip", "rule") + run("ip", "route", "show", "table", "all"))
    assert eventually(lambda: "proxy-" not in run("nft", "list", "table", "inet", "fastcni-policy"))
    assert not proxy.directory.exists()
    assert world.ask("a", "b", "POST /secret") == 200


@pytest.mark.parametrize("version", (0, 1))
@pytest.mark.parametrize("after", ((), (policy("more", ingress=[{"fromEndpoints": CLIENTS}]), READ_ONLY)),
                         ids=("no rule", "a rule without http more"))
def test_a_client_uses_a_port_again_when_the_proxy_is_no_longer_needed(world, version, after):
    """The kernel does not forward a SYN that matches a connection of the proxy in TIME_WAIT."""
    begin(world, READ_ONLY)
    ask_from_one_port(world, version, "GET /secret", 403)
    assert eventually(lambda: ":40001" in run("ss", "-Htn", "state", "time-wait", "sport", "= :80"))
    world.agent.write(*after)
    assert eventually_status(world, 200, "a", "b", "POST /secret", version=version) == 200
    ask_from_one_port(world, version, "POST /secret", 200)


def ask_from_one_port(world, version, text, expected):
    with Inside(world.pods["a"]), socket.socket((socket.AF_INET, socket.AF_INET6)[version]) as it:
        it.bind((ADDRESSES["a"][version], 40001))
        it.settimeout(10)
        it.connect((ADDRESSES["b"][version], 80))
        it.sendall(request(text))
        assert status(read(it)) == expected
        if expected == 403:
            assert not it.recv(1), "the proxy ends the connection"


def test_a_change_of_rules_loses_no_request_and_holds_for_open_connections(world):
    proxy = begin(world, policy(ingress=[http({"path": "/public/load"}, {"path": "/public/0"})]))
    pid, old, new = proxy.process.pid, world.connect("a", "b"), world.connect("a", "b")
    old.sendall(request("GET /public/0"))
    assert status(read(old)) == 200
    ended, answers = threading.Event(), []
    kept = [world.connect("a", "b") for _ in range(4)]
    for it in kept:                         # once, HAProxy sent every second connection to its server `websocket`
        it.sendall(request("GET /public/load"))
        assert status(read(it)) == 200

    def load():
        it = world.connect("a", "b")
        while not ended.is_set():
            it.sendall(request("GET /public/load"))
            answers.append((status(answer := read(it)), b"connection: close" in answer.lower()))
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load)
        for number in range(3):
            world.agent.write(policy(ingress=[http({"path": "/public/load"}, {"path": f"/{number}"})]))
            assert eventually_status(world, 200, "a", "b", f"GET /{number}") == 200
        ended.set()
        loading.result()
    assert set(answers) == {(200, False)} and proxy.process.pid == pid
    for it in kept:
        it.sendall(request("GET /public/load"))
        assert status(read(it)) == 200
    new.sendall(request("GET /2"))
    assert status(read(new)) == 200, "a request that a new rule allows, on a connection that existed before"
    old.sendall(request("GET /public/0"))
    assert status(read(old)) == 403
    assert [line for _, line in world.servers["b"].seen].count("GET /public/0 HTTP/1.1") == 1


@pytest.mark.parametrize("first", ["ingress", "egress"])
def test_a_connection_ends_when_rules_by_requests_come_for_its_other_end(world, first):
    """Once, HAProxy judged an open connection only by the rules of the end that had caused the redirection to the
    proxy."""
    def rules(direction, path):
        subject, peer = ("web", "client") if direction == "ingress" else ("client", "web")
        entry = {**http({"path": path}), "fromEndpoints" if direction == "ingress" else "toEndpoints": [
            {"matchLabels": {"app": peer}}]}
        return policy(direction, {"app": subject}, **{direction: [entry]})
    second = "egress" if first == "ingress" else "ingress"
    proxy = begin(world, rules(first, "/any"))
    plain, socket_ = world.connect("a", "b"), begin_websocket(world, "/any")
    plain.sendall(request("GET /any"))
    assert status(read(plain)) == 200 and passes(socket_)
    pid = proxy.process.pid
    world.agent.write(rules(first, "/any"), rules(second, "/[ao].*"))
    assert eventually(lambda: "connections_cut" in world.agent.events())
    before = len(world.servers["b"].seen)
    for it in (plain, socket_):
        it.settimeout(0.5)
    plain.sendall(request("GET /any"))
    assert status(read(plain)) == 0 and len(world.servers["b"].seen) == before and not passes(socket_)
    both = world.connect("a", "b")
    both.sendall(request("GET /any"))
    assert status(read(both)) == 200
    world.agent.write(rules(first, "/any"), rules(second, "/other"))
    assert eventually_status(world, 403, "a", "b", "GET /any") == 403
    both.sendall(request("GET /any"))
    assert status(read(both)) == 403 and proxy.process.pid == pid, "a connection that rules of both ends judge goes on"


def test_a_proxy_that_hangs_ends_at_the_next_change_and_another_one_starts(world, monkeypatch):
    monkeypatch.setattr(process, "ANSWER_S", 0.5)
    proxy = begin(world, READ_ONLY)
    former = proxy.process.pid
    stop(former)
    world.add("c", app="client")
    assert eventually(lambda: "http_proxy_refused" in world.agent.events())
    assert eventually_status(world, 200, "c", "b", "GET /public/x") == 200
    assert not os.path.exists(f"/proc/{former}")


def test_a_slow_proxy_delays_no_other_change_and_goes_on_with_its_connections(world, monkeypatch):
    """Once, the thread that writes the kernel's rules waited half a second for each answer, and then ended the
    proxy."""
    monkeypatch.setattr(process, "ANSWER_S", 60.0)
    proxy = begin(world, READ_ONLY)
    old, slow = world.connect("a", "b"), proxy.process.pid
    old.sendall(request("GET /public/1"))
    assert status(read(old)) == 200
    stop(slow)
    try:
        for number in range(3):
            began = time.monotonic()
            world.agent.write(policy(ingress=[http({"path": f"/{number}"}, fromEndpoints=CLIENTS)]),
                              policy(f"p{number}", {"app": "client"}, ingress=[{"fromEndpoints": CLIENTS}]))
            assert eventually(lambda number=number: f"default/p{number} (Cilium)" in run(
                "nft", "list", "table", "inet", "fastcni-policy"))
            assert time.monotonic() - began < 30
    finally:
        os.kill(slow, signal.SIGCONT)
    assert eventually_status(world, 200, "a", "b", "GET /2") == 200
    old.sendall(request("GET /public/1"))
    assert status(read(old)) == 403 and proxy.process.pid == slow


def test_the_end_of_a_proxy_that_hangs_takes_no_time(tmp_path, monkeypatch):
    """Once, the thread that writes the kernel's rules waited until SIGTERM ended the process. A hanging process ignores
    SIGTERM."""
    monkeypatch.setattr(process, "ANSWER_S", 30.0)
    (tmp_path / "haproxy.cfg").write_text("global\n stats socket unix@./stats.sock\n")
    it = process.Process(tmp_path, (), SimpleNamespace(maps={}))
    try:
        assert eventually(lambda: it.listens) and it._ask("show info"), "from now on SIGTERM has a handler"
        stop(it.pid)
        began = time.monotonic()
    finally:
        it.end()
    assert time.monotonic() - began < 20 and not os.path.exists(f"/proc/{it.pid}")


def test_the_agents_configuration_gives_no_warning(world):
    """If HAProxy later ended, the agent would report a warning of HAProxy's start as the reason."""
    proxy = begin(world, READ_ONLY)
    assert "WARNING" not in (proxy.directory / process.ERRORS).read_text()
    os.kill(proxy.process.pid, signal.SIGKILL)
    assert eventually(lambda: "http_proxy_ended" in world.agent.events())
    (ended,) = [each for each in world.agent.log if each["event"] == "http_proxy_ended"]
    assert ended["how"] == "signal 9"
