"""The run token. Only one thread that needs the token runs, until it ends or blocks for long."""

import socket
import statistics
import time
from errno import EBADF
from threading import Event, Thread

import pytest

from fastcni import _netlink, _run_token
from fastcni._run_token import Gate, give_token, take_token

HANGS_S = 0.5                       # much longer than a thread waits for the token


@pytest.fixture
def begin():
    """Return a function begin(fn) that runs fn in a thread with the run token. begin() returns an Event, which the
    thread sets at its end."""
    threads = []

    def make(fn):
        ended = Event()

        def work():
            take_token()
            fn()
            give_token()
            ended.set()

        threads.append(Thread(target=work))
        threads[-1].start()
        return ended

    yield make
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def having(begin, fn):
    """Call fn() in a thread with the token, and wait until fn() begins. Return the Event of begin()."""
    has = Event()
    ended = begin(lambda: (has.set(), fn()))
    assert has.wait(5)
    return ended


def elapsed(of, *args):
    started = time.monotonic()
    of(*args)
    return time.monotonic() - started


def test_a_thread_waits_for_the_token(begin):
    order = []
    first = having(begin, lambda: (time.sleep(0.02), order.append("first")))
    second = begin(lambda: order.append("second"))
    assert first.wait(5) and second.wait(5)
    assert order == ["first", "second"]


@pytest.mark.parametrize("wait", ["receive", "await_message", "Gate"])
def test_a_thread_that_blocks_for_long_gives_the_token_back(begin, wait):
    sock, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    gate = Gate()
    with sock, peer:
        waits = {"receive": lambda: _netlink.receive(sock.fileno(), -1), "Gate": lambda: gate.wait(5000),
                 "await_message": lambda: _run_token.await_message(sock.fileno(), -1)}
        first = having(begin, waits[wait])
        took = [elapsed(begin(lambda: None).wait, 5) for _ in range(21)]
        # The thread must get the token immediately, not only after the time that a hanging thread may keep it. The test
        # uses the median, because the machine may be busy.
        assert statistics.median(took) < HANGS_S / 20
        gate.open()
        peer.send(b"")
        assert first.wait(5)


def test_a_thread_that_hangs_loses_the_token(begin):
    """For example, a thread waits for a file system that does not answer, so it cannot give the token back."""
    first = having(begin, lambda: time.sleep(HANGS_S))
    assert elapsed(begin(lambda: None).wait, 5) < HANGS_S / 2 and not first.is_set()
    assert first.wait(5)
    assert begin(lambda: None).wait(5)


def test_a_thread_that_needs_no_token_neither_waits_nor_gives(begin):
    """A program that uses the library also has threads without the token."""
    first = having(begin, lambda: time.sleep(HANGS_S))
    give_token()                         # this thread does not have the token
    sock, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with sock, peer:
        assert _netlink.receive(sock.fileno(), 1) is None
    second = begin(lambda: None)
    assert not second.wait(0.01)
    assert first.wait(5) and second.wait(5)


def test_a_datagram_arrives_and_a_refusal_is_an_error():
    sock, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with sock, peer:
        _netlink.send(sock.fileno(), b"a datagram")
        assert peer.recv(100) == b"a datagram"
    with pytest.raises(OSError, match="Bad file descriptor") as refused:
        _netlink.send(10_000, b"")
    assert refused.value.errno == EBADF
    assert refused.value.filename is None
