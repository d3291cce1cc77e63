"""The bytes of the messages in warm mode. The server declines all other messages."""

import array
import errno
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.server.client import HEAD, Answer, block, packed

from fastcni.kit.call.request import Reply
from fastcni.server.requests import protocol, workers
from fastcni.server.requests.protocol import NETNS, Declined, Lost


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def pair(collector_off):
    sock, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    conn = protocol.Connection(sock.detach())
    with peer:
        yield conn, peer
    conn.close()


def sent(pair, data, *paths, fds=()):
    """Send a message with descriptors of these files, and return the result of receive(). Afterwards, only the result
    has open descriptors."""
    opened = [os.open(path, os.O_RDONLY | os.O_NONBLOCK) for path in paths] + list(fds)
    pair[1].sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", opened))] if opened else [])
    for fd in opened:
        os.close(fd)
    before = open_files()
    try:
        message = protocol.receive(pair[0])
    except Declined:
        assert open_files() == before
        raise
    assert open_files() == before + 1 + (message.netns is not None)
    return message


def test_a_request_has_the_documented_bytes(pair):
    data = (b"fcni" + (2).to_bytes(4, "little") + (1).to_bytes(4, "little") + (27).to_bytes(4, "little")
            + b"bridge\0CNI_COMMAND=ADD\0A=b\0"[:27] + b'{"a": 1}')
    assert data == packed("bridge", {"CNI_COMMAND": "ADD", "A": "b"}, b'{"a": 1}', NETNS)
    message = sent(pair, data, "/dev/null")
    assert (message.plugin, message.env, message.stdin) == ("bridge", {"CNI_COMMAND": "ADD", "A": "b"}, b'{"a": 1}')
    assert os.readlink(f"/proc/self/fd/{message.caller_netns}").startswith("net:")
    assert os.readlink(f"/proc/self/fd/{message.netns}") == "/dev/null"
    message.close()


def test_an_answer_has_the_documented_bytes(pair):
    protocol.answer(pair[0], 1, b"out", b"err")
    assert pair[1].recv(100) == b"fcni" + bytes((2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0)) + b"errout"


def test_an_answer_has_the_form_of_the_callers_protocol(pair):
    pair[0].shown = lambda status, stdout: b"%d %b" % (status, stdout)
    protocol.answer(pair[0], 1, b"out", b"err")
    assert pair[1].recv(100)[HEAD.size:] == b"err1 out"


def test_a_long_answer_is_sent_in_a_memory_file(pair):
    out = bytes(range(256)) * 1000
    protocol.answer(pair[0], 0, out, b"warning")
    data, ancillary, _, _ = pair[1].recvmsg(1 << 18, 100)
    fds = array.array("i", ancillary[0][2])
    answer = Answer(data, fds)
    assert len(data) == HEAD.size and (answer.stderr, answer.stdout) == (b"warning", out)
    before = open_files()
    protocol.answer(pair[0], 0, out)
    assert open_files() == before


@pytest.mark.parametrize("size", [0, protocol.MAX_ANSWER + 1])
def test_an_answer_waits_for_no_caller(pair, size):
    with pytest.raises(BlockingIOError):
        while True:
            protocol.answer(pair[0], 0, b"waits")
    with pytest.raises(BlockingIOError):
        protocol.answer(pair[0], 0, bytes(size))
    pair[1].close()
    with pytest.raises(ConnectionError):
        protocol.answer(pair[0], 0, bytes(size))


def test_the_first_of_two_variables_of_a_name_counts_as_in_the_launcher(pair):
    environment = b"bridge\0A=1\0A=2\0"
    message = sent(pair, HEAD.pack(b"fcni", 2, 0, len(environment)) + environment)
    assert message.env == {"A": "1"}
    message.close()


# -- the answer of a worker ----------------------------------------------------------------------------------------


@pytest.fixture
def answer(pair):
    """Yield an Answer to a request with a descriptor for CNI_NETNS."""
    message = protocol.Message()
    message.caller_netns, message.netns = None, os.open("/dev/null", os.O_RDONLY)
    yield workers.Answer(pair[0], message)
    message.close()


