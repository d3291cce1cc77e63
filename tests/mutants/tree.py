"""Make a copy of the checkout, replace one module at a time by a mutant, and run tests in the copy."""

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
# Each mutant's file is this many nanoseconds older than the previous mutant's file, so Python never takes another
# mutant's bytecode. `python -I` ignores PYTHONDONTWRITEBYTECODE and writes bytecode.
ASIDE_NS = 10**10


class Chosen:
    """A pytest plugin that runs only the tests with these names. A name without parameters selects all cases of the
    test.

    failed: the file to which the plugin writes the name of the first test that fails.
    """

    def __init__(self, names, failed):
        self.names, self.failed = names, failed

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if {item.nodeid, item.nodeid.split("[")[0]} & self.names]

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.write_text(report.nodeid)


class Tree:
    """The copy of the checkout, with the compiled files. The end of this process removes the copy."""

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
        """Return the name of the test that failed in the last run, or "" if no test failed."""
        return self.failed.read_text() if self.failed.exists() else ""

    def run(self, module, text, names, seconds):
        """Run the named tests with `text` as the module's source. Return pytest's exit status, or None if the tests
        took longer than `seconds`."""
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
    """In the child of boxed(): run the chosen tests up to the first failure. Return pytest's exit status."""
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
