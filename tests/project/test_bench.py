"""`fastcni bench`: the ratios and percentiles of given samples, the report, and a small run that leaves nothing
behind."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from project.bench_data import ONE_TO_100, complete_run

from fastcni.bench import beside, echo, forks, guard, idle, report, run, tables
from fastcni.bench.calls import CallFailed, Flow, Running, one
from fastcni.bench.cases import QUICK, Options
from fastcni.bench.floor import Floor
from fastcni.bench.node import PREFIX
from fastcni.bench.sides import another
from fastcni.cli import entry_point
from fastcni.server import cpu_latency
from fastcni.spec.errors import CniError
from fastcni.testing import namespaces
from fastcni.testing.witnesses import eventually


@pytest.fixture
def data():
    return complete_run()


def rows(table):
    """Return {labels of a row: {column: figure}}."""
    return {tuple(row[:table.labels]): dict(zip(table.columns[table.labels:], row[table.labels:], strict=True))
            for row in table.rows}


def test_make_bench_collects_every_benchmark():
    """`make bench` runs pytest only on benchmarks/, without tests/conftest.py and without pytest-xdist."""
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    found = subprocess.run([sys.executable, "-m", "pytest", "--benchmark-only", "--collect-only", "-q", "benchmarks"],
                           env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_percentiles_are_of_the_samples():
    assert tables.median(ONE_TO_100) == 50.5
    assert tables.p99(ONE_TO_100) == pytest.approx(99.01)
    assert tables.p99([3.0]) == 3.0
    assert tables.spread([0.123, 0.123]) == "0.12 / 0.12"
    assert tables.spread([]) == tables.spread(None) == ""


def test_latency_has_ratios_of_medians_to_go_and_to_the_floor(data):
    row = rows(tables.latency(data))["bridge", "ADD"]
    assert row["Go"] == "50.5 / 99.0"
    assert row["launcher + requests"] == "0.50 + 0.25"
    assert (row["warm : Go"], row["warm : floor"]) == ("0.10x", "5.0x")
    assert (row["one-shot : Go"], row["one-shot : floor"]) == ("0.40x", "20x")


def test_calls_after_a_pause_are_compared_with_calls_in_a_row(data):
    found = rows(tables.idle(data))
    row = found["bridge", "ADD", "each second"]
    assert (row["warm"], row["warm : in a row"], row["warm : floor"]) == ("10.2 / 10.2", "2.0x", "5.0x")
    assert found["bridge", "ADD", "in a row"]["warm : in a row"] == "1.0x"
    assert ("bridge", "ADD", "in turn with another") not in found        # the run did not measure it


def test_calls_beside_changes_are_compared_with_those_without(data):
    found = rows(tables.beside(data))
    row = found["firewall", "DEL", "iptables-nft, ten changes a second"]
    assert (row["warm"], row["warm : no changes"], row["one-shot : Go"]) == ("7.7 / 7.7", "1.5x", "0.67x")
    assert found["firewall", "DEL", "iptables-nft, no changes"]["warm : no changes"] == "1.0x"


def test_a_rate_is_the_median_of_its_repeats(data):
    row = rows(tables.rate(data))["bridge", "DEL", "8"]
    assert row["Go"].startswith("50/s ")
    assert row["warm : Go"] == "10x"
    assert row["harness alone"] == "2,000/s"


def test_cost_is_compared_with_go_and_shows_a_missing_count(data):
    row = rows(tables.cost(data))["ptp", "warm"]
    assert (row["processor ms"], row[": Go"], row["processes"], row["threads"]) == ("2.0", "1.0x", "not counted", "9.5")


def test_disable_ipv6_is_compared_with_the_go_plugins_on_a_plain_bridge(data):
    row = rows(tables.density(data))["bridge disableIPv6", "ADD", "1,000"]
    assert row["Go"] == "" and row["warm : Go"] == "0.30x"


def test_without_the_go_plugins_there_are_ratios_to_the_floor_only(data):
    data["sides"].remove("Go")
    for name, table in tables.TABLES.items():
        if name not in ("cost", "memory"):
            assert not [column for column in table(data).columns if column.endswith(": Go")]
    assert rows(tables.latency(data))["bridge", "ADD"]["warm : floor"] == "5.0x"


def test_the_page_has_every_table_and_the_machine(data):
    page = report.page(data)
    assert "| kernel | Linux 6 |" in page and "\n- one note\n" in page
    assert "![Latency, one at a time](latency.svg)" in page
    for table in tables.TABLES.values():
        assert f"## {table(data).title}" in page
    tops = re.findall(r"^(\|.*)\n(\|[-:|]+\|)$", page, re.MULTILINE)
    assert tops and all(head.count("|") == rule.count("|") for head, rule in tops)


class Screen:
    def __init__(self):
        self.text = ""

    def print(self, text, **_):
        self.text += f"{text}\n"


def test_plots_drawn_again_are_the_same_bytes(data, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'fastcni[plots]'")
    report.finish(Options(report=str(tmp_path)), data, Screen())
    plots = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    assert set(plots) == {"latency.svg", "rate.svg", "density.svg"}
    report.replot(str(tmp_path), None, Screen())
    assert plots == {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    assert all(len(svg) < 100_000 for svg in plots.values())
    assert b"milliseconds" in plots["latency.svg"] and b"calls a second" in plots["rate.svg"]


def test_without_matplotlib_there_are_tables_and_a_hint(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastcni.bench.plots", None)
    screen = Screen()
    report.finish(Options(report=str(tmp_path)), data, screen)
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "report.json"}
    assert "pip install 'fastcni[plots]'" in screen.text


def spawn(program, *environment):
    return lambda: Running(program, dict(environment), b"", f"{program} of no side")


def test_a_flood_is_timed_and_its_first_failure_is_raised():
    flow = Flow([spawn("/bin/true")] * 5, 2)
    assert len(flow.ms) == 5
    assert flow.seconds * 1e3 >= max(flow.ms) > 0
    assert flow.cpu > 0
    with pytest.raises(CallFailed, match="/bin/false of no side: exit status 1"):
        Flow([spawn("/bin/true"), spawn("/bin/false"), spawn("/bin/true")], 2)


def test_without_root_the_error_asks_for_root(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert entry_point.run(["bench"]) == 1
    assert "run it as root" in capsys.readouterr().err


def bench_of(**options):
    return SimpleNamespace(options=Options(**options), cases=Options(**options).cases, note=Mock())


def test_the_networks_files_are_in_memory_if_they_fit(monkeypatch):
    """180,000 files do not fit into a container's usual 64 MB."""
    crowded, small = bench_of(only=("host-local-60000",)), bench_of(only=("bridge",))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=16384, f_frsize=4096, f_favail=10**6))
    assert run.data_dir(small) == "/dev/shm" and not small.note.called
    assert run.data_dir(crowded) == tempfile.gettempdir()
    assert "room for 16,384 files" in crowded.note.call_args.args[0]
    assert run.data_dir(bench_of(data_dir="/mnt")) == "/mnt"


