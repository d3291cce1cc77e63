"""Fixtures of the tests in tests/dhcp and tests/cluster/dhcp."""

import os
import sys

import pytest
from dhcp.process import RUN, Daemon
from dhcp.server import Network, Server, ip

FIRST = "10.77.1.0/16"          # the first address that the tests' server gives


@pytest.fixture
def network():
    with Network() as network:
        yield network


@pytest.fixture
def server(network):
    with Server(network) as server:
        yield server


@pytest.fixture
def daemon(tmp_path):
    with Daemon(tmp_path) as daemon:
        yield daemon


def on_a_node(network):
    """The daemon's command in a namespace from which it reaches the server."""
    name = os.path.basename(network.pod())
    ip("-n", name, "addr", "add", "10.77.0.2/16", "dev", "eth0")
    ip("-n", name, "link", "set", "eth0", "up")
    return ["ip", "netns", "exec", name, sys.executable, "-c", RUN]


def leases(daemon):
    """The names of the files of a daemon's leases."""
    return sorted(os.listdir(daemon.leases))


def own_files(daemon):
    """The paths of a daemon's open descriptors."""
    folder = f"/proc/{daemon.process.pid}/fd"
    return [f"{folder}/{name}" for name in os.listdir(folder)]
