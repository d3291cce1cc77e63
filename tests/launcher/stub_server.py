"""The launcher's warm door: what it asks a server, what it prints, and when it goes one-shot all the same.

The server here is a thread that says what the test wants. Python behind the launcher is a shell script that says
that it was started and prints its stdin, so that every road to one-shot can be compared with having no server.
"""

import array
import os
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

HEAD = struct.Struct("=4sIII")
NETNS = 1
DECLINED = 2
BODY_BYTES = 128 << 10                # of the launcher, for environment and stdin, and for both streams of an answer
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
LONG = bytes(range(256)) * 800  # more than a message has room for
FULL = LONG[:120_000]           # less, but most of it
INSTEAD_OF_PYTHON = """\
#!/bin/sh
name=$6
set -- $(ls /proc/self/fd)
echo "one-shot $name, $CNI_COMMAND, $# open files, stdin:"
cat
exit 3
"""


def write_executable(path, data):
    path.write_bytes(data)
    path.chmod(0o755)
    return path


class Request:
    """What arrived: the message, its head, its stdin, and of each descriptor what /proc calls it."""

    def __init__(self, data, fds):
        self.data = data
        self.magic, self.version, self.descriptors, size = HEAD.unpack_from(data)
        block = data[HEAD.size:HEAD.size + size]
        assert block.endswith(b"\0")
        self.strings = block[:-1].decode().split("\0")
        self.stdin = data[HEAD.size + size:]
        self.files = [os.readlink(f"/proc/self/fd/{fd}") for fd in fds]


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


def reply(status, stdout=b"", stderr=b"", magic=b"fcni", version=2):
    return HEAD.pack(magic, version, status, len(stderr)) + stderr + stdout


def send_in_memory(conn, status, stdout, stderr, more=b"", files=1):
    memory = os.memfd_create("answer")
    with open(memory, "wb") as file:            # which leaves its position at the end
        file.write(stderr + stdout)
        file.flush()
        head = HEAD.pack(b"fcni", 2, status, len(stderr)) + more
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


def strace_words(folder, *more):
    """The arguments that trace a plugin into folder/trace; `more`: what strace -e takes. Skips without strace."""
    words = ["strace", "-o", str(folder / "trace")]
    if not shutil.which("strace"):
        pytest.skip("no strace")
    probe = subprocess.run([*words, "-e", "inject=read:error=EINTR:when=999", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no strace here: {probe.stderr.decode().strip()}")
    return [*words, *(word for each in more for word in ("-e", each))]


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


def went_away(conn, _):
    """The request was read: an end of file for the caller."""
