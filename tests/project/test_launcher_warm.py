"""The launcher's warm door: what it asks a server, what it prints, and when it goes one-shot all the same.

The server here is a thread that says what the test wants. Python behind the launcher is a shell script that says
that it was started and prints its stdin, so that every road to one-shot can be compared with having no server.
"""

import array
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastcni.launcher import pack
from fastcni.launcher.install import base_interpreter, checked_interpreter

HEAD = struct.Struct("=4sIII")
OWN, NETNS, STDIN = 1, 2, 4
DECLINED = 2
ROOM = 128 << 10                # of the launcher, for environment and stdin, and for both streams of an answer
MAX_STDIN = 32 << 20
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
LONG = bytes(range(256)) * 800  # more than a message has room for
INSTEAD_OF_PYTHON = """\
#!/bin/sh
name=$6
set -- $(ls /proc/self/fd)
echo "one-shot $name, $CNI_COMMAND, $# open files, stdin:"
cat
exit 3
"""


@pytest.fixture(scope="module")
def folder():
    """Not tmp_path, which may be too long for the address of a socket."""
    path = tempfile.mkdtemp(prefix="fcni-")
    yield Path(path)
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def bridge(folder):
    """A plugin file with the script for Python."""
    script = write_executable(folder / "python", INSTEAD_OF_PYTHON.encode())
    return write_executable(folder / "bridge", pack.pack(str(script)))


def write_executable(path, data):
    path.write_bytes(data)
    path.chmod(0o755)
    return path


# ---- a server ----


class Request:
    """What arrived: the message, its head, and of each descriptor what /proc calls it; stdin, wherever it was."""

    def __init__(self, data, fds):
        self.data = data
        self.magic, self.version, self.descriptors, size = HEAD.unpack_from(data)
        block = data[HEAD.size:HEAD.size + size]
        assert block.endswith(b"\0")
        self.strings = block[:-1].decode().split("\0")
        self.stdin = data[HEAD.size + size:]
        self.files = [os.readlink(f"/proc/self/fd/{fd}") for fd in fds]
        if self.descriptors & STDIN:
            assert not self.stdin
            self.stdin = os.pread(fds[-1], os.fstat(fds[-1]).st_size, 0)


def receive(conn):
    """The Request that comes next, None if the caller went without one."""
    data, ancillary, flags, _ = conn.recvmsg(1 << 20, socket.CMSG_SPACE(32), socket.MSG_CMSG_CLOEXEC)
    assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
    fds = array.array("i", b"".join(sent for _, _, sent in ancillary))
    try:
        return Request(data, fds) if data else None
    finally:
        for fd in fds:
            os.close(fd)


def reply(status, stdout=b"", stderr=b"", magic=b"fcni", version=1):
    return HEAD.pack(magic, version, status, len(stderr)) + stderr + stdout


def send_in_memory(conn, status, stdout, stderr, more=b"", files=1):
    memory = os.memfd_create("answer")
    with open(memory, "wb") as file:            # which leaves its position at the end
        file.write(stderr + stdout)
        file.flush()
        head = HEAD.pack(b"fcni", 1, status, len(stderr)) + more
        conn.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory] * files))])


class Server:
    def __init__(self, path):
        self.path, self.requests, self.faults = path, [], []


@contextmanager
def serving(folder, answer):
    """A Server; answer is the message that it sends, or a function that is called with (connection, request).

    Where that function is marked `unread` it has the connection alone, and nothing is read for it.
    """
    server = Server(str(folder / "server"))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(server.path)
    listener.listen(8)

    def serve():
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return                          # the test is over
            with conn:
                try:
                    if getattr(answer, "unread", False):
                        answer(conn)
                    elif request := receive(conn):
                        server.requests.append(request)
                        conn.send(answer) if isinstance(answer, bytes) else answer(conn, request)
                except Exception as error:
                    server.faults.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()
        os.unlink(server.path)
    assert not server.faults


# ---- a run ----


def variables(server, command="ADD", **more):
    return {"PATH": PATH, "CNI_COMMAND": command, "FASTCNI_SOCKET": getattr(server, "path", server)} | more


