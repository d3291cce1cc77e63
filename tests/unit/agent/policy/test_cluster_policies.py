"""ClusterNetworkPolicy: which documents fastcni accepts, and which rule decides."""

import json
from dataclasses import replace

import pytest
from unit.agent.policy.clusters import make_pod
from unit.agent.policy.test_content import ADDRESSES, put

from fastcni.agent.policy import interpret
from fastcni.agent.policy.cluster_policies import read_cluster_policy, read_node
from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.evaluate import Connection, evaluate
from fastcni.agent.policy.objects import PolicyError
from fastcni.agent.policy.sources.content import Content
from fastcni.agent.policy.sources.documents import reduced
from fastcni.agent.policy.sources.files import read_cluster
from fastcni.agent.policy.state import State
from fastcni.node import pod_policies
from fastcni.spec.address import read_ip

NAME = "c"
OTHER = {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "other"}}}}
WEB = {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}}
DB = {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "db"}}}}


def policy(name=NAME, tier="Admin", priority=10, subject=DB, **spec):
    return {"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": name}, "spec": {"tier": tier, "priority": priority, "subject": subject, **spec}}


def rule(action, *peers, key="from", **more):
    return {"action": action, key: list(peers), **more}


def tcp(**port):
    return {"tcp": {"destinationPort": port}}


@pytest.fixture
def it():
    found = Content(Compiler())
    for app, address in ADDRESSES.items():
        found.compiler.put_pod(make_pod(app, address, labels={"app": app}, ports={"http": 80}))
    return found


def decided(it, source, destination, port=80, to_node=False):
    """Return the verdict of the policies. Assert that the compiled state gives the same verdict."""
    connection = Connection(*(read_ip(ADDRESSES.get(each, each)) for each in (source, destination)), 6, port)
    found = evaluate(it.compiler.cluster, connection, to_node)
    decide = interpret.allows_to_node if to_node else interpret.allows
    assert decide(it.compiler.state, connection) == found.allowed
    return found


def reason(it, source, destination, direction="ingress", **more):
    return str(getattr(decided(it, source, destination, **more), direction))


RULE = rule("Deny", OTHER)
WRONG = {
    "tier: expected Admin or Baseline": {"tier": "Application"}, "priority: expected 0 to 1000": {"priority": 1001},
    "priority: expected int": {"priority": "high"}, "subject: expected namespaces or pods": {"subject": {}},
    "subject.nodes: is not known": {"subject": {"nodes": {}}},
    "subject.pods.podSelector: is missing": {"subject": {"pods": {"namespaceSelector": {}}}},
    "subject.pods.nodes: is not known": {"subject": {"pods": {**OTHER["pods"], "nodes": {}}}},
    "egres: is not known": {"egres": []},
    "ingress: expected 0 to 25 items, got 26": {"ingress": [RULE] * 26},
    "ingress[0].from: expected 1 to 25 items, got 0": {"ingress": [rule("Deny")]},
    "ingress[0].from: expected 1 to 25 items, got 26": {"ingress": [rule("Deny", *[OTHER] * 26)]},
    "ingress[0].action: expected Accept, Deny or Pass": {"ingress": [rule("Allow", OTHER)]},
    "ingress[0].name: has more than 100 characters": {"ingress": [rule("Deny", OTHER, name="x" * 101)]},
    "ingress[0].protocols: expected 1 to 25 items, got 0": {"ingress": [rule("Deny", OTHER, protocols=[])]},
    "ingress[0].protocols[0]: expected one of tcp": {"ingress": [rule("Deny", OTHER, protocols=[{}])]},
    "ingress[0].protocols[0].icmp: is not known": {"ingress": [rule("Deny", OTHER, protocols=[{"icmp": {}}])]},
    "ingress[0].protocols[0].tcp.destinationPort: is missing": {
        "ingress": [rule("Deny", OTHER, protocols=[{"tcp": {}}])]},
    "ingress[0].protocols[0].tcp.sourcePort: is not known": {
        "ingress": [rule("Deny", OTHER, protocols=[{"tcp": {"destinationPort": {"number": 80}, "sourcePort": 1}}])]},
    "destinationPort.nummer: is not known": {"ingress": [rule("Deny", OTHER, protocols=[tcp(nummer=80)])]},
    "destinationPort.number: expected 1 to 65535": {"ingress": [rule("Deny", OTHER, protocols=[tcp(number=65536)])]},
    "destinationPort.range.start: expected 1 to 65535": {
        "ingress": [rule("Deny", OTHER, protocols=[tcp(range={"start": 0, "end": 81})])]},
    "destinationPort.range.start: 81 is not less than 81": {
        "ingress": [rule("Deny", OTHER, protocols=[tcp(range={"start": 81, "end": 81})])]},
    "destinationPort: expected number or range": {"ingress": [rule("Deny", OTHER, protocols=[tcp()])]},
    "'HTTP' is no name of a port": {"ingress": [rule("Deny", OTHER, protocols=[{"destinationNamedPort": "HTTP"}])]},
    "protocols: destinationNamedPort goes with namespaces and pods only": {
        "egress": [rule("Deny", OTHER, {"networks": ["0.0.0.0/0"]}, key="to",
                        protocols=[{"destinationNamedPort": "http"}])]},
    "egress[0].to[0].networks: expected 1 to 25 items": {"egress": [rule("Deny", {"networks": []}, key="to")]},
    "egress[0].to[0].networks: ": {"egress": [rule("Deny", {"networks": ["10.0.0.0/33"]}, key="to")]},
    "egress[0].to[0]: expected one of": {"egress": [rule("Deny", {"nodes": {}, "networks": ["::/0"]}, key="to")]},
}


