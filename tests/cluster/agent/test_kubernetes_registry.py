"""Kubernetes as the registry, with the API mock: podCIDRs, flannel's annotations, and the Node's condition."""

import gc
import re
import threading
import weakref
from ipaddress import ip_address, ip_network

import pytest
import yaml
from cluster.agent.kubernetes_nodes import ME, P, node_object, stored
from cluster.kubernetes.api_server import ROOT, merged

from fastcni.agent.contract import ConfigurationError, Node, SubnetLost
from fastcni.agent.registries.kubernetes import POD_CIDRS
from fastcni.testing.witnesses import eventually


def test_a_node_has_its_pod_cidrs_and_tells_how_it_is_reached(mock, registry):
    one = registry()
    joined = one.join(one.conf(), ME)
    assert joined.subnets == {4: ip_network("10.244.1.0/24"), 6: ip_network("fd00:10:0:1::/64")}
    notes = stored(mock)["metadata"]["annotations"]
    assert notes == {POD_CIDRS: "10.244.1.0/24,fd00:10:0:1::/64",
                     f"{P}/kube-subnet-manager": "true", f"{P}/backend-type": "vxlan", f"{P}/public-ip": "192.0.2.1",
                     f"{P}/backend-data": '{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}', f"{P}/backend-v6-data": "null",
                     f"{P}/public-ipv6": "2001:db8::1"}
    assert stored(mock)["spec"] == node_object(1)["spec"]


def test_joining_again_writes_nothing(mock, registry):
    one = registry()
    joined = one.join(one.conf(), ME)
    revision = stored(mock)["metadata"]["resourceVersion"]
    one.keep(joined)
    registry().join(one.conf(), ME)
    assert stored(mock)["metadata"]["resourceVersion"] == revision


def test_an_operators_public_address_counts(mock, registry):
    mock.do(lambda api: api.put("nodes", node_object(1, **{"public-ip-overwrite": "198.51.100.7"})))
    one = registry()
    assert one.join(one.conf(), ME).public[4] == ip_address("198.51.100.7")
    assert stored(mock)["metadata"]["annotations"][f"{P}/public-ip"] == "198.51.100.7"


def test_a_node_without_a_pod_cidr_is_an_error_that_names_it(mock, registry):
    one = registry()
    mock.do(lambda api: api.put("nodes", {"metadata": {"name": "n1"}}))
    with pytest.raises(ConfigurationError, match='node "n1" pod cidr not assigned'):
        one.join(one.conf(), ME)
    with pytest.raises(ConfigurationError, match='no Node "n9"'):
        registry("n9").join(one.conf(), ME)


@pytest.mark.parametrize(("notes", "message"), [
    ({"public-ip-overwrite": "nonsense"}, 'annotation flannel.alpha.coreos.com/public-ip-overwrite of node "n1": '
                                          "'nonsense' does not appear to be an IPv4 or IPv6 address"),
    ({"public-ip-overwrite": "2001:db8::7"}, "expected an IPv4 address, got 2001:db8::7"),
    ({"public-ipv6-overwrite": "192.0.2.7"}, "expected an IPv6 address, got 192.0.2.7")])
def test_an_operators_wrong_address_is_an_error_that_names_the_annotation(mock, registry, notes, message):
    """A wrong address ended the agent with a traceback."""
    mock.do(lambda api: api.put("nodes", node_object(1, **notes)))
    one = registry()
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        one.join(one.conf(), ME)


def test_a_node_with_damaged_annotations_is_left_out_and_named(mock, registry):
    """An annotation with nested brackets ended the agents of all other nodes."""
    damaged = [{"backend-data": "[" * 100000}, {"public-ip": "nonsense"}, {"public-ip": "2001:db8::7"}]
    for number, notes in enumerate(damaged, 3):
        mock.do(lambda api, number=number, notes=notes: api.put("nodes", node_object(
            number, **{"kube-subnet-manager": "true", **notes})))
    one, lists, stop = registry(), [], threading.Event()
    watching = threading.Thread(target=one.watch, args=(lists.append, stop.is_set))
    watching.start()
    try:
        assert eventually(lambda: lists or not watching.is_alive())
        assert [lists, [each["key"] for each in one.events]] == [[[]], ["n3", "n4", "n5"]]
    finally:
        stop.set()
        one.close()
        watching.join()


