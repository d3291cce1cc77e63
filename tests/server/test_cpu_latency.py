"""The latency request lasts while requests come, and not longer."""

import os
import struct
import time

import pytest

from fastcni.server import cpu_latency, log
from fastcni.server.cpu_latency import C1_US, DEVICE, NO_LIMIT_US, LatencyRequest
from fastcni.testing.witnesses import eventually


def make(seconds):
    return LatencyRequest(seconds, log.make("info", "logfmt"))


def test_the_latency_request_lasts_from_the_first_request_until_after_the_last(tmp_path, monkeypatch):
    path = tmp_path / "latency"
    path.touch()
    monkeypatch.setattr(cpu_latency, "DEVICE", str(path))

    def asked():
        return [number for number, in struct.iter_unpack("=i", path.read_bytes())]

    limit, it = cpu_latency.limit_us(), make(1)
    it.hold()
    time.sleep(0.3)
    last = time.monotonic()
    it.hold()
    assert asked() == [limit]               # once for both
    assert eventually(lambda: asked() == [limit, NO_LIMIT_US]) and time.monotonic() >= last + 1
    it.hold()
    assert eventually(lambda: asked() == [limit, NO_LIMIT_US, limit, NO_LIMIT_US])


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
