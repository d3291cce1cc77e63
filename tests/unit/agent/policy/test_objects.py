"""Reading of API documents. An error names the policy and the key."""

import pytest

from fastcni.agent.policy.cluster_policies import read_node
from fastcni.agent.policy.objects import (
    Block,
    Group,
    PolicyError,
    Requirement,
    Rule,
    RulePort,
    Selector,
    read_namespace,
    read_pod,
    read_policy,
)


def policy(**spec):
    return read_policy({"kind": "NetworkPolicy", "metadata": {"namespace": "shop", "name": "web"},
                        "spec": {"podSelector": {}, **spec}})


def selector(**labels):
    return Selector(tuple(Requirement(key, "In", frozenset([value])) for key, value in sorted(labels.items())))


@pytest.mark.parametrize("spec, ingress, egress", [
    ({}, (), None),
    ({"ingress": []}, (), None),
    ({"ingress": [{}]}, (Rule(),), None),
    ({"egress": [{}]}, (), (Rule(),)),
    ({"egress": []}, (), None),
    ({"policyTypes": ["Egress"]}, None, ()),
    ({"policyTypes": ["Egress"], "ingress": [{}]}, None, ()),
    ({"policyTypes": ["Ingress", "Egress"]}, (), ()),
    ({"policyTypes": ["Ingress"], "egress": [{}]}, (), None),
])
def test_the_directions_follow_policy_types_and_their_defaults(spec, ingress, egress):
    it = policy(**spec)
    assert (it.ingress, it.egress) == (ingress, egress)


def test_peers_are_selectors_and_blocks():
    (rule,) = policy(ingress=[{"from": [
        {"podSelector": {"matchLabels": {"app": "x"}}},
        {"namespaceSelector": {}},
        {"namespaceSelector": {"matchLabels": {"team": "a"}}, "podSelector": {"matchLabels": {"app": "x"}}},
        {"ipBlock": {"cidr": "10.1.2.3/16", "except": ["10.1.9.0/24"]}}]}]).ingress
    assert rule.peers == (
        Group("shop", selector(app="x")), Group(Selector(), Selector()), Group(selector(team="a"), selector(app="x")),
        Block((b"\x0a\x01\0\0", 16), ((b"\x0a\x01\x09\0", 24),)))


@pytest.mark.parametrize("document, port", [
    ({}, RulePort(6)), ({"protocol": "UDP"}, RulePort(17)), ({"port": 80}, RulePort(6, 80, 80)),
    ({"port": 80, "endPort": 90, "protocol": "SCTP"}, RulePort(132, 80, 90)),
    ({"port": "http"}, RulePort(6, name="http"))])
def test_ports(document, port):
    assert policy(ingress=[{"ports": [document]}]).ingress[0].ports == (port,)


@pytest.mark.parametrize("expression, labels, matched", [
    ({"operator": "In", "values": ["a", "b"]}, {"k": "b"}, True), ({"operator": "In", "values": ["a"]}, {}, False),
    ({"operator": "NotIn", "values": ["a"]}, {}, True), ({"operator": "NotIn", "values": ["a"]}, {"k": "a"}, False),
    ({"operator": "Exists"}, {"k": ""}, True), ({"operator": "Exists"}, {}, False),
    ({"operator": "DoesNotExist"}, {}, True), ({"operator": "DoesNotExist"}, {"k": ""}, False)])
def test_expressions_of_a_selector(expression, labels, matched):
    it = policy(podSelector={"matchExpressions": [{"key": "k", **expression}]})
    assert it.pods.pods.matches(labels) is matched