def run(*words, env, stdin=b"{}", **more):
    """(status, stdout, stderr) of a plugin; stdin: bytes or a file."""
    given = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    done = subprocess.run(words, env=env, capture_output=True, timeout=60, check=False, **given, **more)
    return done.returncode, done.stdout, done.stderr


@contextmanager
def started(*words, **more):
    """A plugin that runs on while the test does; it does not outlive it."""
    with subprocess.Popen(words, **({"stdout": subprocess.PIPE} | more)) as running:
        try:
            yield running
        finally:
            running.kill()


def asked(bridge, folder, stdin=b"{}", words=None, **env):
    """The one request of a run with these variables."""
    with serving(folder, reply(0, b"warm")) as server:
        assert run(*(words or [bridge]), env=variables(server, **env), stdin=stdin) == (0, b"warm", b"")
    (request,) = server.requests
    return request


# ---- the request ----


def test_request_is_these_bytes(bridge, folder):
    request = asked(bridge, folder, command="DEL", CNI_IFNAME="eth0", HOME="/", TRACEPARENT="00-1", stdin=b'{"a":1}')
    assert [request.data[at:at + 4].hex(" ") for at in range(0, len(request.data), 4)] == [
        "66 63 6e 69",  # fcni
        "01 00 00 00",  # version 1
        "01 00 00 00",  # OWN
        "38 00 00 00",  # 56 bytes of environment
        "62 72 69 64",  # brid
        "67 65 00 43",  # ge\0C
        "4e 49 5f 43",  # NI_C
        "4f 4d 4d 41",  # OMMA
        "4e 44 3d 44",  # ND=D
        "45 4c 00 43",  # EL\0C
        "4e 49 5f 49",  # NI_I
        "46 4e 41 4d",  # FNAM
        "45 3d 65 74",  # E=et
        "68 30 00 54",  # h0\0T
        "52 41 43 45",  # RACE
        "50 41 52 45",  # PARE
        "4e 54 3d 30",  # NT=0
        "30 2d 31 00",  # 0-1\0
        "7b 22 61 22",  # {"a"
        "3a 31 7d",  # :1}
    ]


def test_variables_for_plugins_travel_and_no_others(bridge, folder):
    env = {"CNI_NETNS": "", "CNI_ARGS": "A=1;B=ü", "CNI_NETNS_OVERRIDE": "1", "CNI_": "x", "TRACEPARENT": "00-1",
           "TRACESTATE": "a=b", "BAGGAGE": "c=d"}
    others = {"HOME": "/", "XCNI_ARGS": "no", "CNI": "no", "cni_args": "no", "BAGGAGES": "no", "TRACE": "no",
              "FASTCNI_WIRE": ""}
    request = asked(bridge, folder, command="CHECK", **others, **env)
    assert (request.magic, request.version) == (b"fcni", 1)
    assert request.strings == ["bridge", "CNI_COMMAND=CHECK", *(f"{name}={value}" for name, value in env.items())]


def test_name_is_the_one_it_was_called_by(bridge, folder):
    with serving(folder, reply(0)) as server:
        for name in ("loopback", "/opt/cni/bin/host-local"):
            assert run(name, executable=bridge, env=variables(server)) == (0, b"", b"")
    assert [request.strings[0] for request in server.requests] == ["loopback", "host-local"]


def test_namespaces_are_open_and_in_order(bridge, folder):
    """A namespace of another kind stands for the pod's, which would need root."""
    request = asked(bridge, folder, CNI_NETNS="/proc/self/ns/uts")
    assert request.descriptors == OWN | NETNS
    assert request.files == [os.readlink("/proc/self/ns/net"), os.readlink("/proc/self/ns/uts")]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a network namespace")
def test_own_namespace_is_the_callers_and_not_the_servers(bridge, folder):
    request = asked(bridge, folder, words=["unshare", "-n", bridge])
    (own,) = request.files
    assert own.startswith("net:[")
    assert own != os.readlink("/proc/self/ns/net")


