"""Fixtures of `make test-observability`, which tests fastcni's output in the programs of operators: Prometheus, a
terminal, a browser."""

import os
import shutil

import pytest

PROGRAMS = {"prometheus": "prometheus", "promtool": "prometheus", "tmux": "tmux", "chromium": "chromium"}


def pytest_collection_modifyitems(items):
    """Skip tests whose program is missing. In `make test-observability` a missing program is a failure."""
    missing = sorted({package for name, package in PROGRAMS.items() if not shutil.which(name)})
    if not missing:
        return
    reason = f"needs the packages {', '.join(missing)}"
    if os.environ.get("LANE") == "observability":
        raise pytest.UsageError(f"`make test-observability` {reason}")
    for item in items:
        if "observability" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason=reason))
