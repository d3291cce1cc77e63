"""The status that the server reports to `fastcni doctor`."""

import os
import socket
import threading
from types import SimpleNamespace

import pytest

import fastcni
from fastcni.server import control, status
from fastcni.server.requests import protocol
from fastcni.server.requests.request_queue import RequestQueue


def test_a_server_tells_its_state(server):
    found = status.ask(str(server.path))
    assert found["version"] == fastcni.__version__
    assert 0 <= found["uptimeSeconds"] < 600
    assert (found["running"], found["waiting"], found["queueSize"], found["workers"]) == (0, 0, 1024, 32)
    assert found["watching"] >= 0
    assert found["pid"] != os.getpid()


@pytest.mark.parametrize("alive, watching", [(True, 2), (False, 0)])
def test_a_server_whose_restoring_has_ended_watches_no_namespace(alive, watching):
    restoring = SimpleNamespace(watches={1: None, 2: None}, thread=SimpleNamespace(is_alive=lambda: alive))
    cluster = SimpleNamespace(status=list)
    assert status.document(0.0, RequestQueue(1, 1), restoring, cluster)["watching"] == watching


@pytest.mark.parametrize("answer, expected", [
    (protocol.HEAD.pack(protocol.MAGIC, protocol.VERSION, protocol.DECLINED, 0), None),
    (protocol.HEAD.pack(protocol.MAGIC, protocol.VERSION + 1, 0, 0) + b"{}", None),
    (b"", ConnectionResetError)])
def test_an_older_server_declines(tmp_path, answer, expected):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()

        def serve():
            conn, _ = listener.accept()
            with conn:
                conn.recv(4096)
                if answer:
                    conn.send(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        if expected is None:
            assert status.ask(path) is None
        else:
            with pytest.raises(expected):
                status.ask(path)
        thread.join()


@pytest.fixture
def answered(tmp_path):
    """Yield a function answered(document) that returns what ask() returns. The server's answer is document()."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()

        def run(document):
            asked = []

            def serve():
                sock, _ = listener.accept()
                asked.append(sock.recv(4096))
                control.answer(protocol.Connection(sock.detach()), document)

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                return control.ask(path, "fastcni-history", {"after": "1"})
            finally:
                thread.join()
                assert asked == [protocol.request("fastcni-history", {"after": "1"})]

        yield run


def decline():
    raise ValueError("no number")


@pytest.mark.parametrize("document, found", [
    (lambda: b'{"a": 1}', {"a": 1}), (lambda: b"[1]", None), (decline, None),
    *((lambda size=size: b'{"a": "%b"}' % (b"x" * size), {"a": "x" * size})
      for size in (protocol.MAX_ANSWER - 9, protocol.MAX_ANSWER - 8, 1 << 20))])
def test_an_answer_is_read_whole_or_declined(answered, document, found):
    before = len(os.listdir("/proc/self/fd"))
    assert answered(document) == found
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_server_that_does_not_answer_is_not_waited_for(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        late = threading.Timer(20, listener.close)      # after 20 s, this ends the connection
        late.start()
        with pytest.raises(TimeoutError):
            status.ask(path, 0.05)
        late.cancel()


def test_an_answer_longer_than_the_limit_is_an_error_with_a_remedy(answered, monkeypatch):
    """Once, the client read only the beginning of the answer, so that commands reported invalid JSON."""
    size = 1 << 20
    monkeypatch.setattr(control, "MAX_MEMORY_BYTES", size)
    before = len(os.listdir("/proc/self/fd"))
    longest = {"a": "x" * (size - 9)}
    assert answered(lambda: b'{"a": "%b"}' % longest["a"].encode()) == longest
    with pytest.raises(OSError, match="the answer is longer than 1 MB; restart the server with a smaller --history"):
        answered(lambda: b'{"a": "%b"}' % (longest["a"] + "x").encode())
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_caller_that_left_is_no_error():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    conn = protocol.Connection(ours.detach())
    control.answer(conn, lambda: b"{}")
    assert conn.fd == -1