@pytest.mark.parametrize("text", WRONG)
def test_what_the_crd_refuses_is_refused_by_name(text):
    with pytest.raises(PolicyError) as found:
        read_cluster_policy(policy(**{"ingress": [RULE], **WRONG[text]}))
    assert str(found.value).startswith("ClusterNetworkPolicy c: spec.") and text in str(found.value)


def test_another_version_is_refused_and_kinds_of_others_are_left_alone():
    with pytest.raises(PolicyError, match=r"apiVersion: expected policy.networking.k8s.io/v1alpha2"):
        read_cluster_policy({**policy(), "apiVersion": "policy.networking.k8s.io/v1"})
    assert reduced({**policy(), "apiVersion": "crd.antrea.io/v1beta1"}) is None
    assert reduced(policy())


def test_a_network_in_ingress_is_a_peer_that_is_not_known():
    (found,) = read_cluster_policy(policy(ingress=[rule("Accept", {"networks": ["0.0.0.0/0"]})])).ingress
    assert found.void and "'networks' are not known" in found.note


def test_lower_priorities_come_first_and_names_decide_between_equal_ones(it):
    put(it, policy("b", priority=5, ingress=[rule("Deny", OTHER, name="no others")]),
        policy("c", priority=5, ingress=[rule("Accept", OTHER)]),
        policy("a", priority=6, ingress=[rule("Accept", OTHER)]))
    assert reason(it, "other", "db") == "denied by b ingress[0] (no others)"
    put(it, policy("a", priority=5, ingress=[rule("Accept", OTHER)]), place="b.yaml")
    assert reason(it, "other", "db") == "allowed by a ingress[0]"


def test_pass_leaves_the_tier_and_a_network_policy_is_final(it):
    put(it, policy("first", priority=0, ingress=[rule("Pass", OTHER, protocols=[tcp(number=80)])]),
        policy("then", priority=1, ingress=[rule("Deny", OTHER)]),
        policy("last", tier="Baseline", ingress=[rule("Deny", OTHER), rule("Deny", WEB)]))
    assert reason(it, "other", "db") == "denied by last ingress[0]"
    assert reason(it, "other", "db", port=81) == "denied by then ingress[0]"
    put(it, {"kind": "NetworkPolicy", "metadata": {"name": "np"}, "spec": {
        "podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"from": [{"podSelector": {
            "matchLabels": {"app": "other"}}}]}]}}, place="np.yaml")
    assert reason(it, "other", "db") == "allowed by default/np ingress[0]"
    assert reason(it, "web", "db") == "denied: no rule of default/np allows it"


