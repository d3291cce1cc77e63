"""The server's state, for fastcni doctor."""

import os
import socket
import threading

import pytest

import fastcni
from fastcni.server import status
from fastcni.server.requests import protocol


def test_a_server_tells_its_state(server):
    found = status.ask(str(server.path))
    assert found["version"] == fastcni.__version__
    assert 0 <= found["uptimeSeconds"] < 600
    assert (found["running"], found["waiting"], found["queueSize"], found["workers"]) == (0, 0, 1024, 32)
    assert found["watching"] >= 0
    assert found["pid"] != os.getpid()


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
