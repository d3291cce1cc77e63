"""Both implementations as runtimes start them: fastcni's real launchers, and the Go plugins of Debian.

Everything here needs root and the peer; each side gets a host namespace of its own and pods of its own.
"""

import os

import conftest as shared
import pytest
from side_by_side.sides import Side

from fastcni.launcher.install import install


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(os.path.dirname(__file__)):
            item.add_marker(shared.needs_root)
            item.add_marker(shared.needs_peer)


@pytest.fixture(scope="session")
def launchers(tmp_path_factory):
    """The folder of fastcni's plugin files."""
    folder = tmp_path_factory.mktemp("bin")
    install(folder)
    return str(folder)


@pytest.fixture
def sides(launchers, tmp_path):
    """(ours, theirs): two Sides, each on a fresh host; hosts, pods and processes are gone at the end."""
    with Side("fastcni", launchers, tmp_path / "ours") as ours, Side("go", shared.PEER, tmp_path / "theirs") as theirs:
        yield ours, theirs
