"""An installed plugin whose Python is a shell script."""

import shutil
import tempfile
from pathlib import Path

import pytest
from launcher.stub_server import INSTEAD_OF_PYTHON, write_executable

from fastcni.launcher import pack


@pytest.fixture(scope="module")
def folder():
    """Not tmp_path, which may be too long for the address of a socket."""
    path = tempfile.mkdtemp(prefix="fcni-")
    yield Path(path)
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def bridge(folder):
    """A plugin file with the script for Python."""
    script = write_executable(folder / "python", INSTEAD_OF_PYTHON.encode())
    return write_executable(folder / "bridge", pack.pack(str(script)))
