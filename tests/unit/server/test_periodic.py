"""The thread for periodic work. Stubs are in the place of the work."""

import threading
from types import SimpleNamespace

import pytest
from unit.server.flushed import Log

from fastcni.server import periodic
from fastcni.server.periodic import Upkeep
from fastcni.testing.witnesses import eventually


@pytest.fixture
def upkeep(monkeypatch):
    """Yield a function upkeep(name of the work that fails, tidy_s) that starts an Upkeep. The function's attribute
    `calls` counts each kind of work."""
    monkeypatch.setattr(periodic, "BEAT_S", 0.005)
    running = []

    def start(failing="", tidy_s=0.0):
        calls, log = {"watchdog": 0, "idle": 0, "tidy": 0, "note": 0}, Log()

        def work(name):
            def call(*_):
                calls[name] += 1
                if name == failing:
                    raise ZeroDivisionError
            return call

        monkeypatch.setattr(periodic, "note_running", work("note"))
        it = Upkeep(work("tidy"), SimpleNamespace(poll=work("watchdog")), SimpleNamespace(poll=work("idle")), log,
                    tidy_s=tidy_s)
        it.calls = calls
        it.start()
        running.append(it)
        return it

    yield start
    for it in running:
        it.stop()


def test_all_work_is_done_again_and_again_and_not_after_the_stop(upkeep):
    it = upkeep()
    assert it.thread.daemon
    assert eventually(lambda: min(it.calls.values()) >= 3)
    it.stop()
    assert not it.thread.is_alive() and it.log.lines == []


@pytest.mark.parametrize("failing", ["watchdog", "idle", "tidy"])
def test_a_fault_does_not_end_the_thread(upkeep, failing):
    """If the thread ended, the server would send no more watchdog reports, and systemd would kill it."""
    it = upkeep(failing)
    assert eventually(lambda: it.calls[failing] >= 3)
    assert {name for name, _ in it.log.lines} == {"server_fault"}


def test_unused_resources_are_freed_only_after_their_period(upkeep):
    it = upkeep(tidy_s=3600.0)
    assert eventually(lambda: it.calls["idle"] >= 5)
    assert it.calls["tidy"] == 0


def test_the_stop_does_not_wait_for_the_next_beat(upkeep, monkeypatch):
    monkeypatch.setattr(periodic, "BEAT_S", 3600.0)
    it = upkeep(tidy_s=3600.0)
    stopping = threading.Thread(target=it.stop, daemon=True)
    stopping.start()
    stopping.join(30)
    assert not stopping.is_alive()


def test_the_server_counts_as_running_before_the_first_beat(monkeypatch):
    """Otherwise, the first thread would abandon the request that it is answering."""
    noted = []
    monkeypatch.setattr(periodic, "note_running", lambda *args: noted.append(args))
    it = Upkeep(None, None, None, Log(), tidy_s=3600.0)
    it.ended.set()
    it.start()
    it.stop()
    assert noted == [(periodic.STALL_S,)]
