"""The request that the launcher sends to a server, and how it prints the answer."""

import os
import subprocess
import tempfile
import time

import pytest
from unit.launcher.stub_server import (
    BODY_BYTES,
    FULL,
    HEAD,
    LONG,
    asked,
    reply,
    run,
    send_in_memory,
    serving,
    started,
    variables,
)

NETNS = 1
MAX_STDIN = 32 << 20


def test_a_request_has_these_bytes(bridge, directory):
    request = asked(bridge, directory, command="DEL", CNI_IFNAME="eth0", HOME="/", TRACEPARENT="00-1", stdin=b'{"a":1}')
    assert [request.data[at:at + 4].hex(" ") for at in range(0, len(request.data), 4)] == [
        "66 63 6e 69",  # fcni
        "02 00 00 00",  # version 2
        "00 00 00 00",  # no descriptors
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


def test_only_the_variables_for_plugins_are_sent(bridge, directory):
    env = {"CNI_NETNS": "", "CNI_ARGS": "A=1;B=ü", "CNI_NETNS_OVERRIDE": "1", "CNI_": "x", "TRACEPARENT": "00-1",
           "TRACESTATE": "a=b", "BAGGAGE": "c=d"}
    others = {"HOME": "/", "XCNI_ARGS": "no", "CNI": "no", "cni_args": "no", "BAGGAGES": "no", "TRACE": "no",
              "FASTCNI_WIRE": ""}
    request = asked(bridge, directory, command="CHECK", **others, **env)
    assert (request.magic, request.version) == (b"fcni", 2)
    assert request.strings == ["bridge", "CNI_COMMAND=CHECK", *(f"{name}={value}" for name, value in env.items())]


def test_the_plugins_name_is_that_of_its_call(bridge, directory):
    with serving(directory, reply(0)) as server:
        for name in ("loopback", "/opt/cni/bin/host-local"):
            assert run(name, executable=bridge, env=variables(server)) == (0, b"", b"")
    assert [request.strings[0] for request in server.requests] == ["loopback", "host-local"]


def test_a_descriptor_of_the_pods_namespace_is_sent(bridge, directory):
    """Here CNI_NETNS is a UTS namespace, because a network namespace would need root."""
    request = asked(bridge, directory, CNI_NETNS="/proc/self/ns/uts")
    assert request.descriptors == NETNS
    assert request.files == [os.readlink("/proc/self/ns/uts")]


@pytest.mark.parametrize("netns", [None, "", "/nowhere/netns", "/proc/self/ns/net/", "x" * 5000])
def test_a_namespace_that_cannot_be_opened_is_not_sent(bridge, directory, netns):
    request = asked(bridge, directory, **({} if netns is None else {"CNI_NETNS": netns}))
    assert (request.descriptors, request.files) == (0, [])
    assert netns is None or f"CNI_NETNS={netns}" in request.strings


def test_the_launcher_does_not_wait_for_a_pipe_at_the_namespaces_path(bridge, directory):
    os.mkfifo(directory / "pipe")
    assert asked(bridge, directory, CNI_NETNS=str(directory / "pipe")).files == [str(directory / "pipe")]


def test_version_does_not_read_stdin(bridge, directory):
    here, there = os.pipe()                     # a pipe that is never readable and has no end of file
    try:
        request = asked(bridge, directory, command="VERSION", stdin=here)
    finally:
        os.close(here)
        os.close(there)
    assert (request.stdin, request.descriptors) == (b"", 0)


def test_stdin_may_fill_the_message(bridge, directory):
    """If stdin fills the message completely, the launcher cannot know whether stdin ends there. So it runs the request
    one-shot."""
    size_left = BODY_BYTES - len(b"bridge\0CNI_COMMAND=ADD\0")
    for size in (0, 1, size_left - 1):
        request = asked(bridge, directory, stdin=LONG[:size])
        assert request.stdin == LONG[:size], size
        assert len(request.data) <= HEAD.size + BODY_BYTES
    with serving(directory, reply(0, b"warm")) as server:
        assert run(bridge, env=variables(server), stdin=LONG[:size_left])[1].endswith(b"stdin:\n" + LONG[:size_left])
    assert not server.requests


def test_stdin_is_read_up_to_a_limit(bridge, directory):
    # if the test fails, this limit saves memory
    args = ["sh", "-c", f"ulimit -f {2 * MAX_STDIN // 512}; exec {bridge}"]
    with serving(directory, reply(0, b"warm")) as server, open("/dev/zero", "rb") as endless:
        _, stdout, _ = run(*args, env=variables(server), stdin=endless)
    assert MAX_STDIN < len(stdout) < MAX_STDIN + 3 * BODY_BYTES and not server.requests


def test_stdin_may_be_a_file(bridge, directory):
    with tempfile.TemporaryFile() as file:
        file.write(b"not this" + FULL)
        file.seek(8)
        assert asked(bridge, directory, stdin=file).stdin == FULL


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("size", [300, BODY_BYTES - 100])
def test_the_launcher_waits_for_stdin_that_comes_late_and_in_pieces(bridge, directory, blocking, size):
    data, piece = LONG[:size], size // 3
    here, there = os.pipe()
    os.set_blocking(here, blocking)
    with serving(directory, reply(0, b"warm")) as server, started(bridge, env=variables(server), stdin=here) as running:
        os.close(here)
        with open(there, "wb", buffering=0) as writer:
            for at in range(0, size, piece):
                time.sleep(0.02)
                left = data[at:at + piece]
                while left:
                    left = left[writer.write(left):]
        assert running.communicate(timeout=60)[0] == b"warm"
    assert server.requests[0].stdin == data


def test_the_environment_may_fill_most_of_the_message(bridge, directory):
    arguments = "x" * 120_000
    request = asked(bridge, directory, CNI_ARGS=arguments, stdin=LONG[:4000])
    assert f"CNI_ARGS={arguments}" in request.strings
    assert request.stdin == LONG[:4000]


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("stdout, stderr", [(b"", b""), (b"out\xff", b""), (b"", b"aside\n"), (b"out", b"aside\n"),
                                            (LONG[:BODY_BYTES - 6], b"aside\n"), (b"out", LONG[:BODY_BYTES - 3])])
def test_an_answer_goes_to_both_streams(bridge, directory, status, stdout, stderr):
    with serving(directory, reply(status, stdout, stderr)) as server:
        assert run(bridge, env=variables(server)) == (status, stdout, stderr)


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("stdout, stderr", [(b"", b""), (b"out", b""), (b"out", b"aside\n"), (LONG * 20, b"aside\n"),
                                            (LONG * 20, LONG + b"!"), (b"", LONG)])
def test_an_answer_in_a_memory_file_goes_to_both_streams(bridge, directory, status, stdout, stderr):
    def answer(conn, _):
        send_in_memory(conn, status, stdout, stderr)

    with serving(directory, answer) as server:
        assert run(bridge, env=variables(server)) == (status, stdout, stderr)


def test_an_answer_to_a_slow_reader_is_written_completely(bridge, directory):
    here, there = os.pipe()
    os.set_blocking(there, False)
    with serving(directory, lambda conn, _: send_in_memory(conn, 0, LONG * 5, b"")) as server, started(
            bridge, env=variables(server), stdin=subprocess.DEVNULL, stdout=there) as running:
        os.close(there)
        time.sleep(0.05)
        with open(here, "rb") as reader:
            assert reader.read() == LONG * 5
        assert running.wait(60) == 0


def test_an_answer_that_cannot_be_written_is_a_failure(bridge, directory):
    def in_memory(conn, _):
        send_in_memory(conn, 0, LONG, b"")

    for answer in (reply(0, b"out"), in_memory):
        with serving(directory, answer) as server, open("/dev/full", "wb") as full:
            done = subprocess.run([bridge], env=variables(server), stdin=subprocess.DEVNULL, stdout=full, check=False)
        assert done.returncode == 1


def test_a_closed_stderr_does_not_prevent_the_answer(bridge, directory):
    here, there = os.pipe()
    os.close(here)
    with serving(directory, reply(0, b"out", b"aside")) as server:
        done = subprocess.run([bridge], env=variables(server), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=there, check=False)
    os.close(there)
    assert (done.returncode, done.stdout) == (0, b"out")
