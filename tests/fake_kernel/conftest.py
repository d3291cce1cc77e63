"""Complete plugins without root: the fake node of fastcni.testing."""

import pytest


@pytest.fixture(autouse=True)
def exchanged(fake_sockets):
    """Sockets are fake in each test here."""


@pytest.fixture
def calls(fake_runtime):
    return fake_runtime
