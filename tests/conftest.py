"""Fixtures for all tests, and marks that skip tests."""

import contextlib
import gc
import os
import signal
import zlib

import features
import pytest
from modes import WarmInProcess

pytest_plugins = ["fastcni.testing"]
# these need their own lane; for instance, `pytest tests/runtimes` runs one of them
collect_ignore = ["cluster", "observability", "packages", "runtimes"]
PEER = os.environ.get("PEER", "/usr/lib/cni")

os.environ.setdefault("FASTCNI_SOCKET", "")     # tests use no server of this node, unless the environment names one

with contextlib.suppress(ImportError):           # tests of a wheel have no hypothesis
    import hypothesis

    # One example can take long on a busy machine, so there is no deadline.
    hypothesis.settings.register_profile("any machine", deadline=None,
                                         suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.load_profile("any machine")

needs_peer = pytest.mark.skipif(not os.path.exists(f"{PEER}/bridge"),
                                reason=f"needs the Go plugins in {PEER} (Debian: containernetworking-plugins)")


@pytest.fixture
def collector_off():
    """Disable Python's garbage collector, for tests that count this process's descriptors. Otherwise, it would close
    descriptors that earlier tests left open."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def warm(host_netns):
    """Yield a server's mode for the test's host namespace."""
    mode = WarmInProcess()
    yield mode
    mode.release()


def pytest_collection_modifyitems(config, items):
    """Mix the test files if pytest-xdist runs them. In the order of directories, tests that wait for the kernel would
    run at the same time, and the processors would be idle."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: zlib.crc32(item.location[0].encode()))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect the tests without Python's garbage collector. Afterwards, the collector examines only what tests make,
    and not eleven thousand tests each time."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Give a process of pytest-xdist the kernel features that this process has found."""
    if os.geteuid() == 0:
        node.workerinput["features"] = {feature: features.has(feature) for feature in features.FEATURES}


def pytest_configure(config):
    # A shell starts its background jobs with SIGINT ignored, and programs inherit that from the tests.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    features.known.update(getattr(config, "workerinput", {}).get("features", {}))
    lane, lacks = os.environ.get("LANE"), os.environ.get("OTHER_LANE_LACKS")        # of `make test` and `make test-vm`
    config.pluginmanager.register(features.Lane(config.rootpath / ".lanes" / f"{lane}.json" if lane else None,
                                                None if lacks is None else set(lacks.split())))
