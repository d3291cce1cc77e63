"""What all kinds of test share: fresh namespaces, requests by hand, and reasons to skip."""

import contextlib
import ctypes
import os
import subprocess
import uuid

import features
import pytest

PEER = os.environ.get("PEER", "/usr/lib/cni")
CLONE_NEWNET = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)

os.environ.setdefault("FASTCNI_SOCKET", "")     # a server of this node is none of our business, unless one is named

with contextlib.suppress(ImportError):           # nor needed where a wheel is tried
    import hypothesis

    # How long an example takes says what else the machine does.
    hypothesis.settings.register_profile("any machine", deadline=None,
                                         suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.load_profile("any machine")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
needs_peer = pytest.mark.skipif(not os.path.exists(f"{PEER}/bridge"),
                                reason=f"needs the Go plugins in {PEER} (Debian: containernetworking-plugins)")


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(feature, ...): skipped where the kernel lacks one; tests/features.py")
    lane, lacks = os.environ.get("LANE"), os.environ.get("OTHER_LANE_LACKS")        # as make test and test-vm set them
    config.pluginmanager.register(features.Lane(config.rootpath / ".lanes" / f"{lane}.json" if lane else None,
                                                None if lacks is None else set(lacks.split())))


def ip(*words, netns=None, check=True):
    """Run ip(8), in a named namespace if given; its standard output."""
    command = ["ip", *(["-n", netns] if netns else []), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


@pytest.fixture
def host_netns():
    """The test's thread in a fresh network namespace that plays the host; its name for ip(8)."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    name = f"fcni-host-{uuid.uuid4().hex[:8]}"
    ip("netns", "add", name)
    try:
        enter(name)
        ip("link", "set", "lo", "up")
        for forwarding in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):      # inherited from the machine
            if os.path.exists(f"/proc/sys/net/{forwarding}"):
                with open(f"/proc/sys/net/{forwarding}", "w", encoding="ascii") as file:
                    file.write("0")
        yield name
    finally:
        if libc.setns(home, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot return from the test's namespace")
        os.close(home)
        ip("netns", "del", name)


def enter(name):
    fd = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        if libc.setns(fd, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {name}")
    finally:
        os.close(fd)


@pytest.fixture
def pod_netns():
    """A function that makes network namespaces for pods: their names; all are removed at the end."""
    made = []

    def make():
        name = f"fcni-pod-{uuid.uuid4().hex[:8]}"
        ip("netns", "add", name)
        made.append(name)
        return name

    yield make
    for name in made:
        ip("netns", "del", name, check=False)
