"""A sample of `make test-faults`: some system calls of each plugin fail or kill, then nothing is left.

FAULTS_SEED chooses them. It is fixed, so that a change is judged by the same faults as the change before
it. Other seeds, and all the faults, are for `make test-faults`.
"""

import os
import shutil
import time

import pytest
from faults.cases import PLUGINS, features_of
from faults.steps import COMMANDS, MODES, run_case

SEED = int(os.environ.get("FAULTS_SEED", "20779"))
MOST = int(os.environ.get("FAULTS_MOST", "2"))          # of each command
LIMIT = 120.0                                           # seconds for one case on a loaded machine
CASES = [pytest.param(name, marks=pytest.mark.needs(*features_of(name))) for name in PLUGINS]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc: the injector is compiled")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs x86_64: the injector reads its registers")
@pytest.mark.parametrize("name", CASES)
def test_a_call_that_fails_or_kills_leaves_one_answer_and_nothing_else(name):
    mode = MODES[(SEED + list(PLUGINS).index(name)) % len(MODES)]
    print(f"FAULTS_SEED={SEED} FAULTS_MOST={MOST} {name}, {mode}")
    failures = []
    possible, tried = run_case(name, mode, COMMANDS, MOST, SEED, time.monotonic() + LIMIT, failures.append)
    print(f"{tried} of {possible} faults")
    assert tried, "no fault was tried"
    assert not failures, "\n".join(failures)