@pytest.mark.parametrize("spec, text", [
    ({"ingress": [{"ports": [{}, {"port": 70000}]}]}, r"spec.ingress\[0\].ports\[1\].port: 70000"),
    ({"ingress": [{"ports": [{"port": 0}]}]}, r"ports\[0\].port"),
    ({"ingress": [{"ports": [{"endPort": 9}]}]}, r"ports\[0\].port"),
    ({"ingress": [{"ports": [{"port": 9, "endPort": 8}]}]}, r"endPort: 8"),
    ({"ingress": [{"ports": [{"port": "http", "endPort": 8}]}]}, r"endPort"),
    ({"ingress": [{"ports": [{"protocol": "ICMP"}]}]}, r"ports\[0\].protocol: expected TCP, UDP or SCTP"),
    ({"ingress": [{"from": [{}]}]}, r"spec.ingress\[0\].from\[0\]: expected ipBlock"),
    ({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}]}, r"to\[0\]: ipBlock stands alone"),
    ({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0"}}]}]}, r"to\[0\].ipBlock.cidr: invalid CIDR"),
    ({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/24"]}}]}]}, r"ipBlock.except: 11"),
    ({"policyTypes": ["Both"]}, r"spec.policyTypes"),
    ({"podSelector": {"matchExpressions": [{"key": "k", "operator": "In"}]}}, r"matchExpressions\[0\].values"),
    ({"podSelector": {"matchLabels": {"app": 1}}}, r"spec.podSelector.matchLabels: expected text for 'app', got 1"),
    ({"ingress": {}}, r"spec.ingress: expected list"),
    ({"podselector": {}}, r"spec.podselector: is not known"),
    ({"ingress": [{"form": []}]}, r"spec.ingress\[0\].form: is not known"),
    ({"egress": [{"from": []}]}, r"spec.egress\[0\].from: is not known"),
    ({"ingress": [{"ports": [{"ports": 80}]}]}, r"ports\[0\].ports: is not known"),
    ({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "exept": []}}]}]}, r"ipBlock.exept: is not known"),
    ({"podSelector": {"app": "db"}}, r"spec.podSelector.app: is not known")])
def test_an_error_names_the_policy_and_the_key(spec, text):
    with pytest.raises(PolicyError, match=f"^NetworkPolicy shop/web: .*{text}"):
        policy(**spec)


def test_a_pod_has_labels_addresses_and_named_ports():
    pod = read_pod({"metadata": {"name": "a", "labels": {"app": "x"}}, "spec": {"nodeName": "n1", "containers": [
        {"ports": [{"name": "http", "containerPort": 80}, {"name": "http", "containerPort": 81}]},
        {"ports": [{"name": "dns", "containerPort": 53, "protocol": "UDP"}, {"containerPort": 9}]}]},
        "status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}})
    assert (pod.key, pod.node, pod.labels) == ("default/a", "n1", {"app": "x"})
    assert pod.addresses == (b"\x0a\0\0\x01", b"\xfd" + bytes(14) + b"\x01")
    assert pod.ports == {("http", 6): 80, ("dns", 17): 53}


@pytest.mark.parametrize("document", [{"spec": {"hostNetwork": True}, "status": {"podIP": "10.0.0.1"}},
                                      {"status": {"podIP": "10.0.0.1", "phase": "Succeeded"}}, {}])
def test_a_pod_without_addresses_of_its_own(document):
    assert read_pod({"metadata": {"name": "a"}, **document}).addresses == ()


@pytest.mark.parametrize("name", ["a/b", "\ud800", "a\0b", "two\nlines", "a" * 254, "Web", "web_1", "web ", "web\n",
                                  "-a", "a-", "a..b", "."])
def test_a_text_that_is_no_name(name):
    """The API server rejects such a name. fastcni uses names in keys, and in comments of the kernel's rules."""
    for metadata in ({"name": name}, {"name": "a", "namespace": name}):
        with pytest.raises(PolicyError, match="is no name"):
            read_policy({"metadata": metadata, "spec": {}})


@pytest.mark.parametrize("read", [read_pod, read_namespace, read_node])
@pytest.mark.parametrize("labels", [{"app ": "db"}, {"": "db"}, {"app": "db "}, {"A.b/app": "db"}, {"a/b/c": "db"}])
def test_labels_that_the_api_server_refuses_are_refused(read, labels):
    with pytest.raises(PolicyError, match=r"metadata\.labels: .* is no label"):
        read({"metadata": {"name": "a", "labels": labels}})


def test_a_namespace_has_its_name_as_a_label():
    assert read_namespace({"metadata": {"name": "shop"}}) == ("shop", {"kubernetes.io/metadata.name": "shop"})