class Recorded:
    """An implementation that only records its calls."""

    def __init__(self, name, events):
        self.name, self.events = name, events

    def prepare(self, network):
        pass

    check = Mock()

    def flow(self, command, network, pods, at_once):
        pass

    def call(self, command, network, pod):
        self.events.append(f"{self.name} {command} {pod.number}")
        return {self.name: 1.0}


def calls_of(events, monkeypatch, **plan):
    """Return an idle.Calls of two recorded implementations, a and b, which add each call to `events`. A pause adds its
    seconds."""
    monkeypatch.setattr("time.sleep", events.append)
    sides = [Recorded("a", events), Recorded("b", events)]
    pods = [SimpleNamespace(number=n) for n in range(4)]
    bench = SimpleNamespace(plan=replace(QUICK, idle_rounds=1, burst=2, rest=0.5, **plan), shuffled=list,
                            node=SimpleNamespace(pods=lambda count: pods[:count]))
    case = SimpleNamespace(calls=("ADD", "DEL"))
    return idle.Calls(bench, case, sides, {side: Mock(case=case) for side in sides})


def test_each_call_comes_after_a_pause(monkeypatch):
    events = []
    assert idle.each_second(calls_of(events, monkeypatch)) == {
        "a": {"ADD": [1.0], "DEL": [1.0]}, "b": {"ADD": [1.0], "DEL": [1.0]}}
    assert events == [1.0, "a ADD 0", 1.0, "a DEL 0", 1.0, "b ADD 2", 1.0, "b DEL 2"]


def test_the_calls_of_other_sides_are_in_the_same_second(monkeypatch):
    events = []
    idle.others_between(calls_of(events, monkeypatch))
    assert events == [0.5, "a ADD 0", 0.5, "b ADD 2", 0.5, "a DEL 0", 0.5, "b DEL 2"]


def test_each_call_in_turn_follows_one_of_the_first_side(monkeypatch):
    events = []
    assert idle.in_turn(calls_of(events, monkeypatch)) == {
        side: {"ADD": [1.0] * 2, "DEL": [1.0] * 2} for side in "ab"}
    assert events == ["a ADD 0", "b ADD 2", "a ADD 1", "b ADD 3", "a DEL 0", "b DEL 2", "a DEL 1", "b DEL 3", 0.5]


