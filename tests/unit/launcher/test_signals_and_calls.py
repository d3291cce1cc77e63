"""Callers that are killed or stopped, and the launcher's system calls in warm mode."""

import json
import os
import signal
import subprocess
import threading
from contextlib import suppress

import pytest
from unit.launcher.stub_server import (
    FULL,
    LONG,
    asked,
    reply,
    run,
    serving,
    started,
    strace_command,
    variables,
    waits_in_the_kernel,
)

from fastcni.testing.witnesses import eventually


def test_the_server_sees_that_a_caller_was_killed(bridge, directory):
    there, seen = threading.Event(), []

    def answer(conn, _):
        there.set()
        conn.settimeout(30)
        seen.append(conn.recv(1))

    with serving(directory, answer) as server, started(bridge, env=variables(server),
                                                       stdin=subprocess.DEVNULL) as running:
        assert there.wait(30)
        running.kill()
    assert seen == [b""]


def test_a_caller_that_was_stopped_for_a_while_gets_its_answer(bridge, directory):
    """The test stops the launcher while it waits for stdin, and again while it waits for the answer."""
    there, go = threading.Event(), threading.Event()

    def answer(conn, _):
        there.set()
        assert go.wait(30)
        conn.send(reply(0, b"warm"))

    def stop_and_go_on():
        assert eventually(lambda: waits_in_the_kernel(running.pid))
        running.send_signal(signal.SIGSTOP)
        assert eventually(lambda: waits_in_the_kernel(running.pid, "T"))
        running.send_signal(signal.SIGCONT)

    here, writer = os.pipe()
    os.set_blocking(here, False)
    with serving(directory, answer) as server, started(bridge, env=variables(server), stdin=here) as running:
        os.close(here)
        stop_and_go_on()
        os.write(writer, b"{}")
        os.close(writer)
        assert there.wait(30)
        stop_and_go_on()
        go.set()
        assert running.communicate(timeout=30)[0] == b"warm"
    assert server.requests[0].stdin == b"{}"


@pytest.fixture
def strace(directory):
    return strace_command(directory)


def test_a_warm_request_is_twelve_system_calls(bridge, directory, strace):
    asked(bridge, directory, args=[*strace, bridge], CNI_NETNS="/proc/self/ns/uts")
    calls = [line.split("(")[0] for line in (directory / "trace").read_text().splitlines() if "(" in line]
    assert " ".join(calls) == "execve socket connect openat read read sendmsg ioctl setsockopt recvmsg write exit_group"


def test_an_interrupted_call_is_repeated(bridge, directory, strace):
    calls = ("connect", "openat", "read", "sendmsg", "ioctl", "setsockopt", "recvmsg", "write")
    for call in calls:
        strace += ["-e", f"inject={call}:error=EINTR:when=1"]
    assert asked(bridge, directory, args=[*strace, bridge], CNI_NETNS="/proc/self/ns/uts", stdin=FULL).stdin == FULL
    assert (directory / "trace").read_text().count("(INJECTED)") == len(calls)


def test_a_kernel_without_the_seal_gets_a_request_without_it(bridge, directory, strace):
    """Linux before 6.3 rejects MFD_NOEXEC_SEAL with EINVAL."""
    strace += ["-e", "inject=memfd_create:error=EINVAL:when=1"]
    assert run(*strace, bridge, env=variables(""), stdin=LONG)[1].endswith(LONG)


@pytest.mark.parametrize("fault", ["socket:error=EAFNOSUPPORT", "connect:error=EACCES", "connect:error=EAGAIN",
                                   "sendmsg:error=EAGAIN", "sendmsg:error=EMSGSIZE", "sendmsg:error=EPIPE"])
def test_a_failure_before_the_request_is_sent_goes_one_shot(bridge, directory, strace, fault):
    alone = run(bridge, env=variables(""), stdin=FULL)
    strace += ["-e", f"inject={fault}"]
    with serving(directory, reply(0, b"warm")) as server:
        assert run(*strace, bridge, env=variables(server), stdin=FULL) == alone
    assert not server.requests
    assert "(INJECTED)" in (directory / "trace").read_text()


def test_an_answer_is_received_again_after_a_lack_of_memory(bridge, directory, strace):
    """Once, the launcher reported a successful ADD as failed. Its links and addresses remained until the DEL."""
    strace += ["-e", "inject=recvmsg:error=ENOMEM:when=1", "-e", "inject=ppoll:error=EINTR:when=1"]
    with serving(directory, reply(0, b"warm")) as server:
        assert run(*strace, bridge, env=variables(server)) == (0, b"warm", b"")
    assert (directory / "trace").read_text().count("(INJECTED)") == 2


def test_an_answer_that_cannot_be_received_is_lost(bridge, directory, strace):
    """The launcher may leave before the server writes the answer."""
    def answer(conn, _):
        with suppress(BrokenPipeError):
            conn.send(reply(0, b"warm"))

    strace += ["-e", "inject=recvmsg:error=ENOMEM"]
    with serving(directory, answer) as server:
        status, stdout, _ = run(*strace, bridge, env=variables(server))
    assert (status, json.loads(stdout)["code"]) == (1, 11)
