"""Fixtures of the tests in tests/unit/dhcp and tests/cluster/dhcp."""

import os
import sys

import pytest
from unit.dhcp.process import RUN, Daemon
from unit.dhcp.server import Network, Server, ip

from fastcni.dhcp.lease_files import LeaseFiles

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
    """Return the command that runs the daemon in a new namespace on the server's network."""
    name = os.path.basename(network.pod())
    ip(name, "addr add 10.77.0.2/16 dev eth0", "link set eth0 up")
    return ["ip", "netns", "exec", name, sys.executable, "-c", RUN]


def leases(daemon):
    """Return the names of a daemon's lease files."""
    return sorted(os.listdir(daemon.leases))


def own_files(daemon):
    """Return the /proc paths of a daemon's open descriptors."""
    directory = f"/proc/{daemon.process.pid}/fd"
    return [f"{directory}/{name}" for name in os.listdir(directory)]


def reboot(daemon, address=None):
    """Change the leases on disk as if they were from an earlier boot. address: a packed address for all leases."""
    files = LeaseFiles(daemon.leases, boot="an earlier one")
    for saved in list(files.read_all()):
        saved.lease.address = address or saved.lease.address
        files.write(saved.owner, saved.lease, saved.ends)
