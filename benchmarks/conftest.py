"""Fixtures of the benchmarks. `make bench` measures. `make test` runs each benchmark once with small numbers, to check
that the benchmark works."""

import pytest

from fastcni.testing import host_netns, pod_netns  # noqa: F401 - fixtures


@pytest.fixture(scope="session")
def scaled(request):
    """Return a function scaled(number) for a number of pods or rounds. It returns `number` if the benchmark measures,
    otherwise at most 20."""
    disabled = request.config.getoption("benchmark_disable")
    return lambda number: min(number, 20) if disabled else number