def test_other_pod_cidrs_are_a_lost_subnet(mock, registry):
    one = registry()
    joined = one.join(one.conf(), ME)
    mock.do(lambda api: api.put("nodes", {**node_object(7), "metadata": {"name": "n1"}}))
    with pytest.raises(SubnetLost, match=r"10\.244\.7\.0/24"):
        one.keep(joined)


def test_annotations_that_somebody_removes_are_written_again(mock, registry):
    one = registry()
    joined = one.join(one.conf(), ME)
    before = stored(mock)["metadata"]["annotations"]
    mock.do(lambda api: api.put("nodes", node_object(1)))
    one.keep(joined)
    assert stored(mock)["metadata"]["annotations"] == before


NOTES = {"kube-subnet-manager": "false", "backend-type": "host-gw", "public-ip": "192.0.2.99",
         "public-ipv6": "nonsense", "backend-data": '{"VNI":1,"VtepMAC":"02:00:00:00:00:99"}', "backend-v6-data": "["}


@pytest.mark.parametrize(("note", "value"), NOTES.items())
def test_an_annotation_that_another_program_changes_is_seen_and_written_again(mock, registry, note, value):
    one, lists, stop = registry(), [], threading.Event()
    joined = one.join(one.conf(), ME)
    before = stored(mock)["metadata"]["annotations"]
    assert before.keys() == {POD_CIDRS, *(f"{P}/{name}" for name in NOTES)}
    thread = threading.Thread(target=one.watch, args=(lists.append, stop.is_set))
    thread.start()
    try:
        assert eventually(lambda: lists and joined in lists[-1])
        changed = merged(stored(mock), {"metadata": {"annotations": {f"{P}/{note}": value}}})
        mock.do(lambda api: api.put("nodes", changed))
        assert eventually(lambda: joined not in lists[-1])
        one.keep(joined)
        assert stored(mock)["metadata"]["annotations"] == before
        assert [(it["key"], it["found"]) for it in one.events if it["event"] == "record_restored"] == [
            (f"{P}/{note}", value)]
        assert eventually(lambda: joined in lists[-1])
    finally:
        stop.set()
        one.close()
        thread.join()


def test_annotations_of_a_family_that_the_network_no_longer_has_are_removed(mock, registry, tmp_path):
    registry().join(registry().conf(), ME)
    (tmp_path / "net-conf.json").write_text('{"Network": "10.244.0.0/16"}')
    one = registry()
    one.join(one.conf(), ME)
    assert f"{P}/backend-v6-data" not in stored(mock)["metadata"]["annotations"]


def test_pod_cidrs_that_cannot_be_read_are_an_error_that_names_the_node(mock, registry):
    """Such podCIDRs ended the agent with a traceback."""
    mock.do(lambda api: api.put("nodes", node_object(1) | {"spec": {"podCIDRs": ["nonsense"]}}))
    one = registry()
    with pytest.raises(ConfigurationError, match=r'podCIDRs of node "n1": .nonsense'):
        one.join(one.conf(), ME)


def test_a_ready_network_clears_the_condition_and_no_other(mock, registry):
    one = registry()
    one.ready(one.join(one.conf(), ME))
    conditions = {it["type"]: it for it in stored(mock)["status"]["conditions"]}
    assert conditions["NetworkUnavailable"]["status"] == "False"
    assert conditions["Ready"] == {"type": "Ready", "status": "True"}


def test_a_restarted_agent_writes_nothing_of_its_node(mock, registry):
    """Each restarted agent wrote a new time into the Node's condition, so the API server sent the Node to all
    agents."""
    for _ in range(2):
        one = registry()
        me = one.join(one.conf(), ME)
        one.keep(me)
        one.ready(me)
        writes = [method for method, _ in mock.do(lambda api: list(api.log)) if method != "GET"]
        mock.do(lambda api: api.log.clear())
    assert not writes


def test_a_node_that_leaves_has_no_annotations(mock, registry):
    one = registry()
    one.leave(one.join(one.conf(), ME))
    assert stored(mock)["metadata"]["annotations"] == {}


