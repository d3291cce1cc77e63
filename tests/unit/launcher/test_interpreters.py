"""Which interpreters a plugin file tries, and which python_core.elf it may start."""

import sys
import sysconfig

import pytest
from project.plugin_file import write_executable

from fastcni.launcher import interpreters

PRINTS = b"#!/bin/sh\necho 3.11.2\n"


def test_the_version_is_that_of_the_interpreters_file_name():
    assert interpreters.version() == f"{sysconfig.get_python_version()}{sys.abiflags}"


@pytest.mark.parametrize("core, interpreter, same", [
    (PRINTS, PRINTS, True), (PRINTS, b"#!/bin/sh\necho 3.11.3\n", False),
    (b"#!/bin/sh\nexit 1\n", b"#!/bin/sh\nexit 1\n", False), (PRINTS, b"#!/bin/sh\necho 3.11.2; exit 1\n", False),
    (b"#!/bin/sh\nkill -9 $$\n", PRINTS, False), (b"\x7fELF of another machine", PRINTS, False),
    (None, PRINTS, False)])
def test_a_core_is_used_only_if_both_programs_end_well_and_print_one_build(tmp_path, core, interpreter, same):
    if core is not None:
        write_executable(tmp_path / interpreters.CORE, core)
    python = write_executable(tmp_path / "python", interpreter)
    found = interpreters.core_of(str(python), str(tmp_path))
    assert found == (str(tmp_path / interpreters.CORE) if same else "")


def test_a_program_that_this_user_may_not_run_is_an_error(tmp_path):
    python = write_executable(tmp_path / "python", PRINTS)
    python.chmod(0o644)
    write_executable(tmp_path / interpreters.CORE, PRINTS)
    with pytest.raises(PermissionError):
        interpreters.core_of(str(python), str(tmp_path))
