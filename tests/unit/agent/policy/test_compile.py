"""The compiled state gives the verdicts of the policies. Applying all changes gives the same state as a complete
compilation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.agent.policy.clusters import CLUSTER_POLICIES, NODES, PODS, POLICIES, SPACES, connections, make_pod

from fastcni.agent.policy import interpret
from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.evaluate import evaluate
from fastcni.agent.policy.objects import read_policy
from fastcni.agent.policy.ranges import of_blocks
from fastcni.agent.policy.state import State, difference
from fastcni.spec.address import ip_text

CHANGES = st.lists(st.one_of(
    st.tuples(st.just("put_pod"), PODS.map(lambda pod: (pod,))),
    st.tuples(st.just("put_policy"), POLICIES.map(lambda policy: (policy,))),
    st.tuples(st.just("put_policy"), CLUSTER_POLICIES.map(lambda policy: (policy,))),
    st.tuples(st.just("put_policy"), CLUSTER_POLICIES.map(lambda policy: (policy,))),
    st.tuples(st.just("put_node"), NODES),
    st.tuples(st.just("put_node"), st.tuples(st.sampled_from(["here", "there"]), st.none())),
    st.tuples(st.just("put_namespace"), SPACES),
    st.tuples(st.just("put_namespace"), st.tuples(st.sampled_from(["one", "two"]), st.none())),
    st.tuples(st.just("delete_pod"), st.sampled_from(["one/pod1", "two/pod2", "one/pod3"]).map(lambda key: (key,))),
    st.tuples(st.just("delete_policy"),
              st.sampled_from(["one/p", "two/p", "one/q", "c", "d"]).map(lambda key: (key,)))),
    min_size=1, max_size=12)


def apply(state, change):
    """Change a State as ruleset.py changes the kernel's tables."""
    for name, one in change.sets.items():
        assert name not in state.sets
        state.sets[name], state.elements[name] = one, {}
    for name, chain in change.chains.items():
        assert (name in change.new_chains) == (name not in state.chains)
        state.chains[name] = chain
    for name, keys in change.removed.items():
        for key in keys:
            del state.elements[name][key]
    for name, elements in change.added.items():
        assert not state.elements[name].keys() & elements.keys()
        state.elements[name].update(elements)
    for name in change.gone_chains:
        del state.chains[name]
    for name in change.gone_sets:
        del state.sets[name], state.elements[name]


@settings(max_examples=60)
@given(CHANGES)
def test_the_state_decides_as_the_policies_do(changes):
    """In this test the node has all pods, because a node compiles rules only for its own pods. One address is a node's:
    policies do not apply to pods with hostNetwork."""
    it = Compiler()
    for name, arguments in changes:
        getattr(it, name)(*arguments)
    for connection in connections():
        assert interpret.allows(it.state, connection) == evaluate(it.cluster, connection).allowed, connection
        if not it.cluster.pods_at(connection.destination):
            assert interpret.allows_to_node(it.state, connection) == evaluate(
                it.cluster, connection, True).allowed, connection


@settings(max_examples=60)
@given(CHANGES)
def test_changes_lead_to_the_state_of_all_at_once(changes):
    it, kernel = Compiler("here"), State()
    for number, (name, arguments) in enumerate(changes):
        getattr(it, name)(*arguments)
        if number % 3:
            apply(kernel, it.take())
    apply(kernel, it.take())
    complete = Compiler("here")
    complete.put_all(it.cluster)
    assert kernel == it.state == complete.state
    assert not it.take()
    assert not difference(kernel, it.state)


@settings(max_examples=30)
@given(CHANGES, CHANGES)
def test_a_difference_makes_one_state_of_another(before, after):
    states = []
    for changes in (before, after):
        it = Compiler()
        for name, arguments in changes:
            getattr(it, name)(*arguments)
        states.append(it.state)
    apply(states[0], difference(*states))
    assert states[0] == states[1]


def policy(name, **spec):
    return read_policy({"metadata": {"name": name}, "spec": {"podSelector": {}, **spec}})


def test_pods_with_the_same_policies_share_a_chain_and_policies_with_the_same_selector_a_set():
    it = Compiler()
    peer = [{"from": [{"podSelector": {"matchLabels": {"app": "a"}}}]}]
    it.put_policy(policy("p", ingress=peer))
    it.put_policy(policy("q", ingress=peer))
    for number in (1, 2, 3):
        it.put_pod(make_pod(f"pod{number}", f"10.0.0.{number}", labels={"app": "a"}))
    assert len(set(it.state.elements["in4"].values())) == 1
    assert sum(name.startswith("g4") for name in it.state.sets) == 1


