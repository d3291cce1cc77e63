"""Fixtures: an installed plugin file with a shell script in place of Python."""

import shutil
import tempfile
from pathlib import Path

import pytest
from unit.launcher.stub_server import INSTEAD_OF_PYTHON, write_executable

from fastcni.launcher import pack


@pytest.fixture(scope="session")
def directory():
    """Yield a directory with a short path. tmp_path may be too long for a socket address."""
    path = tempfile.mkdtemp(prefix="fcni-")
    yield Path(path)
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def bridge(directory):
    """Return a plugin file that runs a script in place of Python."""
    script = write_executable(directory / "python", INSTEAD_OF_PYTHON.encode())
    return write_executable(directory / "bridge", pack.pack(str(script)))
