"""A document that the agent cannot read closes the pods that it may select."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.agent.policy.clusters import make_pod

from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.sources.documents import encode, read_entry, reduced
from fastcni.spec.address import read_ip

WEB, DB, OTHER = "10.0.0.1", "10.0.0.2", "10.0.0.9"
METADATA = {"name": "p", "namespace": "shop"}
SELECTOR = {"matchLabels": {"app": "db"}}


def closed(document):
    """Return the addresses that a document closes: (for ingress, for egress). The pods web and db are in the namespace
    shop, the third pod is in another namespace."""
    entry = read_entry(encode(reduced({"kind": "NetworkPolicy", **document})))
    assert entry.error
    it = Compiler()
    for pod in (make_pod("web", WEB, namespace="shop", labels={"app": "web"}),
                make_pod("db", DB, namespace="shop", labels={"app": "db"}), make_pod("x", OTHER)):
        it.put_pod(pod)
    for record in entry.records.values():
        it.put_policy(record)
        assert not record.ingress and not record.egress
    return tuple({address for address in (WEB, DB, OTHER) if read_ip(address) in it.state.elements[name]}
                 for name in ("in4", "out4"))


UNREADABLE_SELECTORS = {
    "a number": {"matchLabels": {"app": 1}}, "a text": "app=db", "a null label": {"matchLabels": {"app": None}},
    "an operator": {"matchExpressions": [{"key": "app", "operator": "in", "values": ["db"]}]},
    "another case": {"matchlabels": {"app": "db"}}, "a list": [{"app": "db"}], "labels in a list": {"matchLabels": []},
    "values as text": {"matchExpressions": [{"key": "app", "operator": "In", "values": "db"}]},
    "values of another type": {"matchExpressions": [{"key": "app", "operator": "In", "values": [1]}]},
    "values of Exists": {"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["db"]}]},
    "no values": {"matchExpressions": [{"key": "app", "operator": "In"}]},
    "no key": {"matchExpressions": [{"operator": "Exists"}]}, "a null expression": {"matchExpressions": [None]},
    "a key that is none": {"matchLabels": {"app db": "x"}}, "a value that is none": {"matchLabels": {"app": "d b"}},
    "a prefix that is none": {"matchLabels": {"Shop_/app": "db"}}, "a number alone": 5, "true": True}


@pytest.mark.parametrize("selector", UNREADABLE_SELECTORS.values(), ids=UNREADABLE_SELECTORS)
@pytest.mark.parametrize("kinds, directions", [
    (["Ingress"], (True, False)), (["Egress"], (False, True)), (["Egress", "Ingress"], (True, True)),
    (None, (True, True)), ([], (True, True)), ("Ingress", (True, True)), (["ingress"], (True, True)),
    ([["Ingress"]], (True, True)), (["Ingress", 5], (True, True)), ({}, (True, True))])
def test_a_selector_that_cannot_be_read_closes_its_namespace_in_the_directions_it_names(selector, kinds, directions):
    """Once, such a selector closed no pod: all eleven documents of an attack left their pods open."""
    spec = {"podSelector": selector, "policyTypes": kinds, "egress": [{}], "ingress": [{}]}
    assert closed({"metadata": METADATA, "spec": spec}) == tuple({WEB, DB} if each else set() for each in directions)


@pytest.mark.parametrize("spec", [None, 5, "x", [], True])
def test_a_spec_that_cannot_be_read_closes_its_namespace(spec):
    assert closed({"metadata": METADATA, "spec": spec}) == ({WEB, DB}, {WEB, DB})


@pytest.mark.parametrize("wrong", [
    {"ingress": 5}, {"ingress": [5]}, {"ingress": [None]}, {"ingress": [{"from": 5}]}, {"ingress": [{"from": [{}]}]},
    {"ingress": [{"from": [None]}]}, {"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": 1}}}]}]},
    {"ingress": [{"from": [{"namespaceSelector": "x"}]}]}, {"ingress": [{"form": []}]},
    {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/24"]}}]}]},
    {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": "10.0.0.0/24"}}]}]},
    {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": [5]}}]}]},
    {"ingress": [{"from": [{"ipBlock": {"cidr": 10}}]}]},
    {"ingress": [{"from": [{"ipBlock": {"cidr": "::ffff:10.0.0.0/8"}}]}]},
    {"ingress": [{"ports": [{"port": int("9" * 19)}]}]}, {"ingress": [{"ports": [{"port": True}]}]},
    {"ingress": [{"ports": [{"port": 80, "endPort": 0}]}]}, {"ingress": [{"ports": [{"port": -1}]}]},
    {"ingress": [{"ports": [{"port": ""}]}]}, {"ingress": [{"ports": [{"port": "HTTP"}]}]},
    {"ingress": [{"ports": [{"port": "a-name-of-16-char"}]}]}, {"ingress": [{"ports": [{"port": "80"}]}]},
    {"ingress": [{"ports": [{"protocol": "icmp"}]}]}, {"ingress": [{"ports": {}}]}, {"podselector": {}},
    {"Ingress": []},
    {"policyTypes": "Egress"}, {"policyTypes": ["egress"]}], ids=json.dumps)
def test_a_policy_whose_pods_can_be_read_closes_these(wrong):
    spec = {"podSelector": SELECTOR, "policyTypes": ["Ingress"], **wrong}
    both = "policyTypes" in wrong
    assert closed({"metadata": METADATA, "spec": spec}) == ({DB}, {DB} if both else set())


@pytest.mark.parametrize("metadata", [{"namespace": "shop"}, {"namespace": "shop", "name": None},
                                      {"namespace": "shop", "name": 5}, {"namespace": "shop", "name": "a/b"}])
def test_a_policy_without_a_name_closes_its_pods(metadata):
    spec = {"podSelector": SELECTOR, "policyTypes": ["Egress"]}
    assert closed({"metadata": metadata, "spec": spec}) == (set(), {DB})


@pytest.mark.parametrize("metadata", [None, {}])
def test_without_metadata_the_namespace_is_the_default_one(metadata):
    assert closed({"metadata": metadata, "spec": {"podSelector": SELECTOR}}) == (set(), set())
    assert closed({"metadata": metadata, "spec": {"podSelector": {}}}) == ({OTHER}, {OTHER})


@pytest.mark.parametrize("metadata", [5, [], {"namespace": 5}, {"namespace": ["shop"]}, {"namespace": "a/b"},
                                      {"namespace": "Shop"}, {"namespace": "my.shop"}])
def test_a_policy_whose_namespace_cannot_be_read_closes_no_pods(metadata):
    """The agent keeps the policy's earlier version, see test_content.py."""
    assert not read_entry(encode({"kind": "NetworkPolicy", "metadata": metadata, "spec": {}})).records


