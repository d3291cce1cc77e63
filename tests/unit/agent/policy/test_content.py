"""Documents of files and of the API in a Compiler. A mistake in a document never opens a pod that was closed."""

import json

import pytest
from unit.agent.policy.clusters import make_pod

from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.sources import content as module
from fastcni.agent.policy.sources.content import Content
from fastcni.agent.policy.sources.documents import FOREIGN, encode, foreign, reduced
from fastcni.spec.address import read_ip

ADDRESSES = {"web": "10.0.0.1", "db": "10.0.0.2", "other": "10.0.0.3"}


def policy(name="p", app="db", namespace="default", **spec):
    return {"kind": "NetworkPolicy", "metadata": {"name": name, "namespace": namespace},
            "spec": {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress"], **spec}}


BROKEN = {**policy(), "spec": {"podSelector": 5, "policyTypes": ["Egress"]}}
LOST = {**policy(), "metadata": {"name": "p", "namespace": 5}}
PART = policy(ingress=[{"form": []}])


@pytest.fixture
def it():
    found = Content(Compiler())
    for app, address in ADDRESSES.items():
        found.compiler.put_pod(make_pod(app, address, labels={"app": app}))
    return found


def put(it, *documents, place="a.yaml", broken=()):
    lines = [(f"document {number}", encode(reduced(each))) for number, each in enumerate(documents, 1)]
    for _ in it.replace(place, lines, [("", each) for each in broken]):
        pass


def closed(it):
    """Return the pods that are closed: (for ingress, for egress)."""
    return tuple({app for app, address in ADDRESSES.items() if read_ip(address) in it.compiler.state.elements[name]}
                 for name in ("in4", "out4"))


def test_a_document_that_can_no_longer_be_read_counts_as_it_was_read_last(it):
    put(it, policy(ingress=[{"ports": [{"port": 80}]}]))
    for wrong in (PART, LOST):
        put(it, wrong)
        assert closed(it) == ({"db"}, set())
        assert it.compiler.cluster.policies["default/p"].ingress[0].ports[0].first == 80
        (text,) = it.errors["a.yaml"]
        assert text.startswith("document 1: NetworkPolicy")


def test_one_whose_pods_are_not_known_closes_its_namespace_as_well(it):
    put(it, policy(ingress=[{"ports": [{"port": 80}]}]))
    put(it, BROKEN)
    assert closed(it) == ({"db"}, set(ADDRESSES))
    assert it.compiler.cluster.policies["default/p"].ingress
    put(it, policy(app="web"))
    assert closed(it) == ({"web"}, set()) and not it.errors
    put(it, BROKEN)
    put(it)
    assert closed(it) == (set(), set()) and not it.errors and not it.places


def test_others_of_the_place_count_as_they_are_now_and_none_goes_while_one_has_a_mistake(it):
    put(it, policy(), policy("q", "web"))
    put(it, PART, policy("q", "other"))
    assert closed(it) == ({"db", "other"}, set())
    put(it, LOST)
    assert closed(it) == ({"db", "other"}, set())
    put(it, policy("new", "web"), LOST)
    assert closed(it) == (set(ADDRESSES), set())
    put(it, policy())
    assert closed(it) == ({"db"}, set())


def test_a_place_that_cannot_be_parsed_stays_as_it_was(it):
    put(it, policy())
    put(it, BROKEN)
    before = closed(it)
    for documents in ((), (policy("q", "web"),)):
        put(it, *documents, broken=["nested too deep"])
        assert before[1] == closed(it)[1] and before[0] <= closed(it)[0]
    put(it, PART)
    assert closed(it) == ({"db", "web"}, set())         # the agent still knows which pods BROKEN closed
    assert it.errors["a.yaml"][0].startswith("document 1: ")


def test_a_policy_of_another_program_is_no_mistake_of_its_place(it):
    """A foreign policy is not a document that may have closed pods. The agent keeps no copy of it."""
    calico = {**policy(), "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy"}
    line = encode(foreign(calico))
    put(it, BROKEN)
    for _ in it.replace("a.yaml", [("document 1", encode(reduced(PART))), ("document 2", line)]):
        pass
    assert closed(it) == ({"db"}, set()) and len(it.errors["a.yaml"]) == len(it.notes["a.yaml"]) == 1
    assert it.places["a.yaml"].entries[line].kind == FOREIGN and not it.unsure


def test_several_documents_of_one_name_are_told_and_the_last_one_is_in_force(it):
    """Once, if another file had the same policy, neither error nor policy said which one applied."""
    put(it, policy(), policy(app="web"))
    assert closed(it) == ({"web"}, set())
    assert it.told() == {"a.yaml": ["NetworkPolicy default/p occurs 2 times; the last one is in force"]}
    put(it, policy())
    put(it, policy(app="other"), place="b.yaml")
    put(it, policy(app="web"), place="c.yaml")
    assert closed(it) == ({"web"}, set())
    text = "NetworkPolicy default/p is not in force: c.yaml has another NetworkPolicy of this name"
    assert it.told() == {place: [text] for place in ("a.yaml", "b.yaml")}
    put(it, policy(app="web"))
    assert [*it.told()] == ["b.yaml"]
    put(it, place="b.yaml")
    assert not it.told() and closed(it) == ({"web"}, set())


def test_a_policy_does_not_move_to_a_namespace_that_cannot_be(it):
    """Once, such a namespace opened the policy's pods."""
    put(it, policy())
    for namespace in ("Default", "default ", "my_default", "my.default", "-", "d" * 64):
        put(it, policy(namespace=namespace))
        assert closed(it) == ({"db"}, set()) and "is no name" in it.errors["a.yaml"][0]


def test_a_place_of_which_nothing_is_known_is_unsure_until_it_can_be_read(it):
    put(it, broken=["no YAML"])
    put(it, policy(), LOST, place="b.yaml")
    assert it.unsure == {"a.yaml", "b.yaml"}
    put(it, policy(), LOST, place="b.yaml")
    put(it)
    assert it.unsure == {"b.yaml"}
    put(it, policy(), place="b.yaml")
    put(it, LOST, place="b.yaml")               # b.yaml is unsure again, as before
    put(it, PART, place="c.yaml")               # PART closes the pods that LOST may have closed
    assert not it.unsure


def test_a_place_that_was_never_read_has_what_can_be_read(it):
    put(it, PART, policy("q", "web"), broken=["no YAML"])
    assert closed(it) == ({"db", "web"}, set())
    assert len(it.errors["a.yaml"]) == 2


def test_what_was_kept_makes_the_same_again(it):
    """Compile the kept documents again, as after a restart."""
    put(it, policy(ingress=[{"ports": [{"port": 80}]}]), policy("q", "web"))
    put(it, BROKEN)
    again = Content(Compiler())
    again.compiler.put_all(it.compiler.cluster)
    for key in list(again.compiler.cluster.policies):
        again.compiler.delete_policy(key)
    for _ in again.replace("a.yaml", [("", line) for line in it.places["a.yaml"].entries]):
        pass
    assert again.compiler.cluster.policies == it.compiler.cluster.policies
    put(again, BROKEN)
    assert closed(again) == closed(it) == ({"db", "web"}, set(ADDRESSES))


def test_a_pod_that_cannot_be_read_has_its_last_labels_and_without_them_is_closed(it):
    put(it, policy(), place="p.yaml")
    pod = {"kind": "Pod", "metadata": {"name": "db", "labels": {"app": "db"}}, "status": {"podIP": ADDRESSES["db"]}}
    wrong = {**pod, "metadata": {"name": "db", "labels": {"app": 5}}}
    put(it, pod)
    put(it, wrong)
    assert closed(it) == ({"db"}, set())
    put(it)
    put(it, wrong)
    assert closed(it) == ({"db"}, {"db"})
    assert it.errors


def test_documents_that_are_as_before_are_not_read_again(it, monkeypatch):
    read = []
    monkeypatch.setattr(module, "read_entry", lambda line: read.append(json.loads(line)) or original(line))
    original = __import__("fastcni.agent.policy.sources.documents", fromlist=["read_entry"]).read_entry
    many = [policy(f"p{number}") for number in range(50)]
    put(it, *many)
    assert len(read) == 50
    put(it, *many[:30], policy("p30", "web"), *many[31:])
    assert [each["metadata"]["name"] for each in read[50:]] == ["p30"]
    assert closed(it) == ({"db", "web"}, set())


def test_changes_are_told_and_nothing_else(it):
    told = []
    it.changed = lambda: told.append(len(it.places))
    put(it, policy())
    put(it, policy())
    assert told == [1]
    put(it)
    assert told == [1, 0]
