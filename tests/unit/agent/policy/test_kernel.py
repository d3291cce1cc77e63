"""Policies in the kernel: real connections between pods on a bridge and a pod with a separate link. Needs root."""

import json
import os
import signal
import socket
import subprocess
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from unit.agent.policy.clusters import POLICIES
from unit.agent.policy.pods import ADDRESSES, NODE, TCP, UDP, Node, batch, packed, pairs, pods

from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.evaluate import Connection, evaluate
from fastcni.agent.policy.objects import read_policy
from fastcni.agent.policy.ruleset import Ruleset, see_bridged_traffic
from fastcni.kernel import sysctl
from fastcni.testing.namespaces import Inside
from fastcni.testing.witnesses import eventually


class Policed:
    """Pods of a Node, a Compiler, and a Ruleset that writes the compiled policies to the kernel."""

    def __init__(self, node):
        self.node, self.compiler = node, Compiler()
        if not see_bridged_traffic():
            pytest.skip("needs br_netfilter in the kernel")
        self.rules = Ruleset()
        for pod in pods():
            self.compiler.put_pod(pod)
        self.load()

    def load(self):
        self.compiler.take()
        self.rules.load(self.compiler.state)

    def put(self, *specs, labels=None):
        """Write policies p0, p1, ... and the pods' labels as a change of the tables."""
        for pod in pods(**(labels or {})):
            self.compiler.put_pod(pod)
        for number, spec in enumerate(specs):
            self.compiler.put_policy(read_policy({"metadata": {"name": f"p{number}"}, "spec": spec}))
        self.rules.write(self.compiler.take())

    def expected(self, asked):
        return {one for one in asked if evaluate(self.compiler.cluster, Connection(
            *packed(one[0], one[1]), one[2], one[3])).allowed}

    def check(self, asked):
        """Assert that the kernel accepts exactly the connections that the policies allow. Return these connections."""
        expected = self.expected(asked)
        self.node.forget_flows()
        assert self.node.reached(asked, expected) == expected
        return expected


@pytest.fixture
def policed(host_netns, pod_netns):
    node = Node(pod_netns)
    try:
        it = Policed(node)
        yield it
        it.rules.close()
    finally:
        node.close()


def app(value):
    return {"matchLabels": {"app": value}}


def test_default_deny_in_both_directions_and_open_again(policed):
    asked = pairs((TCP, UDP), (80,))
    assert policed.check(asked) == asked
    policed.put({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})
    assert policed.check(asked) == set()
    policed.compiler.delete_policy("default/p0")
    policed.rules.write(policed.compiler.take())
    assert policed.check(asked) == asked


# Hypothesis does not shrink a failed example, because each try takes seconds.
ON_A_NODE = settings(phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture,
                                                                     HealthCheck.too_slow])
