"""Pods of other nodes, from the Kubernetes API. The agent reads them only if a policy names pods."""

import pytest
from unit.agent.policy.test_from_kubernetes import ADDRESS, FakeApi, policy, wait

from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.objects import Pod
from fastcni.agent.policy.sources.document_file import DocumentFile
from fastcni.agent.policy.sources.kubernetes import (
    ELSEWHERE,
    NAMESPACES,
    ON_NODE,
    OTHER_PODS,
    PODS,
    POLICIES,
    RUNNING,
    Kubernetes,
)
from fastcni.clients.errors import Away
from fastcni.clients.kubernetes import Expired
from fastcni.daemon import log


def pod_of(node, name, address, **labels):
    return {"metadata": {"name": name, "namespace": "shop", "resourceVersion": "1", "labels": labels},
            "spec": {"nodeName": node}, "status": {"podIP": address}}


@pytest.fixture
def apart(monkeypatch, tmp_path):
    """Return a function that starts a source on the node "here". Pod a is on that node, pod b on the node "there"."""
    for name in ("RETRY_S", "ABSENT_S", "CONFIRM_S"):
        monkeypatch.setattr(f"fastcni.agent.policy.sources.kubernetes.{name}", 0.05)
    opened = []

    def start(*policies, node="here", closed=False):
        file = DocumentFile(str(tmp_path / "kept"), "kubernetes", log.make("debug", "logfmt"))
        it = Kubernetes(FakeApi(), Compiler(node), file)
        it.api.objects[PODS] = [pod_of("here", "a", "10.0.0.1", app="a"), pod_of("there", "b", "10.0.0.2", app="b")]
        it.api.objects[POLICIES] += policies
        if closed:
            it.api.gate.clear()
        opened.append(it)
        it.start()
        return it

    yield start
    for it in opened:
        it.api.gate.set()
        if not it._stop.is_set():
            it.close()


POD_WITHOUT_LABELS = Pod("shop", "none", {})
FROM_PODS = {"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "b"}}}]}]}


def test_pods_of_other_nodes_are_not_asked_for_until_a_policy_names_pods(apart):
    """With 100,000 pods in the cluster, the records of all pods take 370 MB, the records of one node's pods 42 MB."""
    it = apart()
    wait(it, lambda: it.complete)
    assert it.api.selectors == [f"{ON_NODE}here"]
    compiler = it.content.compiler
    assert compiler.cluster.pods.keys() == {"shop/a"}
    for spec in ({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [
            {"port": "http"}]}]}, {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}):
        it.api.events[POLICIES].put(("MODIFIED", policy("p", spec)))
        wait(it, lambda spec=spec: bool(compiler.cluster.policies["shop/p"].ingress) == ("ingress" in spec))
    assert len(it.api.selectors) == 1
    it.api.events[POLICIES].put(("ADDED", policy("from-pods", FROM_PODS)))
    wait(it, lambda: "shop/from-pods" in compiler.cluster.policies)
    assert it.api.selectors[1:] == [f"{ELSEWHERE}here"]
    assert compiler.cluster.pods.keys() == {"shop/a", "shop/b"}


