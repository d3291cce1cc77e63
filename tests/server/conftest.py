"""A server in the test's own network namespace, with fastcni's plugins installed for its delegates."""

import os

import pytest
from real_kernel.node import Node
from server.client import Server

from fastcni.launcher.install import install


@pytest.fixture
def root():
    if os.geteuid() != 0:
        pytest.skip("needs root: makes network namespaces")


@pytest.fixture(scope="session")
def plugins(tmp_path_factory):
    """The folder of fastcni's plugin files."""
    folder = tmp_path_factory.mktemp("plugins")
    install(folder)
    return str(folder)


@pytest.fixture
def node(root, tmp_path, host_netns):
    return Node(tmp_path, host_netns)


@pytest.fixture
def pod(node, pod_netns):
    return pod_netns()


@pytest.fixture
def start(root, tmp_path, plugins, host_netns):
    """start(*options): a running server, which knows where its delegates are; killed at the end."""
    running = []

    def make(*options, **more):
        server = Server(tmp_path, *options, **more)
        running.append(server.__enter__())
        server.cni_path = plugins
        return server

    yield make
    for server in running:
        server.__exit__()


@pytest.fixture
def server(start):
    return start()
