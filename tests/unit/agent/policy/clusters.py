"""Pods, and random clusters for property tests."""

from hypothesis import strategies as st

from fastcni.agent.policy.cluster_policies import read_cluster_policy
from fastcni.agent.policy.evaluate import Connection
from fastcni.agent.policy.objects import PROTOCOLS, Node, Pod, read_policy
from fastcni.spec.address import read_ip


def make_pod(name, *addresses, namespace="default", labels=None, ports=None, node="here"):
    return Pod(namespace, name, labels or {}, tuple(read_ip(one) for one in addresses), node,
               {(name, PROTOCOLS["TCP"]): number for name, number in (ports or {}).items()})


KEYS, VALUES, NAMESPACES = ("app", "tier"), ("a", "b"), ("one", "two")
LABELS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
EXPRESSIONS = st.one_of(
    st.fixed_dictionaries({"key": st.sampled_from(KEYS), "operator": st.sampled_from(["In", "NotIn"]),
                           "values": st.lists(st.sampled_from(VALUES), min_size=1)}),
    st.fixed_dictionaries({"key": st.sampled_from(KEYS), "operator": st.sampled_from(["Exists", "DoesNotExist"])}))
SELECTORS = st.fixed_dictionaries({}, optional={"matchLabels": LABELS,
                                                "matchExpressions": st.lists(EXPRESSIONS, max_size=2)})
BLOCKS = st.sampled_from([
    {"cidr": "0.0.0.0/0"}, {"cidr": "10.0.0.0/29", "except": ["10.0.0.2/32", "10.0.0.4/31"]}, {"cidr": "10.0.0.1/32"},
    {"cidr": "::/0", "except": ["fd00::/126"]}, {"cidr": "192.0.2.0/24", "except": ["192.0.2.0/24"]}])
PEERS = st.one_of(
    st.fixed_dictionaries({"podSelector": SELECTORS}), st.fixed_dictionaries({"namespaceSelector": SELECTORS}),
    st.fixed_dictionaries({"podSelector": SELECTORS, "namespaceSelector": SELECTORS}),
    st.fixed_dictionaries({"ipBlock": BLOCKS}))
PORTS = st.sampled_from([{}, {"port": 80}, {"port": 81}, {"port": "http"}, {"port": 79, "endPort": 80},
                         {"protocol": "UDP"}, {"protocol": "UDP", "port": 80}, {"protocol": "SCTP", "port": 81},
                         {"protocol": "UDP", "port": "http"}, {"port": 90, "endPort": 99}])


def rules(peers):
    return st.lists(st.fixed_dictionaries({}, optional={peers: st.lists(PEERS, max_size=3),
                                                        "ports": st.lists(PORTS, max_size=3)}), max_size=2)


POLICIES = st.builds(
    lambda namespace, name, spec: read_policy({"metadata": {"name": name, "namespace": namespace}, "spec": spec}),
    st.sampled_from(NAMESPACES), st.sampled_from(["p", "q", "r"]),
    st.fixed_dictionaries({"podSelector": SELECTORS}, optional={
        "ingress": rules("from"), "egress": rules("to"),
        "policyTypes": st.lists(st.sampled_from(["Ingress", "Egress"]), unique=True)}))
BY_NAMESPACES = st.fixed_dictionaries({"namespaces": SELECTORS})
BY_PODS = st.fixed_dictionaries({"pods": st.fixed_dictionaries({
    "namespaceSelector": SELECTORS, "podSelector": SELECTORS})})
CLUSTER_PEERS = st.one_of(BY_NAMESPACES, BY_PODS, BY_NAMESPACES, BY_PODS, st.just({"later": {}}))
EGRESS_PEERS = st.one_of(
    CLUSTER_PEERS, st.fixed_dictionaries({"nodes": SELECTORS}), st.just({"domainNames": ["example.test"]}),
    st.fixed_dictionaries({"networks": st.lists(st.sampled_from(["0.0.0.0/0", "10.0.0.0/30", "10.0.0.5/32", "fd00::/126"
                                                                 ]), min_size=1, max_size=2)}))
PROTOCOL = st.sampled_from([
    {"tcp": {"destinationPort": {"number": 80}}}, {"tcp": {"destinationPort": {"range": {"start": 80, "end": 81}}}},
    {"udp": {"destinationPort": {"number": 80}}}, {"sctp": {"destinationPort": {"range": {"start": 1, "end": 90}}}}])


def ordered_rules(key, peers):
    plain = st.fixed_dictionaries({"action": st.sampled_from(["Accept", "Deny", "Pass"]),
                                   key: st.lists(peers, min_size=1, max_size=2)},
                                  optional={"name": st.just("name"),
                                            "protocols": st.lists(PROTOCOL, min_size=1, max_size=2)})
    named = st.fixed_dictionaries({"action": st.sampled_from(["Accept", "Deny"]),
                                   key: st.lists(CLUSTER_PEERS, min_size=1, max_size=1),
                                   "protocols": st.just([{"destinationNamedPort": "http"}])})
    return st.lists(st.one_of(plain, named), max_size=3)


CLUSTER_POLICIES = st.builds(
    lambda name, spec: read_cluster_policy({"metadata": {"name": name}, "spec": spec}),
    st.sampled_from(["c", "d", "e"]),
    st.fixed_dictionaries({
        "tier": st.sampled_from(["Admin", "Baseline"]), "priority": st.sampled_from([0, 5, 1000]),
        "subject": st.one_of(BY_NAMESPACES, BY_PODS)},
        optional={"ingress": ordered_rules("from", CLUSTER_PEERS), "egress": ordered_rules("to", EGRESS_PEERS)}))
ADDRESSES = [f"10.0.0.{number}" for number in range(1, 6)] + [f"fd00::{number}" for number in range(1, 6)]
PODS = st.builds(
    lambda number, twin, namespace, labels, port, node: Pod(
        namespace, f"pod{number}", labels, (read_ip(f"10.0.0.{twin}"), read_ip(f"fd00::{number}")), node,
        {("http", 6): port} if port else {}),
    st.integers(1, 4), st.integers(1, 5), st.sampled_from(NAMESPACES), LABELS, st.sampled_from([0, 80, 81]),
    st.sampled_from(["here", "here", "there"]))
NODES = st.builds(lambda name, labels, numbers: (name, Node(name, labels, tuple(
    read_ip(address) for number in numbers for address in (f"10.0.0.{number}", f"fd00::{number}")))),
    st.sampled_from(["here", "there"]), LABELS, st.lists(st.integers(4, 5), max_size=2, unique=True))
SPACES = st.sampled_from([(name, labels) for name in NAMESPACES for labels in (
    {}, {"app": "a"}, {"tier": "b"}, {"kubernetes.io/metadata.name": name})])


def connections():
    """Yield connections between each two addresses of a family, by protocols and ports that policies name. One address
    belongs to no pod."""
    for addresses in (ADDRESSES[:5], ADDRESSES[5:]):
        for source in addresses:
            for destination in addresses:
                for protocol, port in ((6, 80), (6, 81), (17, 80), (132, 81), (1, 0)):
                    yield Connection(read_ip(source), read_ip(destination), protocol, port)