CASES = {
    "labels": [{"podSelector": app("db"), "ingress": [
        {"from": [{"podSelector": app("web")}], "ports": [{"port": 80}]}]}],
    "named": [{"podSelector": app("web"), "policyTypes": ["Egress"], "egress": [
        {"to": [{"podSelector": app("db")}], "ports": [{"port": "http"}]}]}],
    "both ends": [      # the source may send to each port, the destination accepts one port
        {"podSelector": app("web"), "policyTypes": ["Egress"], "egress": [{}]},
        {"podSelector": app("db"), "ingress": [{"ports": [{"port": 81}]}]}],
    "namespace": [
        {"podSelector": {}, "ingress": [{"from": [{"podSelector": app("web"), "namespaceSelector": {
            "matchLabels": {"kubernetes.io/metadata.name": "default"}}}]}]},
        {"podSelector": app("db"), "ingress": [{"ports": [{"port": 81, "endPort": 89}, {"port": 90}]}]}],
    "block": [{"podSelector": {}, "ingress": [{"from": [
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.2/31"]}}, {"ipBlock": {"cidr": "fd00::/64"}}]}]}],
    "ports": [{"podSelector": {}, "ingress": [
        {"ports": [{"protocol": "UDP", "port": 80}, {"port": 81}, {"port": 79}]}]}],
}


def test_the_kernel_decides_as_the_policies_do(policed):
    """The test writes each case as a difference to the previous case."""
    asked = pairs((TCP, UDP), (80, 81))
    for name, specs in CASES.items():
        for key in [*policed.compiler.cluster.policies]:
            policed.compiler.delete_policy(key)
        policed.put(*specs, labels={"a": {"app": "web"}, "b": {"app": "db"}, "c": {"app": "db"}, "d": {"app": "web"}})
        assert set() < policed.check(asked) < asked, name


@settings(ON_A_NODE, max_examples=5)
@given(st.lists(POLICIES, min_size=1, max_size=4), st.lists(st.sampled_from(["a", "b"]), min_size=4, max_size=4))
def test_random_policies(policed, policies, values):
    for key in [*policed.compiler.cluster.policies]:
        policed.compiler.delete_policy(key)
    for pod in pods(**{name: {"app": value} for name, value in zip(ADDRESSES, values, strict=True)}):
        policed.compiler.put_pod(pod)
    for policy in policies:
        policed.compiler.put_policy(read_policy_here(policy))
    policed.rules.write(policed.compiler.take())
    policed.check(pairs((TCP, UDP), (80, 81)))


def test_no_way_through_the_chains_branches_twice(policed):
    """The loop check of older kernels, such as 6.1, follows each path from a base chain. Two verdict maps on one path
    would multiply the paths: a chain to which `egress` leads must not lead to `ingress`."""
    policed.put(*CASES["both ends"], *CASES["named"], labels={"a": {"app": "web"}, "b": {"app": "db"}})
    listed = json.loads(subprocess.run(["nft", "-j", "list", "table", "inet", "fastcni-policy"], check=True,
                                       stdout=subprocess.PIPE).stdout)["nftables"]
    base = {it["chain"]["name"] for it in listed if "hook" in it.get("chain", ())}
    leading = {(it["rule"]["chain"], kind) for it in listed if "rule" in it for each in it["rule"]["expr"]
               for kind in ("vmap", "jump", "goto") if kind in each}
    assert base == {"forward"}
    assert {chain for chain, kind in leading if kind == "vmap"} == {"egress", "ingress"}
    assert {chain[:3] for chain, _ in leading if chain not in base} == {"all", "err", "lin", "egr", "ing"}
    targets = {(it["rule"]["chain"], each[kind]["target"]) for it in listed if "rule" in it
               for each in it["rule"]["expr"] for kind in ("jump", "goto") if kind in each}
    assert {chain for chain, target in targets if target in ("egress", "ingress")} == base


def test_marks_of_other_programs_allow_nothing_and_other_bits_stay(policed):
    """Egress rules use one bit of the packet's mark. Another program sets this bit and a second one."""
    subprocess.run(["nft", "-f", "-"], check=True, text=True, input="""
        table inet others {
            counter kept { }
            counter changed { }
            chain before { type filter hook prerouting priority mangle; meta mark set 0x08000010; }
            chain behind {
                type filter hook postrouting priority mangle; iif lo accept
                ct state new meta mark 0x00000010 counter name kept
                ct state new meta mark != 0x00000010 ip saddr 10.0.0.0/16 tcp dport 80 counter name changed
            }
        }
        """)
    to_db = {"to": [{"podSelector": app("db")}]}
    policed.put({"podSelector": {}, "policyTypes": ["Egress"]},
                {"podSelector": app("web"), "policyTypes": ["Egress"], "egress": [{**to_db, "ports": [{"port": 80}]}]},
                {"podSelector": app("web"), "policyTypes": ["Egress"], "egress": [{**to_db, "ports": [{"port": 79}]}]},
                labels={"a": {"app": "web"}, "b": {"app": "db"}, "c": {"app": "web"}, "d": {"app": "web"}})
    asked = pairs((TCP,), (80, 81))
    assert set() < policed.check(asked) < asked
    listed = json.loads(subprocess.run(["nft", "-j", "list", "counters", "table", "inet", "others"], check=True,
                                       stdout=subprocess.PIPE).stdout)["nftables"]
    packets = {it["counter"]["name"]: it["counter"]["packets"] for it in listed if "counter" in it}
    assert packets["kept"] > 0
    assert packets["changed"] == 0


def read_policy_here(policy):
    """Read a policy as a document in the namespace `default`, where the pods are."""
    return replace(policy, namespace="default", pods=replace(policy.pods, namespace="default"))


def test_the_node_reaches_its_pods_and_a_pod_reaches_its_node(policed):
    policed.put({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})
    asked = {(None, address, TCP, 80) for addresses in ADDRESSES.values() for address in addresses}
    assert policed.node.reached(asked, asked) == asked
    with socket.create_server(("::", 80), family=socket.AF_INET6, dualstack_ipv6=True):
        asked = {(name, address, TCP, 80) for name in ("a", "d") for address in NODE}
        assert policed.node.reached(asked, asked) == asked


def test_a_pod_reaches_itself_through_a_service_and_others_where_it_may(policed):
    subprocess.run(["nft", "-f", "-"], check=True, text=True, input="""
        table ip service {
            chain before {
                type nat hook prerouting priority dstnat;
                ip daddr 10.96.0.1 dnat to 10.0.4.4
                ip daddr 10.96.0.2 dnat to 10.0.0.2
            }
            chain behind {
                type nat hook postrouting priority srcnat;
                ip saddr 10.0.4.4 ip daddr 10.0.4.4 masquerade
            }
        }
        """)
    policed.put({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
                {"podSelector": app("a"), "egress": [{"to": [{"podSelector": app("b")}]}], "policyTypes": ["Egress"]},
                {"podSelector": app("b"), "ingress": [{}]}, labels={"d": {"app": "a"}, "b": {"app": "b"}})
    asked = {("d", "10.96.0.1", TCP, 80), ("d", "10.96.0.2", TCP, 80), ("a", "10.96.0.1", TCP, 80),
             ("a", "10.96.0.2", TCP, 80)}
    expected = {("d", "10.96.0.1", TCP, 80), ("d", "10.96.0.2", TCP, 80)}
    assert policed.node.reached(asked, expected) == expected


def test_a_restricted_pod_is_not_reached_by_its_link_local_address(policed):
    """No record of a pod contains its link-local address. Neighbour discovery passes, but a restricted pod's
    connections to this address do not."""
    client, server = (policed.node.names[name] for name in "ab")
    batch(server, "address add fe80::b/64 dev eth0 nodad")
    to_b = "fe80::b%eth0"
    with Inside(client), socket.create_connection((to_b, 80), timeout=10) as known:
        policed.put({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})
        with pytest.raises(TimeoutError):
            socket.create_connection((to_b, 80), timeout=0.1)
        known.send(b"x")
        accepted = policed.node.accept("b")
        accepted.settimeout(0.1)
        with pytest.raises(TimeoutError):
            accepted.recv(1)
    policed.compiler.delete_policy("default/p0")
    policed.rules.write(policed.compiler.take())
    with Inside(client):
        socket.create_connection((to_b, 80), timeout=10).close()


def test_a_restricted_pod_sends_nothing_from_its_link_local_address(policed):
    """Each process of a pod can send from the link-local address. Once, pods on the same bridge got datagrams that the
    sender's policies forbid."""
    client, server = (policed.node.names[name] for name in "ab")
    batch(client, "address add fe80::a/64 dev eth0 nodad")

    def arrives():
        with Inside(server), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as receiver:
            receiver.bind((ADDRESSES["b"][1], 5353))
            receiver.settimeout(0.15)
            with Inside(client), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
                sender.bind(("fe80::a", 0, 0, socket.if_nametoindex("eth0")))
                sender.sendto(b"x", (ADDRESSES["b"][1], 5353))
            try:
                return receiver.recvfrom(10)[1][0].startswith("fe80::a")
            except TimeoutError:
                return False

    assert eventually(arrives)
    policed.put({"podSelector": app("a"), "policyTypes": ["Egress"]}, labels={"a": {"app": "a"}})
    assert not arrives()
    policed.compiler.delete_policy("default/p0")
    policed.rules.write(policed.compiler.take())
    assert eventually(arrives)


def test_neighbour_discovery_passes_on_the_link_only(policed):
    """Neighbour discovery has hop limit 255, and a router decrements it. So the node must not route these messages."""
    asked = {("a", ADDRESSES[name][1], TCP, 80) for name in "bd"}
    assert policed.node.reached(asked, asked) == asked
    policed.put({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})
    solicitation = bytes((135, 0, 0, 0)) + bytes(20)
    for name, passes in (("d", False), ("b", True)):
        with Inside(policed.node.names[name]), socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58) as receiver:
            receiver.settimeout(10 if passes else 0.15)
            with Inside(policed.node.names["a"]), socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58) as sender:
                sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 255)
                sender.sendto(solicitation, (ADDRESSES[name][1], 0))
            found = set()
            try:
                while solicitation[4:] not in found:
                    found.add(receiver.recv(200)[4:])
            except TimeoutError:
                pass
            assert (solicitation[4:] in found) is passes


def test_packets_in_a_vlan_of_the_bridge_are_seen(policed):
    """By default, netfilter does not see tagged packets of a bridge that filters VLANs."""
    assert sysctl.read("net/bridge/bridge-nf-filter-vlan-tagged") == "1"


def test_sctp_has_ports_too(policed):
    policed.put({"podSelector": {}, "ingress": [{"ports": [{"protocol": "SCTP", "port": 81}]}]})
    with Inside(policed.node.names["b"]), socket.socket(socket.AF_INET, socket.SOCK_RAW, 132) as receiver:
        receiver.settimeout(10)
        with Inside(policed.node.names["a"]), socket.socket(socket.AF_INET, socket.SOCK_RAW, 132) as sender:
            for port in (80, 81):  # the kernel drops the packet to port 80, so the packet to port 81 arrives first
                init = bytes((1, 0, 0, 20)) + bytes((0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1))
                sender.sendto((5000).to_bytes(2, "big") + port.to_bytes(2, "big") + bytes(8) + init, ("10.0.0.2", 0))
        assert receiver.recv(200)[22:24] == (81).to_bytes(2, "big")


def tables():
    """Return nft's list of the tables, without handles and with sorted elements."""
    found = json.loads(subprocess.run(["nft", "-j", "list", "table", "inet", "fastcni-policy"], check=True, text=True,
                                      capture_output=True).stdout)["nftables"]
    for one in found:
        for body in one.values():
            body.pop("handle", None)
            if isinstance(body.get("elem"), list):
                body["elem"].sort(key=json.dumps)
    return sorted(json.dumps(one, sort_keys=True) for one in found if "rule" not in one), {
        chain: [json.dumps(one, sort_keys=True) for one in found if one.get("rule", {}).get("chain") == chain]
        for chain in {one["rule"]["chain"] for one in found if "rule" in one}}


@settings(ON_A_NODE, max_examples=5)
@given(st.lists(POLICIES, min_size=1, max_size=6))
def test_the_table_after_differences_is_the_table_written_at_once(policed, policies):
    for policy in policies:
        policed.compiler.put_policy(policy)
        policed.rules.write(policed.compiler.take())
    for policy in policies[::2]:
        policed.compiler.delete_policy(policy.key)
        policed.rules.write(policed.compiler.take())
    by_differences = tables()
    policed.load()
    assert by_differences == tables()


@pytest.mark.parametrize("times, loads", [(2000, False), (400, True)])
def test_no_denied_packet_passes_while_the_table_changes(policed, times, loads):
    """Once, the kernel applied the rules of a new chain later than the element that leads to the chain. A flood of
    packets showed this."""
    web = [{"from": [{"podSelector": app("web")}]}]
    policed.put({"podSelector": {}, "ingress": web}, {"podSelector": app("db"), "ingress": web})
    listener = policed.node.listeners["c", socket.SOCK_DGRAM, 80]
    flood = os.fork()
    if not flood:
        try:
            with Inside(policed.node.names["b"]):
                while True:
                    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
                        it.sendto(b"denied", (ADDRESSES["c"][0], 80))
        finally:
            os._exit(0)
    try:
        for number in range(times):
            policed.put(labels={"c": {"app": "db"} if number % 2 else {}})
            if loads:
                policed.load()
    finally:
        os.kill(flood, signal.SIGKILL)
        os.waitpid(flood, 0)
    with pytest.raises(BlockingIOError):
        listener.recv(64)
