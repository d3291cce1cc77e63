"""The server's thread for cluster-wide addresses on the Kubernetes API."""

import pytest
from cluster.test_server_upkeep import blocks_uses_and_answers
from unit.server.cluster import ClusterNode


@pytest.fixture
def nodes(kubernetes, tmp_path):
    """Return two nodes of one cluster."""
    both = [ClusterNode(tmp_path, name, ipam={"store": kubernetes}) for name in ("a", "b")]
    yield both
    for one in both:
        one.stop()
    assert not [one.faults for one in both if one.faults]


def test_blocks_uses_and_answers(nodes):
    blocks_uses_and_answers(*nodes)