@pytest.mark.parametrize("netns", [None, "", "/nowhere/netns", "/proc/self/ns/net/", "x" * 5000])
def test_namespace_that_cannot_be_opened_is_left_out(bridge, folder, netns):
    request = asked(bridge, folder, **({} if netns is None else {"CNI_NETNS": netns}))
    assert (request.descriptors, len(request.files)) == (OWN, 1)
    assert netns is None or f"CNI_NETNS={netns}" in request.strings


def test_pipe_in_the_place_of_a_namespace_is_not_waited_for(bridge, folder):
    os.mkfifo(folder / "pipe")
    assert asked(bridge, folder, CNI_NETNS=str(folder / "pipe")).files[1] == str(folder / "pipe")


def test_version_leaves_stdin_alone(bridge, folder):
    here, there = os.pipe()                     # nothing comes out of it, not even an end
    try:
        request = asked(bridge, folder, command="VERSION", stdin=here)
    finally:
        os.close(here)
        os.close(there)
    assert (request.stdin, request.descriptors) == (b"", OWN)


# ---- stdin ----


def test_stdin_fills_the_message_and_then_a_memory_file(bridge, folder):
    """At the seam: what leaves no room for one byte more goes whole into the memory file."""
    room = ROOM - len(b"bridge\0CNI_COMMAND=ADD\0")
    for size in (0, 1, room - 1, room, room + 1):
        request = asked(bridge, folder, stdin=LONG[:size])
        assert request.stdin == LONG[:size], size
        assert request.descriptors == (OWN if size < room else OWN | STDIN), size
        assert len(request.data) <= HEAD.size + ROOM


def test_large_stdin_is_handed_over_in_memory(bridge, folder):
    stdin = LONG * 100
    request = asked(bridge, folder, stdin=stdin, CNI_NETNS="/proc/self/ns/uts")
    assert request.descriptors == OWN | NETNS | STDIN
    assert request.files[2] == "/memfd:stdin (deleted)"
    assert request.stdin == stdin


def test_stdin_is_read_to_a_bound(bridge, folder):
    words = ["sh", "-c", f"ulimit -f {2 * MAX_STDIN // 512}; exec {bridge}"]    # or it takes all memory, if it fails
    with open("/dev/zero", "rb") as endless:
        request = asked(bridge, folder, stdin=endless, words=words)
    assert MAX_STDIN < len(request.stdin) < MAX_STDIN + 2 * ROOM


def test_stdin_may_be_a_file(bridge, folder):
    with tempfile.TemporaryFile() as file:
        file.write(b"not this" + LONG)
        file.seek(8)
        assert asked(bridge, folder, stdin=file).stdin == LONG


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("size", [300, 3 * ROOM])
def test_stdin_that_comes_late_and_in_pieces_is_waited_for(bridge, folder, blocking, size):
    data, piece = (LONG * 2)[:size], size // 3
    here, there = os.pipe()
    os.set_blocking(here, blocking)
    with serving(folder, reply(0, b"warm")) as server, started(bridge, env=variables(server), stdin=here) as running:
        os.close(here)
        with open(there, "wb", buffering=0) as writer:
            for at in range(0, size, piece):
                time.sleep(0.02)
                left = data[at:at + piece]
                while left:
                    left = left[writer.write(left):]
        assert running.communicate(timeout=60)[0] == b"warm"
    assert server.requests[0].stdin == data


def test_environment_may_fill_most_of_the_message(bridge, folder):
    arguments = "x" * 120_000
    request = asked(bridge, folder, CNI_ARGS=arguments, stdin=LONG)
    assert f"CNI_ARGS={arguments}" in request.strings
    assert request.stdin == LONG


# ---- the answer ----


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("stdout, stderr", [(b"", b""), (b"out\xff", b""), (b"", b"aside\n"), (b"out", b"aside\n"),
                                            (LONG[:ROOM - 6], b"aside\n"), (b"out", LONG[:ROOM - 3])])
