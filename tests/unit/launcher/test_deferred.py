"""A one-shot plugin leaves work to a child process. The test checks which of the two closes a socket last."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

import fastcni
from fastcni.kernel import uapi
from fastcni.kit.call.mode import Mode

ROOT = str(Path(fastcni.__file__).parent.parent)
# A process that leaves a "socket" to a child and prints the child's pid. It ends when its stdin ends.
PARENT = """
import posix, sys
sys.path.append({root!r})
from fastcni.launcher import one_shot
hold_files = one_shot.hold_files
one_shot.hold_files = lambda *pipe: posix.write(1, b"%d\\n" % hold_files(*pipe))
one_shot.OneShotMode(None).close_later({sock})
posix.read(0, 1)
posix._exit(0)
"""


@pytest.fixture
def parent():
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", PARENT.format(root=ROOT, sock="None")],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def ended(pidfd, seconds):
    return bool(select.select([pidfd], [], [], seconds)[0])


@pytest.mark.parametrize("end", ["by itself", "killed"])
def test_the_child_that_closes_last_ends_after_the_plugin(parent, end):
    """Once, under load, the child closed the socket before the plugin. The plugin's close() was then the last close and
    waited for RCU: each of twenty parallel DELs took 20 to 40 ms more."""
    pidfd = os.pidfd_open(int(parent.stdout.readline()))
    try:
        assert not ended(pidfd, 0.5)
        parent.kill() if end == "killed" else parent.stdin.close()
        parent.wait(30)
        assert ended(pidfd, 30)
    finally:
        os.close(pidfd)


def test_the_child_holds_none_of_the_callers_streams(parent):
    child = int(parent.stdout.readline())
    pidfd = os.pidfd_open(child)
    try:
        parent.stdin.close()
        assert parent.stdout.read() == b""          # a child that has this stdout would keep the pipe open
        assert ended(pidfd, 30)
    finally:
        os.close(pidfd)


def test_a_mode_defers_the_close_of_a_netfilter_socket():
    closed = []

    class Later(Mode):
        def close_later(self, sock):
            closed.append(sock)

    mode, sock = Later(), object()
    mode.sockets[uapi.NETLINK_NETFILTER] = sock
    mode.close()
    assert closed == [sock] and not mode.sockets


REFUSED = """
import errno, sys
sys.path.append({root!r})
from fastcni.kernel import wire
from fastcni.launcher import one_shot

def refuse(*_):
    raise OSError(errno.EAGAIN, "no process")

class Socket:
    def fileno(self):
        return 7
    def close(self):
        print("closed")

one_shot.hold_files = wire._processes.send_apart = refuse
wire._netlink.send = lambda fd, data: print("sent", fd, data)
mode = one_shot.OneShotMode(None)
mode.send_deletion(Socket(), b"data", None)
mode.close_later(Socket())
"""


def test_if_no_process_can_be_started_the_answer_waits():
    done = subprocess.run([sys.executable, "-I", "-S", "-c", REFUSED.format(root=ROOT)], capture_output=True, text=True,
                          timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("sent 7 b'data'\nclosed\n", "")


def test_what_another_process_sends_is_shown():
    code = ("import socket; from fastcni.kernel import waiting, wire; ours, theirs = socket.socketpair(); "
            "waiting.here.request = waiting.Request(); waiting.here.request.show = print; "
            "wire.send_apart(ours, b'data'); print(theirs.recv(9))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
                          cwd=ROOT)
    assert (done.stdout, done.stderr) == ("> b'data'\nb'data'\n", "")