@pytest.mark.parametrize("document", [{"kind": "networkpolicy"}, {"apiVersion": "v1"}, {"apiVersion": 5},
                                      {"apiVersion": "networking.k8s.io/v2"}, {"apiVersion": "extensions/v1beta1"}])
def test_a_policy_of_another_kind_or_version_closes_its_pods(document):
    """Once, the agent took a document with a typing error for another program's document."""
    assert closed({"metadata": METADATA, "spec": {"podSelector": SELECTOR}, **document}) == ({DB}, {DB})


@pytest.mark.parametrize("wrong", [{"metadata": {"name": "y", "labels": {"app": 1}}}, {"spec": 5}, {"status": []},
                                   {"status": {"podIP": "x"}}, {"spec": {"containers": [{"ports": 5}]}}])
def test_a_pod_that_cannot_be_read_is_closed(wrong):
    """The agent does not know the pod's labels, so it does not know which policies select the pod."""
    entry = read_entry(encode(reduced({"kind": "Pod", "metadata": {"name": "y"}, "status": {"podIP": "10.0.0.5"},
                                       **wrong})))
    it = Compiler()
    pod, policy = entry.records.values()
    it.put_pod(make_pod("y", "10.0.0.5", labels=pod.labels))
    it.put_pod(make_pod("z", "10.0.0.6"))
    it.put_policy(policy)
    assert set(it.state.elements["in4"]) == set(it.state.elements["out4"]) == {read_ip("10.0.0.5")}
    assert entry.error.startswith("Pod default/y: ")


def test_an_error_is_short_whatever_the_document_says():
    """A YAML alias can stand for gigabytes. Once, a text of 2 KB made an error message of 700 MB."""
    spec = {"podSelector": {"matchLabels": {"app": ["x" * 999] * 999}}}
    assert len(read_entry(encode({"kind": "NetworkPolicy", "metadata": METADATA, "spec": spec})).error) < 1000


WORDS = st.sampled_from(["", "shop", "app", "db", "In", "Ingress", "10.0.0.0/8", "::/0", "TCP", "80", "\ud800"])
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | WORDS, lambda inner: st.lists(
    inner, max_size=3) | st.dictionaries(st.sampled_from([
        "name", "namespace", "labels", "podSelector", "matchLabels", "matchExpressions", "key", "operator", "values",
        "policyTypes", "ingress", "egress", "from", "to", "ipBlock", "cidr", "except", "ports", "port", "endPort",
        "protocol", "podIPs", "ip", "podIP", "containers", "initContainers", "hostNetwork", "phase"]), inner,
    max_size=4), max_leaves=12)


@given(st.fixed_dictionaries({"kind": st.sampled_from(["NetworkPolicy", "Pod", "Namespace", "POD"])}, optional={
    "metadata": VALUES, "spec": VALUES, "status": VALUES, "apiVersion": VALUES}))
def test_no_document_is_a_fault(document):
    kept = reduced(document)
    entry = kept and read_entry(encode(kept))
    assert not entry or entry.records or entry.error
