"""The last table of `make bench`: each one-shot case as a ratio to the Go plugin, measured in the same run."""

import pytest
from node import median, percentile

RATIOS = pytest.StashKey[list]()


def pytest_configure(config):
    config.stash[RATIOS] = []


@pytest.fixture
def compare(request):
    """compare(case, peer, fastcni): put two lists of milliseconds into the last table."""
    return lambda case, peer, fastcni: request.config.stash[RATIOS].append((case, peer, fastcni))


def pytest_terminal_summary(terminalreporter, config):
    rows = config.stash[RATIOS]
    if not rows:
        return
    write = terminalreporter.write_line
    terminalreporter.section("whole processes against the Go plugins, ms, interleaved in this run")
    write(f"{'case':34s} {'Go p50':>8s} {'p99':>8s} {'fastcni p50':>12s} {'p99':>8s} {'ratio':>7s} {'n':>5s}")
    for case, peer, ours in rows:
        ratio = median(ours) / median(peer)
        write(f"{case:34s} {median(peer):8.2f} {percentile(peer, .99):8.2f} {median(ours):12.2f} "
              f"{percentile(ours, .99):8.2f} {ratio:6.2f}x {len(ours):5d}")
