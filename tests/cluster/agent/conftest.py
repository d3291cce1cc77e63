"""Fixtures: one network in etcd, and the API mock with a registry, for each test."""

import pytest
from cluster.agent.etcd_network import CONF, PREFIX, Registry
from cluster.agent.kubernetes_nodes import mock, registry  # noqa: F401 - fixtures
from cluster.etcd import Etcd


@pytest.fixture(scope="module")
def server():
    with Etcd() as etcd:
        yield etcd


@pytest.fixture
def network(server, request):
    found = Registry(server, f"{PREFIX}/{request.node.name}")
    found.configure(CONF)
    yield found
    found.close()