@pytest.mark.parametrize("spec", [
    FROM_PODS, {"podSelector": {}, "egress": [{"to": [{"namespaceSelector": {}}]}]},
    {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": [{"port": "http"}]}]}],
    ids=["podSelector", "namespaceSelector", "a port's name anywhere"])
def test_a_policy_that_names_pods_waits_for_all_pods_and_nothing_changes_before(apart, spec):
    """Without the pods of other nodes, the policy would deny connections that it allows, or a cluster policy would
    allow connections that it denies. Later changes of policies wait, too, and keep their order. Changes of the node's
    pods do not wait for the list."""
    it = apart()
    compiler = it.content.compiler
    wait(it, lambda: it.complete)
    it.api.gate.clear()
    it.api.events[POLICIES].put(("ADDED", policy("new", spec)))
    it.api.events[POLICIES].put(("DELETED", policy("p")))
    it.api.events[POLICIES].put(("ADDED", policy("p", {"podSelector": {}, "ingress": [{}]})))
    it.api.events[NAMESPACES].put(("ADDED", {"metadata": {"name": "late", "resourceVersion": "2"}}))
    it.api.events[PODS].put(("ADDED", pod_of("here", "late", "10.0.0.3", app="c")))
    wait(it, lambda: len(it.api.selectors) == 2 and "late" in compiler.cluster.namespaces and (
        "shop/late" in compiler.cluster.pods) and sum(path == POLICIES for path, *_ in it._waiting) == 3)
    assert ADDRESS in compiler.state.elements["in4"]
    assert compiler.cluster.policies.keys() == {"shop/p", "other/p"} and not compiler.cluster.policies["shop/p"].ingress
    seen = []
    put_policy = compiler.put_policy
    compiler.put_policy = lambda record: (seen.append((record.key, len(compiler.cluster.pods))), put_policy(record))
    it.api.gate.set()
    # The source deletes p and adds p again. wait() may poll between the two.
    wait(it, lambda: "shop/new" in compiler.cluster.policies and (
        found := compiler.cluster.policies.get("shop/p")) and found.ingress)
    assert seen == [("shop/new", 3), ("shop/p", 3)]
    assert not it._waiting


def test_an_agent_whose_name_is_that_of_no_node_asks_for_all_pods(apart):
    """--node-name defaults to the host name, but the node may have another name."""
    it = apart(policy("from-pods", FROM_PODS), node="here.example.com")
    wait(it, lambda: it.complete)
    assert set(it.api.selectors) == {RUNNING}
    assert it.content.compiler.cluster.pods.keys() == {"shop/a", "shop/b"}


def gone(*_):
    raise Away("gone")


def test_an_agent_asks_for_its_node_only_also_after_the_api_server_was_unavailable(apart, monkeypatch):
    it = apart()
    wait(it, lambda: it.complete)
    monkeypatch.setattr(FakeApi, "get", gone)
    it.api.events[PODS].put(None)               # the watch ends
    wait(it, lambda: len(it.api.selectors) > 1)
    assert set(it.api.selectors) == {f"{ON_NODE}here"}


def test_a_policy_that_waits_because_pods_cannot_be_listed_is_told(apart):
    it = apart()
    wait(it, lambda: it.complete)
    it.api.refusal = "status 403"
    it.api.events[POLICIES].put(("ADDED", policy("from-pods", FROM_PODS)))
    wait(it, lambda: it.errors)
    assert it.errors == {PODS: ["policies are not in force until all pods are listed: status 403"]}
    assert it.away == "status 403"
    it.api.refusal = ""
    wait(it, lambda: "shop/from-pods" in it.content.compiler.cluster.policies)
    assert not it.errors and not it.away


def test_an_agent_that_has_kept_such_a_policy_begins_with_all_pods(apart):
    it = apart(policy("from-pods", FROM_PODS))
    wait(it, lambda: it.complete)
    assert it.content.compiler.cluster.pods.keys() == {"shop/a", "shop/b"}
    it.close()
    it = apart(policy("from-pods", FROM_PODS), closed=True)
    kept = it.content.compiler.cluster.pods.copy()
    assert it.former and kept.keys() == {"shop/a", "shop/b"}
    wait(it, lambda: len(it.api.selectors) == 2 and {PODS, POLICIES} <= it._listed)
    assert it.content.compiler.cluster.pods == kept and not it.complete and not it._waiting
    it.api.objects[PODS].pop()
    it.api.gate.set()
    wait(it, lambda: it.complete)
    assert it.content.compiler.cluster.pods.keys() == {"shop/a"}


def test_pods_that_an_earlier_agent_has_kept_go_if_no_policy_names_pods(apart):
    it = apart(policy("from-pods", FROM_PODS))
    wait(it, lambda: it.complete)
    it.api.events[POLICIES].put(("DELETED", policy("from-pods", FROM_PODS)))
    wait(it, lambda: "shop/from-pods" not in it.content.compiler.cluster.policies)
    it.close()
    it = apart()
    assert it.content.compiler.cluster.pods.keys() == {"shop/a", "shop/b"}
    wait(it, lambda: it.complete)
    assert it.content.compiler.cluster.pods.keys() == {"shop/a"} and it.api.selectors == [f"{ON_NODE}here"]


@pytest.mark.parametrize("late", [False, True], ids=["in order", "the event of the deletion is late"])
def test_a_pod_of_a_stateful_set_that_moves_to_another_node_is_known_there(apart, late):
    """One watch is for the pods of this node, another watch for the pods of other nodes. Their events have no common
    order."""
    it = apart(policy("from-pods", FROM_PODS))
    compiler = it.content.compiler
    wait(it, lambda: it.complete)
    for here, there in (PODS, OTHER_PODS), (OTHER_PODS, PODS):
        nodes = ("here", "there")[::1 if here == PODS else -1]
        version = max(it._versions.values()) + 10

        def moved(node, label, at):
            document = pod_of(node, "db-0", f"10.0.1.{at % 250}", app=label)
            document["metadata"]["resourceVersion"] = str(at)
            return document

        it.api.events[here].put(("ADDED", moved(nodes[0], "old", version)))
        wait(it, lambda: compiler.cluster.pods.get("shop/db-0", POD_WITHOUT_LABELS).labels == {"app": "old"})
        end = [(here, ("MODIFIED", moved(nodes[0], "ends", version + 1))),
               (here, ("DELETED", moved(nodes[0], "ends", version + 2)))]
        begin = [(there, ("ADDED", moved(nodes[1], "new", version + 3)))]
        for watch, event in begin + end if late else end + begin:
            it.api.events[watch].put(event)
            wait(it, lambda watch=watch: it.api.events[watch].empty() and not it.busy)
        wait(it, lambda: compiler.cluster.pods.get("shop/db-0", POD_WITHOUT_LABELS).labels == {"app": "new"})
        it.api.events[there].put(("DELETED", moved(nodes[1], "new", version + 4)))
        wait(it, lambda: "shop/db-0" not in compiler.cluster.pods)
    assert not it.errors


@pytest.mark.parametrize("watch, node", [(PODS, "here"), (OTHER_PODS, "there")])
@pytest.mark.parametrize("first", ["the list that has the pod", "the list that lacks the pod"])
def test_a_pod_of_a_restored_etcd_is_known_although_its_version_is_lower(apart, watch, node, first):
    """Once, the other watch had a higher version of this pod's name, and the agent ignored the pod. The pod's next
    event came hours later."""
    it = apart(policy("from-pods", FROM_PODS))
    wait(it, lambda: it.complete)
    other = {PODS: OTHER_PODS, OTHER_PODS: PODS}[watch]

    def pod(node, version):
        document = pod_of(node, "db-0", "10.0.1.1", on=node)
        document["metadata"]["resourceVersion"] = str(version)
        return document

    def labels():
        return it.content.compiler.cluster.pods.get("shop/db-0", POD_WITHOUT_LABELS).labels

    it.api.events[other].put(("ADDED", pod("there" if node == "here" else "here", 100)))
    wait(it, lambda: labels() not in ({}, {"on": node}))
    it.api.objects[PODS].append(pod(node, 50))
    for each in (watch, other) if first == "the list that has the pod" else (other, watch):
        mark = pod_of("here" if each == PODS else "there", "mark-" + each.rpartition("/")[2], "10.0.1.2")
        it.api.events[each].put(Expired("410"))
        it.api.events[each].put(("ADDED", mark))            # this event arrives after the list
        wait(it, lambda mark=mark: f"shop/{mark['metadata']['name']}" in it.content.compiler.cluster.pods)
    wait(it, lambda: labels() == {"on": node})
    it.api.events[watch].put(("DELETED", pod(node, 51)))
    wait(it, lambda: not labels())
    assert not it._behind


def test_a_late_event_from_before_a_restore_does_not_remove_a_pod(apart):
    """The test's API server still sends a change from before the restore of etcd, with a higher version."""
    it = apart(policy("from-pods", FROM_PODS))
    wait(it, lambda: it.complete)
    former = pod_of("here", "b", "10.0.0.9")
    former["metadata"]["resourceVersion"] = "100"
    it.api.events[PODS].put(("ADDED", former))
    pods = it.content.compiler.cluster.pods
    wait(it, lambda: pods["shop/b"].node == "here")
    it.api.events[PODS].put(Expired("410"))
    wait(it, lambda: pods.get("shop/b", POD_WITHOUT_LABELS).node == "there")
