"""Fixtures of the agent's tests."""

from types import SimpleNamespace

import pytest
from lab.forked import ForkedPython

from fastcni.agent.policy import child


@pytest.fixture(autouse=True)
def forked_children():
    """Fork the agent's processes, which read files and forward DNS queries, see lab/forked.py. Tests of the
    start itself start another Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "subprocess", SimpleNamespace(Popen=ForkedPython, DEVNULL=child.subprocess.DEVNULL))
        yield
