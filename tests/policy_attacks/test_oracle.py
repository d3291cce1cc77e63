"""Test the oracle by examples of Kubernetes' documentation, test the generator of clusters, and compare the attacks
with docs/reliability-tests.md."""

import functools
import random
import re
from pathlib import Path

import pytest
from policy_attacks import clusters
from policy_attacks.attacks import ATTACKS
from policy_attacks.oracle import ICMP, SCTP, TCP, UDP, Cluster, Pod, allowed, allowed_to_node

DOCS = Path(__file__).parents[2] / "docs" / "reliability-tests.md"
DB = {"podSelector": {"matchLabels": {"role": "db"}}}
# The example of https://kubernetes.io/docs/concepts/services-networking/network-policies/
EXAMPLE = {**DB, "policyTypes": ["Ingress", "Egress"],
           "ingress": [{"from": [{"ipBlock": {"cidr": "172.17.0.0/16", "except": ["172.17.1.0/24"]}},
                                 {"namespaceSelector": {"matchLabels": {"project": "myproject"}}},
                                 {"podSelector": {"matchLabels": {"role": "frontend"}}}],
                        "ports": [{"protocol": "TCP", "port": 6379}]}],
           "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/24"}}], "ports": [{"protocol": "TCP", "port": 5978}]}]}
PODS = (Pod("default", "db", {"role": "db"}, {("redis", TCP): 6379, ("dns", UDP): 53}, ("172.16.0.1", "fd00::1")),
        Pod("default", "front", {"role": "frontend"}, {}, ("172.16.0.2",)),
        Pod("default", "other", {}, {}, ("172.16.0.3",)),
        Pod("mine", "any", {"role": "x"}, {}, ("172.16.0.4",)),
        Pod("theirs", "front", {"role": "frontend"}, {}, ("172.16.0.5",)))
NAMESPACES = {"default": {}, "mine": {"project": "myproject"}, "theirs": {}}


def ask(spec, source, to="172.16.0.1", protocol=TCP, port=6379, **keys):
    policy = {"kind": "NetworkPolicy", "metadata": {"name": "p", "namespace": "default"}, "spec": spec}
    return allowed(Cluster(NAMESPACES, list(PODS), [policy], **keys), source, to, protocol, port)


@pytest.mark.parametrize("source, expected", [
    ("172.16.0.2", True), ("172.16.0.3", False), ("172.16.0.4", True), ("172.16.0.5", False), ("172.17.0.9", True),
    ("172.17.1.9", False), ("192.0.2.1", False)])
def test_the_example_of_the_documentation(source, expected):
    assert ask(EXAMPLE, source) is expected
    assert not ask(EXAMPLE, source, port=6380) and not ask(EXAMPLE, source, protocol=UDP)
    assert ask(EXAMPLE, "172.16.0.1", "10.0.0.9", port=5978)
    assert not ask(EXAMPLE, "172.16.0.1", "10.0.1.9", port=5978)


