"""Check the lanes (`make test`, `make test-vm`, ...): each test that needs a kernel feature runs in a lane with this
feature, or is listed as run by no lane."""

import json
import os
import subprocess
import sys
from pathlib import Path

import features
import pytest

pytest_plugins = ["pytester"]

COUNT = Path(__file__).parents[1] / "vm" / "count.py"
TESTS = """
import pytest

@pytest.mark.needs("dummy")
def test_dummy(): pass

@pytest.mark.parametrize("kind", [pytest.param("vlan", marks=pytest.mark.needs("8021q", "dummy")),
                                  pytest.param("veth", marks=pytest.mark.needs())])
def test_link(kind): pass

@pytest.mark.needs("tun")
def test_that_skips_for_a_reason_of_its_own(): pytest.skip("no time")

@pytest.mark.needs("tun")
def test_that_fails(): assert False

@pytest.mark.skipif(True, reason="no compiler")
def test_of_another_tool(): pass
"""


@pytest.fixture
def lane(pytester, monkeypatch):
    """Return a function that runs TESTS on a kernel without some features, and returns (the lane's record of skipped
    tests, pytest's output lines)."""
    pytester.makepyfile(test_it=TESTS)
    pytester.makeini("[pytest]\nmarkers = needs\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def run(name, lacks, other_lacks=None, select=""):
        monkeypatch.setattr(features, "has", lambda feature: feature not in lacks)
        record = pytester.path / f"{name}.json"
        done = pytester.runpytest_inprocess("-rs", "-k", select, plugins=[features.Lane(record, other_lacks)])
        return json.loads(record.read_text()), done.outlines

    return run


def test_the_vm_collects_the_files_of_what_the_host_could_not_run(tmp_path):
    def chosen():
        return subprocess.run([sys.executable, COUNT.parent / "chosen.py", tmp_path / "host.json"], check=True,
                              capture_output=True, text=True).stdout.split()

    assert chosen() == []               # without a record the lane chooses all tests
    (tmp_path / "host.json").write_text(json.dumps({"not run": {"tests/a/test_b.py::test_c[x]": "needs CONFIG_DUMMY"}}))
    assert chosen() == sorted({"tests/a/test_b.py", *(f"tests/{name}" for name in features.BASE)})


def count(directory):
    done = subprocess.run([sys.executable, COUNT, "host.json", "vm.json"], cwd=directory, capture_output=True,
                          text=True)
    return done.returncode, done.stdout.splitlines()


def test_a_test_is_skipped_for_the_options_that_the_kernel_lacks(lane):
    record, lines = lane("host", {"8021q", "dummy"})
    assert record["ran"] == ["test_it.py::test_link[veth]", "test_it.py::test_that_fails"]
    assert record["not run"] == {
        "test_it.py::test_of_another_tool": "no compiler",
        "test_it.py::test_dummy": "needs CONFIG_DUMMY, which this kernel lacks",
        "test_it.py::test_link[vlan]": "needs CONFIG_VLAN_8021Q, CONFIG_DUMMY, which this kernel lacks",
        "test_it.py::test_that_skips_for_a_reason_of_its_own": "no time",
    }
    assert "SKIPPED [1] test_it.py:3: needs CONFIG_DUMMY, which this kernel lacks" in lines


def test_the_second_lane_runs_the_skipped_tests_of_the_first_and_the_rest_is_listed(lane, pytester):
    lane("host", {"8021q"})
    record, lines = lane("vm", set(), other_lacks={"8021q"})
    assert record["ran"] == ["test_it.py::test_link[vlan]"] and "1 passed, 5 deselected" in lines[-1]
    assert count(pytester.path) == (1, [
        f"host, Linux {os.uname().release}: ran 3 tests",
        f"vm, Linux {os.uname().release}: ran 1 tests",
        "test_it.py::test_of_another_tool",
        "    host: no compiler",
        "    vm: left to the other lane",
        "test_it.py::test_that_skips_for_a_reason_of_its_own",
        "    host: no time",
        "    vm: left to the other lane",
        "2 tests were run by no lane, 2 of them unexpectedly"])


def test_allowed_skips_are_listed_and_are_no_failure(lane, pytester, monkeypatch):
    """A skip for any reason, such as a missing compiler, hid a test for ever."""
    lane("host", {"8021q"})
    lane("vm", set(), other_lacks={"8021q"})
    edit("host", pytester, {"no compiler": "no package index: refused", "no time": "needs firewalld and dbus"})
    status, lines = count(pytester.path)
    assert status == 0 and lines[-1] == "2 tests were run by no lane, 0 of them unexpectedly"
    assert f"    allowed: {features.ALLOWED['no package index']}" in lines
    edit("host", pytester, {"no package index: refused": "no index"})
    assert count(pytester.path) == (1, [*lines[:3], "    host: no index", *lines[4:5], *lines[6:-1],
                                        "2 tests were run by no lane, 1 of them unexpectedly"])


def edit(name, pytester, reasons):
    """Replace the reasons for skips in a lane's record. reasons: {recorded reason: new reason}."""
    record = json.loads((path := pytester.path / f"{name}.json").read_text())
    record["not run"] = {test: reasons.get(why, why) for test, why in record["not run"].items()}
    path.write_text(json.dumps(record))


def test_a_lane_of_selected_tests_records_no_others(lane, pytester):
    """`make test-toolchains` selects tests by name. Its record must not list the unselected tests as skipped."""
    record, _ = lane("toolchains", set(), select="fails")
    assert record == {"kernel": os.uname().release, "ran": ["test_it.py::test_that_fails"], "not run": {}}


def test_all_run_by_one_lane_or_the_other_is_a_success(lane, pytester):
    for name, lacks in (("host", {"8021q"}), ("vm", set())):
        record, _ = lane(name, lacks)
        for test in ("test_of_another_tool", "test_that_skips_for_a_reason_of_its_own"):
            record["not run"].pop(f"test_it.py::{test}")
        (pytester.path / f"{name}.json").write_text(json.dumps(record))
    status, lines = count(pytester.path)
    assert status == 0 and lines[-1] == "0 tests were run by no lane, 0 of them unexpectedly"


def test_tests_of_a_feature_that_both_kernels_lack_are_run_by_no_lane(lane, pytester):
    lane("host", {"dummy"})
    lane("vm", {"dummy"}, other_lacks={"dummy"})
    status, lines = count(pytester.path)
    assert status == 1 and lines[-1] == "4 tests were run by no lane, 4 of them unexpectedly"


@pytest.mark.parametrize(("record", "status"), [("host.json", 1), ("vm.json", 0)])
def test_a_missing_lane_is_not_counted(lane, pytester, record, status):
    lane(record.removesuffix(".json"), set())
    assert count(pytester.path)[0] == status


CONFTEST = """
import os, sys
sys.path.insert(0, {here!r})
import features
features.has = lambda feature: feature != "8021q"
os.geteuid = lambda: 0

def pytest_configure(config):
    config.pluginmanager.register(features.Lane(config.rootpath / "lane.json", {other_lacks!r}))
"""


@pytest.mark.parametrize("other_lacks, dummy", [(None, None), ({"8021q", "tun"}, "left to the other lane")])
def test_the_workers_of_xdist_write_one_record(pytester, monkeypatch, other_lacks, dummy):
    pytest.importorskip("xdist")
    # The import of pytest's other plugins takes longer than this test
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_it=TESTS)
    pytester.makeini("[pytest]\nmarkers = needs\n")
    pytester.makeconftest(CONFTEST.format(here=str(Path(features.__file__).parent), other_lacks=other_lacks))
    done = pytester.runpytest_subprocess("-p", "xdist", "-n", "2", "--dist", "worksteal")
    assert done.parseoutcomes()["failed"] == 1
    record = json.loads((pytester.path / "lane.json").read_text())
    base = [] if dummy else ["test_it.py::test_dummy", "test_it.py::test_link[veth]"]
    assert record["ran"] == [*base, "test_it.py::test_that_fails"]
    assert record["not run"] == {
        **({f"test_it.py::{test}": dummy for test in ("test_dummy", "test_link[veth]")} if dummy else {}),
        "test_it.py::test_of_another_tool": dummy or "no compiler",
        "test_it.py::test_link[vlan]": "needs CONFIG_VLAN_8021Q, which this kernel lacks",
        "test_it.py::test_that_skips_for_a_reason_of_its_own": "no time",
    }