def test_a_result_is_answered_once(pair, answer):
    """handle() delivers the result of an ADD and then also returns the reply, which must not be sent again."""
    answer.deliver(Reply(0, b"result", b"one\ntwo\n"))
    answer.send(0, b"result", b"one\ntwo\n")
    assert pair[1].recv(100)[HEAD.size:] == b"one\ntwo\nresult"
    pair[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        pair[1].recv(100)
    assert (answer.status, answer.warning, answer.error, answer.outcome) == (0, "one; two", "", "0")


@pytest.mark.parametrize("how", ["deliver", "send"])
def test_the_descriptor_of_the_pod_is_closed_before_the_answer(answer, monkeypatch, how):
    """The caller may unmount the namespace when it has the answer."""
    open_at_answer = []
    monkeypatch.setattr(protocol, "answer", lambda *_: open_at_answer.append(answer.message.netns))
    answer.deliver(Reply(0, b"", b"")) if how == "deliver" else answer.send(0)
    assert open_at_answer == [None]


def test_a_result_that_cannot_be_delivered_raises_and_is_not_sent_again(pair, answer, monkeypatch):
    pair[1].close()
    with pytest.raises(BrokenPipeError):
        answer.deliver(Reply(0, b"result", b""))
    monkeypatch.setattr(protocol, "answer", None)
    answer.send(1, b'{"code": 999}')
    assert (answer.unsent, answer.status, answer.outcome) == (True, None, "caller_gone")


@pytest.mark.parametrize("status, stdout, left, outcome, error", [
    (0, b"result", False, "0", ""), (1, b'{"code": 7, "msg": "x"}', False, "7", '{"code": 7, "msg": "x"}'),
    (1, b'{"code": 7, "msg": "x"}', True, "caller_gone", '{"code": 7, "msg": "x"}')])
def test_an_answer_knows_the_outcome_of_its_request(pair, answer, status, stdout, left, outcome, error):
    if left:
        pair[1].close()
    answer.send(status, stdout, b"warning\n")
    assert (answer.outcome, answer.error, answer.warning, answer.unsent) == (outcome, error, "warning", left)


def test_a_request_that_goes_one_shot_is_declined(pair, answer):
    answer.send(protocol.DECLINED)
    assert HEAD.unpack(pair[1].recv(100))[2:] == (protocol.DECLINED, 0)


def test_programs_of_requests_get_the_servers_variables_but_not_its_own(monkeypatch):
    """With the server's variables, a delegated plugin would ask the server and wait for a worker, which itself waits
    for that plugin."""
    own = {"CNI_PATH": "/x", "LISTEN_FDS": "1", "LISTEN_PID": "7", "FASTCNI_LOG": "/y", "FASTCNI_SOCKET": "/z",
           "NOTIFY_SOCKET": "/n"}
    kept = {"PATH": "/bin", "HTTPS_PROXY": "http://p", "CNI": "1", "MY_NOTIFY_SOCKET": "2"}
    monkeypatch.setattr(os, "environ", own | kept)
    assert workers.environment() == kept | {"FASTCNI_SOCKET": ""}


# -- invalid messages ----------------------------------------------------------------------------------------------

NET = "/proc/self/ns/net"
ENVIRONMENT = block("bridge", {"A": "1"})


@pytest.mark.parametrize(("data", "paths"), [
    (b"fcni", []),
    (packed("bridge", {}, magic=b"nope"), []),
    (packed("bridge", {}, version=1), []),
    (packed("bridge", {}, descriptors=NETNS), []),
    (packed("bridge", {}), [NET]),
    (packed("bridge", {}, descriptors=NETNS), [NET, NET]),
    (packed("bridge", {}, descriptors=NETNS | 8), [NET, NET]),
    (packed("bridge", {}, descriptors=NETNS), [NET] * 40),
    (HEAD.pack(b"fcni", 2, 0, 1000) + ENVIRONMENT, []),
    (HEAD.pack(b"fcni", 2, 0, 0), []),
    (HEAD.pack(b"fcni", 2, 0, len(ENVIRONMENT) - 1) + ENVIRONMENT, []),
    (packed("bridge", {f"A{n}": "" for n in range(65)}), []),
    (HEAD.pack(b"fcni", 2, 0, 9) + b"bridge\0A\0", []),
    (packed("bridge", {}, b"", 2), ["/dev/zero"]),
    (packed("bridge", {}) + bytes(protocol.MAX_MESSAGE), []),
], ids=["short", "magic", "version", "none", "one unasked", "too many", "unknown bit", "far too many",
        "environment beyond the end", "no environment", "no NUL", "65 variables", "no value", "stdin in memory",
        "too long"])
def test_an_invalid_message_is_declined_and_its_descriptors_are_closed(pair, data, paths):
    pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with pytest.raises(Declined):
        sent(pair, data, *paths)


def test_a_request_without_the_callers_namespace_is_declined_and_its_descriptors_are_closed(pair, monkeypatch):
    def refuse(_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(protocol._acceptor, "namespace_of", refuse)
    with pytest.raises(Declined, match="the caller's network namespace: Too many open files"):
        sent(pair, packed("bridge", {}, descriptors=NETNS), "/dev/null")


def test_only_a_caller_that_hangs_up_is_lost(pair):
    assert protocol.receive(pair[0]) is None
    pair[1].close()
    with pytest.raises(Lost):
        protocol.receive(pair[0])


@given(st.binary(max_size=200), st.integers(0, 5))
def test_random_bytes_are_declined(data, count):
    fds = array.array("i", [os.open("/dev/null", os.O_RDONLY) for _ in range(count)])
    try:
        protocol.read(data, fds).close()
    except Declined:
        pass
    finally:
        for fd in fds:
            os.close(fd)


@given(st.binary(max_size=300), st.integers(0, 7), st.integers(0, 400), st.integers(0, 3))
def test_random_bytes_after_a_valid_head_are_declined(data, mask, size, count):
    test_random_bytes_are_declined.hypothesis.inner_test(HEAD.pack(b"fcni", 2, mask, size) + data, count)