class AlwaysBusy:
    """The socket of process events, on a node where a process starts every millisecond for at most ten seconds."""

    def __init__(self):
        self.events = 0

    def recv(self, _):
        time.sleep(0.001)
        self.events += 1
        if self.events > 10_000:
            raise TimeoutError
        return forks.EVENT.pack(forks.FORK, time.monotonic_ns(), 7, 7, 1000 + self.events, 1000 + self.events)

    send = settimeout = close = Mock()


def test_the_count_of_processes_ends_on_a_node_with_constant_starts(monkeypatch):
    """The count waited for 0.2 s in which no process of the node started, so `fastcni bench` hung on a busy node."""
    sock = AlwaysBusy()
    monkeypatch.setattr(forks, "open_events", lambda _: sock)
    monkeypatch.setattr(forks, "_ask", lambda *_: None)
    with forks.Forks(0, [7]) as counted:
        time.sleep(0.02)
    assert 0 < counted.processes <= sock.events < 1000 and counted.threads == 0


# ---- a small run ----

@pytest.fixture(autouse=True)
def no_sample(monkeypatch):
    """Leave out the seconds in which a run observes the processors: these tests run with --force."""
    monkeypatch.setattr(guard, "busy_share", lambda: 0.0)


TINY = Options(replace(QUICK, rounds=1, burst=2, rest=0.01), only=("ptp",), parts=("latency",),
               sides=("one-shot", "floor"), force=True)


@pytest.fixture
def nothing_is_left():
    """Check after each test that the runs have left no namespace, no process and no file."""
    home, children = os.stat("/proc/thread-self/ns/net").st_ino, Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text().split()       # servers of other tests
    yield
    mine = f"{PREFIX}{os.getpid()}-"
    directories = filter(os.path.isdir, {"/run/netns", "/dev/shm", "/tmp", tempfile.gettempdir()})
    assert [name for path in directories for name in os.listdir(path) if name.startswith(mine)] == []
    assert not {*children.read_text().split()} - {*before}
    assert os.stat("/proc/thread-self/ns/net").st_ino == home


@pytest.mark.needs("root")
def test_a_small_run_measures_and_leaves_nothing(nothing_is_left, tmp_path, capsys):
    assert run.run(replace(TINY, report=str(tmp_path), html=str(tmp_path / "page.html"))) == 0
    samples = json.loads((tmp_path / "report.json").read_bytes())["latency"]["ptp"]
    assert "ptp ADD" in (tmp_path / "page.html").read_text()
    assert {side: len(calls["DEL"]) for side, calls in samples.items()} == {
        "one-shot": 2, "floor": 2, "launcher": 2, "requests": 2}
    output = capsys.readouterr()
    assert "One at a time" in output.out
    for text in (f"/run/netns/{PREFIX}{os.getpid()}-*", "/dev/shm", "stay as\nthey are", "1/1 one at a time: 0%"):
        assert text in output.err, output.err