def test_answer_goes_to_both_streams(bridge, folder, status, stdout, stderr):
    with serving(folder, reply(status, stdout, stderr)) as server:
        assert run(bridge, env=variables(server)) == (status, stdout, stderr)


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("stdout, stderr", [(b"", b""), (b"out", b""), (b"out", b"aside\n"), (LONG * 20, b"aside\n"),
                                            (LONG * 20, LONG + b"!"), (b"", LONG)])
def test_answer_in_memory_goes_to_both_streams(bridge, folder, status, stdout, stderr):
    def answer(conn, _):
        send_in_memory(conn, status, stdout, stderr)

    with serving(folder, answer) as server:
        assert run(bridge, env=variables(server)) == (status, stdout, stderr)


def test_answer_to_a_slow_reader_is_written_whole(bridge, folder):
    here, there = os.pipe()
    os.set_blocking(there, False)
    with serving(folder, lambda conn, _: send_in_memory(conn, 0, LONG * 5, b"")) as server, started(
            bridge, env=variables(server), stdin=subprocess.DEVNULL, stdout=there) as running:
        os.close(there)
        time.sleep(0.05)
        with open(here, "rb") as reader:
            assert reader.read() == LONG * 5
        assert running.wait(60) == 0


def test_answer_that_cannot_be_written_is_a_failure(bridge, folder):
    def in_memory(conn, _):
        send_in_memory(conn, 0, LONG, b"")

    for answer in (reply(0, b"out"), in_memory):
        with serving(folder, answer) as server, open("/dev/full", "wb") as full:
            done = subprocess.run([bridge], env=variables(server), stdin=subprocess.DEVNULL, stdout=full, check=False)
        assert done.returncode == 1


def test_stderr_that_nobody_reads_does_not_cost_the_answer(bridge, folder):
    here, there = os.pipe()
    os.close(here)
    with serving(folder, reply(0, b"out", b"aside")) as server:
        done = subprocess.run([bridge], env=variables(server), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=there, check=False)
    os.close(there)
    assert (done.returncode, done.stdout) == (0, b"out")


# ---- one-shot: nothing was done ----


def unread(function):
    function.unread = True
    return function


@unread
def closed_at_once(conn):
    pass


@unread
def closed_unread(conn):
    """ECONNRESET for the caller: the request is there, and goes with the connection."""
    select.select([conn], [], [])


@unread
def answered_unread(conn):
    """A server that declines whoever comes: the reset overtakes its word."""
    select.select([conn], [], [])
    conn.send(reply(DECLINED))


NOTHING_DONE = {
    "closed at once": closed_at_once,
    "closed unread": closed_unread,
    "answered unread": answered_unread,
    "declined": reply(DECLINED),
    "declined with words": reply(DECLINED, LONG[:ROOM], b""),
    "another version": reply(0, b"out", version=2),
    "another magic": reply(0, b"out", magic=b"FCNI"),
    "garbage": LONG[:100_000],
    "too short": reply(0)[:15],
}


@pytest.mark.parametrize("stdin", [b"{}", LONG, b""], ids=["short", "long", "empty"])
@pytest.mark.parametrize("command", ["ADD", "DEL"])
@pytest.mark.parametrize("why", NOTHING_DONE)
def test_request_that_was_not_worked_on_is_done_one_shot(bridge, folder, why, command, stdin):
    """With its stdin, and with no open file more than otherwise."""
    alone = run(bridge, env=variables("", command), stdin=stdin)
    assert (alone[0], alone[1].splitlines()[0][:20]) == (3, f"one-shot bridge, {command}".encode())
    assert alone[1].endswith(b"stdin:\n" + stdin)
    with serving(folder, NOTHING_DONE[why]) as server:
        assert run(bridge, env=variables(server, command, CNI_NETNS="/proc/self/ns/net"), stdin=stdin) == alone


def test_memory_of_an_answer_that_is_none_stays_behind(bridge, folder):
    alone = run(bridge, env=variables(""))
    with serving(folder, lambda conn, _: send_in_memory(conn, DECLINED, b"out", b"")) as server:
        assert run(bridge, env=variables(server)) == alone


