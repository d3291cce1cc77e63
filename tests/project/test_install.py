"""`fastcni install`: the plugin files, their links and modes, and the cases that it rejects."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys

import pytest
from project.plugin_file import ADD, INTERPRETER, REFUSAL, run, write_executable

from fastcni.launcher import pack
from fastcni.launcher.identify import identify
from fastcni.launcher.install import InstallError, checked_interpreter, install, install_plugins
from fastcni.launcher.uninstall import uninstall_plugins
from fastcni.plugins import TABLE


def test_all_names_are_links_of_one_file(tmp_path):
    paths = install(tmp_path / "new" / "bin")
    assert sorted(os.path.basename(path) for path in paths) == sorted(TABLE)
    assert len({os.stat(path).st_ino for path in paths}) == 1
    assert sorted(os.listdir(tmp_path / "new" / "bin")) == sorted(TABLE)


def test_same_input_makes_the_same_file():
    assert pack.pack(INTERPRETER) == pack.pack(INTERPRETER)


def test_mode_does_not_depend_on_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        (path,) = install(tmp_path, names=["host-local"])
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o755


def test_no_other_user_may_write_to_the_directories_whatever_the_umask(tmp_path):
    """With umask 0 the CNI bin dir got mode 0777, so any user could put a program into it that root runs."""
    before = os.umask(0)
    try:
        install_plugins(tmp_path / "opt" / "cni" / "bin", names=["loopback"], netavark_dir=tmp_path / "usr" / "podman")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")} == {0o755}


def test_running_plugin_is_replaced_and_still_answers(tmp_path):
    """While a plugin runs, Python still reads code from the file from which the plugin was started."""
    (path,) = install(tmp_path, names=["bridge"])
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ADD) as running:
        before = os.stat(path).st_ino
        assert install(tmp_path, names=["bridge"]) == [path]
        assert os.stat(path).st_ino != before
        answer = json.loads(running.communicate(b"{}", timeout=60)[0])
    assert (running.returncode, answer["code"]) == (1, 7)
    assert run(path)[1] == REFUSAL


def test_other_plugins_file_is_replaced_and_its_links_are_not(tmp_path):
    shutil.copy("/bin/true", tmp_path / "bridge")
    os.link(tmp_path / "bridge", tmp_path / "theirs")
    install(tmp_path, names=["bridge"])
    assert run(tmp_path / "bridge")[1] == REFUSAL
    assert run(tmp_path / "theirs") == (0, None, "")


def test_failed_install_leaves_no_temporary_file(tmp_path):
    (tmp_path / "ptp" / "x").mkdir(parents=True)
    with pytest.raises(InstallError, match="ptp"):
        install(tmp_path)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_bin_dir_that_is_a_file_is_an_error_with_its_name(tmp_path):
    (tmp_path / "bin").write_text("")
    with pytest.raises(InstallError, match=r"install into .*/bin"):
        install(tmp_path / "bin")


def test_file_system_without_hard_links_gets_copies(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    paths = install(tmp_path)
    assert len({os.stat(path).st_ino for path in paths}) == len(TABLE)
    assert run(tmp_path / "static")[1] == REFUSAL


def test_unknown_type_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(InstallError, match=r"no plugin named 'brigde'; there are .*bridge"):
        install(tmp_path / "bin", names=["brigde"])
    assert not (tmp_path / "bin").exists()


def test_recorded_interpreter_is_the_real_one(tmp_path):
    """`fastcni install` records the interpreter's file, not a virtual environment's link or a version manager's
    script."""
    shim = write_executable(tmp_path / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n'.encode())
    assert checked_interpreter(str(shim)) == INTERPRETER
    assert not os.path.islink(INTERPRETER)
    assert "venv" not in INTERPRETER


@pytest.mark.parametrize("text", ["exit 3", "echo hello", "echo bad option >&2; exit 2"])
def test_a_program_that_is_no_python_is_refused(tmp_path, text):
    shim = write_executable(tmp_path / "python3", f"#!/bin/sh\n{text}\n".encode())
    with pytest.raises(InstallError, match="python3 does not run with -I -S"):
        checked_interpreter(str(shim))


def test_interpreter_of_another_build_is_refused(tmp_path):
    answer = "('/usr/bin/python9', b'x', '.cpython-99.so')"
    shim = write_executable(tmp_path / "python3", f'#!/bin/sh\necho "{answer}"\n'.encode())
    with pytest.raises(InstallError, match=r"another Python \(.cpython-99.so\)"):
        checked_interpreter(str(shim))


def test_path_too_long_for_the_launcher_is_refused():
    with pytest.raises(pack.PackError, match="longer than the launcher's 1023 bytes"):
        pack.pack("/x" * 512)


def test_podmans_network_driver_is_written_beside_the_plugins_and_replaces_no_other_program(tmp_path):
    done = install_plugins(tmp_path / "bin", names=["loopback"], netavark_dir=tmp_path / "netavark")
    driver = tmp_path / "netavark" / "fastcni"
    assert (done.netavark_dir, done.paths) == (str(driver.parent), [str(tmp_path / "bin" / "loopback")])
    assert identify(str(driver)).is_own and stat.S_IMODE(driver.stat().st_mode) == 0o755
    answer = subprocess.run([driver, "info"], capture_output=True, timeout=60, check=True, env={"FASTCNI_SOCKET": ""})
    assert json.loads(answer.stdout)["api_version"] == "1.0.0"
    assert uninstall_plugins(driver.parent).removed == ["fastcni"]
    write_executable(driver, b"#!/bin/sh")
    with pytest.raises(InstallError, match="and not fastcni's; nothing was written"):
        install_plugins(tmp_path / "new", names=["loopback"], netavark_dir=driver.parent)
    assert driver.read_bytes() == b"#!/bin/sh" and not (tmp_path / "new").exists()
