"""Fixtures: nodes that share one local store. See watched.py."""

import pytest
from unit.kit.ipam.cluster.node import Node
from unit.kit.ipam.cluster.watched import WatchedMode


@pytest.fixture
def make(tmp_path):
    def make(name):
        settings = {"type": "local", "path": str(tmp_path / "store")}
        return Node(tmp_path, name, settings, WatchedMode(settings))
    return make


@pytest.fixture
def a(make):
    return make("a")


@pytest.fixture
def b(make):
    return make("b")
