"""Which EgressAddress documents fastcni accepts, and which source address a pod has outside the cluster."""

import pytest

from fastcni.agent.egress.objects import preferred, read_egress_address
from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.objects import PolicyError
from fastcni.agent.policy.sources.content import Content
from fastcni.agent.policy.sources.documents import encode, reduced
from fastcni.spec.address import read_ip

POD = {"kind": "Pod", "metadata": {"name": "a", "namespace": "shop", "labels": {"app": "web"}},
       "status": {"podIPs": [{"ip": "10.244.1.5"}, {"ip": "fd00::5"}]}}
FOUR, SIX = read_ip("10.244.1.5"), read_ip("fd00::5")


def document(name="billing", addresses=("192.0.2.50",), subject=None, **more):
    return {"apiVersion": "policy.fastcni.dev/v1alpha1", "kind": "EgressAddress", "metadata": {"name": name},
            "spec": {"subject": subject or {"namespaces": {}}, "addresses": list(addresses), **more}}


class Source:
    def __init__(self):
        self.compiler = Compiler()
        self.content = Content(self.compiler)

    def put(self, place, *documents):
        for _ in self.content.replace(place, [("", encode(reduced(each))) for each in documents]):
            pass

    def subjects(self):
        return {packed: it.name for packed, it in self.compiler.egress.subjects().items()}


@pytest.mark.parametrize(("wrong", "text"), [
    (document(addresses=[]), "expected 1 to 16 addresses, got 0"),
    (document(addresses=["192.0.2.300"]), "is no address"),
    (document(addresses=["192.0.2.0/24"]), "is no address"),
    *((document(addresses=[address]), f"{address} cannot be the source") for address in (
        "127.0.0.1", "::1", "fe80::1", "169.254.1.1", "224.0.0.1", "ff0e::1", "0.0.0.0", "::", "0.1.2.3",
        "255.255.255.255", "::ffff:c000:232", "::c000:232", "2001:db8::50%eth0")),
    (document(addresses=[5]), "is no address"),
    (document(subject={"namespaces": {}, "pods": {}}), "expected namespaces or pods"),
    (document(node="one"), "spec.node: is not known"),
    (document() | {"apiVersion": "policy.fastcni.dev/v9"}, "expected policy.fastcni.dev/v1alpha1"),
])
def test_a_document_that_cannot_be_read_says_where(wrong, text):
    with pytest.raises(PolicyError, match="EgressAddress billing") as e:
        read_egress_address(wrong)
    assert text in str(e.value)


def test_pods_of_the_subject_have_it_in_the_families_that_have_an_address():
    source = Source()
    source.put("pod", POD)
    source.put("one", document(addresses=["192.0.2.50", "192.0.2.50", "192.0.2.51"]))
    assert source.subjects() == {FOUR: "billing"}
    source.put("one", document(addresses=["192.0.2.50", "2001:db8::50"]))
    assert source.subjects() == {FOUR: "billing", SIX: "billing"}
    source.put("one", document(subject={"pods": {"namespaceSelector": {}, "podSelector": {
        "matchLabels": {"app": "db"}}}}))
    assert source.subjects() == {}
    source.put("pod", {**POD, "metadata": {**POD["metadata"], "labels": {"app": "db"}}})
    assert source.subjects() == {FOUR: "billing"}
    source.put("one")
    assert source.subjects() == {}


def test_of_two_documents_the_first_by_name_counts():
    source = Source()
    source.put("pod", POD)
    source.put("1", document("b"), document("a", ["192.0.2.60"]))
    assert source.subjects() == {FOUR: "a"}


def test_addresses_that_cannot_be_read_close_the_pods_and_a_damaged_document_counts_as_before():
    source = Source()
    source.put("pod", POD)
    source.put("one", document(addresses=["here"]))
    closed = source.compiler.egress.subjects()
    assert {packed: it.closed for packed, it in closed.items()} == {FOUR: True, SIX: True}
    source.put("one", document())
    source.put("one", document(addresses=["here"]))
    assert source.compiler.egress.subjects()[FOUR].addresses == (read_ip("192.0.2.50"),)
    assert source.content.errors


def test_another_groups_kind_of_the_same_name_is_not_ours():
    assert reduced(document() | {"apiVersion": "k8s.ovn.org/v1"}) is None


def test_each_change_of_pods_and_documents_is_told_while_there_are_documents():
    source, told = Source(), []
    source.compiler.egress.notify = lambda: told.append(True)
    source.put("pod", POD)
    assert not told
    source.put("one", document())
    source.put("pod", {**POD, "metadata": {**POD["metadata"], "labels": {}}})
    assert len(told) == 2


def test_a_pod_keeps_its_address_when_others_come_and_go_and_pods_are_spread():
    addresses = [read_ip(f"192.0.2.{number}") for number in (50, 51, 52)]
    pods = [read_ip(f"10.244.1.{number}") for number in range(1, 101)]
    first = {pod: preferred(pod, addresses) for pod in pods}
    assert {each: list(first.values()).count(each) > 15 for each in addresses} == dict.fromkeys(addresses, True)
    assert all(preferred(pod, addresses[:2]) == address for pod, address in first.items() if address != addresses[2])
    assert preferred(pods[0], []) is None
