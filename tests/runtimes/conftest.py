"""Fixtures of `make test-runtimes`: real runtimes on a separate node. Each test runs one-shot and warm."""

import contextlib
import os
import shutil

import pytest
from runtimes import page
from runtimes.containerd import Containerd
from runtimes.world import World

PROGRAMS = {"containerd": "containerd", "ctr": "containerd", "runc": "runc", "podman": "podman",
            "busybox": "busybox-static", "nft": "nftables", "tc": "iproute2", "unshare": "util-linux",
            "debootstrap": "debootstrap"}


def pytest_collection_modifyitems(items):
    """Skip tests whose program is missing. In `make test-runtimes` a missing program is a failure."""
    missing = sorted({package for name, package in PROGRAMS.items() if not shutil.which(name)})
    reason = "needs root: makes namespaces" if os.geteuid() else f"needs the packages {', '.join(missing)}"
    if not (missing or os.geteuid()):
        return
    if os.environ.get("LANE") == "runtimes":
        raise pytest.UsageError(f"`make test-runtimes` {reason}")
    for item in items:
        if item.path.parent.name == "runtimes":
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module", params=["one-shot", "warm"])
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def world(tmp_path_factory, mode):
    """Yield a node with separate directories. At the end, check that all requests used the mode of the parameter."""
    with World(tmp_path_factory.mktemp("node")) as world:
        yield world
        done = world.requests()
        assert done.pop(mode) > 0 and set(done.values()) == {0}, f"requests of another mode: {done}"


@pytest.fixture(scope="module")
def containerd(world, mode):
    """Yield containerd on a node that the commands of docs/runtimes.md have set up."""
    set_up(world)
    if mode == "warm":
        world.serve()
    with Containerd(world) as containerd:
        containerd.run("first", "true", "--rm")         # makes the bridge and the tables, which stay
        yield containerd


def set_up(world):
    """Run the commands of docs/runtimes.md for containerd and Kubernetes."""
    for block in page.commands("Install the plugins") + page.commands("containerd")[:1]:
        world.shell(block)


@contextlib.contextmanager
def nothing_left(world):
    """Check at the end of the block that the block's pods have left nothing."""
    before = world.left()
    yield
    assert world.residue(before) == ""
