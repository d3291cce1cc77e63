"""Fixtures of these tests. They make network namespaces: without root they are skipped, with a reason."""

import os

import pytest
from real_kernel.node import Node


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
