"""`fastcni bench` on a node in use: its page, its progress, and the checks that keep it from disturbing the node."""

import io
import json
import os
import re
import subprocess
import time
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from project.bench_data import complete_run, many, series
from rich.console import Console

from fastcni.bench import estimate, guard, isolation, peer, progress, run, verdict, web_page
from fastcni.bench.cases import QUICK, Options, Plan
from fastcni.cli import entry_point
from fastcni.launcher.identify import FASTCNI, GO
from fastcni.spec.errors import CniError

VOID = {"meta", "link"}


@pytest.fixture
def data():
    found = complete_run()
    return {**found, "peer": "/opt/cni/bin", "plan": {"burst": 3}}


def row(data, label):
    return next(row for row in verdict.rows(data) if row.label == label)


# ---- the verdict ----

def test_the_verdict_says_how_many_times_as_fast(data):
    data["latency"] = {"bridge": series([24.0] * 9, [12.0] * 9, [10.0] * 9, [5.0] * 9)}
    assert verdict.headline(data) == (
        "bridge ADD: 2.4 times as fast as the Go plugins found in /opt/cni/bin, one call at a time")
    assert verdict.summary(data)[0] == "With its server (warm), fastcni is faster in all 2 calls that were compared."


def test_the_verdict_says_when_fastcni_is_slower(data):
    data["latency"] = {"bridge": series([10.0] * 9, [13.0] * 9, [20.0] * 9, [5.0] * 9)}
    assert verdict.headline(data).startswith("bridge ADD: takes 2.0 times as long as the Go plugins")
    assert verdict.summary(data)[1] == (
        "Without a server (one-shot), fastcni is faster in 0 of 2 calls, slower in 2 (bridge ADD; bridge DEL).")


def test_rounds_on_both_sides_are_about_as_fast():
    """The medians differ by a third, but in one of three rounds the implementation with the slower median was
    faster."""
    ratio = verdict.ratio_of([12.0, 12.0, 8.0], [9.0, 9.0, 12.0], 1)
    assert ratio.times == pytest.approx(12 / 9) and ratio.tone == verdict.SAME
    assert ratio.sentence == "about as fast as" and ratio.range == "rounds: 0.73 to 1.3"


def test_the_range_of_a_slower_side_is_in_the_sense_of_its_words():
    ratio = verdict.ratio_of([10.0, 10.0], [20.0, 40.0], 1)
    assert (ratio.words, ratio.range) == ("3.0 times as long", "rounds: 2.1 to 3.8")


def test_rates_and_processor_time_have_verdicts(data):
    data["rate"]["bridge"]["8"]["Go"] = many(100, 1.0)
    assert row(data, "bridge ADD, 8 at once").cells["warm"][1].sentence == "5.0 times as fast as"
    cost = [row for row in verdict.rows(data) if row.group.startswith("Processor")]
    assert [(it.label, it.cells["warm"][1].sentence) for it in cost] == [("ptp", "10 times less than")]


def test_without_go_plugins_the_verdict_is_of_fastcni_alone(data):
    data |= {"peer": "", "sides": ["one-shot", "warm", "floor"], "latency": {"ptp": {"warm": {"ADD": [1.5]}}}}
    for part in ("idle", "rate", "cost", "density"):
        del data[part]
    assert verdict.headline(data) == "ptp ADD: 1.5 ms, fastcni alone"
    assert verdict.summary(data)[0].startswith("No Go plugins were found on this node")
    assert "compared with Go" not in web_page.web_page(data)


# ---- the page ----

