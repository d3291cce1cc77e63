"""The acceptor takes a request and puts it into the queue. The tests have no workers."""

import json
import os
import socket
from time import monotonic
from types import SimpleNamespace

import pytest
from unit.server.client import packed
from unit.server.flushed import Log

from fastcni.daemon.wakeup import Wakeup
from fastcni.handle import UPDATE
from fastcni.kernel import netns
from fastcni.server.cpu_latency import LatencyRequest
from fastcni.server.requests import acceptor as module
from fastcni.server.requests import protocol
from fastcni.server.requests.acceptor import Acceptor, key_of, reason_to_decline
from fastcni.server.requests.request_queue import RequestQueue
from fastcni.spec import netavark

ENV = {"CNI_CONTAINERID": "c-1", "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin:/usr/lib/cni"}
SETUP = {"container_id": "c-1", "network": {"name": "net", "options": {"conflist": "a"}},
         "network_options": {"interface_name": "eth3"}}


@pytest.fixture
def taken(tmp_path):
    """Yield an Acceptor whose queue has room for one request. Its asked(data) sends a request and returns the immediate
    answer, or None."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    log, woken = Log(), []
    queue = RequestQueue(1, 1, size=1, wake=lambda: woken.append(1))
    it = Acceptor(listener, queue, Wakeup(), frozenset({os.geteuid()}), LatencyRequest(0, log), log)
    it.woken, clients = woken, []

    def asked(data):
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        clients.append(conn)
        conn.connect(str(tmp_path / "s"))
        conn.send(data)
        it.wait(10)
        conn.setblocking(False)
        try:
            head = conn.recv(protocol.MAX_ANSWER)
        except BlockingIOError:
            return None
        return protocol.HEAD.unpack_from(head)[2], head[protocol.HEAD.size:]

    it.asked = asked
    yield it
    it.close()
    assert it.events.closed
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(it.wakeup.fd)
    for sock in (listener, *clients):
        sock.close()


def next_call(acceptor):
    return acceptor.queue.take().call


def message(plugin="bridge", **env):
    return SimpleNamespace(plugin=plugin, env=env)


@pytest.mark.parametrize("command, key", [("ADD", True), ("DEL", True), ("CHECK", True), (UPDATE, True),
                                          ("GC", False), ("STATUS", False), ("VERSION", False)])
def test_requests_about_an_attachment_have_its_key(command, key):
    assert key_of(message(CNI_COMMAND=command, **ENV)) == (("c-1", "eth0") if key else None)


@pytest.mark.parametrize("command, more, why", [
    ("ADD", {}, ""), ("ADD", {"CNI_PATH": "/a:b"}, "a CNI_PATH relative to its caller"),
    ("DEL", {"CNI_PATH": ""}, "a CNI_PATH relative to its caller"), ("VERSION", {"CNI_PATH": "dummy"}, ""),
    ("", {}, "no command"), (UPDATE, {}, "no command")])
def test_requests_that_need_their_caller_go_one_shot(command, more, why):
    """UPDATE is the server's own command. Otherwise a caller could detach a pod's networks with it."""
    assert reason_to_decline(message(CNI_COMMAND=command, **{**ENV, **more})) == why


def test_a_request_without_a_path_or_a_command():
    assert reason_to_decline(message(CNI_COMMAND="ADD")) == ""
    assert reason_to_decline(message()) == "no command"
    assert reason_to_decline(message("acme", CNI_COMMAND="ADD")) == "no plugin 'acme'"


@pytest.mark.parametrize("plugin, command, light", [("bridge", "ADD", False), ("loopback", "ADD", True),
                                                    ("bridge", "STATUS", True), ("bridge", "VERSION", True)])
def test_a_request_is_queued_with_its_id_and_weight(taken, plugin, command, light):
    assert taken.asked(packed(plugin, {**ENV, "CNI_COMMAND": command}, b"{}")) is None
    call = next_call(taken)
    assert (call.command, call.light, call.message.stdin, call.message.pid) == (command, light, b"{}", os.getpid())
    assert call.message.id == f"{taken.run}-1" and taken.accepted
    call.message.close()


def test_a_full_queue_answers_that_the_request_may_be_repeated(taken):
    reports = []
    taken.records.receivers.append(reports.append)
    first, second = (packed("bridge", {**ENV, "CNI_COMMAND": "ADD"}, b"{}") for _ in range(2))
    assert taken.asked(first) is None
    status, body = taken.asked(second)
    error = json.loads(body)
    assert (status, error["code"], error["msg"]) == (1, 11, "1 requests wait for the fastcni server already")
    assert "safe to try again" in error["details"]
    assert [(each.outcome, each.error) for each in reports] == [("11", error["msg"])]
    assert [event for event, _ in taken.log.lines] == ["request_refused"]


def silent_caller(tmp_path):
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    conn.connect(str(tmp_path / "s"))
    return conn


def test_a_request_on_an_earlier_connection_is_queued_first(taken, tmp_path):
    """Another worker has accepted the earlier connection, and has not woken up for its request."""
    with silent_caller(tmp_path) as first:
        earlier = protocol.accept(taken.listener)
        taken.arriving[earlier] = None
        first.send(packed("bridge", {"CNI_COMMAND": "DEL", **ENV}))
        status, _ = taken.asked(packed("bridge", {"CNI_COMMAND": "ADD", **ENV}))
        assert status == 1 and not taken.arriving       # the queue has room for one request
        assert next_call(taken).command == "DEL"


def test_a_silent_connection_stays_open_up_to_its_time_limit(taken, tmp_path):
    with silent_caller(tmp_path) as silent:
        taken.wait(10)
        assert taken.unread == 1
        silent.send(packed("bridge", {"CNI_COMMAND": "DEL", **ENV}))
        taken.wait(10)
        assert taken.unread == 0 and next_call(taken).command == "DEL"


def test_a_wait_ends_when_a_silent_connection_is_closed(taken, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SILENT_TIMEOUT_S", 0.2)
    with silent_caller(tmp_path) as silent:
        taken.wait(10)
        started = monotonic()
        taken.wait(30)
        assert monotonic() - started < 20 and taken.unread == 0
        assert silent.recv(1) == b""


def test_a_probe_is_taken_by_a_full_queue(taken):
    """Otherwise systemd would restart a busy server."""
    taken.asked(packed("bridge", {**ENV, "CNI_COMMAND": "ADD"}, b"{}"))
    with taken.probe() as probe:
        taken.wait(10)
        assert taken.queue.waiting == 2
        with pytest.raises(BlockingIOError):
            probe.recv(100)


def test_a_request_is_read_from_a_connection_with_the_descriptor_of_the_closed_listener(taken):
    client, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    taken.stop(accept_waiting=False)
    with client, peer:
        os.dup2(peer.fileno(), taken.listener_fd)
        taken._watch(protocol.Connection(taken.listener_fd))
        client.send(packed("bridge", {**ENV, "CNI_COMMAND": "ADD"}, b"{}"))
        taken.wait(10)
        assert not taken.unread
        next_call(taken).message.close()


def test_a_wait_that_ends_without_an_event_is_no_connection(taken):
    """If it counted as a connection, a server with --idle-exit would never end."""
    taken.wait(0.01)
    assert not taken.accepted


# -- podman's protocol ---------------------------------------------------------------------------------------------


def test_a_request_of_podman_is_one_of_cni(taken):
    setup = json.dumps(SETUP).encode()
    taken.asked(packed(netavark.NAME, {"CNI_COMMAND": "ADD", "CNI_NETNS": "/n"}, setup))
    call = next_call(taken)
    assert call.key == ("c-1", "eth3")
    assert json.loads(call.message.stdin) == {"cniVersion": "1.1.0", "name": "a", "type": "netavark", "setup": SETUP}
    assert call.connection.shown is netavark.answer
    call.message.close()


@pytest.mark.parametrize("env, stdin, why", [
    ({"CNI_COMMAND": "CHECK"}, b"{}", "netavark's protocol has no CHECK"), ({"CNI_COMMAND": "ADD"}, b"[]", "an object"),
    ({"CNI_COMMAND": "DEL"}, b" " * (netavark.MAX_BYTES + 1), f"{netavark.MAX_BYTES + 1} bytes of podman's JSON")])
def test_other_requests_of_podman_go_one_shot(taken, env, stdin, why):
    assert taken.asked(packed(netavark.NAME, env, stdin)) == (protocol.DECLINED, b"")
    ((event, values),) = taken.log.lines
    assert event == "request_declined" and why in values["why"]


def test_podmans_question_for_the_version_needs_no_json(taken):
    taken.asked(packed(netavark.NAME, {"CNI_COMMAND": "VERSION"}))
    call = next_call(taken)
    assert call.light and call.key is None
    call.message.close()


# -- the server's own requests -------------------------------------------------------------------------------------


def test_a_request_of_the_server_is_queued_and_ends_with_its_socket(taken):
    home = netns.open_own()
    ours = taken.submit("multus", {**ENV, "CNI_COMMAND": UPDATE}, b"{}", home)
    call = next_call(taken)
    assert (call.key, call.command, call.message.plugin) == (("c-1", "eth0"), UPDATE, "multus")
    assert (call.message.pid, call.message.netns) == (os.getpid(), None) and call.message.id == f"{taken.run}-1"
    assert netns.identity(call.message.caller_netns) == netns.identity(home) and call.message.caller_netns != home
    assert taken.woken == [1]
    protocol.answer(call.connection, 0, b"done")
    assert ours.recv(100).endswith(b"done")
    ours.close()
    with pytest.raises(BrokenPipeError):
        protocol.answer(call.connection, 0)
    call.message.close()
    os.close(home)


@pytest.mark.parametrize("how", ["full", "no descriptor"])
def test_a_request_of_the_server_that_is_not_queued_leaves_no_descriptor(taken, monkeypatch, collector_off, how):
    home = netns.open_own()
    if how == "full":
        taken.asked(packed("bridge", {**ENV, "CNI_COMMAND": "ADD"}))
    else:
        monkeypatch.setattr(module.os, "dup", lambda fd: os.close(-1))
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="1 requests wait already" if how == "full" else "Bad file descriptor"):
        taken.submit("multus", {**ENV, "CNI_COMMAND": UPDATE}, b"{}", home)
    assert sorted(os.listdir("/proc/self/fd")) == before
    os.close(home)


def test_without_a_free_descriptor_connections_stay_in_the_backlog(taken, monkeypatch):
    real, failures, pauses = protocol.accept, [OSError(24, "Too many open files")], []

    def accept(listener):
        if failures:
            raise failures.pop()
        return real(listener)

    monkeypatch.setattr(protocol, "accept", accept)
    monkeypatch.setattr(module, "sleep", pauses.append)
    assert taken.asked(packed("bridge", {**ENV, "CNI_COMMAND": "ADD"})) is None
    assert pauses == [module.ACCEPT_RETRY_S] and taken.queue.waiting == 0
    assert taken.log.lines == [("accept_failed", {"error": "Too many open files", "left_out": 0})]
    taken.wait(10)
    assert taken.queue.waiting == 1
