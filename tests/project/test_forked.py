"""`pytest --processes N`: each test runs once, and a process that ends does not hide a test."""

import forked
import pytest

pytest_plugins = ["pytester"]

TESTS = """
import os, pytest, signal, time, warnings
from pathlib import Path

RAN = Path({ran!r})

@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("session")
    yield directory
    (RAN / f"end-{{os.getpid()}}").touch()

{first}

@pytest.mark.parametrize("number", range(20))
def test_passes(number, directory, tmp_path, capfd):
    os.write(1, b"%d" % number)
    assert capfd.readouterr().out == str(number) and tmp_path.parent == directory.parent
    with open(RAN / f"{{number}}", "x") as file:
        file.write(f"{{os.getpid()}} {{tmp_path}}")
    time.sleep(0.05)

def test_fails(directory):
    print("a last word")
    warnings.warn("the weather")
    assert {{1: 2}} == {{1: 3}}

def test_skips(directory): pytest.skip("no time")

{more}
"""


@pytest.fixture
def run(pytester, monkeypatch, tmp_path):
    """run(*options, first, more): run `first`, TESTS and `more` in two processes. Return the outcome, and {name of a
    file: content}."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(forked.__file__).rpartition("/")[0])

    def run(*options, first="", more=""):
        ran = tmp_path / "ran"
        ran.mkdir()
        pytester.makepyfile(test_it=TESTS.format(ran=str(ran), first=first, more=more))
        done = pytester.runpytest_subprocess("-p", "forked", "--processes", "2", "-rs", *options)
        return done, {path.name: path.read_text() for path in ran.iterdir()}

    return run


def test_each_test_runs_once_and_is_reported_as_by_one_process(run):
    done, ran = run()
    assert done.parseoutcomes() == {"passed": 20, "failed": 1, "skipped": 1, "warnings": 1}
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["collected 22 items", "*100%]", "E *assert {1: 2} == {1: 3}", "a last word",
                               "*UserWarning: the weather", "SKIPPED *no time"], consecutive=False)
    tests = [text.split() for name, text in ran.items() if name.isdecimal()]
    assert len(tests) == 20 and len({path for _, path in tests}) == 20
    pids = {pid for pid, _ in tests}
    assert len(pids) == 2
    assert {f"end-{pid}" for pid in pids} == {name for name in ran if name.startswith("end-")}


def test_a_process_that_ends_fails_its_test_and_another_one_runs_the_rest(run):
    done, ran = run(more="def test_kills(directory): os.kill(os.getpid(), signal.SIGKILL)")
    assert done.parseoutcomes() == {"passed": 20, "failed": 2, "skipped": 1, "warnings": 1}
    done.stdout.fnmatch_lines(["*the process of this test has ended with status -9"])
    assert len({text.split()[0] for name, text in ran.items() if name.isdecimal()}) in (2, 3)


def test_after_the_first_failure_no_more_tests_begin_and_fixtures_end(run):
    done, ran = run("--maxfail", "1", first="def test_first(directory): assert False")
    outcomes = done.parseoutcomes()
    assert outcomes["failed"] == 1 and outcomes.get("passed", 0) < 19
    done.stdout.fnmatch_lines(["*stopping after 1 failures*"])
    begun = {text.split()[0] for name, text in ran.items() if name.isdecimal()}
    assert {f"end-{pid}" for pid in begun} <= {name for name in ran if name.startswith("end-")}


def test_half_of_the_largest_part_goes_to_a_process_without_tests():
    runner = forked.Runner(3)
    runner.parts[0].extend((1, 2))
    runner.parts[1].extend((3, 4, 5, 6, 7))
    assert runner.steal(runner.parts[2])
    assert [[*part] for part in runner.parts] == [[1, 2], [3, 4], [5, 6, 7]]
    for part in runner.parts:
        part.clear()
    assert not runner.steal(runner.parts[0])