class Page(HTMLParser):
    """A parser that checks that the page's tags are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def test_the_page_is_complete_and_needs_nothing_else(data):
    text = web_page.web_page(data)
    page = Page(text)
    for part in ("as fast as the Go plugins found in /opt/cni/bin", "The command", "Linux 6", "one note", "busy",
                 "From round to round", "One at a time, ms", "The server's memory"):
        assert part in page.words, part
    assert not {"script", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?:|url\(|@import|[^-]src=", text)
    assert len(text) < 100_000


def test_each_plot_is_named_and_described(data):
    text = web_page.web_page(data)
    page = Page(text)
    plots = [attrs for tag, attrs in page.tags if tag == "svg" and attrs.get("role") == "img"]
    assert len(plots) >= 7          # latency, rate, density of two cases for ADD and DEL; cost
    idents = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(idents) == len(set(idents))
    for attrs in plots:
        assert {*attrs["aria-labelledby"].split()} <= {*idents}
    assert "bridge: Go 50.5 ms, one-shot 20.2 ms, warm 5.1 ms" in page.words


def test_names_are_escaped(data):
    data["notes"], data["command"], data["peer"] = ["<b>note</b>"], "fastcni bench --peer '<i>'", "/<u>"
    assert not {"b", "i", "u"} & {tag for tag, _ in Page(web_page.web_page(data)).tags}


def test_samples_of_an_older_version_make_a_page(data):
    for key in ("peer", "idle", "memory"):
        del data[key]
    assert "fast as the Go plugins, one call at a time" in web_page.web_page({**data, "plan": {}})


def test_a_page_is_made_of_a_report(data, tmp_path, capsys):
    (tmp_path / "report.json").write_text(json.dumps(data))
    assert entry_point.run(["bench", "--replot", "--report", str(tmp_path), "--html", str(tmp_path / "a.html")]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"report.json", "a.html"}
    assert entry_point.run(["bench", "--replot", "--report", str(tmp_path), "--html", str(tmp_path / "no/a")]) == 1
    assert "No such file" in capsys.readouterr().err


# ---- progress ----

def test_a_run_without_a_terminal_prints_lines_with_the_time_left(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    screen = Console(file=io.StringIO(), width=80)
    meter = progress.Meter(screen, {"latency": 100.0, "rate": 300.0})
    with meter.of_part("latency"), meter.steps("one at a time", 10) as step:
        step(0, "ptp")
        for _ in range(10):
            now[0] += 20            # twice as slow as estimated
            step()
    with meter.of_part("rate"), meter.steps("many at once", 3):
        pass
    lines = screen.file.getvalue().splitlines()
    assert lines[0] == "1/2 one at a time: 0%, about 7 min left"
    assert lines[1] == "1/2 one at a time: ptp: 10%, about 10 min left"         # after 80 s
    assert lines[-1] == "2/2 many at once: 25%, about 9 min left"
    assert len(lines) == 4          # the steps between are less than a minute apart


def test_a_terminal_has_a_bar_that_fits_into_80_columns(monkeypatch):
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 0.0))       # on a busy machine: 68 min left
    screen = Console(file=io.StringIO(), force_terminal=True, width=80, _environ={})
    meter = progress.Meter(screen, {"latency": 4000.0})
    with meter.of_part("latency"), meter.steps(f"one at a time: {'bridge, portmap, ' * 5}", 10):
        pass
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.file.getvalue())
    (bar,) = {line for line in re.split("[\r\n]", text) if line}
    assert bar == f"1/1 one at a time: bridge, portmap, bri… {'━' * 16}   0% about 67 min left"
    assert len(bar) <= 80


def test_a_part_without_work_has_progress_too():
    """`--part rate --only portmap` measures only the harness, which has no estimated duration: the progress was divided
    by zero."""
    screen = Console(file=io.StringIO(), width=80)
    meter = progress.Meter(screen, estimate.seconds(Options(QUICK, only=("portmap",), parts=("rate",))))
    with meter.of_part("rate"), meter.steps("many at once", 2):
        pass
    assert screen.file.getvalue() == "1/1 many at once: 0%, a few seconds left\n"


def test_an_estimate_follows_the_options():
    whole, quick = (estimate.seconds(Options(plan)) for plan in (Plan(), QUICK))
    assert 20 * 60 < sum(whole.values()) < 60 * 60 and sum(quick.values()) < 15 * 60
    one = estimate.seconds(Options(QUICK, only=("ptp",), parts=("latency",)))
    assert list(one) == ["latency"] and one["latency"] < 10
    assert estimate.pods(Options(Plan(), parts=("memory",))) == 1000
    assert [progress.duration(n) for n in (3, 44, 100, 2400)] == [
        "a few seconds", "about 40 s", "about 2 min", "about 40 min"]


# ---- a node in use ----

@pytest.fixture
def quiet(tmp_path):
    """Return (socket, directory) of a node without a server, whose last pod was added an hour ago."""
    hour_ago = time.time() - 3600
    (tmp_path / "results").mkdir()
    os.utime(tmp_path / "results", (hour_ago, hour_ago))
    return str(tmp_path / "sock"), str(tmp_path / "results")


def test_a_quiet_node_is_measured(quiet):
    assert list(guard.reasons(0.1, *quiet)) == []


def test_busy_processors_are_a_reason_with_figure_and_limit(quiet):
    assert list(guard.reasons(0.62, *quiet)) == ["the processors were busy for 62% of the last 2 s (limit 25%)"]


def test_a_pod_of_this_moment_is_a_reason(quiet):
    os.utime(quiet[1])
    (reason,) = guard.reasons(0.1, *quiet)
    assert "a pod was added or deleted 0 s ago" in reason and "(limit 10 s)" in reason


def test_requests_of_the_nodes_server_are_a_reason(quiet, monkeypatch):
    requests = [{"command": command, "time": time.time() - ago}
                for command, ago in (("ADD", 3), ("DEL", 9), ("ADD", 11), ("STATUS", 1))]
    monkeypatch.setattr(guard.status, "ask", lambda _: {"running": 1, "waiting": 2})
    monkeypatch.setattr(guard.history, "ask", lambda _: {"requests": requests})
    (reason,) = guard.reasons(0.1, *quiet)
    assert "had 5 requests for pods in the last 10 s (limit 0)" in reason


def test_the_processors_are_observed():
    before = time.monotonic()
    while time.monotonic() - before < 0.02:
        pass
    assert 0 <= guard.busy_share(0.02) <= 1


def test_a_busy_node_is_refused_unless_forced(monkeypatch, capsys):
    measured = []
    monkeypatch.setattr(run, "check_machine", lambda _: None)
    monkeypatch.setattr(guard, "busy_share", lambda: 0.9)
    monkeypatch.setattr(run, "available", lambda options: measured.append(options) or 1 / 0)
    with pytest.raises(SystemExit) as ended:
        entry_point.run(["bench"])
    assert ended.value.code == os.EX_TEMPFAIL and measured == []
    assert "This node is busy: the processors were busy for 90%" in (errors := capsys.readouterr().err)
    assert "--force" in errors
    with pytest.raises(ZeroDivisionError):
        entry_point.run(["bench", "--force"])
    assert measured[0].force


def test_servers_of_the_benchmark_do_not_see_the_nodes_state(monkeypatch):
    """When a server starts, it releases stale addresses in /var/lib/cni and restores the rules of cached pods. The
    benchmark's servers must not do this for the node's pods."""
    for name in ("FASTCNI_METRICS", "OTEL_EXPORTER_OTLP_ENDPOINT", "FASTCNI_LATENCY_REQUEST_S"):
        monkeypatch.setenv(name, "0")
    variables = isolation.environment()
    assert "FASTCNI_METRICS" not in variables and "OTEL_EXPORTER_OTLP_ENDPOINT" not in variables
    assert variables["FASTCNI_LATENCY_REQUEST_S"] == "0"
    assert "/nonexistent/" in variables["DBUS_SYSTEM_BUS_ADDRESS"]      # firewalld gets no request
    with pytest.raises(CniError, match="does not see /var/lib/cni"):
        isolation.check_data_dir("/var/lib/cni/networks")
    isolation.check_data_dir("/var/lib")


@pytest.mark.needs("root")
def test_hidden_directories_are_empty_for_a_server_only(tmp_path, monkeypatch):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/10-net.conflist").touch()
    monkeypatch.setattr(isolation, "HIDDEN", (str(tmp_path / "nowhere"), str(tmp_path / "hidden")))
    script = f"ls {tmp_path / 'hidden'}; touch {tmp_path / 'hidden/new'}; echo $$"
    with subprocess.Popen(isolation.isolated(["sh", "-c", script]), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.read() == f"{server.pid}\n"
    assert [path.name for path in (tmp_path / "hidden").iterdir()] == ["10-net.conflist"]


# ---- the Go plugins ----

@pytest.fixture
def directories(tmp_path, monkeypatch):
    """Return two directories, (plugins, replaced). A program is taken for a Go plugin if its first line is "go"."""
    replaced = tmp_path / ".fastcni-replaced"
    replaced.mkdir()

    def identify(path):
        return SimpleNamespace(kind=open(path).read()) if os.path.exists(path) else None

    monkeypatch.setattr(peer, "identify", identify)
    return tmp_path, replaced


def test_the_go_plugins_of_the_runtime_are_found(directories):
    plugins, _ = directories
    (plugins / "bridge").write_text(GO)
    assert peer.find("", ["/nowhere", str(plugins)]) == peer.find(str(plugins)) == str(plugins)


def test_the_go_plugins_that_fastcni_replaced_are_found(directories):
    plugins, replaced = directories
    (plugins / "bridge").write_text(FASTCNI)
    assert peer.find("", [str(plugins)]) == peer.find(str(plugins)) == ""
    (replaced / "bridge").write_text(GO)
    assert peer.find("", [str(plugins)]) == peer.find(str(plugins)) == str(replaced)
    assert "no Go plugins in /a, /b" in peer.missing("", ["/a", "/b"])
