"""Pods of a node: the records of their ADDs together with their Kubernetes objects."""

import json
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
from unit.agent.policy.clusters import make_pod

from fastcni.agent.policy import attached, salvage
from fastcni.agent.policy.attached import AttachedCompiler, Attachment
from fastcni.agent.policy.objects import read_policy
from fastcni.spec.address import read_ip

ONE, TWO = read_ip("10.0.0.1"), read_ip("10.0.0.2")
WEB = {"app": "web"}


def attachment(container="c1", *addresses, pod="default/a", labels=None, network="net", sequence=0):
    return Attachment((network, container, "eth0"), pod, WEB if labels is None else labels, addresses or (ONE,),
                      sequence)


def restarted(attachments):
    """Return the compiler of an agent that has just read these attachments from files."""
    found = AttachedCompiler("here")
    found.put_policy(read_policy({"metadata": {"name": "p"}, "spec": {"podSelector": {"matchLabels": WEB}}}))
    for each in attachments:
        found.attach(each)
    return found


@pytest.fixture
def it():
    return restarted(())


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
    assert isolated(it) == set()                    # the object's labels apply, not the labels of the ADD
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
    it.detach(attachment().id)                      # the late DEL of the earlier pod
    assert it.attachments == {other.id: other}


@pytest.mark.parametrize("former, latest", [("c1", "c2"), ("c2", "c1")])
@pytest.mark.parametrize("before, after", [({}, WEB), (WEB, {})])
def test_the_labels_of_the_latest_add_of_a_name_count(tmp_path, former, latest, before, after):
    """Two ADDs name the same pod. Once, the labels of the first ADD counted until its DEL and after it. After a
    restart, the container ID decided."""
    first, second = (attachment(name, packed, labels=labels, sequence=number) for number, (name, packed, labels) in
                     enumerate([(former, ONE, before), (latest, TWO, after)], 1))
    directory, it = str(tmp_path), restarted(())
    for each in (first, second):
        it.attach(each)
        attached.keep(directory, each)
    for one in (it, restarted(attached.read_all(directory))):
        assert isolated(one) == ({ONE, TWO} if after else set())
        one.detach(first.id)
        assert isolated(one) == ({TWO} if after else set())
        one.attach(first)
        one.detach(second.id)                       # the second ADD has failed
        assert isolated(one) == ({ONE} if before else set())


def test_the_latest_add_counts_before_the_object_of_an_earlier_pod(it):
    """The pod's object is deleted, but its DEL never arrives. A later ADD has the same pod name."""
    it.put_pod(make_pod("a", labels=WEB))
    it.attach(attachment(labels=WEB, sequence=1))
    it.delete_pod("default/a")
    assert isolated(it) == {ONE}
    it.attach(attachment("c2", TWO, labels={}, sequence=2))
    assert isolated(it) == set()


def test_a_number_of_an_add_is_higher_than_all_that_were_kept(tmp_path):
    """Two ADDs within one tick of the clock, or after a restart, get different numbers."""
    for each in (attachment("c1", sequence=7), attachment("c2", TWO, sequence=3)):
        attached.keep(str(tmp_path), each)
    it = restarted(attached.read_all(str(tmp_path)))
    assert it.sequence == 7
    it.detach(attachment("c1").id)
    assert it.sequence == 7


def test_an_expected_attachment_counts_as_soon_as_something_asks_for_the_state(it):
    it.expect(attachment())
    assert isolated(it) == set() and it.sequence == 0
    it.take()
    assert isolated(it) == {ONE}
    it.expect(other := attachment("c2"))
    it.detach(other.id)                             # the second ADD has failed
    assert isolated(it) == set() and it.replaced == [attachment()]


def test_an_attachment_is_known_by_its_id_and_by_the_address_of_a_restricted_pod(it):
    same_id, same_address = attachment("c1", TWO), attachment("c2")
    assert not it.knows(attachment())
    it.expect(attachment())
    # an expected attachment does not count by address: the kernel rejects a duplicate address
    assert it.knows(same_id) and not it.knows(same_address)
    it.settle()
    assert it.knows(same_id) and it.knows(same_address) and not it.knows(attachment("c2", TWO))


def with_sequence(sequence):
    return lambda it: it.write_text(json.dumps({**json.loads(it.read_text()), "sequence": sequence}))


def replaced(make):
    return lambda it: (it.unlink(), make(it))


def readable(directory):
    return [it for it in attached.read_all(directory) if not it.pod.startswith(salvage.NAMESPACE)]


def with_port(port):
    return lambda it: it.write_text(json.dumps({**json.loads(it.read_text()), "port": port}))


@pytest.mark.parametrize("damage", [
    *map(with_sequence, ["1", None, float("inf"), []]), with_port({"pairs": [{"address": 5}], "mac": "020000000001"}),
    lambda it: it.write_text("[]"), replaced(os.mkfifo), replaced(Path.mkdir),
    replaced(lambda it: it.symlink_to("/dev/zero")), replaced(lambda it: (it.mkdir(), (it / "x").touch())),
    lambda it: it.write_text("[" * 100_000), lambda it: it.write_text(" " * (2 << 20)), lambda it: it.write_text("")])
def test_a_file_that_is_damaged_is_put_aside(tmp_path, damage):
    """Once, the agent removed the file without a log line, and the pod was open."""
    attached.keep(str(tmp_path), attachment("c2", TWO))
    for _ in range(2):
        attached.keep(str(tmp_path), attachment())
        damage(file := tmp_path / attachment().file)
        assert readable(str(tmp_path)) == [attachment("c2", TWO)] and not os.path.lexists(file)
        assert attached.damaged(str(tmp_path)) == [aside := tmp_path / f"{file.name}.damaged"]
    attached.keep(str(tmp_path), attachment())
    assert attached.damaged(str(tmp_path)) == [] and len(attached.read_all(str(tmp_path))) == 2
    assert not os.path.lexists(aside)


def test_a_record_that_cannot_be_written_leaves_the_former_one_whole(tmp_path):
    """Once, a failed write left a part of the new record over the previous record, without an error."""
    directory = str(tmp_path)
    attached.keep(directory, attachment())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))      # a limit of the file size, in place of a full disk
    try:
        with pytest.raises(OSError, match="No space left"):
            attached.keep(directory, attachment(labels={}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert attached.read_all(directory) == [attachment()]
    attached.keep(directory, attachment(labels={}))
    assert attached.read_all(directory) == [attachment(labels={})] and os.listdir(directory) == [attachment().file]


def test_files_keep_what_was_said(tmp_path):
    directory = str(tmp_path / "pods")
    assert list(attached.read_all(directory)) == []
    for each in (attachment(), attachment("c2", TWO, read_ip("fd00::1"))):
        attached.keep(directory, each)
    assert list(attached.read_all(directory)) == [attachment(), attachment("c2", TWO, read_ip("fd00::1"))]
    attached.forget(directory, attachment())
    attached.forget(directory, attachment())
    assert [each.id[1] for each in attached.read_all(directory)] == ["c2"]
    attached.keep(directory, left := replace(attachment("c2"), leaving=7))
    assert attached.read_all(directory) == [left]