def test_a_pod_that_comes_changes_elements_only():
    it = Compiler()
    it.put_policy(policy("p", ingress=[{"from": [{"podSelector": {}}]}]))
    it.put_pod(make_pod("pod1", "10.0.0.1"))
    it.take()
    it.put_pod(make_pod("pod2", "10.0.0.2"))
    change = it.take()
    assert not (change.sets or change.chains or change.removed)
    assert sorted(len(elements) for elements in change.added.values()) == [1, 1, 1]       # in4, self4, the group


def test_pods_of_other_nodes_are_peers_and_not_isolated():
    it = Compiler("here")
    it.put_policy(policy("p", ingress=[{"from": [{"podSelector": {}}]}]))
    it.put_pod(make_pod("pod1", "10.0.0.1", node="there"))
    assert not it.state.elements["in4"]
    assert [list(elements) for name, elements in it.state.elements.items() if name.startswith("g4")] == [
        [b"\x0a\0\0\x01"]]


def test_a_pod_whose_node_is_not_known_is_isolated():
    """The record of a pod in a file may have no nodeName."""
    it = Compiler("here")
    it.put_policy(policy("p"))
    it.put_pod(make_pod("pod1", "10.0.0.1", node=""))
    assert it.state.elements["in4"]


def test_a_pod_made_again_with_the_address_of_a_former_one():
    """A new pod's record arrives before the earlier pod's record is deleted. Both have the same address."""
    it = Compiler()
    it.put_policy(policy("p", podSelector={"matchLabels": {"app": "a"}}))
    it.put_pod(make_pod("old", "10.0.0.1", labels={"app": "a"}))
    it.put_pod(make_pod("new", "10.0.0.1"))
    assert it.state.elements["in4"], "isolated while one of the two records says so"
    it.delete_pod("default/old")
    assert not it.state.elements["in4"]


def test_without_policies_there_is_nothing_to_write():
    it = Compiler()
    it.put_pod(make_pod("pod1", "10.0.0.1", labels={"app": "a"}, ports={"http": 80}))
    assert not it.take()
    assert Compiler().state == State()


def test_the_groups_of_policies_that_are_gone_are_forgotten():
    """Groups of deleted policies must not remain. Otherwise the agent needs ever more memory and time per pod."""
    it = Compiler()
    it.put_pod(make_pod("pod1", "10.0.0.1", labels={"app": "a"}))
    peer = [{"from": [{"podSelector": {"matchLabels": {"app": "a"}}}]}]
    for name in ("p", "q"):
        it.put_policy(policy(name, ingress=peer))
    it.delete_policy("default/p")
    assert it._groups.of("default/pod1")
    it.delete_policy("default/q")
    assert not it._groups.of("default/pod1") and not it._groups._uses


@pytest.mark.parametrize("expression, labels, member", [
    ({"operator": "NotIn", "values": ["a"]}, {"app": "b"}, True), ({"operator": "NotIn", "values": ["a"]}, {}, True),
    ({"operator": "NotIn", "values": ["a"]}, {"app": "a"}, False), ({"operator": "Exists"}, {"app": "b"}, True),
    ({"operator": "In", "values": ["a", "b"]}, {"app": "b"}, True), ({"operator": "In", "values": ["a"]}, {}, False)])
def test_a_pod_that_comes_later_joins_its_groups(expression, labels, member):
    """The compiler finds a pod's groups by an index. The index contains at most one label of each selector."""
    it = Compiler()
    it.put_policy(policy("p", podSelector={"matchExpressions": [{"key": "app", **expression}]}))
    it.put_pod(make_pod("pod1", "10.0.0.1", labels=labels))
    assert bool(it.state.elements["in4"]) is member


@pytest.mark.parametrize("cidr, excepted, ranges", [
    ("10.0.0.0/29", ["10.0.0.2/32", "10.0.0.4/31"], ["10.0.0.0-10.0.0.1", "10.0.0.3-10.0.0.3", "10.0.0.6-10.0.0.7"]),
    ("10.0.0.0/30", ["10.0.0.0/32", "10.0.0.1/32", "10.0.0.3/32"], ["10.0.0.2-10.0.0.2"]),
    ("10.0.0.0/30", ["10.0.0.0/30"], []), ("0.0.0.0/0", [], ["0.0.0.0-255.255.255.255"])])
def test_a_block_is_the_ranges_between_its_exceptions(cidr, excepted, ranges):
    block = policy("p", ingress=[{"from": [{"ipBlock": {"cidr": cidr, "except": excepted}}]}]).ingress[0].peers[0]
    assert [f"{ip_text(first)}-{ip_text(last)}" for first, last in of_blocks([block], 4)] == ranges
