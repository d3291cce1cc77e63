"""Messages to systemd, whose socket is a file or an abstract address. An error does not stop the server."""

import socket
import time

import pytest

from fastcni.daemon import log, systemd_notify
from fastcni.daemon.systemd_notify import Notifier


def notifier(address):
    return Notifier({"NOTIFY_SOCKET": address}, log.make("info", "logfmt"))


@pytest.fixture(params=["file", "abstract"])
def address(request, tmp_path):
    """Return an address in the form that systemd writes into NOTIFY_SOCKET."""
    return f"{tmp_path}/notify" if request.param == "file" else f"@fastcni-test{tmp_path}"


def receiver(address):
    """Return systemd's end of the socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(address.replace("@", "\0", 1))
    sock.settimeout(10)
    return sock


def test_systemd_receives_each_message(address):
    with receiver(address) as systemd:
        sender = notifier(address)
        sender.notify("READY=1")
        sender.notify("STATUS=é")
        assert [systemd.recv(100), systemd.recv(100)] == [b"READY=1", "STATUS=é".encode()]


def test_a_new_systemd_at_the_same_address_receives_messages(address, tmp_path):
    sender = notifier(address)
    with receiver(address):
        sender.notify("READY=1")
    (tmp_path / "notify").unlink(missing_ok=True)
    with receiver(address) as systemd:
        sender.notify("WATCHDOG=1")
        assert systemd.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}])
def test_without_systemd_there_is_no_message(environ, capsys):
    Notifier(environ, log.make("debug", "logfmt")).notify("READY=1")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("bad", ["/nowhere/notify", "@fastcni-test-nobody", "/" + "long" * 40, "vsock:2:1234"])
def test_an_address_without_a_receiver_is_logged(bad, capsys):
    notifier(bad).notify("READY=1")
    (line,) = capsys.readouterr().err.splitlines()
    assert "level=warning event=systemd_not_notified message=\"READY=1\"" in line and f"address={bad}" in line


def test_a_systemd_that_does_not_receive_delays_the_server_for_a_limited_time(address, capsys, monkeypatch):
    monkeypatch.setattr(systemd_notify, "TIMEOUT_S", 0.05)
    with receiver(address):
        sender, started = notifier(address), time.monotonic()
        for _ in range(10_000):
            sender.notify("WATCHDOG=1")
            if log_line := capsys.readouterr().err:
                break
        assert "event=systemd_not_notified" in log_line and time.monotonic() - started < 5
