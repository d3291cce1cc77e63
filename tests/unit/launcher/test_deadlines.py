"""The launcher gives up a server that is stopped or hangs.

The plugin file of these tests has shorter deadlines than an installed one.
"""

import json
import signal
import socket
import subprocess
import time

import pytest
from unit.launcher.stub_server import (
    INSTEAD_OF_PYTHON,
    receive,
    reply,
    run,
    serving,
    started,
    strace_command,
    unread,
    variables,
    waits_in_the_kernel,
    write_executable,
)

from fastcni.kit.call import deadlines
from fastcni.launcher import pack
from fastcni.testing.witnesses import eventually

UNREAD, ANSWER, QUICK = 1.0, 4.0, 2.0           # seconds
COMMANDS = ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"]


@pytest.fixture(scope="module")
def bridge(directory):
    """Return a plugin file with short deadlines."""
    quick = directory / "quick"
    quick.mkdir(exist_ok=True)          # pytest-xdist may run this fixture twice in one process
    script = write_executable(quick / "python", INSTEAD_OF_PYTHON.encode())
    return write_executable(quick / "bridge", pack.pack(str(script), (UNREAD, ANSWER, QUICK)))


@pytest.fixture
def stopped(directory):
    """Yield the path of a listening socket that accepts no connection, and the socket."""
    path = directory / "stopped"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(8)
        listener.settimeout(30)
        yield str(path), listener
    path.unlink()


def has_left(conn):
    """Return whether a read of the server's connection shows that the caller has closed it."""
    conn.setblocking(False)
    try:
        return conn.recv(1) == b""
    except BlockingIOError:
        return False


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_accepts_no_connection_is_skipped(bridge, stopped, command):
    """Once, the launcher waited for ever. When the server continues, it reads the request and sees that its caller has
    left."""
    path, listener = stopped
    assert run(bridge, env=variables(path, command)) == run(bridge, env=variables("", command))
    conn, _ = listener.accept()
    with conn:
        assert receive(conn).strings[1] == f"CNI_COMMAND={command}" and has_left(conn)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_accepts_the_connection_and_reads_nothing_is_skipped(bridge, directory, command):
    seen = []

    @unread
    def answer(conn):
        time.sleep(2 * UNREAD)
        seen.append((receive(conn).strings[1], has_left(conn)))

    with serving(directory, answer) as server:
        assert run(bridge, env=variables(server, command)) == run(bridge, env=variables("", command))
    assert seen == [(f"CNI_COMMAND={command}", True)]


def test_a_launcher_that_is_stopped_again_and_again_gives_up(bridge, stopped):
    """SIGSTOP and SIGCONT interrupt recvmsg(2), if the socket has a receive timeout. Once, the launcher then waited for
    the full time again, so a launcher that was often stopped waited for ever."""
    path, _ = stopped
    with started(bridge, env=variables(path), stdin=subprocess.DEVNULL) as running:
        assert eventually(lambda: waits_in_the_kernel(running.pid))
        interruptions = 0
        while interruptions < 100 and running.poll() is None:
            running.send_signal(signal.SIGSTOP)
            running.send_signal(signal.SIGCONT)
            interruptions += 1
            time.sleep(UNREAD / 5)
        assert running.communicate(timeout=30)[0].startswith(b"one-shot") and 1 < interruptions < 100


def test_an_add_that_was_read_and_not_answered_in_time_fails_with_code_11(bridge, directory):
    with serving(directory, lambda conn, _: conn.recv(1)) as server:
        status, stdout, _ = run(bridge, env=variables(server))
    error = json.loads(stdout)
    assert (status, error["code"]) == (1, 11) and "DEL" in error["details"]
    assert error["msg"] == "the fastcni server has not answered this ADD in time"


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_another_command_that_was_read_and_not_answered_in_time_is_repeated_one_shot(bridge, directory, command):
    with serving(directory, lambda conn, _: conn.recv(1)) as server:
        assert run(bridge, env=variables(server, command)) == run(bridge, env=variables("", command))
    assert len(server.requests) == 1


def test_an_answer_after_the_first_deadline_is_printed(bridge, directory):
    def answer(conn, _):
        time.sleep(3 * UNREAD)
        conn.send(reply(0, b"warm"))

    with serving(directory, answer) as server:
        assert run(bridge, env=variables(server)) == (0, b"warm", b"")


def test_a_request_that_is_read_while_its_caller_leaves_is_not_done_twice(bridge, directory):
    """The server continues and reads the request after the launcher's check, and before the launcher's shutdown of the
    connection."""
    args = strace_command(directory, "inject=shutdown:delay_enter=2000000")

    @unread
    def answer(conn):
        time.sleep(UNREAD + 0.5)
        assert receive(conn)
        conn.recv(1)

    with serving(directory, answer) as server:
        status, stdout, _ = run(*args, bridge, env=variables(server))
    assert (status, json.loads(stdout)["code"]) == (1, 11)


def test_the_deadlines_of_an_installed_file_are_longer_than_those_of_the_server():
    """A request may wait for 60 s in the server's queue and then run. It must end before its caller gives up."""
    unread_ms, answer_ms, quick_ms, _ = pack.CONFIG.unpack_from(
        data := pack.pack("/usr/bin/python3"), data.find(pack.CONFIG_MAGIC))[-5:-1]
    assert (unread_ms, answer_ms, quick_ms) == (10_000, 400_000, 30_000)
    assert unread_ms / 1000 > deadlines.STALL_S
    assert 60 + 240 < deadlines.REQUEST_S < (answer_ms - unread_ms) / 1000
