"""Fixtures of these tests. They make network namespaces: without root they are skipped, with a reason."""

import os

import pytest
from real_kernel.firewalld import Firewalld
from real_kernel.node import Node
from real_kernel.traffic import add_external


@pytest.fixture(autouse=True)
def root():
    if os.geteuid() != 0:
        pytest.skip("needs root: makes network namespaces")


@pytest.fixture
def node(tmp_path, host_netns):
    return Node(tmp_path, host_netns)


@pytest.fixture
def pod(pod_netns):
    """The name of one pod's namespace."""
    return pod_netns()


@pytest.fixture
def firewalld(tmp_path, host_netns):
    """A running firewalld in the host's namespace."""
    with Firewalld(tmp_path) as process:
        yield process


@pytest.fixture
def neighbor(node, pod_netns):
    """A network namespace on the network of the host's link up0."""
    name = pod_netns()
    node.uplink(name)
    return name


@pytest.fixture
def external(host_netns, pod_netns):
    """A network namespace outside the node, behind its link up0, without routes to the pods."""
    return add_external(pod_netns)
