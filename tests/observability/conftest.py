"""Check what operators see, with their programs: Prometheus, a terminal, a browser. `make test-observability`."""

import os
import shutil

import pytest

PROGRAMS = {"prometheus": "prometheus", "promtool": "prometheus", "tmux": "tmux", "chromium": "chromium"}


def pytest_collection_modifyitems(items):
    """In the lane, a missing program is a failure. Elsewhere it is a reason to skip."""
    missing = sorted({package for name, package in PROGRAMS.items() if not shutil.which(name)})
    if not missing:
        return
    reason = f"needs the packages {', '.join(missing)}"
    if os.environ.get("LANE") == "observability":
        raise pytest.UsageError(f"`make test-observability` {reason}")
    for item in items:
        if "observability" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason=reason))
