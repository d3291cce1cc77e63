"""Fixtures that several parts share: a node in a network namespace, and a model of a node that needs no root."""

import sys

import pytest
from lab.node import Node
from lab.traffic import add_external
from unit.stub_plugin import StubPlugin

from fastcni import plugins


@pytest.fixture
def node(tmp_path, host_netns):
    return Node(tmp_path, host_netns)


@pytest.fixture
def pod(pod_netns):
    """Return the name of a pod's namespace."""
    return pod_netns()


@pytest.fixture
def external(host_netns, pod_netns):
    """Make a network namespace outside the node, reached by the node's link up0. The namespace has no routes to the
    pods."""
    return add_external(pod_netns)


@pytest.fixture
def calls(fake_runtime):
    return fake_runtime


@pytest.fixture
def plugin(monkeypatch):
    """Register a stub plugin as `stub`."""
    stub = StubPlugin()
    monkeypatch.setitem(plugins.TABLE, "stub", "stub")
    monkeypatch.setitem(sys.modules, "stub", stub.module)
    return stub
