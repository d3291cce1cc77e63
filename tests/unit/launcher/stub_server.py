"""Stubs for tests of the launcher: a server for warm mode, and a script in place of Python for one-shot mode.

The server is a thread that sends the test's answer. The script prints its name and its stdin. So tests compare each
request that falls back to one-shot with a run without a server.
"""

import array
import os
import select
import shutil
import socket
import struct
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

HEAD = struct.Struct("=4sIII")
NETNS = 1
DECLINED = 2
BODY_BYTES = 128 << 10                # the body of a message is environment and stdin, or the two streams of an answer
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
LONG = bytes(range(256)) * 800  # too long for one message
FULL = LONG[:120_000]           # fills most of one message
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
    """A received request: the message, its head, its stdin, and the link in /proc of each descriptor."""

    def __init__(self, data, fds):
        self.data = data
        self.magic, self.version, self.descriptors, size = HEAD.unpack_from(data)
        block = data[HEAD.size:HEAD.size + size]
        assert block.endswith(b"\0")
        self.strings = block[:-1].decode().split("\0")
        self.stdin = data[HEAD.size + size:]
        self.files = [os.readlink(f"/proc/self/fd/{fd}") for fd in fds]


def receive(conn):
    """Return the next Request, or None if the caller has closed the connection."""
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
    with open(memory, "wb") as file:            # the file's position stays at its end
        file.write(stderr + stdout)
        file.flush()
        head = HEAD.pack(b"fcni", 2, status, len(stderr)) + more
        conn.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory] * files))])


class Server:
    def __init__(self, path):
        self.path, self.requests, self.faults = path, [], []


@contextmanager
def serving(directory, answer):
    """Run a Server. answer: the message that it sends, or a function of (connection, request).

    A function marked `@unread` gets only the connection, with the request unread.
    """
    server = Server(str(directory / "server"))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(server.path)
    listener.listen(8)

    def serve():
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return                          # the test has ended
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


def run(*args, env, stdin=b"{}", **more):
    """Run a plugin. Return (status, stdout, stderr). stdin: bytes or a file."""
    given = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    done = subprocess.run(args, env=env, capture_output=True, timeout=60, check=False, **given, **more)
    return done.returncode, done.stdout, done.stderr


@contextmanager
def started(*args, **more):
    """Start a plugin that runs during the block. Kill the plugin at the end."""
    with subprocess.Popen(args, **({"stdout": subprocess.PIPE} | more)) as running:
        try:
            yield running
        finally:
            running.kill()


def asked(bridge, directory, stdin=b"{}", args=None, **env):
    """Run a plugin with these variables through a Server. Return the only request that the server gets."""
    with serving(directory, reply(0, b"warm")) as server:
        assert run(*(args or [bridge]), env=variables(server, **env), stdin=stdin) == (0, b"warm", b"")
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
    """Close the connection without reading the request. The caller gets ECONNRESET."""
    select.select([conn], [], [])


@unread
def answered_unread(conn):
    """Send DECLINED without reading the request. The caller gets ECONNRESET before this answer."""
    select.select([conn], [], [])
    conn.send(reply(DECLINED))


def strace_command(directory, *more):
    """Return the words of strace that trace a plugin into directory/trace. more: values of strace's -e. Skip the test
    without strace."""
    args = ["strace", "-o", str(directory / "trace")]
    if not shutil.which("strace"):
        pytest.skip("no strace")
    probe = subprocess.run([*args, "-e", "inject=read:error=EINTR:when=999", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no strace here: {probe.stderr.decode().strip()}")
    return [*args, *(word for each in more for word in ("-e", each))]


def waits_in_the_kernel(pid, state="S"):
    """Return whether the launcher waits in the kernel. Before, the process is a shell; later, it is Python."""
    if os.path.basename(os.readlink(f"/proc/{pid}/exe")) != "bridge":
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == state


def went_away(conn, _):
    """Close the connection after the server has read the request. The caller gets an end of file."""
