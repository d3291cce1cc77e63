"""The D-Bus message bus: its address, requests, and hostile answers."""

import contextlib
import socket
import threading
from errno import ENOMEM

import pytest
from jeepney import Endianness, Header, HeaderFields, Message, MessageType, message_bus

from fastcni.kernel import dbus

NAME = "org.fedoraproject.FirewallD1"


@pytest.mark.parametrize("address, where", [
    ("", "/run/dbus/system_bus_socket"),
    ("unix:path=/a/b", "/a/b"),
    ("unix:path=/a/b,guid=0123456789abcdef", "/a/b"),
    ("unix:guid=01,abstract=/a/b", "\0/a/b"),
    ("tcp:host=localhost,port=1;unix:path=/a/b;unix:path=/c", "/a/b"),
])
def test_address_of_the_bus_comes_from_the_environment(address, where):
    assert dbus.system_bus({"DBUS_SYSTEM_BUS_ADDRESS": address}) == where


@pytest.mark.parametrize("address", ["tcp:host=localhost,port=1", "unix:tmpdir=/tmp", "nonsense", "unix:", ";;", "=,:"])
def test_address_that_is_no_unix_socket_is_named(address):
    with pytest.raises(dbus.Gone, match="DBUS_SYSTEM_BUS_ADDRESS names no unix socket"):
        dbus.system_bus({"DBUS_SYSTEM_BUS_ADDRESS": address})


def test_path_without_a_listener_is_no_bus(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "nothing", tmp_path / "file", tmp_path, f"/{'long' * 100}", "\0no such"):
        assert dbus.has_owner(str(path), NAME, 5) is False
        with pytest.raises(dbus.Gone) as e:
            dbus.Bus(str(path), 5)
        assert str(path) in str(e.value)


class Short(dbus.socket):
    """A socket whose connect(2) fails with ENOMEM."""

    def connect(self, _where):
        raise OSError(ENOMEM, "Cannot allocate memory")


def test_no_memory_to_connect_does_not_mean_that_there_is_no_bus(monkeypatch, tmp_path):
    """Once, the plugins took firewalld for absent. An ADD chose another backend. A DEL left the pod's source in
    firewalld, and no later DEL removed it."""
    monkeypatch.setattr(dbus, "socket", Short)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        dbus.has_owner(str(tmp_path / "bus"), "org.example", 1.0)


def test_messages_to_the_bus_are_those_that_jeepney_writes():
    assert message_bus.Hello().serialise(1) == dbus.HELLO
    for name in ("a.b", NAME):
        assert dbus.name_has_owner(name) == message_bus.NameHasOwner(name).serialise(2)


def reply(kind, signature, body, serial=2, endianness=Endianness.little):
    fields = {HeaderFields.reply_serial: serial, HeaderFields.signature: signature}
    return Message(Header(endianness, kind, 0, 1, -1, 7, fields), (body,)).serialise(7)


@contextlib.contextmanager
def bus_that_sends(directory, answer, *, slowly=False):
    """Serve one client at the yielded path. Send `answer` and shut down the connection; if `answer` is b"", send
    nothing."""
    path = str(directory / "bus")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def serve():
            with contextlib.suppress(OSError), server.accept()[0] as conn:
                conn.recv(1000)
                for piece in [answer[at:at + 1] for at in range(len(answer))] if slowly else [answer]:
                    conn.sendall(piece)
                if answer:
                    conn.shutdown(socket.SHUT_WR)
                while conn.recv(1000):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield path
        thread.join()


GREETING = b"OK 0123\r\n" + reply(MessageType.method_return, "s", ":1.7", 1)
YES, NO = (reply(MessageType.method_return, "b", there) for there in (True, False))
BIG = reply(MessageType.method_return, "b", True, endianness=Endianness.big)
ERROR = reply(MessageType.error, "s", "no")


@pytest.mark.parametrize("slowly", [False, True], ids=["at once", "byte by byte"])
@pytest.mark.parametrize("answer, there", [
    (GREETING + YES, True), (GREETING + BIG, True), (GREETING + NO, False), (GREETING + ERROR, False),
    (GREETING, False), (GREETING + YES[:-1], False), (b"REJECTED EXTERNAL\r\n", False), (b"OK 0123\r\n", False),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", False), (b"x" * 100_000, False), (b"OK 0\r\n" + b"\xff" * 100, False),
], ids=["yes", "yes in the other order", "no", "error", "hangs up", "cut short", "rejected", "silent", "no bus",
        "endless", "nonsense"])
def test_only_a_true_answer_is_true(tmp_path, answer, there, slowly):
    with bus_that_sends(tmp_path, answer, slowly=slowly) as path:
        assert dbus.has_owner(path, NAME, 20) is there


def test_silent_bus_is_a_timeout(tmp_path):
    with bus_that_sends(tmp_path, b"") as path, pytest.raises(TimeoutError):
        dbus.has_owner(path, NAME, 0.2)


def test_bus_with_a_full_queue_is_a_timeout(tmp_path):
    with socket.socket(socket.AF_UNIX) as server, contextlib.ExitStack() as callers:
        server.bind(str(tmp_path / "busy"))
        server.listen(0)
        callers.enter_context(socket.socket(socket.AF_UNIX)).connect(str(tmp_path / "busy"))
        with pytest.raises(TimeoutError):
            dbus.has_owner(str(tmp_path / "busy"), NAME, 5)


@pytest.mark.parametrize("answer, values", [
    (reply(MessageType.method_return, "s", "here"), ("here",)),
    (reply(MessageType.method_return, "s", "not yours", 9) + reply(MessageType.method_return, "s", "here"), ("here",)),
])
def test_call_returns_the_values_of_its_own_answer(tmp_path, answer, values):
    with bus_that_sends(tmp_path, GREETING + answer) as path, dbus.Bus(path, 5) as bus:
        assert bus.call("a.b", "/c", "d.e", "f", "text") == values


def test_error_answer_raises_refused_with_its_text(tmp_path):
    with bus_that_sends(tmp_path, GREETING + ERROR) as path, dbus.Bus(path, 5) as bus:
        with pytest.raises(dbus.Refused) as e:
            bus.call("a.b", "/c", "d.e", "f", "text")
        assert str(e.value) == "no"
