"""Run `fastcni install` and `fastcni uninstall` as processes: several at the same time, on a full file system, with
--dry-run and --json."""

import json
import os
import subprocess
import sys

import pytest
from project.plugin_dir import FOREIGN, KEPT, fill, state
from project.plugin_file import INTERPRETER, write_executable

from fastcni.launcher.uninstall import uninstall_plugins


@pytest.fixture
def bin_dir(tmp_path):
    return fill(tmp_path / "bin")


FULL = """
import os, sys
from fastcni.launcher.install import InstallError, install_plugins
with open("bridge", "w") as file:
    file.write("theirs")
try:
    install_plugins(".")
except InstallError as e:
    print(e, sorted(os.listdir(".")), open("bridge").read())
"""


@pytest.mark.needs("root")
def test_a_full_file_system_keeps_its_plugins(tmp_path):
    mount = 'mount -t tmpfs -o size=2m none "$1" && cd "$1" && shift && exec "$@"'
    done = subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh", tmp_path, sys.executable, "-c", FULL],
                          capture_output=True, text=True, timeout=60)
    assert "No space left on device" in done.stdout, done.stderr
    assert done.stdout.endswith("['bridge'] theirs\n")


def test_concurrent_installs_and_uninstalls_leave_one_of_both_states(bin_dir):
    before = state(bin_dir)
    script = f"from fastcni.launcher.{{0}} import {{0}}_plugins\n{{0}}_plugins({str(bin_dir)!r})"
    running = [subprocess.Popen([sys.executable, "-c", script.format(verb)])
               for verb in ("install", "uninstall", "install", "uninstall")]
    assert [process.wait(60) for process in running] == [0, 0, 0, 0]
    assert all(it == "fastcni" or it == before[name] for name, it in state(bin_dir).items())
    uninstall_plugins(bin_dir)
    assert state(bin_dir) == before


# ---- the commands ----


def fastcni(*words):
    """Run a command in an empty network namespace, because `uninstall` removes fastcni's tables."""
    done = subprocess.run(["unshare", "-n", sys.executable, "-m", "fastcni", *map(str, words), "--json"],
                          capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "CNI_PATH": "/nowhere", "FASTCNI_SOCKET": ""})
    return done.returncode, json.loads(done.stdout)


@pytest.mark.needs("root")
def test_a_dry_run_changes_nothing_and_reports_the_same(bin_dir):
    before = state(bin_dir)
    rehearsed = fastcni("install", "--bin-dir", bin_dir, "--plugin", "bridge", "--plugin", "tap", "--dry-run")
    assert state(bin_dir) == before and KEPT not in os.listdir(bin_dir)
    done = fastcni("install", "--bin-dir", bin_dir, "--plugin", "bridge", "--plugin", "tap")
    assert done == (0, {**rehearsed[1], "dryRun": False})
    size = len(FOREIGN["bridge"])
    assert done[1]["interpreter"] == INTERPRETER
    assert done[1]["plugins"] == [
        {"name": "bridge", "path": str(bin_dir / "bridge"), "replaced": {"kind": "other", "size": size}, "kept": True},
        {"name": "tap", "path": str(bin_dir / "tap"), "replaced": None, "kept": False}]
    after = state(bin_dir)
    words = ["uninstall", "--bin-dir", bin_dir, "--unit-dir", bin_dir, "--conf-dir", bin_dir, "--cache-dir", bin_dir]
    rehearsed = fastcni(*words, "--dry-run")
    assert state(bin_dir) == after
    assert fastcni(*words) == (0, {**rehearsed[1], "dryRun": False})
    assert rehearsed[1]["restored"] == [{"name": "bridge", "program": {"kind": "other", "size": size}}]
    assert rehearsed[1]["removed"] == ["tap"]
    assert state(bin_dir) == before


@pytest.mark.needs("root")
def test_the_reports_name_fastcnis_version_and_the_version_of_go_plugins(tmp_path):
    import fastcni as package

    go = b"\x7fELF\xff Go buildinf:"
    write_executable(tmp_path / "bridge", go)           # a program that cannot run
    assert fastcni("install", "--bin-dir", tmp_path, "--plugin", "bridge")[1]["plugins"][0]["replaced"] == {
        "kind": "go", "size": len(go)}
    again = fastcni("install", "--bin-dir", tmp_path, "--plugin", "bridge")[1]["plugins"][0]
    assert again["kept"] is False
    assert again["replaced"].items() >= {"kind": "fastcni", "version": package.__version__,
                                         "interpreter": INTERPRETER}.items()