def test_a_named_port_is_that_of_each_protocol(it):
    it.compiler.put_pod(replace(make_pod("db", ADDRESSES["db"], labels={"app": "db"}), ports={("dns", 17): 53}))
    put(it, policy(ingress=[rule("Deny", OTHER, protocols=[{"destinationNamedPort": "dns"}])]))
    ends = read_ip(ADDRESSES["other"]), read_ip(ADDRESSES["db"])
    for protocol, allowed in ((6, True), (17, False)):
        connection = Connection(*ends, protocol, 53)
        assert evaluate(it.compiler.cluster, connection).allowed is allowed
        assert interpret.allows(it.compiler.state, connection) is allowed


def test_only_a_rule_that_can_match_a_node_needs_the_chains_of_the_node():
    def reaches(*egress):
        return read_cluster_policy(policy(egress=list(egress))).reaches_nodes

    assert reaches(rule("Deny", {"networks": ["192.0.2.0/24"]}, key="to"))
    assert reaches(rule("Deny", {"since-v3": 1}, key="to"))
    assert not reaches(rule("Accept", {"since-v3": 1}, key="to"))
    assert not reaches(rule("Deny", OTHER, key="to"))


def test_nothing_is_closed_that_no_rule_names(it):
    put(it, policy(ingress=[rule("Accept", OTHER)]))
    assert reason(it, "web", "db") == "allowed: no rule of c denies it"
    assert reason(it, "db", "web", "egress") == "allowed: no policy selects the pod"   # the policy has no egress rules


@pytest.mark.parametrize("peer", [{"since-v3": 1}, {}])
def test_a_peer_that_is_not_known_closes_the_rule(it, peer):
    for action, opened in (("Accept", True), ("Deny", False), ("Pass", False)):
        put(it, policy(egress=[rule(action, WEB, peer, key="to")]))
        assert decided(it, "db", "web").allowed is opened
        assert decided(it, "db", "192.0.2.9").allowed is opened
        assert decided(it, "db", "192.0.2.1", to_node=True).allowed is opened
        (note,) = it.notes["a.yaml"]
        assert note.startswith("ClusterNetworkPolicy c: spec.egress[0].to[1]: ") and not it.errors
    put(it, policy(egress=[rule("Accept", WEB, peer, key="to"), rule("Deny", {"networks": ["0.0.0.0/0"]}, key="to")]))
    assert reason(it, "db", "web", "egress") == reason(it, "db", "192.0.2.9", "egress") == "denied by c egress[1]"
    put(it)
    assert not it.notes


@pytest.mark.parametrize("change, everybody", [
    ({"egress": [5]}, False), ({"tier": "New"}, False), ({"priority": None}, False), ({"subject": {}}, True)])
def test_a_policy_that_was_never_read_denies_all_at_its_place(it, change, everybody):
    """The agent cannot read the policy, so it denies all connections at the policy's place in the order."""
    put(it, policy("later-in-name", priority=0, subject={"namespaces": {}}, egress=[
        rule("Accept", {"networks": ["192.0.2.0/24"]}, key="to")]))
    broken = policy(priority=1, egress=[rule("Accept", WEB, key="to")])
    broken["spec"] |= change
    put(it, broken, place="b.yaml")
    assert decided(it, "db", "web").allowed is decided(it, "db", "other").allowed is False
    assert decided(it, "web", "other").allowed is not everybody
    assert decided(it, "other", "db").ingress.allowed             # the policy has no ingress rules
    assert decided(it, "db", "192.0.2.9").allowed is ("priority" not in change)


def test_a_policy_that_can_no_longer_be_read_stays_as_it_was(it):
    put(it, policy(ingress=[rule("Deny", OTHER)]))
    put(it, policy(ingress=[rule("Deny", OTHER, form=1)]))
    assert reason(it, "other", "db") == "denied by c ingress[0]" and decided(it, "web", "db").allowed
    assert it.errors["a.yaml"] == ["document 1: ClusterNetworkPolicy c: spec.ingress[0].form: is not known"]


