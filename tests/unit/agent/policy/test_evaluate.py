"""Verdicts on connections, and the rule or the policies that decide them."""

import pytest
from unit.agent.policy.clusters import make_pod

from fastcni.agent.policy.evaluate import Cluster, Connection, evaluate
from fastcni.agent.policy.objects import read_policy
from fastcni.spec.address import read_ip

TCP = 6


def cluster(*policies, **labels_of):
    it = Cluster()
    for number, (name, labels) in enumerate(labels_of.items(), 1):
        pod = make_pod(name, f"10.0.0.{number}", labels=labels, ports={"http": 8000 + number})
        it.pods[pod.key] = pod
    for number, spec in enumerate(policies):
        policy = read_policy({"metadata": {"name": f"p{number}"}, "spec": spec})
        it.policies[policy.key] = policy
    return it


def ask(it, source, destination, port=80):
    return evaluate(it, Connection(read_ip(source), read_ip(destination), TCP, port))


ISOLATED = {"podSelector": {"matchLabels": {"app": "db"}}}
ALLOWING = {**ISOLATED, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}],
                                     "ports": [{"port": 80}]}]}


def test_a_pod_without_policies_is_open():
    verdict = ask(cluster(ALLOWING, web={"app": "web"}, db={}), "10.0.0.1", "10.0.0.2")
    assert verdict.allowed and str(verdict.ingress) == "allowed: no policy selects the pod"


def test_the_rule_that_allows_is_named():
    it = cluster(ISOLATED, ALLOWING, web={"app": "web"}, db={"app": "db"})
    assert str(ask(it, "10.0.0.1", "10.0.0.2").ingress) == "allowed by default/p1 ingress[0]"


def test_a_denial_names_all_policies_of_the_pod():
    it = cluster(ISOLATED, ALLOWING, web={"app": "web"}, db={"app": "db"})
    verdict = ask(it, "10.0.0.1", "10.0.0.2", 81)
    assert not verdict.allowed
    assert str(verdict.ingress) == "denied: no rule of default/p0, default/p1 allows it"


@pytest.mark.parametrize("port, allowed", [(8002, True), (8001, False)])
def test_a_named_port_is_the_destinations(port, allowed):
    it = cluster({"podSelector": {}, "ingress": [{"ports": [{"port": "http"}]}]}, a={}, b={})
    assert ask(it, "10.0.0.1", "10.0.0.2", port).allowed is allowed


def test_egress_of_the_source_and_ingress_of_the_destination_are_both_needed():
    it = cluster({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"]},
                 web={"app": "web"}, db={"app": "db"})
    verdict = ask(it, "10.0.0.1", "10.0.0.2")
    assert (verdict.allowed, verdict.egress.allowed, verdict.ingress.allowed) == (False, False, True)


def test_a_pod_reaches_itself():
    assert ask(cluster(ISOLATED, db={"app": "db"}), "10.0.0.1", "10.0.0.1").allowed


@pytest.mark.parametrize("source, allowed", [("192.0.2.9", True), ("192.0.2.129", False), ("198.51.100.1", False)])
def test_a_block_less_its_exceptions(source, allowed):
    it = cluster({"podSelector": {}, "ingress": [
        {"from": [{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"]}}]}]}, db={})
    assert ask(it, source, "10.0.0.1").allowed is allowed
