"""The systemd units that repeat `fastcni install` when the plugins' Python changes, and the removal of units."""

import os
import shutil
import subprocess
import sys

import pytest
from project.plugin_file import INTERPRETER, write_executable

from fastcni.launcher import systemd
from fastcni.launcher.identify import identify
from fastcni.launcher.install import Installed, InstallError

needs_analyze = pytest.mark.skipif(not shutil.which("systemd-analyze"),
                                   reason="needs systemd-analyze (Debian: systemd)")
ODD = "/opt/per%cent/$HOME dir/python3"


@pytest.fixture
def units(tmp_path):
    """Write the units for plugins in tmp_path/bin whose interpreter has an unusual path. Return the units' paths."""
    done = Installed(str(tmp_path / "bin"), ODD, {}, [])
    return systemd.install_units(tmp_path / "units", None, done, ["loopback"])


@needs_analyze
def test_systemd_reports_nothing_about_the_units(units):
    words = ["systemd-analyze", "verify", *units]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_path_unit_watches_the_interpreter(units):
    with open(units[2]) as file:
        assert f"\nPathChanged={ODD.replace('%', '%%')}\n" in file.read()


def reinstall(tmp_path, old, python, other):
    """Run the commands of fastcni-reinstall.service with `other` in place of the distribution's Python programs."""
    script = systemd.REINSTALL.replace("/usr/bin/python3 /usr/local/bin/python3", str(other))
    assert script != systemd.REINSTALL
    words = ["/bin/sh", "-c", script, "fastcni-reinstall", old, python, "--bin-dir", tmp_path / "bin", "--plugin",
             "loopback"]
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("old", ["there", "gone"])
def test_an_interpreter_that_is_there_is_recorded_again_and_one_that_is_gone_is_not(tmp_path, old):
    shim = tmp_path / "python3"
    if old == "there":
        write_executable(shim, f'#!/bin/sh\necho "$@" >> {tmp_path}/asked; exec {INTERPRETER} "$@"\n'.encode())
    done = reinstall(tmp_path, shim, sys.executable, "/nowhere")
    assert done.returncode == 0, done.stderr
    assert identify(str(tmp_path / "bin" / "loopback")).interpreter == INTERPRETER
    assert (tmp_path / "asked").exists() == (old == "there")


def test_another_python_with_the_package_takes_the_place_of_one_that_is_gone(tmp_path):
    assert reinstall(tmp_path, "/nowhere", "/nowhere", sys.executable).returncode == 0
    assert identify(str(tmp_path / "bin" / "loopback")).interpreter == INTERPRETER


def test_without_any_python_the_log_names_the_command_to_run(tmp_path):
    done = reinstall(tmp_path, "/nowhere", "/nowhere", "/bin/false")
    assert done.returncode == 1
    assert f"then run: fastcni install --bin-dir {tmp_path}/bin --plugin loopback" in done.stderr


# ---- removal ----

SYSTEMCTL = """\
#!/bin/sh
echo "$@" >> {log}
case $1 in
    show) case $4 in {loaded}) echo {units}/$4 ;; esac ;;
    disable) ls {units} >> {log}; exit {status} ;;
esac
"""


@pytest.fixture
def systemctl(tmp_path, monkeypatch):
    """Return a function systemctl(loaded, status) that puts a fake systemctl first in PATH, and returns a function that
    reads the fake's log."""
    def make(loaded="fastcni*", status=0):
        directory = tmp_path / "path"
        directory.mkdir()
        text = SYSTEMCTL.format(log=tmp_path / "log", units=tmp_path / "units", loaded=loaded, status=status)
        write_executable(directory / "systemctl", text.encode())
        monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        return lambda: [line for line in (tmp_path / "log").read_text().splitlines() if not line.startswith("show")]
    return make


def test_units_are_stopped_before_they_are_removed(units, systemctl):
    log = systemctl()
    assert systemd.installed_units(os.path.dirname(units[0])) == units
    assert systemd.remove_units(units) == list(systemd.UNITS)
    assert log() == [f"disable --now {' '.join(systemd.UNITS)}", *sorted(systemd.UNITS), "daemon-reload"]
    assert not any(os.path.exists(unit) for unit in units)


def test_units_that_systemd_has_from_elsewhere_are_not_stopped(units, systemctl):
    """For example, systemd has loaded the units of a package, and the units to remove are in a directory that systemd
    does not read."""
    log = systemctl(loaded="nothing")
    assert systemd.remove_units(units) == []
    assert log() == [] and not any(os.path.exists(unit) for unit in units)


def test_units_that_cannot_be_stopped_stay(units, systemctl):
    systemctl(status=1)
    with pytest.raises(InstallError, match=r"systemctl disable --now fastcni\.socket"):
        systemd.remove_units(units)
    assert all(os.path.exists(unit) for unit in units)


def test_units_of_others_stay(units):
    with open(units[1], "w") as file:
        file.write("[Unit]\nDescription=an administrator's\n")
    assert units[1] not in systemd.installed_units(os.path.dirname(units[0]))
