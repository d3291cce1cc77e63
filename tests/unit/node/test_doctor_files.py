"""`fastcni doctor`: the plugin files, and the file systems of the state directories."""

import dataclasses
import os
from types import SimpleNamespace

import pytest
from unit.node.conftest import one

from fastcni.node.checks import conf as checks_conf
from fastcni.node.checks import state as checks_state
from fastcni.node.checks.findings import ERROR, WARNING


def test_plugin_files_are_fastcnis(node, bin_dir, monkeypatch, tmp_path):
    healthy = node(plugin_dirs=[str(bin_dir)])
    assert not [*checks_conf.plugin_files(healthy), *checks_conf.foreign_plugins(healthy), *checks_conf.keys(healthy)]
    monkeypatch.setattr(checks_conf.fastcni, "__version__", "9.9")
    one(checks_conf.plugin_files(healthy), WARNING, "3 plugins of fastcni", f"fastcni install --bin-dir {bin_dir}")
    other = tmp_path / "other"
    other.mkdir()
    (other / "portmap").write_text("#!/bin/sh\n")
    (other / "portmap").chmod(0o755)
    foreign = node(plugin_dirs=[str(other), str(bin_dir)])
    one(checks_conf.foreign_plugins(foreign), WARNING, f"portmap in {other} is not fastcni's")


def test_a_plugin_file_whose_interpreter_is_gone(node, bin_dir, monkeypatch):
    real = checks_conf.identify.identify

    def identify(path):
        return dataclasses.replace(real(path), interpreter="/nonexistent/python3")

    monkeypatch.setattr(checks_conf.identify, "identify", identify)
    one(checks_conf.plugin_files(node(plugin_dirs=[str(bin_dir)])), ERROR, "/nonexistent/python3", "fastcni install")


def test_a_python_core_that_is_gone_changed_or_of_another_build(node, bin_dir, monkeypatch, tmp_path):
    real, elf = checks_conf.identify.identify, tmp_path / "python_core.elf"
    monkeypatch.setattr(checks_conf.identify, "identify", lambda path: dataclasses.replace(
        real(path), core=str(elf), core_fields=(1, 2, 3)))
    found = node(plugin_dirs=[str(bin_dir)])
    one(checks_conf.plugin_files(found), WARNING, "python_core.elf of 3 plugins", f"install --bin-dir {bin_dir}")
    elf.write_text("#!/bin/sh\necho 3.11.2 of another day\n")
    elf.chmod(0o755)
    one(checks_conf.plugin_files(found), WARNING, "is not the file that was installed", f"install --bin-dir {bin_dir}")
    monkeypatch.setattr(checks_conf.core, "is_installed", lambda path, fields: fields == (1, 2, 3))
    one(checks_conf.plugin_files(found), WARNING, "is of another build than", "build and install fastcni")


@pytest.mark.parametrize("cut", [lambda file: file[:1 << 12], lambda file: file[:len(file) // 2],
                                 lambda file: file[:-1000], lambda file: bytes(len(file)), lambda file: b""],
                         ids=["head", "half", "end", "zeros", "empty"])
def test_a_damaged_plugin_file_is_an_error(node, tmp_path, bin_dir, cut):
    (tmp_path / "portmap").write_bytes(cut((bin_dir / "portmap").read_bytes()))
    (tmp_path / "portmap").chmod(0o755)
    found = node(plugin_dirs=[str(tmp_path), str(bin_dir)])
    one([*checks_conf.plugin_files(found), *checks_conf.foreign_plugins(found)], ERROR,
        f"1 plugin in {tmp_path} is damaged: portmap", f"fastcni install --bin-dir {tmp_path}")


def test_a_plugin_of_another_project_is_not_executed(node, tmp_path, bin_dir, monkeypatch):
    """doctor must only read. To learn a reference plugin's version, it would execute the plugin, for up to 5 s."""
    (tmp_path / "portmap").write_bytes(b"\x7fELF" + checks_conf.identify.GO_MARK)
    monkeypatch.setattr(checks_conf.identify, "go_version", lambda path: pytest.fail(f"{path} was executed"))
    found = node(plugin_dirs=[str(tmp_path), str(bin_dir)])
    one(checks_conf.foreign_plugins(found), WARNING, f"portmap in {tmp_path} is not fastcni's")


def test_a_relative_data_dir_that_does_not_exist(node, directories, tmp_path, monkeypatch):
    """Once, the search for an existing parent directory never ended."""
    monkeypatch.chdir(tmp_path)
    found = node()
    found.seen.data_dirs = ["no/such"]
    asked = []
    statvfs = os.statvfs
    monkeypatch.setattr(checks_state.os, "statvfs", lambda path: asked.append(path) or statvfs(path))
    assert not [*checks_state.state_directories(found)] and asked


@pytest.mark.parametrize("change, what, do", [
    ({"f_flag": os.ST_RDONLY}, "is on a read-only file system", "mount it read-write"),
    ({"f_bfree": 15}, "is on a full file system", "free some space"),
    ({"f_ffree": 0}, "is on a file system without free inodes", "remove files")])
def test_state_that_cannot_be_written(node, monkeypatch, directories, change, what, do):
    directories.cached("c1")
    disk = dict.fromkeys((name for name in dir(os.statvfs("/")) if name.startswith("f_")), 1 << 12) | {"f_flag": 0}
    found = node()
    monkeypatch.setattr(checks_state.os, "statvfs", lambda path: SimpleNamespace(**disk))
    assert not [*checks_state.state_directories(found)]
    monkeypatch.setattr(checks_state.os, "statvfs", lambda path: SimpleNamespace(**disk | change))
    one(checks_state.state_directories(found), ERROR, f"{directories.cache}/results {what}", do)


def test_a_file_system_without_a_number_of_inodes(node, monkeypatch):
    disk = {"f_flag": 0, "f_bfree": 1 << 12, "f_frsize": 1 << 12, "f_files": 0, "f_ffree": 0}       # btrfs
    monkeypatch.setattr(checks_state.os, "statvfs", lambda path: SimpleNamespace(**disk))
    assert not [*checks_state.state_directories(node())]
