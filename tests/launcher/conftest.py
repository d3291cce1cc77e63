"""An installed plugin with a shell script in the place of Python."""

import shutil
import tempfile
from pathlib import Path

import pytest
from launcher.stub_server import INSTEAD_OF_PYTHON, write_executable

from fastcni.launcher import pack


@pytest.fixture(scope="session")
def folder():
    """A folder with a short path: tmp_path may be too long for a socket address."""
    path = tempfile.mkdtemp(prefix="fcni-")
    yield Path(path)
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def bridge(folder):
    """A plugin file with the script in the place of Python."""
    script = write_executable(folder / "python", INSTEAD_OF_PYTHON.encode())
    return write_executable(folder / "bridge", pack.pack(str(script)))
