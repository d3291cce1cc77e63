"""A copy of the checkout, in which one module at a time is a mutant, and the tests that run there."""

import atexit
import importlib
import os
import pathlib
import shutil
import sys
import tempfile

import pytest
from mutants import box

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / ".covering"
COPIED = ("benchmarks", "docs", "examples", "fastcni", "packaging", "tests", "pyproject.toml", "setup.py", "README.md",
          "CHANGELOG.md", "CONTRIBUTING.md", "Makefile")
# The file of each mutant is that much older than the file of the mutant before. So no mutant runs other bytecode:
# `python -I` writes bytecode in spite of PYTHONDONTWRITEBYTECODE.
ASIDE_NS = 10**10


class Chosen:
    """A pytest plugin that keeps the tests with these names. A name without parameters selects all its cases.

    failed: the file for the name of the first test that fails.
    """

    def __init__(self, names, failed):
        self.names, self.failed = names, failed

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if {item.nodeid, item.nodeid.split("[")[0]} & self.names]

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.write_text(report.nodeid)


class Tree:
    """The copy, with the compiled files, until this process ends."""

    def __init__(self):
        CACHE.mkdir(exist_ok=True)
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="tree-", dir=CACHE))
        self.failed, self.runs = self.root / "failed", 0
        atexit.register(shutil.rmtree, self.root, ignore_errors=True)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.root / name)
            elif source.exists():
                shutil.copy2(source, self.root / name)

    def first_failed(self):
        """Return the name of the test of the last run that failed, "" if no test failed."""
        return self.failed.read_text() if self.failed.exists() else ""

    def run(self, module, text, names, seconds):
        """Return pytest's status of the named tests with this text in the module's place, or None after `seconds`."""
        path = self.root / module
        self.failed.unlink(missing_ok=True)
        self.runs += 1
        original, times = path.read_bytes(), path.stat()
        try:
            path.write_text(text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns - self.runs * ASIDE_NS))
            return box.boxed(lambda: _tests(self.root, Chosen(set(names), self.failed)), seconds)
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _tests(root, chosen):
    """In the box: run the chosen tests, up to the first that fails. Return pytest's status."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(quiet, number)
    os.chdir(root)
    os.environ |= {"PYTHONPATH": f"{root}:{root}/tests", "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ.pop("PYTEST_DEBUG_TEMPROOT", None)
    sys.dont_write_bytecode = True
    ours = ("", str(ROOT), str(ROOT / "tests"))
    sys.path[:] = [str(root), str(root / "tests"), *(path for path in sys.path if path not in ours)]
    for name in [name for name in sys.modules if name.split(".")[0] == "fastcni"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    files = sorted({name.split("::")[0] for name in chosen.names})
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--benchmark-disable", *files],
                           plugins=[chosen]))
