"""Policies from the Kubernetes API. Each test supplies the answers to lists and watches."""

import os
import queue
import select
import threading
import time

import pytest

from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.sources.kubernetes import (
    CILIUM_POLICIES,
    CLUSTER_GROUP,
    CLUSTER_POLICIES,
    ELSEWHERE,
    NAMESPACES,
    NODES,
    ON_NODE,
    OTHER_PODS,
    PODS,
    POLICIES,
    Kubernetes,
    line_of,
)
from fastcni.clients.errors import Away
from fastcni.clients.kubernetes import Expired, NoSuchKind
from fastcni.clients.kubernetes_watch import watch_all
from fastcni.spec.address import read_ip
from fastcni.testing.witnesses import eventually

ADDRESS = read_ip("10.0.0.1")
POD = {"metadata": {"name": "a", "namespace": "shop", "resourceVersion": "1"}, "status": {"podIP": "10.0.0.1"}}


def policy(name, spec=None, namespace="shop"):
    return {"metadata": {"name": name, "namespace": namespace, "resourceVersion": "1"},
            "spec": {"podSelector": {}} if spec is None else spec}


def cluster_policy(name, *peers):
    return {"metadata": {"name": name, "resourceVersion": "1"}, "spec": {
        "tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "egress": [{"action": "Deny", "to": [*peers]}]}}


def cilium_policy(name, **rule):
    return {"metadata": {"name": name, "namespace": "shop", "resourceVersion": "1"},
            "spec": {"endpointSelector": {}, "ingress": [rule]}}


KINDS = {CLUSTER_GROUP: "clusternetworkpolicies", "/apis/cilium.io/v2": "ciliumnetworkpolicies"}     # by group


class FakeApi:
    refusal = ""                    # the error for lists of other nodes' pods
    served = False                  # whether the CRDs of cluster policies and of Cilium's policies exist

    def __init__(self):
        self.objects = {PODS: [POD], NAMESPACES: [{"metadata": {"name": "shop", "resourceVersion": "1"}}],
                        POLICIES: [policy("p"), policy("p", namespace="other")], CLUSTER_POLICIES: [],
                        CILIUM_POLICIES: [],
                        NODES: [{"metadata": {"name": "here", "resourceVersion": "1"},
                                 "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}]}
        self.listed, self.selectors, self.gate = [], [], threading.Event()
        self.gate.set()                 # after gate.clear(), a list of other nodes' pods waits
        self.events = {path: queue.Queue() for path in (*self.objects, OTHER_PODS)}

    def get(self, path):
        if path.startswith(NODES):
            return {} if path == f"{NODES}/here" else None
        if path not in KINDS or not self.served:
            raise NoSuchKind("404")
        return {"resources": [{"name": KINDS[path]}, {"name": f"{KINDS[path]}/status"}]}

    def list_with_revision(self, path, selector="", metadata=False):
        self.listed.append(path)
        return self.objects[path], "1"

    def list_each(self, path, tell, stop, selector="", metadata=False):
        if path == PODS:
            self.selectors.append(selector)
        if ELSEWHERE in selector:
            self.gate.wait(20)
            if self.refusal:
                raise Away(self.refusal)
        documents, revision = self.list_with_revision(path)
        for document in documents:
            node = document.get("spec", {}).get("nodeName", "")
            if (ON_NODE not in selector or selector == f"{ON_NODE}{node}") and selector != f"{ELSEWHERE}{node}":
                tell(document)
        return revision

    def watch(self, path, revision, stop, selector="", metadata=False):
        path = OTHER_PODS if ELSEWHERE in selector else path
        while not stop():
            try:
                event = self.events[path].get(timeout=0.02)
            except queue.Empty:
                continue
            if event is None:
                raise Away("gone")
            if isinstance(event, Expired):
                raise event
            yield event

    def close(self):
        pass


@pytest.fixture
def source(monkeypatch):
    for name in ("RETRY_S", "ABSENT_S", "CONFIRM_S"):
        monkeypatch.setattr(f"fastcni.agent.policy.sources.kubernetes.{name}", 0.05)
    it = Kubernetes(FakeApi(), Compiler())
    it.start()
    wait(it, lambda: it.complete)
    yield it
    it.close()


def wait(it, condition):
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        select.select([it], [], [], 0.1)
        it.attend()


def test_a_source_that_is_closed_leaves_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        it = Kubernetes(FakeApi(), Compiler())
        it.start()
        it.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_lists_then_changes(source):
    it = source.content.compiler
    assert ADDRESS in it.state.elements["in4"]
    assert sorted(it.cluster.policies) == ["other/p", "shop/p"]  # two namespaces have a policy with the same name
    source.api.events[POLICIES].put(("DELETED", policy("p")))
    wait(source, lambda: ADDRESS not in it.state.elements["in4"])
    source.api.events[PODS].put(("DELETED", POD))
    wait(source, lambda: not it.cluster.pods)


def test_a_policy_that_cannot_be_read_stays_as_it_was(source):
    source.api.events[POLICIES].put(("MODIFIED", policy("p", {"policyTypes": ["Other"]})))
    wait(source, lambda: source.errors)
    assert ADDRESS in source.content.compiler.state.elements["in4"]
    (text,) = source.errors[f"{POLICIES} shop/p"]
    assert text.startswith("NetworkPolicy shop/p: spec.policyTypes: ")


def test_a_policy_that_was_never_read_isolates_its_pods(source):
    source.api.events[POLICIES].put(("DELETED", policy("p")))
    source.api.events[POLICIES].put(("ADDED", policy("new", {"podSelector": {}, "ingress": [{"since-v2": []}]})))
    wait(source, lambda: source.errors)
    assert ADDRESS in source.content.compiler.state.elements["in4"]
    assert not source.content.compiler.cluster.policies["shop/new"].ingress
    source.api.events[POLICIES].put(("DELETED", policy("new")))
    wait(source, lambda: ADDRESS not in source.content.compiler.state.elements["in4"])
    assert not source.errors


def test_objects_that_are_gone_are_not_remembered(source):
    source.api.events[PODS].put(("DELETED", POD))
    wait(source, lambda: not source.content.compiler.cluster.pods)
    assert not source._seen[PODS]


def test_documents_are_not_kept():
    """Once, the watch kept each pod's JSON: 5,000 pods took 160 MB."""
    told, stopped, api = [], threading.Event(), FakeApi()
    watching = threading.Thread(target=watch_all, args=(
        api, (PODS,), lambda path, document, gone: told.append((document, gone)), stopped.is_set))
    watching.start()
    try:
        assert eventually(lambda: told == [(POD, False)])
        api.objects[PODS] = []
        api.events[PODS].put(Expired("410"))
        assert eventually(lambda: told[1:] == [({"metadata": {"name": "a", "namespace": "shop"}}, True)])
    finally:
        stopped.set()
        watching.join()


def test_a_fault_of_a_thread_is_raised(source):
    source.api.events[PODS].put(("ADDED", {"metadata": {"resourceVersion": "1"}}))
    with pytest.raises(KeyError):
        wait(source, lambda: False)


def test_what_went_while_the_api_server_was_away_is_deleted(source):
    source.api.objects[POLICIES] = [policy("q", namespace="other")]
    source.api.events[POLICIES].put(None)
    wait(source, lambda: list(source.content.compiler.cluster.policies) == ["other/q"])
    assert not source.content.compiler.state.elements["in4"]


class Reports:
    """Records Events, in place of the API server."""

    def __init__(self):
        self.sent = []

    def report(self, kind, metadata, text):
        self.sent.append((kind, metadata["name"], text.rpartition(", got ")[2]))

    def close(self):
        pass


def test_each_error_of_an_object_becomes_one_event(source):
    source.events = Reports()
    for operator in ("Foo", "Foo", "Bar"):  # the agent reads the document again with each list after a lost connection
        document = policy("q", {"podSelector": {"matchExpressions": [{"key": "app", "operator": operator}]}})
        source.put(POLICIES, "shop/q", line_of(POLICIES, document))
    assert source.events.sent == [("NetworkPolicy", "q", "'Foo'"), ("NetworkPolicy", "q", "'Bar'")]


def test_without_the_crd_there_are_no_cluster_policies_and_nobody_asks_for_them(source):
    assert source.complete and not source.away
    assert CLUSTER_POLICIES not in source.api.listed and NODES not in source.api.listed


def test_cluster_policies_are_watched_when_the_crd_comes_and_go_with_it(source):
    source.api.objects[CLUSTER_POLICIES] = [cluster_policy("c", {"namespaces": {}})]
    source.api.served = True
    policies = source.content.compiler.cluster.policies
    wait(source, lambda: "c" in policies)
    assert NODES not in source.api.listed
    source.api.served = False
    source.api.events[CLUSTER_POLICIES].put(None)
    wait(source, lambda: "c" not in policies)
    assert "shop/p" in policies


def test_policies_stay_if_the_crd_is_missing_for_a_moment_only(source):
    """While an API server starts, it does not list all CRDs."""
    source.api.objects[CLUSTER_POLICIES] = [cluster_policy("c", {"namespaces": {}})]
    source.api.served = True
    policies = source.content.compiler.cluster.policies
    wait(source, lambda: "c" in policies)
    answers, asked = iter((False, True)), source.is_served
    source.is_served = lambda path: path == CLUSTER_POLICIES and (next(answers, None) or asked(path))
    source.api.events[CLUSTER_POLICIES].put(None)
    source.api.objects[CLUSTER_POLICIES] = [cluster_policy("c", {"namespaces": {}}), cluster_policy("d", {"nodes": {}})]
    gone = []
    wait(source, lambda: gone.append("c" not in policies) or "d" in policies)
    assert not any(gone)


def test_policies_by_http_requests_come_from_the_api_and_unknown_keys_close(source):
    ports = [{"ports": [{"port": "80", "protocol": "TCP"}], "rules": {"http": [{"method": "GET"}]}}]
    source.api.objects[CILIUM_POLICIES] = [cilium_policy("web", toPorts=ports), cilium_policy("icmp", icmps=[{}])]
    source.api.served = True
    policies = source.content.compiler.cluster.policies
    wait(source, lambda: len(policies) == 4)
    (found,) = [it for key, it in policies.items() if key.startswith("shop/web")]
    assert [request.method for request in found.ingress[0].requests] == ["GET"]
    assert [*source.errors] == [f"{CILIUM_POLICIES} shop/icmp"] and "icmps" in source.errors[
        f"{CILIUM_POLICIES} shop/icmp"][0]
    assert next(it for key, it in policies.items() if "icmp" in key).ingress == ()
    source.api.events[CILIUM_POLICIES].put(("DELETED", cilium_policy("web")))
    wait(source, lambda: not any(key.startswith("shop/web") for key in policies))


def test_nodes_are_watched_while_a_policy_names_nodes(source):
    source.api.objects[CLUSTER_POLICIES] = [cluster_policy("c", {"nodes": {}})]
    source.api.served = True
    it = source.content.compiler
    wait(source, lambda: it.cluster.nodes)
    name = next(name for name in it.state.sets if name.startswith("k4-"))
    assert list(it.state.elements[name]) == [read_ip("192.0.2.1")]
    source.api.events[NODES].put(("MODIFIED", {"metadata": {"name": "here", "resourceVersion": "2"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "192.0.2.2"}, {"type": "Hostname", "address": "here"}]}}))
    wait(source, lambda: list(it.state.elements[name]) == [read_ip("192.0.2.2")])
    source.api.events[CLUSTER_POLICIES].put(("DELETED", cluster_policy("c")))
    wait(source, lambda: not it.names_nodes and not source._nodes.is_set())


def test_a_peer_that_is_not_known_is_told_and_the_rule_is_closed(source):
    source.api.objects[CLUSTER_POLICIES] = [cluster_policy("c", {"domainNames": ["example.test"]})]
    source.api.served = True
    wait(source, lambda: source.errors)
    (text,) = source.errors[f"{CLUSTER_POLICIES} c"]
    assert text == ("ClusterNetworkPolicy c: spec.egress[0].to[0]: peers by 'domainNames' are not known "
                    "here; the rule denies everything")
    assert source.content.compiler.state.elements["node4"]
