"""The queue and the thread that send traces, without OpenTelemetry: a stub is in the place of its SDK. The tests of the
spans are in tests/observability/test_traces.py."""

import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from unit.server.flushed import Log

from fastcni.cli.commands import cli
from fastcni.daemon.listening import ListenError
from fastcni.server.otel import traces
from fastcni.server.otel.traces import Traces
from fastcni.server.records.ended import Ended, Phases
from fastcni.server.requests.request_queue import Call
from fastcni.testing.witnesses import eventually


class Sender:
    """Is in the place of spans.Sender. send() waits until `free` is set, and returns `why`."""

    def __init__(self):
        self.added, self.sent, self.why = [], [], ""
        self.free, self.entered = threading.Event(), threading.Event()
        self.free.set()

    def __call__(self, _url):
        return self

    def add(self, traced):
        self.added.append(traced)

    def send(self):
        self.entered.set()
        self.free.wait(30)
        self.sent += self.added
        self.added.clear()
        return self.why

    def close(self):
        pass


@pytest.fixture
def sender(monkeypatch):
    it = Sender()
    monkeypatch.setitem(sys.modules, "fastcni.server.otel.spans", SimpleNamespace(Sender=it))
    monkeypatch.setattr(traces, "DELAY_S", 0.01)
    yield it
    it.free.set()


def ended(number=0):
    message = SimpleNamespace(plugin="bridge", id=f"a-{number}", pid=1, env={"CNI_COMMAND": "ADD"}, stdin=b"large")
    call = Call(None, "ADD", None, message)
    return Ended(call, "0", 0.25, 0.5, Phases())


def test_a_request_is_sent_with_the_times_of_its_end(sender):
    it, before = Traces("http://x", Log()), time.time_ns()
    it.note(ended())
    it.start()
    assert eventually(lambda: sender.sent)
    (one,) = sender.sent
    assert before - 1e9 < one.arrived + one.to_unix < time.time_ns()
    assert (one.queued - one.arrived, one.ended - one.queued) == (250_000_000, 500_000_000)
    assert (one.command, one.plugin, one.id, one.outcome) == ("ADD", "bridge", "a-0", "0")
    it.stop()


def test_requests_that_come_during_a_send_are_sent_too(sender):
    it = Traces("http://x", Log())
    it.start()
    sender.free.clear()
    it.note(ended(1))
    assert sender.entered.wait(5)
    for number in range(2, 500):
        it.note(ended(number))
    sender.free.set()
    assert eventually(lambda: len(sender.sent) == 499)
    assert [one.id for one in sender.sent] == [f"a-{number}" for number in range(1, 500)]
    it.stop()


def test_requests_beyond_the_limit_are_dropped_and_counted(sender, monkeypatch):
    monkeypatch.setattr(traces, "MAX_WAITING", 8)
    it = Traces("http://x", log := Log())
    for number in range(20):
        it.note(ended(number))
    it.start()
    assert eventually(lambda: "traces_lost" in dict(log.lines))
    assert len(sender.sent) == 8
    it.note(ended())
    it.stop()
    assert [fields["requests"] for name, fields in log.lines if name == "traces_lost"] == [12]
    assert len(sender.sent) == 9


def test_failures_are_logged_once_in_a_while_with_their_number(sender, monkeypatch):
    sender.why = "Connection refused"
    it = Traces("http://x", log := Log())
    for number in range(300):
        it.note(ended(number))
    it.start()
    assert eventually(lambda: len(sender.sent) == 300)
    assert it.lost == 300 - traces.BATCH
    monkeypatch.setattr(it, "next_line", 0.0)
    it.note(ended())
    it.stop()
    lines = [fields for name, fields in log.lines if name == "traces_lost"]
    assert [fields["requests"] for fields in lines] == [traces.BATCH, 301 - traces.BATCH]
    assert {fields["why"] for fields in lines} == {"Connection refused"}


