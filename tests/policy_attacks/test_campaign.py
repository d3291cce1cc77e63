"""Run a sample of `make test-policy`: one cluster with files. Also check that the campaign finds a wrong verdict."""

import shutil

import pytest
from faults.report import Row
from policy_attacks import differential, oracle
from policy_attacks.node import Node

from fastcni.agent.policy.ruleset import see_bridged_traffic
from fastcni.testing.namespaces import Inside

pytestmark = [pytest.mark.needs("root"),
              pytest.mark.skipif(not shutil.which("conntrack"), reason="needs conntrack"),
              pytest.mark.skipif(not shutil.which("nft"), reason="needs nft")]
LIMIT_S = 120


@pytest.fixture
def node(monkeypatch):
    monkeypatch.setattr(differential, "EVENTS", 3)
    monkeypatch.setattr(differential, "PODS", 5)
    with Node("files") as it, Inside(it.name):
        if not see_bridged_traffic():
            pytest.skip("needs br_netfilter in the kernel")
        it.start_agent()
        yield it


def test_a_random_cluster_is_as_the_documentation_says(node):
    row = Row("differential", LIMIT_S, 1)
    differential.one_cluster(row, node, 0)
    assert row.attempts > 1000 and not row.failures


def test_a_verdict_that_is_not_the_documentations_is_found_and_shown_small(node, monkeypatch):
    """The test gives the oracle an error: the oracle evaluates NotIn as In."""
    right = oracle.meets
    monkeypatch.setattr(oracle, "meets", lambda requirement, labels: right(
        {**requirement, "operator": {"NotIn": "In"}.get(requirement["operator"], requirement["operator"])}, labels))
    monkeypatch.setattr(differential, "SETTLED_S", 1.0)
    monkeypatch.setattr(differential, "SHRINK_S", 0.5)
    monkeypatch.setattr(differential, "EVENTS", 0)
    row = Row("differential", LIMIT_S, 1)
    differential.one_cluster(row, node, 2)
    assert "NotIn" in row.failures[0] and "--seed 1 --cluster 2" in row.failures[0]
