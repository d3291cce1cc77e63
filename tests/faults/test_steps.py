"""A sample of `make test-faults`: inject faults at some system calls of each plugin, and check that nothing is left.

FAULTS_SEED chooses the calls. The default seed is fixed, so that two versions of the code are tested with the same
faults. Each case tests ADD, and two cases of three test one more command. In the VM, whose processor is emulated, each
case tests one command.
"""

import os
import shutil
import subprocess
import time

import pytest
from faults.cases import PLUGINS, features_of, lacking
from faults.injector import KILL, PLUGIN, kills
from faults.rounds import COMMANDS, MODES, Tools, asleep, run_case

SEED = int(os.environ.get("FAULTS_SEED", "20779"))
MAX_FAULTS = int(os.environ.get("FAULTS_MAX", "1"))     # of each command
LIMIT_S = 120.0                                         # for one case on a busy machine
CASES = [pytest.param(name, marks=pytest.mark.needs(*features_of(name))) for name in PLUGINS]


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    return Tools(tmp_path_factory.mktemp("tools"))


@pytest.mark.needs("root")
@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc: the injector is compiled")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs x86_64: the injector reads its registers")
@pytest.mark.parametrize("name", CASES)
def test_a_call_that_fails_or_kills_leaves_one_answer_and_nothing_else(name, tools):
    if why := lacking(name):
        pytest.skip(why)
    at = SEED + list(PLUGINS).index(name)
    mode = MODES[at % len(MODES)]
    command = COMMANDS[at // len(MODES) % len(COMMANDS)]
    commands = [command] if os.environ.get("LANE") == "vm" else sorted({"ADD", command})
    print(f"FAULTS_SEED={SEED} FAULTS_MAX={MAX_FAULTS} {name}, {mode}")
    failures, tried, deadline = [], [], time.monotonic() + LIMIT_S
    for command in commands:
        run_case(tools, name, mode, command, failures.append, limit=MAX_FAULTS, seed=SEED,
                 running=lambda: time.monotonic() < deadline, tried=lambda *what: tried.append(what))
    assert any(hit for _, _, hit in tried), "no fault was tried"
    assert not failures, "\n".join(failures)


def test_kills_come_before_each_change_and_directly_after_it():
    names = ["read", "sendto", "message", "message", "recvfrom", "read", "write", "mmap"]
    calls = [(PLUGIN, name, name in ("sendto", "write")) for name in names]
    assert kills(calls, (PLUGIN,)) == [(at, KILL) for at in (1, 2, 5, 7, 8)]
    assert kills(calls, ()) == []
    assert [at for at, _ in kills(calls, (PLUGIN,), each=True)] == [1, 2, 5, 6, 7, 8]


def test_a_process_that_has_ended_is_asleep():
    """If a fault killed the server, the case ended and did not try its later faults."""
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    assert asleep(ended.pid)
