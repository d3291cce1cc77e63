"""Enter a network namespace and return. The test's kernel rejects the entry or the return."""

import os

import pytest

from fastcni.kernel import netns
from fastcni.kit.call.undo import Undo

pytestmark = pytest.mark.usefixtures("fake_sockets")


@pytest.fixture
def refuse(monkeypatch):
    """Return a function refuse(n, last): from then on, setns() fails at call n, or at the calls n to `last`."""
    def from_now_on(n, last=None):
        calls = iter(range(1, 100))

        def setns(fd):
            if n <= next(calls) <= (last or n):
                raise OSError(1, os.strerror(1))

        monkeypatch.setattr(netns, "setns", setns)
    return from_now_on


@pytest.fixture
def fd(collector_off):
    opened = os.open(netns.OWN, os.O_RDONLY)
    yield opened
    os.close(opened)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_a_failed_return_is_an_exception_that_no_handler_catches(refuse, fd):
    refuse(2, 99)
    before = descriptors()
    with pytest.raises(netns.Lost, match="home"):
        try:
            with netns.inside(fd):
                raise ValueError("the plugin's own trouble")
        except Exception:
            pytest.fail("handled, in the wrong namespace")
    assert descriptors() == before


def test_a_return_that_fails_once_is_tried_again(refuse, fd):
    """Once, a brief lack of memory (ENOMEM) ended the request and the thread."""
    refuse(2, netns.RETURN_TRIES)
    with netns.inside(fd):
        inside = True
    assert inside


def test_an_error_of_close_does_not_replace_lost(refuse, monkeypatch, fd):
    """Once, an OSError of close(2) replaced Lost, and the plugin handled it in the wrong namespace."""
    def close(fd):
        os.close(fd)
        raise OSError(5, os.strerror(5))

    refuse(2, 99)
    monkeypatch.setattr(netns, "close_file", close)
    with pytest.raises(netns.Lost), netns.inside(fd):
        assert True


def test_a_failed_entry_is_an_os_error_and_leaves_no_descriptor(refuse, fd):
    refuse(1)
    before = descriptors()
    with pytest.raises(OSError), netns.inside(fd):
        pytest.fail("inside")
    assert descriptors() == before


@pytest.mark.parametrize("call", ["stat", "fstat"])
def test_a_path_that_cannot_be_checked_leaves_no_descriptor(monkeypatch, collector_off, call):
    """Once, after a stat(2) that failed with ENOMEM, a server kept the descriptor of a pod's namespace. The namespace
    remained."""
    def fail(_):
        raise OSError(12, os.strerror(12))

    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(netns.posix, call, fail)
        with pytest.raises(OSError, match="Cannot allocate"):
            netns.open_path(netns.OWN)
    assert descriptors() == before


def test_without_proc_no_namespace_counts_as_missing(monkeypatch, tmp_path):
    """Once, a DEL without /proc released the address of a running pod."""
    monkeypatch.setattr(netns, "OWN", str(tmp_path / "none"))
    for path in (tmp_path / "pod", tmp_path):
        with pytest.raises(netns.OwnUnread, match="is /proc mounted") as error:
            netns.open_path(str(path))
        assert not isinstance(error.value, FileNotFoundError)


def test_rollback_runs_for_a_lost_thread_too():
    undone = []
    with pytest.raises(netns.Lost), Undo() as undo:
        undo(undone.append, "link")
        raise netns.Lost("gone")
    assert undone == ["link"]
