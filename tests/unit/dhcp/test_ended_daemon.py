"""A daemon ends before it answers a plugin. The plugin calls the next daemon, or acts as if no daemon ran."""

import contextlib
import os
import socket
import threading
from errno import EAGAIN, EMFILE, ENOMEM

import pytest
from unit.dhcp.process import call

from fastcni.kernel.sockets import streams
from fastcni.kit.dhcp import client, rpc

CONF = {"cniVersion": "1.1.0", "name": "net", "type": "dhcp", "cni.dev/valid-attachments": []}


class Ending:
    """A daemon that ends after `lives` connections. It reads one byte of each connection and closes the connection."""

    def __init__(self, directory, lives):
        self.path, self.lives = f"{directory}/dhcp.sock", lives
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(self.path)
        self.listening.listen()
        self.listening.settimeout(30)
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        for left in reversed(range(self.lives)):
            conn, _ = self.listening.accept()
            with conn:
                conn.recv(1)            # bytes remain unread, so the plugin gets ECONNRESET
                if not left:
                    self.listening.close()
                    os.unlink(self.path)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.thread.join()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def ask(command, path):
    return call(command, {**CONF, "ipam": {"type": "dhcp", "daemonSocketPath": path}}, "/proc/self/ns/net",
                CNI_NETNS_OVERRIDE="1")


@pytest.mark.parametrize("command", ["DEL", "GC"])
def test_del_and_gc_succeed_when_the_daemon_ends_before_it_answers(tmp_path, command):
    """Once, such a DEL failed with code 999. If the daemon had ended before the DEL, the DEL succeeded."""
    with Ending(tmp_path, lives=1) as daemon:
        status, document, stderr = ask(command, daemon.path)
    assert (status, document) == (0, None) and "error dialing DHCP daemon" in stderr


def test_an_add_whose_daemon_ends_is_to_be_repeated(tmp_path):
    """Once, the ADD failed with code 999, and its rollback failed, too."""
    with Ending(tmp_path, lives=1) as daemon:
        status, error, _ = ask("ADD", daemon.path)
    assert (status, error["code"]) == (1, 11) and "while undoing" not in error.get("details", "")


@pytest.mark.parametrize("number", [EAGAIN, EMFILE, ENOMEM])
def test_a_del_that_could_not_ask_is_to_be_repeated(monkeypatch, number):
    """Once, the DEL succeeded as without a daemon, although a daemon might run: socket(2) failed, or the daemon's
    backlog was full."""
    def refuse(*_):
        raise OSError(number, os.strerror(number))
    monkeypatch.setattr(streams, "Stream", refuse)
    with pytest.raises(client.Late, match=os.strerror(number)):
        client.call("/run/cni/dhcp.sock", rpc.RELEASE, {}, 1.0)


def test_a_daemon_that_ends_twice_is_an_error_to_be_repeated(tmp_path):
    with Ending(tmp_path, lives=2) as daemon:
        status, error, _ = ask("DEL", daemon.path)
    assert (status, error["code"]) == (1, 11) and "before it answered" in error["msg"]
