"""`pytest --forks N` (tests/forks.py) runs each test once, in one of N processes, and reports as in one process."""

import signal
import subprocess
import sys
from pathlib import Path

import forks
import pytest

from fastcni.testing.witnesses import eventually

pytest_plugins = ["pytester"]

# Each test writes its name, its process and its directory into the file "ran".
CONFTEST = """
import os
import sys
sys.path.insert(0, {tests!r})
import pytest

from fastcni.testing.witnesses import eventually
pytest_plugins = ["forks"]

@pytest.fixture(autouse=True)
def ran(request, tmp_path):
    with open("ran", "a") as file:
        file.write(f"{{request.node.name}} {{os.getpid()}} {{tmp_path}}\\n")
"""
SLOW = "import time\nimport pytest\n\n@pytest.mark.parametrize('n', range({tests}))\ndef test_it(n): {body}\n"


@pytest.fixture
def run(pytester, monkeypatch):
    """Return a function run(tests, *options, forks=2) that runs pytest and returns (its result, [[test, process,
    directory]])."""
    # The import of pytest's other plugins takes longer than these tests
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST.format(tests=str(Path(forks.__file__).parent)))

    def start(tests, *options, forks=2):
        pytester.makepyfile(test_it=tests)
        done = pytester.runpytest_subprocess("--forks", str(forks), *options)
        return done, [line.split() for line in (pytester.path / "ran").read_text().splitlines()]

    return start


def test_each_test_runs_once_and_no_fork_waits_while_tests_are_left(run):
    """The first test waits until the other fork has run all tests but the second, which the first fork has taken."""
    done, ran = run(SLOW.format(tests=40, body="""
    while n == 0 and len(open("ran").readlines()) < 39:
        time.sleep(0.01)"""))
    assert done.parseoutcomes() == {"passed": 40} and done.ret == 0
    assert sorted(name for name, *_ in ran) == sorted(f"test_it[{n}]" for n in range(40))
    processes = [process for _, process, _ in ran]
    assert len(set(processes)) == 2 and sorted(map(processes.count, set(processes))) == [2, 38]
    directories = {str(Path(directory).parent) for _, _, directory in ran}
    assert len(directories) == 2                    # forks share no temporary directory


def test_outcomes_output_and_warnings_are_those_of_one_process(run):
    done, _ = run("""
        import os
        import warnings
        import pytest

        def test_passes(): pass
        def test_fails():
            print("printed before")
            os.system("echo printed by a program")
            assert 1 == 2
        def test_skips(): pytest.skip("no time")
        @pytest.mark.xfail
        def test_of_a_known_fault(): assert False
        def test_warns(): warnings.warn("beware", UserWarning)
        @pytest.fixture
        def broken():
            yield
            raise ValueError("at the end")
        def test_ends_badly(broken): pass
        """, "-rs")
    assert done.ret == 1
    assert done.parseoutcomes() == {"passed": 3, "failed": 1, "skipped": 1, "xfailed": 1, "warnings": 1, "errors": 1}
    done.stdout.fnmatch_lines_random(["*assert 1 == 2", "printed before", "printed by a program", "SKIPPED*no time",
                                      "*UserWarning: beware", "*ValueError: at the end"])


def test_each_fork_captures_its_own_output(run):
    done, _ = run("""
        import os
        import pytest
        from fastcni.testing.witnesses import eventually

        @pytest.mark.parametrize("own, other", ["ab", "cc", "ba", "dd"])     # the first fork begins with "ab" and "cc"
        def test_it(own, other):
            open(own, "x").close()
            assert eventually(lambda: os.path.exists(other))
            os.system(f"echo printed by {own}")
            os.system(f"sleep 0.1; echo also printed by {own}")
            assert False
        """, "--no-header", "-q")
    lines = done.stdout.lines
    for letter in "ab":
        assert lines[lines.index(f"printed by {letter}") + 1] == f"also printed by {letter}"


def test_fixtures_of_the_session_end_in_each_fork(run, pytester):
    run("""
        import os
        import pytest

        @pytest.fixture(scope="session", autouse=True)
        def server():
            yield
            open(f"ended-{os.getpid()}", "x").close()
        @pytest.mark.parametrize("n", range(20))
        def test_it(n): pass
        """)
    ran = {line.split()[1] for line in (pytester.path / "ran").read_text().splitlines()}
    assert {path.name for path in pytester.path.glob("ended-*")} == {f"ended-{process}" for process in ran}


@pytest.mark.parametrize("end, status", [
    ("os.kill(os.getpid(), signal.SIGKILL)", -9), ("os._exit(3)", 3),
    ("(os.fork() or time.sleep(10) or os._exit(0)) and os._exit(4)", 4),     # a process that the test started lives on
])
@pytest.mark.parametrize("crashing", [3, 9])
def test_a_crash_fails_its_test_and_no_other(run, end, status, crashing):
    done, ran = run("import os, signal\n" + SLOW.format(tests=10, body=f"n == {crashing} and {end}"))
    assert done.ret == 1 and done.parseoutcomes() == {"passed": 9, "failed": 1}
    assert sorted(name for name, *_ in ran) == sorted(f"test_it[{n}]" for n in range(10))
    done.stdout.fnmatch_lines([f"*the process of this test ended with status {status}*"])
    assert done.duration < 9


def test_the_run_ends_at_the_first_failure_if_asked_to(run):
    done, ran = run(SLOW.format(tests=200, body="time.sleep(0.05); assert n != 0"), "-x")
    assert done.ret == 1 and done.parseoutcomes()["failed"] == 1 and len(ran) < 20


def test_a_test_is_repeated_in_its_fork(run):
    pytest.importorskip("pytest_rerunfailures")
    done, _ = run("import os\ndef test_it(): assert len(open('ran').readlines()) == 2\n",
                  "-p", "rerunfailures", "--reruns", "1", "-rR")
    assert done.ret == 0 and done.parseoutcomes() == {"passed": 1, "rerun": 1}
    done.stdout.fnmatch_lines(["RERUN *test_it*"])


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_no_fork_outlives_the_main_process(run, pytester, end):
    """Each fork ends its test, and the fixtures."""
    pytester.makepyfile(test_it=SLOW.format(tests=1000, body="time.sleep(0.05)") + """
@pytest.fixture(scope="session", autouse=True)
def server():
    import os
    open(f"began-{os.getpid()}", "x").close()
    yield
    open(f"ended-{os.getpid()}", "x").close()
""")
    main = subprocess.Popen([sys.executable, "-m", "pytest", "--forks", "2"], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)
    assert eventually(lambda: len(list(pytester.path.glob("began-*"))) == 2)
    main.send_signal(end)
    assert main.wait(10) == (2 if end == signal.SIGINT else -end)
    assert eventually(lambda: len(list(pytester.path.glob("ended-*"))) == 2)
