"""The server closes connections that send nothing. They occupy no worker."""

import socket
import sys
import threading

from fastcni.server.requests import acceptor


def connect(server):
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    conn.connect(str(server.path))
    conn.settimeout(10)
    return conn


def test_a_silent_connection_is_closed_in_time_and_delays_no_stop(node, local, monkeypatch):
    monkeypatch.setattr(acceptor, "SILENT_TIMEOUT_S", 0.3)
    server = local()
    with connect(server) as silent:
        assert silent.recv(1) == b""
    with connect(server) as silent:
        server.ok("VERSION", node.conf())
        server.__exit__()               # an assertion fails here if a worker does not end
        server.__enter__()
        assert silent.recv(1) == b""
    assert server.ok("VERSION", node.conf())


def test_many_silent_connections_cost_no_worker(node, local, monkeypatch):
    """Once, two workers closed the same silent connection, and the second worker ended with a KeyError."""
    monkeypatch.setattr(acceptor, "MAX_SILENT", 4)
    monkeypatch.setattr(acceptor, "SILENT_TIMEOUT_S", 0.02)
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
        assert not server.crashed
        assert server.workers == threads
        assert server.ok("VERSION", node.conf())
    finally:
        sys.setswitchinterval(before)


# -- other namespaces --------------------------------------------------------------------------------------------
