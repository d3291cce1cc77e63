"""The idle exit: the time after which a server ends itself, and the requests that arrive at that moment."""

import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from stopping import stop
from unit.server.client import ANSWER_TIMEOUT_S, Server, packed
from unit.server.test_listening import HAND_OVER

from fastcni.daemon import log
from fastcni.server import idle
from fastcni.server.idle import IdleExit

VERSION = packed("loopback", {"CNI_COMMAND": "VERSION"})


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(idle, "monotonic", lambda: now.s)
    return now


@pytest.fixture
def sent(monkeypatch):
    """Return the list of signals that the process sends to itself."""
    signals = []
    monkeypatch.setattr(idle.os, "kill", lambda pid, number: signals.append(number))
    return signals


@pytest.fixture
def server():
    return SimpleNamespace(accepted=False, unread=0, waiting=0, running=0)


@pytest.mark.parametrize("busy", ["accepted", "unread", "waiting", "running"])
def test_time_counts_from_the_last_request(clock, sent, server, busy):
    exits = IdleExit(server, server, 60.0, log.make("error", "logfmt"))
    clock.s += 59
    exits.poll()
    setattr(server, busy, 1)
    clock.s += 2
    exits.poll()
    setattr(server, busy, 0)
    clock.s += 59
    exits.poll()
    assert sent == []
    clock.s += 1
    exits.poll()
    exits.poll()
    assert sent == [signal.SIGTERM]


def test_server_without_a_limit_never_ends(clock, sent, server):
    exits = IdleExit(server, server, 0.0, log.make("error", "logfmt"))
    clock.s += 1e9
    exits.poll()
    assert sent == []


def request(path):
    """Open a connection and send VERSION. Return the connection."""
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    conn.settimeout(ANSWER_TIMEOUT_S)
    conn.connect(path)
    conn.send(VERSION)
    return conn


def test_request_that_comes_with_the_idle_exit_is_answered(tmp_path):
    """The server is stopped (SIGSTOP) until its idle time is over. When it continues, its exit is due and requests
    wait."""
    with Server(tmp_path, "--idle-exit", "0.015") as server:
        stop(server.process.pid)
        time.sleep(1.2)
        waiting = [request(str(server.path)) for _ in range(8)]
        server.process.send_signal(signal.SIGCONT)
        for conn in waiting:
            with conn:
                assert len(conn.recv(1 << 16)) > 16
        assert server.process.wait(ANSWER_TIMEOUT_S) == 0
        assert server.lines("server_idle") and server.lines("server_stopped")
    assert not server.path.exists()


def test_idle_exit_leaves_systemds_socket_to_the_next_server(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path = str(tmp_path / "s")
        listener.bind(path)
        listener.listen(16)
        command = ["sh", "-c", HAND_OVER, sys.executable, "-I", "-m", "fastcni", "serve", "--idle-exit", "0.015"]
        first = subprocess.run(command, stdin=listener, stderr=subprocess.PIPE, timeout=ANSWER_TIMEOUT_S, check=True)
        assert b"event=server_idle" in first.stderr
        with request(path) as waiting:
            second = subprocess.Popen(command, stdin=listener, stderr=subprocess.PIPE)
            assert len(waiting.recv(1 << 16)) > 16
        assert second.communicate(timeout=ANSWER_TIMEOUT_S) and second.returncode == 0
