"""The server's request for a low CPU latency lasts as long as requests arrive."""

import os
import select
import socket
import struct
import threading
import time
from unittest.mock import Mock

import pytest

from fastcni.daemon import log
from fastcni.daemon.wakeup import Wakeup
from fastcni.server import cpu_latency
from fastcni.server.cpu_latency import C1_US, DEVICE, LatencyRequest
from fastcni.server.requests.acceptor import Acceptor

NO_LIMIT_US = -1        # PM_QOS_DEFAULT_VALUE of linux/pm_qos.h


def make(seconds):
    return LatencyRequest(seconds, log.make("info", "logfmt"))


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Put a file in the place of the device. Return a function asked() that returns the numbers that were written to
    the file."""
    path = tmp_path / "latency"
    path.touch()
    monkeypatch.setattr(cpu_latency, "DEVICE", str(path))
    return lambda: [number for number, in struct.iter_unpack("=i", path.read_bytes())]


def release_when_due(it):
    assert select.select([it.timer], [], [], 10)[0]
    it.release()
    assert not select.select([it.timer], [], [], 0)[0]      # otherwise, the acceptor would call release() without end


def test_the_latency_request_lasts_from_the_first_request_until_after_the_last(asked):
    limit, it = cpu_latency.limit_us(), make(0.5)
    it.hold()
    time.sleep(0.3)
    last = time.monotonic()
    it.hold()
    assert asked() == [limit]               # one write for both requests
    release_when_due(it)
    # This timer began with the first hold(). The condition is true unless the machine is very busy.
    if time.monotonic() < last + 0.5:
        assert asked() == [limit]
        release_when_due(it)
    assert asked() == [limit, NO_LIMIT_US] and time.monotonic() >= last + 0.5
    it.hold()
    release_when_due(it)
    assert asked() == [limit, NO_LIMIT_US] * 2
    it.close()


def test_a_hold_wakes_no_thread(asked):
    """Once, a separate thread withdrew the latency request. Each hold() after a pause woke this thread, which took the
    GIL from the CNI request."""
    before = threading.active_count()
    it = make(0.01)
    it.hold()
    assert threading.active_count() == before
    it.close()


def test_a_worker_that_waits_for_requests_withdraws_the_latency_request(asked):
    limit, it = cpu_latency.limit_us(), make(0.01)
    listener, other = socket.socketpair()
    acceptor = Acceptor(listener, Mock(), Wakeup(), frozenset(), it, log.make("info", "logfmt"))
    for count in (1, 2):
        it.hold()
        acceptor.wait(10)
        assert asked() == [limit, NO_LIMIT_US] * count
    acceptor.close()
    listener.close()
    other.close()


def test_the_end_closes_all_files(asked):
    """If the server ends, the kernel closes the device and so withdraws the latency request."""
    before = sorted(os.listdir("/proc/self/fd"))
    it = make(0.01)
    it.hold()
    it.close()
    it.close()
    assert sorted(os.listdir("/proc/self/fd")) == before and it.timer is None


def test_the_timer_of_a_device_that_was_closed_does_nothing(asked, monkeypatch):
    it = make(0.01)
    it.hold()
    monkeypatch.setattr(cpu_latency.os, "write", lambda *_: 1 / 0)
    it._drop()
    release_when_due(it)                        # the acceptor still polls the timer
    it.hold()
    it.close()


def test_without_idle_states_c1_is_asked_for(monkeypatch):
    monkeypatch.setattr(cpu_latency, "IDLE_DRIVER", "/nowhere/driver")
    assert cpu_latency.limit_us() == C1_US


def test_a_missing_device_is_logged_and_ignored(monkeypatch, capsys):
    monkeypatch.setattr(cpu_latency, "DEVICE", "/nowhere/latency")
    make(0.01).hold()
    assert "latency_request_unavailable" in capsys.readouterr().err


def test_a_device_that_refuses_costs_no_request(monkeypatch, capsys):
    monkeypatch.setattr(cpu_latency, "DEVICE", "/dev/full")
    it = make(0.01)
    for _ in range(3):
        it.hold()
    assert capsys.readouterr().err.count("No space left") == 1


def test_a_latency_request_of_0_seconds_does_nothing(monkeypatch, capsys):
    monkeypatch.setattr(cpu_latency, "DEVICE", "/nowhere/latency")
    make(0).hold()
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("driver", "microseconds"), [("haltpoll\n", 0), ("intel_idle\n", C1_US)])
def test_a_virtual_machine_does_not_halt(tmp_path, monkeypatch, driver, microseconds):
    (tmp_path / "driver").write_text(driver)
    monkeypatch.setattr(cpu_latency, "IDLE_DRIVER", str(tmp_path / "driver"))
    assert cpu_latency.limit_us() == microseconds


def test_the_kernel_receives_the_latency_request(node, start):
    if not os.path.exists(DEVICE):
        pytest.skip(f"no {DEVICE}")
    server = start("--latency-request", "5")
    server.ok("VERSION", node.conf())
    with open(DEVICE, "rb") as file:
        (microseconds,) = struct.unpack("=i", file.read(4))
    assert microseconds <= C1_US
