"""What ADDs say of pods and what their objects say, put together."""

import pytest
from agent.policy.clusters import make_pod

from fastcni.agent.policy import attached
from fastcni.agent.policy.attached import AttachedCompiler, Attachment
from fastcni.agent.policy.objects import read_policy
from fastcni.spec.address import read_ip

ONE, TWO = read_ip("10.0.0.1"), read_ip("10.0.0.2")
WEB = {"app": "web"}


def attachment(container="c1", *addresses, pod="default/a", labels=None, network="net"):
    return Attachment((network, container, "eth0"), pod, WEB if labels is None else labels, addresses or (ONE,))


@pytest.fixture
def it():
    found = AttachedCompiler("here")
    found.put_policy(read_policy({"metadata": {"name": "p"}, "spec": {"podSelector": {"matchLabels": WEB}}}))
    return found


def isolated(it):
    return set(it.state.elements["in4"])


def test_the_addresses_of_an_add_last_until_del_whatever_the_object_says(it):
    it.put_pod(make_pod("a", labels=WEB))
    assert isolated(it) == set()
    it.attach(attachment())
    assert isolated(it) == {ONE}
    for addresses in ((), ("10.0.0.1",), ("10.0.0.2",)):
        it.put_pod(make_pod("a", *addresses, labels=WEB))
        assert ONE in isolated(it)
    it.put_pod(make_pod("a", labels={}))
    assert isolated(it) == set()                    # the labels are the object's
    it.put_pod(make_pod("a", labels=WEB))
    it.delete_pod("default/a")
    assert isolated(it) == {ONE}
    it.detach(attachment().id)
    assert isolated(it) == set()
    assert not it.cluster.pods


def test_a_pod_without_an_object_has_the_labels_of_its_add(it):
    it.attach(attachment())
    assert isolated(it) == {ONE}
    assert it.cluster.pods["default/a"].node == "here"
    it.detach(attachment().id)
    assert it.detach(attachment().id) is None


def test_two_links_and_two_sandboxes_of_a_pod_are_both_protected(it):
    it.attach(attachment())
    it.attach(attachment("c2", TWO))
    assert isolated(it) == {ONE, TWO}
    it.detach(attachment().id)
    assert isolated(it) == {TWO}


def test_an_address_is_of_the_last_add_of_its_network(it):
    it.attach(attachment())
    other = attachment("c2", pod="default/b", labels={})
    assert it.attach(attachment("c3", network="other")) == []
    it.detach(attachment("c3", network="other").id)
    assert it.attach(other) == [attachment()]
    assert isolated(it) == set()
    assert it.attach(other) == []                   # a repeated ADD
    it.detach(attachment().id)                      # the former one's late DEL
    assert it.attachments == {other.id: other}


def test_files_keep_what_was_said(tmp_path):
    folder = str(tmp_path / "pods")
    assert list(attached.read_all(folder)) == []
    for each in (attachment(), attachment("c2", TWO, read_ip("fd00::1"))):
        attached.keep(folder, each)
    assert list(attached.read_all(folder)) == [attachment(), attachment("c2", TWO, read_ip("fd00::1"))]
    attached.forget(folder, attachment())
    attached.forget(folder, attachment())
    assert [each.id[1] for each in attached.read_all(folder)] == ["c2"]
