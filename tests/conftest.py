"""Fixtures and reasons to skip, for all tests."""

import contextlib
import gc
import os
import zlib

import features
import pytest
from modes import WarmInProcess

pytest_plugins = ["fastcni.testing"]
collect_ignore = ["cluster", "observability", "packages", "runtimes"]      # lanes: `pytest tests/runtimes` runs one
PEER = os.environ.get("PEER", "/usr/lib/cni")

os.environ.setdefault("FASTCNI_SOCKET", "")     # tests use no server of this node, unless one is named

with contextlib.suppress(ImportError):           # tests of a wheel have no hypothesis
    import hypothesis

    # An example may take long on a busy machine.
    hypothesis.settings.register_profile("any machine", deadline=None,
                                         suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.load_profile("any machine")

needs_peer = pytest.mark.skipif(not os.path.exists(f"{PEER}/bridge"),
                                reason=f"needs the Go plugins in {PEER} (Debian: containernetworking-plugins)")


@pytest.fixture
def collector_off():
    """Disable Python's collector, for tests that count this process's descriptors. The collector closes descriptors
    that earlier tests left."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def warm(host_netns):
    """Yield a server's mode for the host's namespace."""
    mode = WarmInProcess()
    yield mode
    mode.release()


def pytest_collection_modifyitems(config, items):
    """Mix the files if pytest-xdist runs them: in the order of directories, the tests that wait for the kernel run at
    the same time, and the processors idle."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: zlib.crc32(item.location[0].encode()))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect without Python's collector, which then looks at what tests make, and not each time at eleven thousand
    tests."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell a process of pytest-xdist what this process has found out about the kernel."""
    if os.geteuid() == 0:
        node.workerinput["features"] = {feature: features.has(feature) for feature in features.FEATURES}


def pytest_configure(config):
    features.known.update(getattr(config, "workerinput", {}).get("features", {}))
    lane, lacks = os.environ.get("LANE"), os.environ.get("OTHER_LANE_LACKS")        # as make test and test-vm set them
    config.pluginmanager.register(features.Lane(config.rootpath / ".lanes" / f"{lane}.json" if lane else None,
                                                None if lacks is None else set(lacks.split())))
