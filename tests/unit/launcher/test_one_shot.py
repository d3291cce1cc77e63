"""When the launcher runs a request one-shot although a server listens, and when it must not."""

import json
import os
import socket
import tempfile

import pytest
from unit.launcher.stub_server import (
    BODY_BYTES,
    DECLINED,
    FULL,
    HEAD,
    LONG,
    answered_unread,
    asked,
    closed_at_once,
    closed_unread,
    reply,
    run,
    send_in_memory,
    serving,
    started,
    variables,
    waits_in_the_kernel,
    went_away,
    write_executable,
)

from fastcni.launcher import pack
from fastcni.launcher.install import base_interpreter, checked_interpreter
from fastcni.testing.witnesses import eventually

NOTHING_DONE = {
    "closed at once": closed_at_once,
    "closed unread": closed_unread,
    "answered unread": answered_unread,
    "declined": reply(DECLINED),
    "declined with text": reply(DECLINED, LONG[:BODY_BYTES], b""),
    "another version": reply(0, b"out", version=1),
    "another magic": reply(0, b"out", magic=b"FCNI"),
    "garbage": LONG[:100_000],
    "too short": reply(0)[:15],
}
LOST = {
    "closed": went_away,
    "an invalid status": reply(3),
    "stderr longer than the message": HEAD.pack(b"fcni", 2, 0, 5) + b"four",
    "streams that do not fit": reply(0, LONG[:BODY_BYTES + 1]),
    "memory and more": lambda conn, _: send_in_memory(conn, 0, b"out", b"", more=b"x"),
    "two memory files": lambda conn, _: send_in_memory(conn, 0, b"out", b"", files=2),
}


@pytest.mark.parametrize("stdin", [b"{}", FULL, b""], ids=["short", "full", "empty"])
@pytest.mark.parametrize("command", ["ADD", "DEL"])
@pytest.mark.parametrize("why", NOTHING_DONE)
def test_a_request_that_the_server_has_not_begun_is_done_one_shot(bridge, directory, why, command, stdin):
    """Python gets the same stdin and as many open files as without a server."""
    alone = run(bridge, env=variables("", command), stdin=stdin)
    assert (alone[0], alone[1].splitlines()[0][:20]) == (3, f"one-shot bridge, {command}".encode())
    assert alone[1].endswith(b"stdin:\n" + stdin)
    with serving(directory, NOTHING_DONE[why]) as server:
        assert run(bridge, env=variables(server, command, CNI_NETNS="/proc/self/ns/net"), stdin=stdin) == alone


def test_the_memory_file_of_an_invalid_answer_is_closed(bridge, directory):
    alone = run(bridge, env=variables(""))
    with serving(directory, lambda conn, _: send_in_memory(conn, DECLINED, b"out", b"")) as server:
        assert run(bridge, env=variables(server)) == alone


def test_python_gives_the_same_answer_after_a_server_has_declined(directory, tmp_path):
    """host-local's result shows that the plugin got stdin. Its one address file shows that the plugin ran once."""
    plugin = write_executable(directory / "host-local", pack.pack(checked_interpreter(base_interpreter())))
    more = {"CNI_CONTAINERID": "x", "CNI_IFNAME": "eth0", "CNI_NETNS": "/nowhere", "CNI_PATH": "/nowhere"}
    answers = []
    with serving(directory, reply(DECLINED)) as server:
        for where in ("", server):
            data_dir = tmp_path / str(len(answers))
            ipam = {"type": "host-local", "subnet": "10.1.2.0/24", "dataDir": str(data_dir)}
            conf = json.dumps({"cniVersion": "1.0.0", "name": "n", "type": "bridge", "ipam": ipam}).encode()
            answers.append(run(plugin, env=variables(where, **more), stdin=conf))
            assert "10.1.2.2" in os.listdir(data_dir / "n")
    assert answers[0] == answers[1]
    assert json.loads(answers[0][1])["ips"] == [{"address": "10.1.2.2/24", "gateway": "10.1.2.1"}]
    assert len(server.requests) == 1