def test_python_gives_the_same_answer_after_a_server_has_declined(folder, tmp_path):
    """host-local's result shows that stdin came through; its file that it was asked once."""
    plugin = write_executable(folder / "host-local", pack.pack(checked_interpreter(base_interpreter())))
    more = {"CNI_CONTAINERID": "x", "CNI_IFNAME": "eth0", "CNI_NETNS": "/nowhere", "CNI_PATH": "/nowhere"}
    answers = []
    with serving(folder, reply(DECLINED)) as server:
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
def test_request_that_is_not_for_a_server_does_not_go_there(bridge, folder, env):
    alone = run(bridge, env=variables("") | env, stdin=LONG)
    assert alone[1].endswith(LONG)
    with serving(folder, reply(0, b"warm")) as server:
        assert run(bridge, env=variables(server) | env, stdin=LONG) == alone
    assert not server.requests


def test_plugin_started_by_hand_does_not_ask_a_server(bridge, folder):
    with serving(folder, reply(0, b"warm")) as server:
        env = variables(server)
        del env["CNI_COMMAND"]
        assert run(bridge, env=env)[0] == 3
    assert not server.requests


def test_address_is_the_one_of_the_unit_if_none_is_given(bridge):
    assert b"\0/run/fastcni/fastcni.sock\0" in bridge.read_bytes()


def listener_of(kind, path):
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(path)
    listener.listen(0)
    return listener


def test_server_that_is_not_there_is_not_missed(bridge, folder):
    alone = run(bridge, env=variables(""), stdin=LONG)
    assert alone[1].endswith(LONG)
    left, other = str(folder / "left"), str(folder / "other")
    listener_of(socket.SOCK_SEQPACKET, left).close()            # nobody listens: ECONNREFUSED
    with listener_of(socket.SOCK_STREAM, other):                # EPROTOTYPE
        for path in ("/nowhere/socket", left, other, str(folder), str(bridge) + "/x", "/" + "x" * 107, "x" * 5000):
            assert run(bridge, env=variables(path), stdin=LONG) == alone, path
    os.unlink(left)
    os.unlink(other)


def test_longest_address_of_a_socket_is_tried(bridge, folder):
    deep = folder / "d" / ("d" * (107 - len(f"{folder}/d//server")))
    deep.mkdir(parents=True)
    assert len(str(deep / "server")) == 107
    assert asked(bridge, deep).stdin == b"{}"


def test_server_with_too_many_waiting_is_not_waited_for(bridge, folder):
    alone = run(bridge, env=variables(""))
    path, waiting = str(folder / "full"), []
    with listener_of(socket.SOCK_SEQPACKET, path):
        with pytest.raises(BlockingIOError):
            while True:
                waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK))
                waiting[-1].connect(path)
        assert run(bridge, env=variables(path)) == alone
    for each in waiting:
        each.close()


def test_server_that_goes_before_it_has_accepted_has_done_nothing(bridge, folder):
    """The connection waits in the backlog with the request in it; with the listener both go."""
    alone = run(bridge, env=variables(""), stdin=LONG)
    path = str(folder / "backlog")
    with listener_of(socket.SOCK_SEQPACKET, path) as listener, tempfile.TemporaryFile() as stdin:
        stdin.write(LONG)
        stdin.seek(0)
        with started(bridge, env=variables(path), stdin=stdin) as running:
            until(lambda: waits_in_the_kernel(running.pid))
            listener.close()
            assert running.communicate(timeout=60)[0] == alone[1]
            assert running.returncode == alone[0]


def until(what):
    for _ in range(1000):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("it has not come to that within ten seconds")


def waits_in_the_kernel(pid, state="S"):
    """Asleep as the launcher: not the shell that starts it, nor Python."""
    if os.path.basename(os.readlink(f"/proc/{pid}/exe")) != "bridge":
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == state


# ---- lost ----


def went_away(conn, _):
    """The request was read: an end of file for the caller."""