def test_the_watch_sees_nodes_come_change_and_go_and_nothing_else(mock, registry):
    one, two, stop, seen = registry(), registry("n2"), threading.Event(), []
    mine = one.join(one.conf(), ME)
    thread = threading.Thread(target=one.watch, args=(lambda nodes: seen.append({it.name: it for it in nodes}),
                                                      stop.is_set))
    thread.start()
    assert eventually(lambda: seen == [{"n1": mine}])
    other = Node("", {}, {4: ip_address("192.0.2.2"), 6: ip_address("2001:db8::2")}, "vxlan",
                 {4: {"VNI": 1, "VtepMAC": "02:00:00:00:00:02"}})
    joined = two.join(two.conf(), other)
    assert eventually(lambda: seen[-1] == {"n1": mine, "n2": joined})
    count = len(seen)
    two.ready(joined)                           # changes the Node like a kubelet's heartbeat, but not the network
    mock.do(lambda api: api.put("nodes", node_object(3, **{"kube-subnet-manager": "true", "public-ip": "nonsense"})))
    assert eventually(lambda: "record_unreadable" in [event["event"] for event in one.events])
    assert len(seen) == count
    mock.do(lambda api: api.drop("nodes", "n2"))
    assert eventually(lambda: seen[-1] == {"n1": mine})
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


def test_the_documents_of_nodes_are_not_kept(registry):
    """While the agent watched, 1,000 Nodes with all their images took 100 MB. During a list, 5,000 Nodes without images
    took 114 MB."""
    class Document(dict):
        __hash__ = object.__hash__

    one, most = registry(), []

    def list_each(path, tell, stop, metadata):
        sent = weakref.WeakSet()
        for number in range(1, 6):
            document = Document(node_object(number, **{"kube-subnet-manager": "true"}))
            document["metadata"]["uid"] = str(number)
            document["metadata"]["annotations"][POD_CIDRS] = f"10.244.{number}.0/24"
            sent.add(document)
            tell(document)
            gc.collect()
            most.append(len(sent))
        return "1"

    one.api.list_each = list_each
    assert [node.name for node in one._list(lambda: False).nodes()] == ["n1", "n2", "n3", "n4", "n5"]
    assert max(most) == 1


def test_what_the_server_has_forgotten_is_listed_again(mock, registry):
    """A Node is removed while no watch runs. The API server answers the next watch with 410, because it no longer has
    the changes."""
    one, two, stop, seen = registry(), registry("n2"), threading.Event(), []
    one.join(one.conf(), ME)
    two.join(two.conf(), ME)
    mock.do(lambda api: setattr(api, "watch_s", 0.2))
    thread = threading.Thread(target=one.watch, args=(lambda nodes: seen.append({it.name for it in nodes}),
                                                      stop.is_set))
    thread.start()
    assert eventually(lambda: seen == [{"n1", "n2"}])
    mock.do(lambda api: api.forget("nodes", "n2"))
    assert eventually(lambda: seen[-1] == {"n1"})
    mock.do(lambda api: (setattr(api, "watch_s", 240.0), api.log.clear(), api.forget("nodes", "n3")))
    assert eventually(lambda: any("watch=true" in path for _, path in mock.do(lambda api: list(api.log))))
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


def test_the_rights_in_deploy_are_enough_and_all_are_used(mock, registry):
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "agent.yaml").read_text()))
    rules = next(it["rules"] for it in documents if it["kind"] == "ClusterRole")
    mock.do(lambda api: setattr(api, "rules", rules))
    mock.do(lambda api: api.asked.clear())
    one, stop = registry(), threading.Event()
    joined = one.join(one.conf(), ME)
    one.keep(joined)
    one.ready(joined)
    thread = threading.Thread(target=one.watch, args=(lambda nodes: stop.set(), stop.is_set))
    thread.start()
    thread.join(30)
    assert eventually(lambda: ("watch", "", "nodes") in mock.do(lambda api: set(api.asked)) or stop.is_set())
    asked = mock.do(lambda api: set(api.asked))
    allowed = {(verb, group, what) for rule in rules for verb in rule["verbs"] for group in rule["apiGroups"]
               for what in rule["resources"]}
    assert asked <= allowed
    for_policies = {("pods", ""), ("namespaces", ""), ("networkpolicies", "networking.k8s.io"),
                    ("clusternetworkpolicies", "policy.networking.k8s.io"), ("ciliumnetworkpolicies", "cilium.io"),
                    ("egressaddresses", "policy.fastcni.dev"), ("events", "events.k8s.io")}
    assert {it for it in allowed - asked if (it[2], it[1]) not in for_policies} <= {("watch", "", "nodes")}
