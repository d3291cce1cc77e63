"""Identify the files of a plugin directory: plugin files of fastcni, Go plugins, other programs, and links to them."""

import os
import sys
import zipfile

import pytest
from project.plugin_file import INTERPRETER, write_executable

import fastcni
from fastcni.launcher import identify, pack
from fastcni.launcher.identify import Program

PRINTS = b"#!/bin/sh\necho CNI bridge plugin v1.9.1 >&2\n"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Return the path of a plugin file of fastcni, without python_core.elf."""
    return write_executable(tmp_path_factory.mktemp("own") / "bridge", pack.pack(INTERPRETER))


@pytest.fixture
def elf(tmp_path, monkeypatch):
    """Return a function that makes an ELF file with these bytes after the header, and returns its Program. Go plugins
    answer with version v1.9.1."""
    monkeypatch.setattr(identify, "go_version", lambda path: "v1.9.1")

    def make(data, magic=b"\x7fELF"):
        return identify.identify(str(write_executable(tmp_path / "bridge", magic + data)))
    return make


def test_a_plugin_file_is_recognised_with_its_version_and_python(own):
    python = f"{sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}"
    found = identify.identify(str(own))
    assert found == Program("fastcni", fastcni.__version__, own.stat().st_size, "", INTERPRETER, python)
    assert found.is_own and str(found) == f"fastcni, version {fastcni.__version__}"


def test_a_link_to_a_plugin_file_is_not_fastcnis_own_file(tmp_path, own):
    (tmp_path / "bridge").symlink_to(own)
    found = identify.identify(str(tmp_path / "bridge"))
    assert (found.kind, found.target, found.is_own) == ("fastcni", str(own), False)
    assert str(found) == f"link to {own} (fastcni, version {fastcni.__version__})"
    assert identify.is_own_file(str(own)) and not identify.is_own_file(str(tmp_path / "bridge"))


def test_a_plugin_file_without_a_readable_version_is_still_fastcnis(tmp_path, own):
    path = write_executable(tmp_path / "bridge", own.read_bytes()[:identify.MAX_ELF_BYTES // 16])
    found = identify.identify(str(path))
    assert (found.version, found.damaged) == ("", True)
    with zipfile.ZipFile(path, "a") as members:
        members.writestr("other", "")
    found = identify.identify(str(path))
    assert (str(found), found.damaged) == ("fastcni, version unknown", False)


@pytest.mark.parametrize("data, damaged", [(b"#!/bin/sh\n", False), (b"\x7fELF", False), (b"#", True), (b"", True)])
def test_a_file_that_is_no_program_is_damaged(tmp_path, data, damaged):
    found = identify.identify(str(write_executable(tmp_path / "bridge", data)))
    assert found == Program("other", "", len(data), damaged=damaged)


@pytest.mark.parametrize("before", [0, identify.MAX_ELF_BYTES - 4 - 8, identify.MAX_ELF_BYTES + 5])
def test_a_go_plugin_is_recognised_wherever_its_mark_is(elf, before):
    found = elf(bytes(before) + identify.GO_MARK)
    assert found == Program("go", "v1.9.1", 4 + before + len(identify.GO_MARK))
    assert not found.is_own and str(found) == "Go plugin, version v1.9.1"


def test_other_programs_are_not_run(tmp_path, elf):
    assert elf(identify.GO_MARK, magic=b"#!/b") == Program("other", "", 4 + len(identify.GO_MARK))
    found = elf(bytes(12341))
    assert found == Program("other", "", 12345) and str(found) == "program of 12,345 bytes"


def test_a_missing_file_is_none_and_a_link_to_a_missing_file_a_program(tmp_path):
    assert identify.identify(str(tmp_path / "bridge")) is None
    assert not identify.is_own_file(str(tmp_path / "bridge"))
    (tmp_path / "bridge").symlink_to("nowhere")
    assert identify.identify(str(tmp_path / "bridge")) == Program("other", "", 0, "nowhere")


@pytest.mark.parametrize("kind", ["fifo", "directory"])
def test_only_regular_files_are_opened(tmp_path, kind):
    """open() of a FIFO would wait for a writer."""
    path = tmp_path / "bridge"
    os.mkfifo(path) if kind == "fifo" else path.mkdir()
    assert identify.identify(str(path)) == Program("other", "", path.stat().st_size)
    assert not identify.is_own_file(str(path))


@pytest.mark.parametrize("text, version", [
    (PRINTS, "v1.9.1"),
    (PRINTS.replace(b" >&2", b""), "v1.9.1"),
    (PRINTS + b"exit 1\n", "v1.9.1"),
    (PRINTS.replace(b"CNI ", b""), ""),
    (PRINTS.replace(b"v1.9.1", b"'\x1b[31m'"), ""),
    (b"not executable by the kernel", ""),
])
def test_a_go_plugins_version_is_what_it_prints_on_one_line(tmp_path, text, version):
    assert identify.go_version(str(write_executable(tmp_path / "bridge", text))) == version


def test_a_plugin_that_prints_no_version_in_time_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(identify, "VERSION_S", 0.1)
    assert identify.go_version(str(write_executable(tmp_path / "bridge", b"#!/bin/sh\nexec sleep 60\n"))) == ""
