"""Record in `.covering/` which tests run which lines of fastcni, and run the tests of one module.

    python -m mutants.covering fastcni/spec/version.py      record new and changed tests, then run the module's tests
    python -m mutants.covering --record tests/unit/agent         only record, the tests below this directory

A changed test file is recorded again, and so are the test files of a changed module. Until then, a line that was
inserted later counts as the line that had its number before.
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import coverage
from mutants.tree import CACHE, ROOT

LINES, STATE = CACHE / "lines", CACHE / "state.json"    # coverage's database; digests of files and durations of tests
LEFT_OUT = {                                            # {path below tests/: why it is not recorded}
    "cluster": "a lane of its own", "observability": "a lane of its own", "packages": "a lane of its own",
    "runtimes": "a lane of its own", "side_by_side": "compares with the Go plugins", "faults": "campaigns",
    "policy_attacks": "campaigns", "mutants": "about this tool"}
IMPORTED = ""                   # coverage's context for lines that run outside of tests
CONFIG = """[run]
source = {package}
parallel = true
sigterm = true
data_file = {data}
context = ${{COVERED_BY-}}
"""


def digest(path):
    """Return a short digest of a file's content, or "" if the file does not exist."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def load_state():
    """Return the digests of recorded test files and modules, and the seconds of each test."""
    return json.loads(STATE.read_text()) if STATE.exists() else {"tests": {}, "modules": {}, "seconds": {}}


def test_files(below):
    """Return the test files that may be recorded, relative to ROOT."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / below).rglob("test_*.py")
                  if path.relative_to(ROOT).parts[1] not in LEFT_OUT)


def modules():
    """Return all modules of fastcni, relative to ROOT."""
    return [str(path.relative_to(ROOT)) for path in (ROOT / "fastcni").rglob("*.py")]


class Covering:
    """The recorded data. seconds: {name of a test: its duration in seconds}. passed: tests that passed without a
    mutant."""

    def __init__(self):
        self.passed = set()
        self.state = load_state()
        self.seconds = self.state["seconds"]
        self.data = coverage.CoverageData(str(LINES))
        self.data.read()

    def tests_of(self, module, lines=None):
        """Return the names of the tests that run one of these lines of the module, or any line if lines is None. All
        tests of the module run a line that runs at the module's import."""
        found = self.data.contexts_by_lineno(str(ROOT / module))
        names = {name for line in (found if lines is None else lines) for name in found.get(line, ())}
        if lines is not None and IMPORTED in names:
            return self.tests_of(module)
        return names & self.seconds.keys()          # leaves out tests that no longer exist

    def tests_in(self, files):
        """Return the names of all recorded tests in these test files."""
        return {name for name in self.seconds if name.split("::")[0] in files}


def outdated(below):
    """Return the test files below a directory that are new, that have changed, or that run a changed module."""
    state, recorded = load_state(), Covering()
    changed = [module for module in state["modules"] if state["modules"][module] != digest(ROOT / module)]
    of_changed = {name.split("::")[0] for module in changed for name in recorded.tests_of(module)}
    return [path for path in test_files(below)
            if path in of_changed or state["tests"].get(path) != digest(ROOT / path)]


def record(files):
    """Run these test files, and record which lines they run. Return pytest's exit status."""
    CACHE.mkdir(exist_ok=True)
    digests = {path: digest(ROOT / path) for path in (*files, *modules())}
    with tempfile.TemporaryDirectory() as directory:
        parts, seconds = pathlib.Path(directory), pathlib.Path(directory) / "seconds.json"
        config = parts / "coveragerc"
        config.write_text(CONFIG.format(package=ROOT / "fastcni", data=parts / "part"))
        env = {"COVERAGE_PROCESS_START": str(config), "COVERED_SECONDS": str(seconds),
               "PYTHONPATH": str(ROOT / "tests")}
        status = subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal",
                                 "--benchmark-disable", "-p", "mutants.recorder", *files],
                                cwd=ROOT, env=os.environ | env).returncode
        if seconds.exists():
            _merge(parts, digests, files, json.loads(seconds.read_text()))
    return status


def _merge(parts, digests, files, seconds):
    """Replace the records of `files` by the data in `parts`, which coverage has written."""
    state, former = load_state(), Covering() if STATE.exists() else None
    merged = coverage.CoverageData(str(CACHE / "merged"))
    merged.erase()
    if former is not None:
        merged.update(former.data)
    for part in parts.glob("part*"):
        data = coverage.CoverageData(str(part))
        data.read()
        merged.update(data)
    merged.write()
    os.replace(CACHE / "merged", LINES)
    kept = {name: took for name, took in state["seconds"].items() if name.split("::")[0] not in files}
    STATE.write_text(json.dumps({
        "tests": state["tests"] | {path: digests[path] for path in files},
        "modules": {path: digests[path] for path in modules()},
        "seconds": kept | seconds}))


def main():
    parser = argparse.ArgumentParser(prog="python -m mutants.covering")
    parser.add_argument("file", help="a module of fastcni, or with --record a directory of tests")
    parser.add_argument("--record", action="store_true", help="only record the tests below FILE")
    options = parser.parse_args()
    files = outdated(options.file if options.record else "tests")
    if files:
        print(f"recording {len(files)} test files; not recorded are tests/"
              + ", tests/".join(f"{name} ({why})" for name, why in LEFT_OUT.items()), flush=True)
        status = record(files)
    if options.record:
        return status if files else 0
    names = sorted(Covering().tests_of(options.file))
    if not names:
        sys.exit(f"no recorded test runs a function of {options.file}")
    return subprocess.run([sys.executable, "-m", "pytest", *names], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