@pytest.mark.parametrize("spec, source, to, protocol, port, expected", [
    ({**DB}, "172.16.0.2", "172.16.0.1", TCP, 1, False), ({**DB}, "172.16.0.1", "172.16.0.2", TCP, 1, True),
    ({**DB, "egress": []}, "172.16.0.1", "172.16.0.2", TCP, 1, True),
    ({**DB, "egress": [{"ports": [{"port": 2}]}]}, "172.16.0.1", "172.16.0.2", TCP, 1, False),
    ({**DB, "policyTypes": ["Egress"]}, "172.16.0.2", "172.16.0.1", TCP, 1, True),
    ({**DB, "ingress": [{}]}, "172.16.0.2", "172.16.0.1", ICMP, 0, True),
    ({**DB, "ingress": [{"from": [], "ports": []}]}, "172.16.0.2", "172.16.0.1", SCTP, 9, True),
    ({**DB, "ingress": [{"ports": [{}]}]}, "172.16.0.2", "172.16.0.1", TCP, 9, True),
    ({**DB, "ingress": [{"ports": [{}]}]}, "172.16.0.2", "172.16.0.1", ICMP, 0, False),
    ({**DB, "ingress": [{"ports": [{"port": "redis"}]}]}, "172.16.0.2", "172.16.0.1", TCP, 6379, True),
    ({**DB, "ingress": [{"ports": [{"port": "dns"}]}]}, "172.16.0.2", "172.16.0.1", TCP, 53, False),
    ({**DB, "ingress": [{"ports": [{"port": 80, "endPort": 90}]}]}, "172.16.0.2", "172.16.0.1", TCP, 90, True),
    ({**DB, "ingress": [{"ports": [{"port": 80, "endPort": 90}]}]}, "172.16.0.2", "172.16.0.1", TCP, 91, False),
    ({"podSelector": {"matchExpressions": [{"key": "role", "operator": "NotIn", "values": ["x"]}]}},
     "172.16.0.2", "172.16.0.3", TCP, 1, False),
    ({"podSelector": {"matchExpressions": [{"key": "role", "operator": "In", "values": ["x"]}]}},
     "172.16.0.2", "172.16.0.3", TCP, 1, True),
    ({"podSelector": {"matchExpressions": [{"key": "role", "operator": "Exists"}]}},
     "172.16.0.2", "172.16.0.3", TCP, 1, True),
    ({"podSelector": {"matchExpressions": [{"key": "role", "operator": "DoesNotExist"}]}},
     "172.16.0.2", "172.16.0.3", TCP, 1, False),
    ({**DB, "ingress": [{"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"role": "frontend"}}}]}]},
     "172.16.0.5", "172.16.0.1", TCP, 1, True),
    ({**DB, "ingress": [{"from": [{"podSelector": {}}]}]}, "172.16.0.5", "172.16.0.1", TCP, 1, False),
    ({**DB, "ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]}, "fd00::9", "fd00::1", TCP, 1, False)])
def test_the_rules_of_the_documentation(spec, source, to, protocol, port, expected):
    assert ask(spec, source, to, protocol, port) is expected


# -- ClusterNetworkPolicy ----------------------------------------------------------------------------------------------

FRONT, OTHER, OUTSIDE, NODE = "172.16.0.2", "172.16.0.3", "192.0.2.1", "192.0.2.7"
EVERYBODY = {"namespaces": {}}


def cluster_policy(tier, priority, *rules, direction="ingress", name="c"):
    """Return a ClusterNetworkPolicy for pods with the label role: db. rules: (action, peer, protocols or None)."""
    key = "from" if direction == "ingress" else "to"
    return {"kind": "ClusterNetworkPolicy", "metadata": {"name": name}, "spec": {
        "tier": tier, "priority": priority, "subject": {"pods": {"namespaceSelector": {}, **DB}},
        direction: [{"action": action, key: [peer], **({"protocols": protocols} if protocols else {})}
                    for action, peer, *protocols in rules]}}


def network_policy(**spec):
    return {"kind": "NetworkPolicy", "metadata": {"name": "p", "namespace": "default"}, "spec": {**DB, **spec}}


def decide(policies, source=FRONT, to="172.16.0.1", protocol=TCP, port=6379):
    nodes = {"own": ({"zone": "a"}, (NODE,))}
    return allowed(Cluster(NAMESPACES, list(PODS), policies, nodes=nodes), source, to, protocol, port)


ADMIN, BASELINE = functools.partial(cluster_policy, "Admin"), functools.partial(cluster_policy, "Baseline")
ALL_ACCEPTED, ALL_DENIED, ALL_PASS = ((action, EVERYBODY) for action in ("Accept", "Deny", "Pass"))
ANY, NONE = network_policy(ingress=[{}]), network_policy(ingress=[])
PORT_80 = {"tcp": {"destinationPort": {"number": 80}}}


@pytest.mark.parametrize("policies, expected", [
    ([ADMIN(50, ALL_DENIED), ADMIN(60, ALL_PASS, name="d"), BASELINE(1, ALL_ACCEPTED)], False),
    ([ADMIN(50, ALL_DENIED), ADMIN(40, ALL_PASS, name="d"), BASELINE(1, ALL_ACCEPTED, name="b")], True),
    ([ADMIN(5, ALL_ACCEPTED, ALL_DENIED, ALL_PASS)], True), ([ADMIN(5, ALL_DENIED, ALL_ACCEPTED)], False),
    ([ADMIN(5, ALL_PASS)], True), ([ADMIN(5, ALL_DENIED, name="a"), ADMIN(5, ALL_ACCEPTED, name="b")], False),
    ([ADMIN(5, ALL_DENIED), ANY], False), ([ADMIN(5, ALL_PASS), ANY, BASELINE(1, ALL_DENIED, name="b")], True),
    ([ADMIN(5, ALL_ACCEPTED), NONE], True), ([ADMIN(5, ALL_PASS), NONE, BASELINE(1, ALL_ACCEPTED, name="b")], False),
    ([BASELINE(1, ALL_DENIED)], False), ([BASELINE(1, ALL_PASS, ALL_DENIED)], True),
    ([ADMIN(5, ("Deny", {"later": {}}))], False), ([ADMIN(5, ("Accept", {"later": {}}), ALL_DENIED)], False),
    ([ADMIN(5, ("Pass", {"later": {}}), ALL_ACCEPTED)], False), ([ADMIN(5, ("Deny", EVERYBODY, PORT_80))], True)])
def test_tiers_decide_in_their_order(policies, expected):
    assert decide(policies) is expected


@pytest.mark.parametrize("rule, to, protocol, port, expected", [
    (("Deny", {"networks": ["0.0.0.0/0"]}), OUTSIDE, TCP, 80, False),
    (("Deny", {"networks": ["::/0"]}), OUTSIDE, TCP, 80, True),
    (("Deny", {"networks": ["0.0.0.0/0"]}), OTHER, ICMP, 0, False), (("Deny", EVERYBODY), OUTSIDE, TCP, 80, True),
    (("Deny", {"nodes": {"matchLabels": {"zone": "a"}}}), NODE, TCP, 80, False),
    (("Deny", {"nodes": {"matchLabels": {"zone": "b"}}}), NODE, TCP, 80, True),
    (("Deny", EVERYBODY, PORT_80), OTHER, TCP, 80, False), (("Deny", EVERYBODY, PORT_80), OTHER, UDP, 80, True),
    (("Deny", EVERYBODY, {"udp": {"destinationPort": {"range": {"start": 5, "end": 9}}}}), OTHER, UDP, 9, False),
    (("Deny", EVERYBODY, {"udp": {"destinationPort": {"range": {"start": 5, "end": 9}}}}), OTHER, UDP, 10, True)])
def test_rules_of_egress_match_networks_nodes_and_ports(rule, to, protocol, port, expected):
    assert decide([ADMIN(5, rule, direction="egress")], "172.16.0.1", to, protocol, port) is expected


def test_a_named_port_is_that_of_the_destination_of_any_protocol():
    named = [ADMIN(5, ("Deny", EVERYBODY, {"destinationNamedPort": "dns"}))]
    assert not decide(named, protocol=UDP, port=53) and decide(named, protocol=TCP, port=53)
    assert decide(named, protocol=UDP, port=54)


def test_rules_by_networks_and_nodes_hold_for_the_own_node_and_network_policies_do_not():
    def to_node(*policies):
        return allowed_to_node(Cluster(NAMESPACES, list(PODS), policies, nodes={"own": ({}, (NODE,))}),
                               "172.16.0.1", NODE, TCP, 80)

    closed = network_policy(policyTypes=["Egress"])
    assert to_node() and to_node(closed) and to_node(ADMIN(5, ALL_DENIED, direction="egress"))
    assert not to_node(ADMIN(5, ("Deny", {"nodes": {}}), direction="egress"))
    assert not to_node(BASELINE(5, ("Deny", {"networks": ["192.0.2.0/24"]}), direction="egress"))
    assert to_node(closed, BASELINE(5, ("Deny", {"nodes": {}}), direction="egress"))


def test_another_node_enforces_the_policies_of_its_own_pods():
    PODS[0].here = False
    try:
        assert ask({**DB}, "172.16.0.2", everywhere=False) and not ask({**DB}, "172.16.0.2")
    finally:
        PODS[0].here = True


def test_the_generator_uses_every_feature():
    rng, found = random.Random(1), set()
    for _ in range(300):
        for policy in clusters.policies(rng, ["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"]):
            found |= features(policy["spec"])
    assert found >= {
        "podSelector", "policyTypes", "ingress", "egress", "from", "to", "ports", "port", "endPort", "protocol",
        "ipBlock", "cidr", "except", "namespaceSelector", "matchLabels", "matchExpressions", "In", "NotIn", "Exists",
        "DoesNotExist", "SCTP", "UDP", "TCP", "http", "Ingress", "Egress", "ingress []", "from []",
        "ports []", "podSelector {}", "tier", "Admin", "Baseline", "priority", "subject", "namespaces", "pods",
        "action", "Accept", "Deny", "Pass", "networks", "nodes", "protocols", "tcp", "udp", "sctp", "destinationPort",
        "number", "range", "destinationNamedPort", "later"}


def features(document):
    """Return the keys, names and empty values that occur in a document."""
    if isinstance(document, dict):
        empty = {f"{key} {value}" for key, value in document.items() if value in ([], {})}
        return set(document) | empty | {each for value in document.values() for each in features(value)}
    if isinstance(document, list):
        return {each for value in document for each in features(value)}
    return {document}


def test_the_table_of_attacks_in_the_documentation_is_that_of_the_code():
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", DOCS.read_text().split("## Attacks on policies")[1], re.MULTILINE)
    assert rows[:len(ATTACKS)] == [(each.name, each.what) for each in ATTACKS]
