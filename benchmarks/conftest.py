"""`make bench` measures. `make test` runs each benchmark once, with smaller numbers, so that none of them breaks."""

import pytest

from fastcni.testing import host_netns, pod_netns  # noqa: F401 - fixtures


@pytest.fixture(scope="session")
def scaled(request):
    """Return a function of a number of pods or rounds. It returns the number if the benchmark measures, else at most
    20."""
    disabled = request.config.getoption("benchmark_disable")
    return lambda number: min(number, 20) if disabled else number