LOST = {
    "closed": went_away,
    "a status that is none": reply(3),
    "stderr that is longer than the message": HEAD.pack(b"fcni", 1, 0, 5) + b"four",
    "streams that do not fit": reply(0, LONG[:ROOM + 1]),
    "memory and more": lambda conn, _: send_in_memory(conn, 0, b"out", b"", more=b"x"),
    "two memory files": lambda conn, _: send_in_memory(conn, 0, b"out", b"", files=2),
}


@pytest.mark.parametrize("why", LOST)
def test_add_that_was_lost_is_for_the_runtime_to_repeat(bridge, folder, why):
    """It may have changed something: no second ADD on top of it."""
    with serving(folder, LOST[why]) as server:
        status, stdout, stderr = run(bridge, env=variables(server), stdin=LONG)
    error = json.loads(stdout)
    assert (status, stderr, error["code"]) == (1, b"", 11)
    assert error["msg"] == "the fastcni server was lost while it worked on this ADD"
    assert "DEL" in error["details"]


@pytest.mark.parametrize("stdin", [b"{}", LONG], ids=["short", "long"])
@pytest.mark.parametrize("command", ["DEL", "CHECK", "GC", "STATUS", "VERSION", "ADDX", "AD"])
def test_other_command_that_was_lost_is_done_again_one_shot(bridge, folder, command, stdin):
    alone = run(bridge, env=variables("", command), stdin=stdin)
    for answer in LOST.values():
        with serving(folder, answer) as server:
            assert run(bridge, env=variables(server, command), stdin=stdin) == alone
        assert len(server.requests) == 1


def test_server_that_has_moved_the_position_in_stdin_does_no_harm(bridge, folder):
    """A memory file has one position, whoever holds it."""
    @unread
    def answer(conn):
        _, [(_, _, sent)], _, _ = conn.recvmsg(1 << 20, 64)
        fds = array.array("i", sent)
        assert os.lseek(fds[1], 7, os.SEEK_SET) == 7
        for fd in fds:
            os.close(fd)

    alone = run(bridge, env=variables("", "DEL"), stdin=LONG)
    with serving(folder, answer) as server:
        assert run(bridge, env=variables(server, "DEL"), stdin=LONG) == alone


# ---- callers who give little ----


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_caller_that_has_closed_a_stream_is_served_one_shot(bridge, folder, closed):
    """The first descriptor would land there. No runtime does that; Python has the words for it."""
    words = ["sh", "-c", f"exec {' '.join(f'{fd}>&-' for fd in closed)}; exec {bridge}"]
    alone = run(*words, env=variables(""))
    with serving(folder, reply(0, b"warm")) as server:
        assert run(*words, env=variables(server)) == alone
    assert not server.requests


def test_stdin_that_cannot_be_read_is_left_to_python(bridge, folder):
    for path, flags in ((folder, os.O_RDONLY), ("/dev/null", os.O_WRONLY)):
        stdin = os.open(path, flags)
        alone = run(bridge, env=variables(""), stdin=stdin)
        with serving(folder, reply(0, b"warm")) as server:
            assert run(bridge, env=variables(server), stdin=stdin) == alone
        os.close(stdin)
        assert alone[2].startswith(b"cat:")
        assert not server.requests


def test_answer_for_which_there_is_no_descriptor_is_lost(bridge, folder):
    with serving(folder, lambda conn, _: send_in_memory(conn, 0, b"out", b"")) as server:
        status, stdout, _ = run("sh", "-c", f"ulimit -n 5; exec {bridge}", env=variables(server))
    assert (status, json.loads(stdout)["code"]) == (1, 11)


def test_stdin_that_nothing_can_hold_is_said_in_words(bridge, folder):
    with serving(folder, reply(0)) as server:
        status, stdout, _ = run("sh", "-c", f"ulimit -n 5; exec {bridge}", env=variables(server), stdin=LONG)
    error = json.loads(stdout)
    assert (status, error["code"]) == (1, 5)
    assert error["msg"] == "keep stdin in a memory file: Too many open files (errno 24)"
    assert not server.requests


# ---- signals ----