@pytest.mark.parametrize("env", [{"FASTCNI_WIRE": "1"}, {"CNI_COMMAND": ""}, {"CNI_ARGS": "x" * 127_000},
                                 {"CNI_A": "x" * 64_000, "CNI_B": "x" * 64_000}])
def test_a_request_that_is_not_for_a_server_is_not_sent(bridge, directory, env):
    alone = run(bridge, env=variables("") | env, stdin=LONG)
    assert alone[1].endswith(LONG)
    with serving(directory, reply(0, b"warm")) as server:
        assert run(bridge, env=variables(server) | env, stdin=LONG) == alone
    assert not server.requests


@pytest.mark.parametrize("command", ["ADD", "GC"])
def test_stdin_that_does_not_fit_into_a_message_goes_one_shot(bridge, directory, command):
    """Once, 30 MB of `[],` took 1.8 GB of a server's memory, and all callers waited for a minute. A one-shot process
    frees the memory at its end."""
    alone = run(bridge, env=variables("", command), stdin=LONG)
    assert alone[1].endswith(LONG)
    with serving(directory, reply(0, b"warm")) as server:
        assert run(bridge, env=variables(server, command, CNI_NETNS="/proc/self/ns/net"), stdin=LONG) == alone
    assert not server.requests


def test_a_plugin_started_by_hand_does_not_ask_a_server(bridge, directory):
    with serving(directory, reply(0, b"warm")) as server:
        env = variables(server)
        del env["CNI_COMMAND"]
        assert run(bridge, env=env)[0] == 3
    assert not server.requests


def test_the_default_address_is_that_of_the_unit(bridge):
    assert b"\0/run/fastcni/fastcni.sock\0" in bridge.read_bytes()


def listener_of(kind, path):
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(path)
    listener.listen(0)
    return listener


def test_without_a_server_the_launcher_goes_one_shot(bridge, directory):
    alone = run(bridge, env=variables(""), stdin=LONG)
    assert alone[1].endswith(LONG)
    left, other = str(directory / "left"), str(directory / "other")
    listener_of(socket.SOCK_SEQPACKET, left).close()            # connect(2) to this path fails with ECONNREFUSED
    with listener_of(socket.SOCK_STREAM, other):                # connect(2) to this path fails with EPROTOTYPE
        for path in ("/nowhere/socket", left, other, str(directory), str(bridge) + "/x", "/" + "x" * 107, "x" * 5000):
            assert run(bridge, env=variables(path), stdin=LONG) == alone, path
    os.unlink(left)
    os.unlink(other)


def test_the_longest_socket_address_is_tried(bridge, directory):
    deep = directory / "d" / ("d" * (107 - len(f"{directory}/d//server")))
    deep.mkdir(parents=True)
    assert len(str(deep / "server")) == 107
    assert asked(bridge, deep).stdin == b"{}"


def test_a_server_with_a_full_backlog_is_skipped(bridge, directory):
    alone = run(bridge, env=variables(""))
    path, waiting = str(directory / "full"), []
    with listener_of(socket.SOCK_SEQPACKET, path):
        with pytest.raises(BlockingIOError):
            while True:
                waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK))
                waiting[-1].connect(path)
        assert run(bridge, env=variables(path)) == alone
    for each in waiting:
        each.close()


def test_a_server_that_ends_before_it_accepts_has_done_nothing(bridge, directory):
    """The connection with the request waits in the backlog. When the listener closes, the connection ends."""
    alone = run(bridge, env=variables(""), stdin=FULL)
    path = str(directory / "backlog")
    with listener_of(socket.SOCK_SEQPACKET, path) as listener, tempfile.TemporaryFile() as stdin:
        stdin.write(FULL)
        stdin.seek(0)
        with started(bridge, env=variables(path), stdin=stdin) as running:
            assert eventually(lambda: waits_in_the_kernel(running.pid))
            listener.close()
            assert running.communicate(timeout=60)[0] == alone[1]
            assert running.returncode == alone[0]


