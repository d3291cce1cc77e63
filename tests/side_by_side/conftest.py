"""Run both implementations as runtimes do: fastcni's installed plugin files, and the Go plugins of Debian.

The tests need root and the Go plugins. Each implementation has a separate host namespace with separate pods. Tests call
fastcni one-shot, and again warm by one server, whose own namespace is none of these hosts.
"""

import os
import signal
import subprocess
import sys
import time

import conftest as shared
import pytest
from side_by_side.sides import Side

from fastcni.launcher.install import install


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(os.path.dirname(__file__)):
            item.add_marker(pytest.mark.needs("root"))
            item.add_marker(shared.needs_peer)


@pytest.fixture(scope="session")
def launchers(tmp_path_factory):
    """Return the directory with fastcni's installed plugin files."""
    directory = tmp_path_factory.mktemp("bin")
    install(directory)
    return str(directory)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Return the path of a running server's socket."""
    directory = tmp_path_factory.mktemp("server")
    path = directory / "run" / "fastcni.sock"
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "fastcni", "serve", "--socket", path], stderr=log,
                                   env={**os.environ, "LISTEN_FDS": ""})
    try:
        deadline = time.monotonic() + 60
        while not path.exists():
            assert process.poll() is None, (directory / "log").read_text()
            assert time.monotonic() < deadline, (directory / "log").read_text()
            time.sleep(0.01)
        yield str(path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        log = (directory / "log").read_text()
        assert "command=" in log, log
        assert "level=error" not in log, log       # an error line shows a defect in a request of the test
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["one-shot", "warm"])
def sides(request, launchers, tmp_path):
    """Yield (fastcni, go), two Sides, each on a new host. The fixture removes hosts, pods and processes at the end."""
    socket = request.getfixturevalue("server") if request.param == "warm" else ""
    with (Side("fastcni", launchers, tmp_path / "fastcni", socket) as fastcni,
          Side("go", shared.PEER, tmp_path / "go") as go):
        yield fastcni, go


@pytest.fixture
def three_sides(launchers, server, tmp_path):
    """Yield (fastcni one-shot, fastcni warm, go), as sides() does, for tests that compare one run of Go with both
    modes."""
    with (Side("one-shot", launchers, tmp_path / "one-shot") as one_shot,
          Side("warm", launchers, tmp_path / "warm", server) as warm,
          Side("go", shared.PEER, tmp_path / "go") as go):
        yield one_shot, warm, go