def test_the_floor_has_the_same_latency_request_as_the_server(tmp_path):
    """Only warm mode was measured with a latency request to the kernel, so the floor was slower than warm mode."""
    held, pair = Mock(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with pair[0], pair[1]:
        pair[0].send(b"a request")
        echo.serve(Mock(accept=lambda: (pair[1], "")), bytearray(64), held)
        assert held.hold.call_count == 1 and pair[0].recv(100)


def test_the_report_shows_the_latency_request_of_warm_and_floor(monkeypatch, tmp_path):
    (tmp_path / "latency").touch()
    monkeypatch.delenv("FASTCNI_LATENCY_REQUEST_S", raising=False)
    monkeypatch.setattr(cpu_latency, "DEVICE", str(tmp_path / "latency"))
    assert report.machine(Options())["latency request of warm and floor"].endswith("until 10 ms after a request")
    monkeypatch.setenv("FASTCNI_LATENCY_REQUEST_S", "0")
    assert report.latency_request() == "none: FASTCNI_LATENCY_REQUEST_S is 0"
    monkeypatch.delenv("FASTCNI_LATENCY_REQUEST_S")
    monkeypatch.setattr(cpu_latency, "DEVICE", "/nowhere/latency")
    assert report.latency_request().startswith("none: [Errno 2]")


@pytest.mark.needs("root")
def test_a_small_run_after_pauses_measures_each_situation(nothing_is_left, tmp_path, capsys):
    small = replace(TINY, plan=replace(TINY.plan, idle_rounds=1, pause=0.01), parts=("idle",), report=str(tmp_path))
    assert run.run(small) == 0
    found = json.loads((tmp_path / "report.json").read_bytes())["idle"]["ptp"]
    counts = {situation: len(series["floor"]["DEL"]) for situation, series in found.items()}
    assert counts == {idle.ROW: 2, idle.PAUSED: 1, idle.BETWEEN: 1, idle.TURN: 2}
    assert "After a pause" in capsys.readouterr().out


@pytest.mark.needs("root")
@pytest.mark.skipif(not all(map(shutil.which, ("iptables-nft-restore", "iptables-legacy-restore"))),
                    reason="needs both kinds of iptables (Debian: iptables)")
def test_a_small_run_beside_changes_of_iptables_measures_both_kinds(nothing_is_left, tmp_path, monkeypatch, capsys):
    changed = []
    measure = beside.after_pauses

    def rules():
        saved = [namespaces.run(f"iptables-{kind}-save", "-t", "filter").splitlines() for kind in beside.KINDS]
        return [line for lines in saved for line in lines if line.startswith("-A KUBE-BENCH")]

    def with_a_look(calls):
        before, limit_s = rules(), 10 if len(changed) % 2 else 0.4
        changed.append(bool(eventually(lambda: rules() != before, limit_s)))
        return measure(calls)

    monkeypatch.setattr(beside, "after_pauses", with_a_look)
    small = replace(TINY, plan=replace(TINY.plan, idle_rounds=1, foreign_rules=10), parts=("beside",),
                    only=("firewall",), report=str(tmp_path))
    assert run.run(small) == 0
    assert changed == [False, True, False, True]
    found = json.loads((tmp_path / "report.json").read_bytes())["beside"]["firewall"]
    assert [*found] == [text for kind in beside.KINDS for text in (beside.quiet(kind), beside.changing(kind))]
    assert {len(series["one-shot"]["DEL"]) for series in found.values()} == {beside.CALLS_A_ROUND}
    assert "Beside a program" in capsys.readouterr().out


@pytest.mark.needs("root")
def test_another_fastcni_is_measured_in_the_same_run(nothing_is_left, capsys):
    compared = replace(TINY, sides=("warm", "before"), before=sys.executable)
    assert run.run(compared) == 0
    assert ": before" in capsys.readouterr().out


def test_another_python_without_fastcni_is_an_error(tmp_path):
    with pytest.raises(CniError, match="/bin/false -Im fastcni install"):
        another("/bin/false", str(tmp_path))
    with pytest.raises(CniError, match="/nowhere/python: No such file"):
        another("/nowhere/python", str(tmp_path))


@pytest.mark.needs("root")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])      # Ctrl-C; the end of an ssh session
def test_a_run_that_is_interrupted_leaves_nothing(nothing_is_left, monkeypatch, number):
    # In the middle of a call, while a pod exists
    monkeypatch.setattr(Floor, "_del_ptp", lambda *_: os.kill(os.getpid(), number))
    # Background jobs, and programs under nohup(1), ignore the signal
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run.run(TINY)
    finally:
        signal.signal(number, before)


@pytest.mark.needs("root")
def test_a_run_that_is_stopped_writes_the_parts_that_are_complete(nothing_is_left, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(run.MEASURE, "rate", lambda _: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(60)))
    stopped = replace(TINY, parts=("latency", "rate"), report=str(tmp_path), html=str(tmp_path / "page.html"))
    assert run.run(stopped) == 130
    data = json.loads((tmp_path / "report.json").read_bytes())
    assert "latency" in data and "rate" not in data
    assert "the run was stopped: rate is missing" in data["notes"]
    for page in ("page.html", "report.md"):
        assert "the run was stopped: rate is missing" in (tmp_path / page).read_text()
    assert "One at a time" in capsys.readouterr().out


@pytest.mark.needs("root")
def test_a_plugin_that_fails_ends_its_case_and_is_reported(nothing_is_left, tmp_path, capsys):
    for name in ("bridge", "ptp"):
        (tmp_path / name).write_text("#!/bin/sh\necho no luck\nexit 3\n")
        (tmp_path / name).chmod(0o755)
    assert run.run(replace(TINY, peer=str(tmp_path), sides=("Go",))) == 1
    assert "ptp: ptp ADD of Go: exit status 3: no luck" in capsys.readouterr().err


def test_a_chain_of_calls_is_measured_as_one():
    def said(text, then=None):
        def start():
            running = Running("/bin/sh", {}, f"printf {text}".encode(), text)
            running.then = then
            return running
        return start

    outputs = []

    def second(output):
        outputs.append(output)
        return said("two", outputs.append)

    flow = Flow([said("one", second), said("alone")], 1)
    assert outputs == [b"one", b"two"]
    assert len(flow.ms) == 2 and sum(flow.ms) <= flow.seconds * 1e3
    assert one(said("one", second))[1] == b"two" and outputs == [b"one", b"two"] * 2


def test_a_chain_is_measured_many_at_once_if_it_is_named():
    assert [case.name for case in Options(only=("podman", "portmap", "ptp")).parallel_cases] == [
        "ptp", "podman"]
    assert "podman" not in [case.name for case in Options().parallel_cases]
