"""The events for operators: their table, full address pools, and repeated DELs."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
from unit.server.flushed import Log

from fastcni.daemon.events import EVENTS
from fastcni.server.metrics import pool_watch
from fastcni.server.metrics.pool_watch import PoolWatch
from fastcni.server.metrics.pools import Counted, Pool
from fastcni.server.records.ended import Ended, Phases
from fastcni.server.records.retried_deletes import MAX_FAILED, RetriedDeletes
from fastcni.server.requests.request_queue import Call

ROOT = Path(__file__).parents[3]


def test_the_page_has_the_table_of_events():
    page = (ROOT / "docs/traces-and-events.md").read_text(encoding="utf-8")
    table = page.partition("| event | level | fields | meaning |\n|---|---|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == [
        f"| `{name}` | {it.level} | {', '.join(f'`{field}`' for field in it.fields)} | {it.meaning} |"
        for name, it in EVENTS.items()]


def test_each_event_is_logged_with_its_fields():
    """The test cannot see the fields that a call passes by **. So such a call counts as complete."""
    found = {}
    for path in (ROOT / "fastcni/server").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                keywords = {it.arg for it in node.keywords}
                found.setdefault(node.args[0].value, []).append(keywords)
    for name, event in EVENTS.items():
        assert name in found, name
        assert any(None in keywords or {*event.fields} <= keywords for keywords in found[name]), name


def counted(held, size=100, network="net-a", ipam="host-local"):
    return Counted((Pool(ipam, network, "10.1.0.0/24", held, size - held),))


def test_a_pool_is_logged_once_above_the_limit_and_again_only_after_it_has_recovered():
    log = Log()
    it = PoolWatch(Counted, None, log)
    for held in (0, 90, 91, 100, 85, 95, 79, 80, 91):
        it.check(counted(held))
    assert [(name, values["held"], values["free"]) for name, values in log.lines] == [
        ("pool_nearly_full", 91, 9), ("pool_recovered", 79, 21), ("pool_nearly_full", 91, 9)]
    assert log.lines[0][1] == {"network": "net-a", "range": "10.1.0.0/24", "held": 91, "free": 9}


@pytest.mark.parametrize("pools", [
    counted(99, ipam="cluster"), counted(0, 0), Counted((Pool("host-local", "net-a", "none", 7),)), Counted()])
def test_what_is_no_full_pool_of_host_local_is_not_logged(pools):
    it = PoolWatch(Counted, None, log := Log())
    it.check(pools)
    assert log.lines == []


def test_a_pool_that_is_gone_is_forgotten():
    it = PoolWatch(Counted, None, log := Log())
    for pools in (counted(95), Counted(), counted(95)):
        it.check(pools)
    assert [name for name, _ in log.lines] == ["pool_nearly_full", "pool_nearly_full"] and len(it.full) == 1


def test_pools_are_counted_once_in_a_period_and_never_twice_at_a_time(monkeypatch):
    def count():
        return next(answers)()

    clock, jobs, log = [1000.0], [], Log()
    monkeypatch.setattr(pool_watch, "monotonic", lambda: clock[0])
    answers = iter([lambda: counted(95), lambda: 1 / 0, lambda: counted(50)])
    it = PoolWatch(count, jobs.append, log)
    for seconds, number in ((1, 0), (60, 1), (61, 1)):
        clock[0] += seconds
        it.poll()
        assert len(jobs) == number
    for _ in range(3):
        jobs.pop()()
        clock[0] += 60
        it.poll()
    assert [name for name, _ in log.lines] == ["pool_nearly_full", "server_fault", "pool_recovered"]


def delete(it, outcome, *, command="DEL", plugin="bridge", container="c", network="net-a"):
    message = SimpleNamespace(plugin=plugin, id="a-1", env={})
    call = Call((container, "eth0"), command, None, message)
    call.network = network
    it.note(Ended(call, outcome, 0.0, 0.1, Phases()))


def test_a_del_that_is_repeated_is_logged_more_and_more_rarely():
    it = RetriedDeletes(log := Log())
    for outcome in ("0", "11", "11", "caller_gone", "11", "11", "11", "0", "0"):
        delete(it, outcome)
    assert [(values["failures"], values["outcome"]) for _, values in log.lines] == [
        (2, "11"), (3, "caller_gone"), (5, "11"), (6, "0")]
    assert log.lines[0] == ("delete_retried", {
        "id": "a-1", "plugin": "bridge", "network": "net-a", "container": "c", "ifname": "eth0", "failures": 2,
        "outcome": "11"})
    assert it.failed == {}


@pytest.mark.parametrize("other", [{"plugin": "portmap"}, {"container": "d"}, {"network": "b"}, {"command": "ADD"},
                                   {"network": ""}])
def test_another_request_is_no_repetition(other):
    it = RetriedDeletes(log := Log())
    delete(it, "11")
    delete(it, "0", **other)
    delete(it, "declined")              # the server declined it, so it runs as a one-shot request
    assert log.lines == []
    delete(it, "0")
    assert [values["failures"] for _, values in log.lines] == [1]


def test_failed_dels_are_remembered_up_to_a_limit():
    it = RetriedDeletes(log := Log())
    for number in range(MAX_FAILED + 1):
        delete(it, "11", container=f"c{number}")
    assert len(it.failed) == MAX_FAILED
    delete(it, "0", container="c0")
    assert log.lines == []
    delete(it, "0", container="c1")
    assert len(log.lines) == 1
