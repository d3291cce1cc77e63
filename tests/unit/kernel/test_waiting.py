"""A wait ends when its event occurs, when its time limit is over, or when the caller closes its connection."""

import errno
import fcntl
import os
import socket
import threading
from contextlib import closing

import pytest

from fastcni._netlink import Batch
from fastcni.kernel import dbus, rtnl, waiting, wire
from fastcni.kernel.waiting import LOCK, PROGRAM, CallerGone


class Watched(waiting.Request):
    """A request whose caller is the other end of a connection. `kinds` records the kinds of its waits."""

    def __init__(self):
        self.sock, self.peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.caller, self.kinds = self.sock.fileno(), []

    def pause(self, kind):
        self.kinds.append(kind)


@pytest.fixture
def request_here():
    """Yield the request that the test's thread works on."""
    made = waiting.here.request = Watched()
    with made.sock, made.peer:
        yield made
    del waiting.here.request


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


@pytest.fixture
def held(tmp_path):
    """Yield two descriptors of one file. The second descriptor holds the file's lock."""
    with open(tmp_path / "lock", "w") as sock, open(tmp_path / "lock") as peer:
        fcntl.flock(peer, fcntl.LOCK_EX)
        yield sock.fileno(), peer.fileno()


def test_what_can_be_read_is_waited_for_until_the_limit(pipe, request_here):
    assert waiting.readable(pipe[0], 0.02, PROGRAM) is False
    os.write(pipe[1], b"x")
    assert waiting.readable(pipe[0], 60, PROGRAM) is True and waiting.readable(pipe[0], None, PROGRAM) is True
    assert request_here.kinds == [PROGRAM] * 3


@pytest.mark.parametrize("wait", [lambda fd: waiting.readable(fd, 60, PROGRAM),
                                  lambda fd: waiting.readable(fd, None, PROGRAM),
                                  lambda fd: waiting.until(lambda: False, 60, PROGRAM)])
def test_a_caller_that_leaves_ends_a_wait(pipe, request_here, wait):
    threading.Timer(0.05, request_here.peer.close).start()
    with pytest.raises(CallerGone, match="the caller has left"):
        wait(pipe[0])


def test_a_rollback_goes_on_for_a_caller_that_has_left(pipe, request_here, monkeypatch):
    monkeypatch.setattr(waiting, "ROLLBACK_TIMEOUT_S", 0.02)
    request_here.peer.close()
    with waiting.rolling_back():
        waiting.check_caller()
        assert waiting.readable(pipe[0], waiting.limit(1000), PROGRAM) is False
        assert waiting.until(lambda: "done", waiting.limit(1000), PROGRAM) == "done"
    with pytest.raises(CallerGone):
        waiting.check_caller()


def test_a_thread_that_works_for_nobody_has_no_caller_to_lose(pipe):
    assert waiting.caller() == -1 and waiting.readable(pipe[0], 0.01, PROGRAM) is False
    waiting.check_caller()


def test_a_held_lock_is_waited_for_until_the_limit_and_no_longer(held):
    """flock(2) has no time limit. Once, a process that kept the lock blocked all requests."""
    assert waiting.lock(held[0], 0.05) is False
    fcntl.flock(held[1], fcntl.LOCK_UN)
    assert waiting.lock(held[0], 0.05) is True


def test_a_lock_that_comes_free_is_taken(held, request_here):
    threading.Timer(0.05, fcntl.flock, (held[1], fcntl.LOCK_UN)).start()
    assert waiting.lock(held[0], 60) is True
    assert request_here.kinds == [LOCK]
    with pytest.raises(BlockingIOError):
        fcntl.flock(held[1], fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_free_lock_is_no_wait(tmp_path, request_here):
    with open(tmp_path / "lock", "w") as file:
        assert waiting.lock(file.fileno(), 60) is True and request_here.kinds == []


def test_a_caller_that_leaves_waits_for_no_lock(held, request_here):
    request_here.peer.close()
    with pytest.raises(CallerGone):
        waiting.lock(held[0], 60)


def test_a_lock_that_cannot_be_had_is_an_error():
    with pytest.raises(OSError):
        waiting.lock(-1, 60)


def test_a_caller_that_leaves_waits_for_no_bus(tmp_path, request_here):
    with socket.socket(socket.AF_UNIX) as bus:
        bus.bind(str(tmp_path / "bus"))
        bus.listen()
        request_here.peer.close()
        with pytest.raises(CallerGone):
            dbus.has_owner(str(tmp_path / "bus"), "org.example", 60)


def test_a_caller_that_leaves_waits_for_no_announcement(request_here):
    threading.Timer(0.05, request_here.peer.close).start()
    with closing(wire.open_socket()) as sock, pytest.raises(CallerGone):
        wire.watch(sock, 60)


def test_an_answer_of_the_kernel_that_never_comes_is_an_error(monkeypatch):
    monkeypatch.setattr(wire, "send", lambda sock, data: None)
    monkeypatch.setattr(wire, "ANSWER_MS", 20)
    with closing(wire.open_socket()) as sock, pytest.raises(wire.NetlinkError) as caught:
        wire.exchange(sock, rtnl.get_link(Batch(), index=1))
    assert caught.value.errno == errno.ETIMEDOUT