@pytest.mark.parametrize("why", LOST)
def test_a_lost_add_fails_with_code_11(bridge, directory, why):
    """The ADD may have changed the node, so the launcher must not repeat the ADD."""
    with serving(directory, LOST[why]) as server:
        status, stdout, stderr = run(bridge, env=variables(server), stdin=FULL)
    error = json.loads(stdout)
    assert (status, stderr, error["code"]) == (1, b"", 11)
    assert error["msg"] == "the fastcni server was lost while it worked on this ADD"
    assert "DEL" in error["details"]


@pytest.mark.parametrize("stdin", [b"{}", FULL], ids=["short", "full"])
@pytest.mark.parametrize("command", ["DEL", "CHECK", "GC", "STATUS", "VERSION", "ADDX", "AD"])
def test_another_lost_command_is_repeated_one_shot(bridge, directory, command, stdin):
    alone = run(bridge, env=variables("", command), stdin=stdin)
    for answer in LOST.values():
        with serving(directory, answer) as server:
            assert run(bridge, env=variables(server, command), stdin=stdin) == alone
        assert len(server.requests) == 1


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_a_caller_that_has_closed_a_stream_is_served_one_shot(bridge, directory, closed):
    """The launcher's socket would get the number of the closed stream. No runtime closes a stream; Python reports the
    error."""
    args = ["sh", "-c", f"exec {' '.join(f'{fd}>&-' for fd in closed)}; exec {bridge}"]
    alone = run(*args, env=variables(""))
    with serving(directory, reply(0, b"warm")) as server:
        assert run(*args, env=variables(server)) == alone
    assert not server.requests


def test_stdin_that_cannot_be_read_is_reported_by_python_unless_it_is_a_directory(bridge, directory):
    for path, flags, expected in ((directory, os.O_RDONLY, (b"", b"error reading from stdin: Is a directory")),
                              ("/dev/null", os.O_WRONLY, (b"cat:", b""))):
        stdin = os.open(path, flags)
        alone = run(bridge, env=variables(""), stdin=stdin)
        with serving(directory, reply(0, b"warm")) as server:
            assert run(bridge, env=variables(server), stdin=stdin) == alone
        os.close(stdin)
        assert alone[2].startswith(expected[0]) and expected[1] in alone[1]
        assert not server.requests


def test_an_answer_without_a_free_descriptor_is_lost(bridge, directory):
    with serving(directory, lambda conn, _: send_in_memory(conn, 0, b"out", b"")) as server:
        status, stdout, _ = run("sh", "-c", f"ulimit -n 4; exec {bridge}", env=variables(server))
    assert (status, json.loads(stdout)["code"]) == (1, 11)


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_a_request_without_a_descriptor_for_its_namespace_goes_one_shot(bridge, directory, command):
    """Once, the request came without the namespace's descriptor. A server in a container then took the pod for deleted,
    and the DEL succeeded."""
    env = {"CNI_NETNS": "/proc/self/ns/uts"}
    with serving(directory, reply(0, b"warm")) as server:
        status, stdout, _ = run("sh", "-c", f"ulimit -n 4; exec {bridge}", env=variables(server, command, **env))
    error = json.loads(stdout)
    assert (status, error["code"]) == (1, 11) and error["msg"].endswith("Too many open files (errno 24)")
    assert not server.requests


def test_stdin_without_a_descriptor_for_its_memory_file_is_an_error(bridge, directory):
    with serving(directory, reply(0)) as server:
        status, stdout, _ = run("sh", "-c", f"ulimit -n 4; exec {bridge}", env=variables(server), stdin=LONG)
    error = json.loads(stdout)
    assert (status, error["code"]) == (1, 11)
    assert error["msg"] == "keep stdin in a memory file: Too many open files (errno 24)"
    assert not server.requests
