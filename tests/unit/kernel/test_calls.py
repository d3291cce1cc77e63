"""The system calls of a request: results and errors."""

import errno
import gc
import os
import socket
import struct
import time

import pytest

from fastcni import _netlink, _system


@pytest.fixture
def pair():
    sock, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with sock, peer:
        yield sock, peer


MESSAGE = struct.pack("=IHHII", 20, 16, 2, 7, 0) + b"data"


def test_a_datagram_is_received_as_messages(pair):
    shown = []
    pair[1].send(MESSAGE + MESSAGE)
    assert _netlink.receive(pair[0].fileno(), -1, lambda *args: shown.append(args)) == [(16, 2, 7, 0, b"data")] * 2
    assert shown == [("<", MESSAGE + MESSAGE)]


class Interrupted:
    """A function that receives another datagram while receive() decodes one. The tests use it as receive()'s show(),
    and as a callback of the collector."""

    def __init__(self):
        self.sock, self.peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.came = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()
        self.peer.close()

    def __call__(self, *_):
        self.peer.send(OTHER * 2500)
        self.came += bool(_netlink.receive(self.sock.fileno(), 0))


OTHER = struct.pack("=IHHII", 24, 17, 3, 8, 1) + b"other..."


def test_a_datagram_stays_as_it_is_while_another_thread_receives(pair):
    """show() runs Python code. During this code, another thread may receive a datagram."""
    pair[1].send(MESSAGE * 3)
    with Interrupted() as other:
        assert _netlink.receive(pair[0].fileno(), -1, other) == [(16, 2, 7, 0, b"data")] * 3
        assert other.came == 1


def test_a_datagram_stays_as_it_is_while_the_collector_runs(pair):
    """Finalizers that the collector calls run Python code, too. Before Python 3.12, the collector may run whenever code
    creates an object."""
    pair[1].send(MESSAGE * 3000)         # more tuples than the interpreter's free list has
    thresholds = gc.get_threshold()
    with Interrupted() as other:
        gc.callbacks.append(other)
        gc.set_threshold(1)
        try:
            found = _netlink.receive(pair[0].fileno(), -1)
        finally:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(other)
    assert found == [(16, 2, 7, 0, b"data")] * 3000
    assert other.came


def test_a_missing_message_is_waited_for_until_the_timeout(pair):
    assert _netlink.receive(pair[0].fileno(), 0) is None
    started = time.monotonic()
    assert _netlink.receive(pair[0].fileno(), 30) is None
    assert time.monotonic() - started >= 0.03


def test_a_refused_receive_names_the_reason():
    with pytest.raises(OSError) as caught:
        _netlink.receive(1 << 20)
    assert caught.value.errno == errno.EBADF


def test_a_small_file_is_written_cut_and_read(tmp_path):
    directory = os.open(tmp_path, os.O_RDONLY)
    _system.write_file("file", b"long content", os.O_CREAT, directory)
    _system.write_file("file", b"short", 0, directory)
    assert _system.read_file("file", os.O_RDONLY, 100, directory) == b"shortcontent"
    _system.write_file("file", b"short", 0, directory, cut=True)
    assert _system.read_file("file", os.O_RDONLY, 3, directory) == b"sho"
    assert (tmp_path / "file").read_bytes() == b"short"
    os.close(directory)


@pytest.mark.parametrize("name, kind", [("none", FileNotFoundError), ("a\0b", ValueError)])
def test_a_refused_file_is_named(tmp_path, name, kind):
    path = f"{tmp_path}/{name}"
    with pytest.raises(kind) as caught:
        _system.read_file(path, os.O_RDONLY, 100)
    assert kind is ValueError or (caught.value.filename, caught.value.strerror) == (path, "No such file or directory")
    with pytest.raises(kind):
        _system.write_file(path, b"", 0)


def test_no_descriptor_stays_open(tmp_path, pair, collector_off):
    before = os.listdir("/proc/self/fd")
    _system.write_file(f"{tmp_path}/file", b"text", os.O_CREAT | os.O_EXCL)
    for refused in (lambda: _system.write_file(f"{tmp_path}/file", b"text", os.O_CREAT | os.O_EXCL),
                    # open(2) succeeds for a directory, read(2) fails
                    lambda: _system.read_file(str(tmp_path), os.O_RDONLY, 10),
                    lambda: _system.write_file("/dev/full", b"text", 0)):
        with pytest.raises(OSError):
            refused()
    assert os.listdir("/proc/self/fd") == before