def test_a_feature_outside_of_the_table_is_an_error(pytester):
    pytester.makepyfile("import pytest\n@pytest.mark.needs('802.1q')\ndef test_it(): pass\n")
    done = pytester.runpytest_inprocess(plugins=[features.Lane()])
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "802.1q: not in tests/features.py" in done.stderr.str() + done.stdout.str()


@pytest.mark.parametrize("fixture", ["host_netns", "pod_netns"])
def test_a_test_in_namespaces_of_its_own_needs_root(pytester, monkeypatch, fixture):
    pytester.makepyfile(f"import pytest\n@pytest.fixture\ndef {fixture}(): pass\n@pytest.fixture\n"
                        f"def node({fixture}): pass\ndef test_it(node): pass\ndef test_other(): pass\n")
    pytester.makeini("[pytest]\nmarkers = needs\n")
    done = pytester.runpytest_inprocess("-m", "not needs", plugins=[features.Lane()])
    assert done.parseoutcomes() == {"passed": 1, "deselected": 1}
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = pytester.runpytest_inprocess("-rs", plugins=[features.Lane()])
    assert done.parseoutcomes() == {"passed": 1, "skipped": 1}
    assert "needs root: makes network namespaces" in done.stdout.str()


@pytest.mark.needs("root")
def test_kernel_without_a_link_kind_lacks_its_feature(monkeypatch):
    monkeypatch.setitem(features.FEATURES, "none", ("CONFIG_NONE", "link add probe type fastcni"))
    assert features.has("bridge") and not features.has("none")