def test_nodes_are_their_addresses_also_of_the_pods_own(it):
    node = {"kind": "Node", "metadata": {"name": "here", "labels": {"os": "linux"}}, "status": {"addresses": [
        {"type": "Hostname", "address": "here"}, {"type": "InternalIP", "address": "192.0.2.1"},
        {"type": "ExternalIP", "address": "198.51.100.1"}]}}
    put(it, node, place="node.yaml")
    linux = {"nodes": {"matchLabels": {"os": "linux"}}}
    put(it, policy(egress=[rule("Accept", linux, key="to", protocols=[tcp(number=80)]), rule("Deny", linux, key="to")]))
    for to_node in (False, True):
        assert reason(it, "db", "192.0.2.1", "egress", to_node=to_node) == "allowed by c egress[0]"
        assert reason(it, "db", "192.0.2.1", "egress", port=81, to_node=to_node) == "denied by c egress[1]"
    assert not decided(it, "db", "198.51.100.1", port=81).allowed
    assert decided(it, "db", "192.0.2.2", port=81).allowed and decided(it, "web", "192.0.2.1", port=81).allowed
    put(it, {**node, "metadata": {"name": "here"}}, place="node.yaml")
    assert decided(it, "db", "192.0.2.1", port=81, to_node=True).allowed
    put(it, node, place="node.yaml")
    assert not decided(it, "db", "192.0.2.1", port=81, to_node=True).allowed
    put(it, place="node.yaml")
    assert decided(it, "db", "192.0.2.1", port=81, to_node=True).allowed


def test_to_its_own_node_a_pod_passes_network_policies_but_not_the_tiers(it):
    np = {"kind": "NetworkPolicy", "metadata": {"name": "np"}, "spec": {
        "podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Egress"]}}
    base = policy(tier="Baseline", egress=[rule("Deny", {"networks": ["0.0.0.0/0"]}, key="to")])
    put(it, base)
    assert reason(it, "db", "192.0.2.1", "egress", to_node=True) == "denied by c egress[0]"
    put(it, base, np)
    assert reason(it, "db", "192.0.2.1", "egress", to_node=True) == (
        "allowed: the destination is the pod's own node")
    assert not decided(it, "db", "192.0.2.1").allowed
    put(it, policy(egress=base["spec"]["egress"]), np)
    assert not decided(it, "db", "192.0.2.1", to_node=True).allowed


def test_when_all_policies_have_gone_nothing_of_them_is_left(it):
    put(it, policy(egress=[rule("Deny", {"nodes": {}}, {"networks": ["::/0"]}, key="to")], ingress=[RULE]),
        policy("d", tier="Baseline", ingress=[rule("Pass", OTHER, protocols=[{"destinationNamedPort": "http"}])]))
    assert it.compiler.state.elements["node4"] and it.compiler.names_nodes
    put(it)
    assert it.compiler.state == State() and not it.compiler.names_nodes
    assert not it.compiler._tiers and not it.compiler._used and not it.compiler._reaching


def test_files_have_cluster_policies_and_nodes(tmp_path):
    (tmp_path / "all.json").write_text(json.dumps({"kind": "List", "items": [
        policy(egress=[rule("Accept", {"domainNames": ["a.test"]}, key="to")]),
        {"kind": "Node", "metadata": {"name": "here"}}]}))
    found = read_cluster(str(tmp_path))
    assert list(found.policies) == ["c"] and list(found.nodes) == ["here"]


def test_a_node_whose_addresses_are_none_is_refused():
    with pytest.raises(PolicyError, match=r"Node here: status.addresses: "):
        read_node({"metadata": {"name": "here"}, "status": {"addresses": [{"type": "InternalIP", "address": "x"}]}})


def test_explain_says_which_policies_decide_and_in_which_order():
    pod = {"ingress": ["shop/a"], "egress": [], "admin": {"ingress": ["first"], "egress": []},
           "baseline": {"ingress": ["last"], "egress": ["last"]}}
    assert pod_policies.text("ingress", pod) == (
        "ingress first as the cluster policies first say, then only as shop/a allows")
    assert pod_policies.text("egress", pod) == "egress as the cluster policies last of tier Baseline say"
    assert pod_policies.text("egress", {"egress": []}) == "no policy restricts egress"