def test_a_collector_that_is_back_gets_no_line(sender, monkeypatch):
    sender.why = "Connection refused"
    it = Traces("http://x", log := Log())
    it.note(ended())
    it.start()
    assert eventually(lambda: "traces_lost" in dict(log.lines))
    assert traces.LOG_S - 5 < it.next_line - time.monotonic() <= traces.LOG_S and it.lost == 0
    monkeypatch.setattr(it, "next_line", 0.0)
    sender.why = ""
    it.note(ended())
    it.stop()
    assert len(sender.sent) == 2 and [event for event, _ in log.lines].count("traces_lost") == 1


def test_a_fault_of_the_sdk_costs_its_spans_and_no_others(sender):
    faults, send = [ValueError()], sender.send

    def fail():
        if faults:
            sender.added.clear()
            raise faults.pop()
        return send()

    sender.send = fail
    it = Traces("http://x", log := Log())
    it.start()                      # before note(): the thread of the traces could log before start() does
    it.note(ended(1))
    assert eventually(lambda: "traces_lost" in dict(log.lines))
    it.note(ended(2))
    it.stop()
    assert [event for event, _ in log.lines] == ["traces_ready", "server_fault", "traces_lost"]
    assert log.lines[-1][1]["why"] == "a fault of fastcni"
    assert [one.id for one in sender.sent] == ["a-2"] and it.sending == 0


def test_a_request_whose_spans_cannot_be_made_costs_the_spans_of_no_other(sender, monkeypatch):
    """Once, if the spans of one request could not be made, the requests before it in the batch counted as lost although
    they were sent, and those after it were not sent."""
    add = sender.add

    def fail(traced):
        assert eventually(lambda: log.lines), "start() logs its line in another thread"
        if traced.id in ("a-1", "a-2"):
            raise ValueError
        add(traced)

    monkeypatch.setattr(sender, "add", fail)
    it = Traces("http://x", log := Log())
    for number in range(4):
        it.note(ended(number))
    it.start()
    it.stop()
    assert [one.id for one in sender.sent] == ["a-0", "a-3"] and it.sending == 0
    assert [event for event, _ in log.lines] == ["traces_ready", "server_fault", "traces_lost"]
    assert (log.lines[-1][1]["requests"], log.lines[-1][1]["why"]) == (2, "a fault of fastcni")


def test_a_thread_is_started_once(sender):
    it = Traces("http://x", log := Log())
    it.start()
    it.start()
    it.stop()
    it.start()
    assert log.lines == [("traces_ready", {"url": "http://x"})]


def test_a_collector_that_hangs_delays_the_stop_by_no_more_than_its_limit(sender, monkeypatch):
    monkeypatch.setattr(traces, "STOP_S", 0.1)
    it = Traces("http://x", log := Log())
    it.start()
    sender.free.clear()
    it.note(ended())
    assert sender.entered.wait(5)
    it.note(ended())
    started = time.monotonic()
    it.stop()
    assert time.monotonic() - started < 2
    assert [fields["requests"] for name, fields in log.lines if name == "traces_lost"] == [2]


def test_a_missing_package_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "fastcni.server.otel.spans", raising=False)
    with pytest.raises(ListenError, match=r"install fastcni\[otel\] from PyPI; Debian has no packages"):
        Traces("http://127.0.0.1:4318", Log())


def test_a_server_without_the_option_imports_none_of_it():
    code = ("import sys; from fastcni.server.service import Options, make_parts; "
            "assert make_parts(Options(), None) == []; "
            "print([it for it in sys.modules if 'otel' in it or 'telemetry' in it])")
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "grpc://a:4317", "http://", "http://a:0", "http://a:x", "http://[a"])
def test_what_is_no_url_of_a_collector_is_refused(url):
    done = CliRunner().invoke(cli, ["serve", "--otlp", url])
    assert done.exit_code == 2 and "expected the URL of a collector such as http://127.0.0.1:4318" in done.output


@pytest.mark.parametrize("url", ["http://127.0.0.1:4318", "https://otel.example/base/", "http://[::1]:4318"])
def test_a_url_of_a_collector_is_taken(url):
    assert traces.read_url(url) == url
