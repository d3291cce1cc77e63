"""Complete plugins without root: the fake node of fastcni.testing."""

import sys

import pytest
from fake_kernel.stub_plugin import StubPlugin

from fastcni import plugins


@pytest.fixture(autouse=True)
def exchanged(fake_sockets):
    """Sockets are fake in each test here."""


@pytest.fixture
def calls(fake_runtime):
    return fake_runtime


@pytest.fixture
def plugin(monkeypatch):
    """A stub plugin, registered as `stub`."""
    stub = StubPlugin()
    monkeypatch.setitem(plugins.TABLE, "stub", "stub")
    monkeypatch.setitem(sys.modules, "stub", stub.module)
    return stub
