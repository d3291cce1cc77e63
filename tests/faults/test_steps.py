"""A sample of `make test-faults`: faults at some system calls of each plugin, after which nothing is left.

FAULTS_SEED chooses the calls. The default is fixed, so that two changes are tested with the same faults.
"""

import os
import shutil
import time

import pytest
from faults.cases import PLUGINS, features_of
from faults.steps import COMMANDS, MODES, run_case

SEED = int(os.environ.get("FAULTS_SEED", "20779"))
MAX_FAULTS = int(os.environ.get("FAULTS_MAX", "2"))     # of each command
LIMIT_S = 120.0                                         # for one case on a busy machine
CASES = [pytest.param(name, marks=pytest.mark.needs(*features_of(name))) for name in PLUGINS]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc: the injector is compiled")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs x86_64: the injector reads its registers")
@pytest.mark.parametrize("name", CASES)
def test_a_call_that_fails_or_kills_leaves_one_answer_and_nothing_else(name):
    mode = MODES[(SEED + list(PLUGINS).index(name)) % len(MODES)]
    print(f"FAULTS_SEED={SEED} FAULTS_MAX={MAX_FAULTS} {name}, {mode}")
    failures = []
    possible, tried = run_case(name, mode, COMMANDS, MAX_FAULTS, SEED, time.monotonic() + LIMIT_S, failures.append)
    print(f"{tried} of {possible} faults")
    assert tried, "no fault was tried"
    assert not failures, "\n".join(failures)
