"""The way into a namespace and back, with a kernel that refuses one of them."""

import os

import pytest

from fastcni.kernel import netns
from fastcni.kit.undo import Undo


@pytest.fixture
def refuse(monkeypatch):
    """refuse(n): the n-th setns() from now on is refused."""
    def from_now_on(n):
        calls = iter(range(1, 100))

        def setns(fd):
            if next(calls) == n:
                raise OSError(1, os.strerror(1))

        monkeypatch.setattr(netns, "setns", setns)
    return from_now_on


@pytest.fixture
def fd():
    opened = os.open(netns.OWN, os.O_RDONLY)
    yield opened
    os.close(opened)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_no_way_home_is_no_exception_that_anybody_goes_on_after(refuse, fd):
    refuse(2)
    before = descriptors()
    with pytest.raises(netns.Lost, match="home"):
        try:
            with netns.inside(fd):
                raise ValueError("the plugin's own trouble")
        except Exception:
            pytest.fail("handled, in the wrong namespace")
    assert descriptors() == before


def test_no_way_in_is_an_ordinary_error_and_leaves_no_descriptor(refuse, fd):
    refuse(1)
    before = descriptors()
    with pytest.raises(OSError), netns.inside(fd):
        pytest.fail("inside")
    assert descriptors() == before


def test_undo_runs_for_a_lost_thread_too():
    undone = []
    with pytest.raises(netns.Lost), Undo() as undo:
        undo(undone.append, "link")
        raise netns.Lost("gone")
    assert undone == ["link"]