def test_caller_that_is_killed_is_seen_to_be_gone(bridge, folder):
    there, seen = threading.Event(), []

    def answer(conn, _):
        there.set()
        conn.settimeout(30)
        seen.append(conn.recv(1))

    with serving(folder, answer) as server, started(bridge, env=variables(server), stdin=subprocess.DEVNULL) as running:
        assert there.wait(30)
        running.kill()
    assert seen == [b""]


def test_caller_that_is_stopped_for_a_while_has_its_answer(bridge, folder):
    """Once while it waits for stdin, and once for the answer."""
    there, go = threading.Event(), threading.Event()

    def answer(conn, _):
        there.set()
        assert go.wait(30)
        conn.send(reply(0, b"warm"))

    def stop_and_go_on():
        until(lambda: waits_in_the_kernel(running.pid))
        running.send_signal(signal.SIGSTOP)
        until(lambda: waits_in_the_kernel(running.pid, "T"))
        running.send_signal(signal.SIGCONT)

    here, writer = os.pipe()
    os.set_blocking(here, False)
    with serving(folder, answer) as server, started(bridge, env=variables(server), stdin=here) as running:
        os.close(here)
        stop_and_go_on()
        os.write(writer, b"{}")
        os.close(writer)
        assert there.wait(30)
        stop_and_go_on()
        go.set()
        assert running.communicate(timeout=30)[0] == b"warm"
    assert server.requests[0].stdin == b"{}"


# ---- system calls: which they are, and those that fail ----


@pytest.fixture
def strace(folder):
    """The words before a plugin's to trace it; add `-e inject=...` to them."""
    words = ["strace", "-o", str(folder / "trace")]
    if not shutil.which("strace"):
        pytest.skip("no strace")
    probe = subprocess.run([*words, "-e", "inject=read:error=EINTR:when=999", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no strace here: {probe.stderr.decode().strip()}")
    return words


def test_warm_request_is_a_dozen_system_calls(bridge, folder, strace):
    asked(bridge, folder, words=[*strace, bridge], CNI_NETNS="/proc/self/ns/uts")
    calls = [line.split("(")[0] for line in (folder / "trace").read_text().splitlines() if "(" in line]
    assert " ".join(calls) == "execve socket connect fcntl openat openat read read sendmsg recvmsg write exit_group"


def test_interrupted_call_is_made_again(bridge, folder, strace):
    calls = ("connect", "openat", "read", "memfd_create", "sendmsg", "recvmsg", "write")
    for call in calls:
        strace += ["-e", f"inject={call}:error=EINTR:when=1"]
    assert asked(bridge, folder, words=[*strace, bridge], stdin=LONG).stdin == LONG
    assert (folder / "trace").read_text().count("(INJECTED)") == len(calls)


def test_kernel_that_does_not_know_the_seal_is_asked_without(bridge, folder, strace):
    """MFD_NOEXEC_SEAL came with Linux 6.3."""
    strace += ["-e", "inject=memfd_create:error=EINVAL:when=1"]
    assert asked(bridge, folder, words=[*strace, bridge], stdin=LONG).stdin == LONG


@pytest.mark.parametrize("fault", ["socket:error=EAFNOSUPPORT", "connect:error=EACCES", "openat:error=ENOENT:when=1",
                                   "fcntl:error=EPERM:when=1", "sendmsg:error=EMSGSIZE", "sendmsg:error=EPIPE"])
def test_what_fails_before_the_request_is_sent_is_done_one_shot(bridge, folder, strace, fault):
    alone = run(bridge, env=variables(""), stdin=LONG)
    strace += ["-e", f"inject={fault}"]
    with serving(folder, reply(0, b"warm")) as server:
        assert run(*strace, bridge, env=variables(server), stdin=LONG) == alone
    assert not server.requests
    assert "(INJECTED)" in (folder / "trace").read_text()


def test_answer_that_cannot_be_received_is_lost(bridge, folder, strace):
    strace += ["-e", "inject=recvmsg:error=ENOMEM"]
    with serving(folder, reply(0, b"warm")) as server:
        status, stdout, _ = run(*strace, bridge, env=variables(server))
    assert (status, json.loads(stdout)["code"]) == (1, 11)
