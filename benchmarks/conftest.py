"""`make bench` measures; `make test` runs each benchmark once, with less of everything, so that none of them rots."""

import pytest


@pytest.fixture(scope="session")
def scaled(request):
    """A function of a number of pods or rounds: that number, or where nothing is measured at most 20."""
    disabled = request.config.getoption("benchmark_disable")
    return lambda number: min(number, 20) if disabled else number
