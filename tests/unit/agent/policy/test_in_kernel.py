"""Verdicts of the rules that `fastcni policy test` reads from the kernel, compared with policies and with packets.
Needs root."""

import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.agent.policy.clusters import PODS, POLICIES, connections
from unit.agent.policy.test_kernel import ON_A_NODE

from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.evaluate import Connection, evaluate
from fastcni.agent.policy.in_kernel import decisions, nft_read
from fastcni.agent.policy.in_kernel.nft_walk import Unknown, walk
from fastcni.agent.policy.objects import EGRESS, INGRESS
from fastcni.agent.policy.ports import SHUT_MACS
from fastcni.agent.policy.ruleset import Ruleset
from fastcni.agent.policy.state import LINK, LINK_LOCAL
from fastcni.kernel import nft, uapi, wire
from fastcni.kernel.nft_rules import NFT_PAYLOAD_LL_HEADER, NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER
from fastcni.spec.address import read_ip
from fastcni.testing.namespaces import run


@pytest.fixture
def rules(host_netns):
    it = Ruleset()
    yield it
    it.close()


@settings(ON_A_NODE, max_examples=20)
@given(st.lists(PODS, max_size=6), st.lists(POLICIES, min_size=1, max_size=5))
def test_the_kernels_table_decides_as_the_policies_do(rules, pods, policies):
    """In this test the node has all pods. The test tries each pair of addresses by three protocols with ports, and by
    ICMP."""
    compiler = Compiler()
    for pod in pods:
        compiler.put_pod(pod)
    for policy in policies:
        compiler.put_policy(policy)
    compiler.take()
    rules.load(compiler.state)
    tables = decisions.read()
    for connection in connections():
        kernel, said = decisions.decide(tables, connection), evaluate(compiler.cluster, connection)
        assert kernel.keys() == {EGRESS, INGRESS}
        assert {direction: one.allowed for direction, one in kernel.items()} == {
            direction: reason is None or reason.allowed
            for direction, reason in ((EGRESS, said.egress), (INGRESS, said.ingress))}, connection


RULESET = """
table inet others {
    set networks { type ipv4_addr; flags interval; elements = { 10.0.0.0/30, 10.0.0.4-10.0.0.6, 10.0.1.0/24 } }
    set pairs { type ipv4_addr . inet_service; flags interval; elements = { 10.0.0.0/24 . 80-89 } }
    map verdicts { type ipv4_addr : verdict; elements = { 10.0.2.1 : jump deeper, 10.0.2.2 : goto deeper,
                                                          10.0.2.3 : drop, 10.0.2.4 : return } }
    set seen { type ipv4_addr; flags dynamic, timeout; timeout 1m; }
    chain deeper { tcp dport 99 return; tcp dport 100 drop comment "deep"; }
    chain ranges { type filter hook forward priority 0; policy accept; ip saddr @networks drop comment "in networks"; }
    chain parts { type filter hook forward priority 1; policy drop; ip saddr . tcp dport @pairs accept; }
    chain jumps { type filter hook forward priority 2; policy accept; counter; ip saddr vmap @verdicts;
                  tcp dport 99 drop comment "behind"; }
    chain synonly { type filter hook forward priority 3;
                      tcp flags & (syn | ack) == syn ip ttl > 60 drop; }
    chain inverted { type filter hook forward priority 4; policy accept; ip saddr != 10.0.0.0/8 drop; }
    chain strange { type filter hook forward priority 5; tcp dport 1 meta cpu 9999 drop; }
    chain grows { type filter hook forward priority 6; policy drop; update @seen { ip saddr } accept; }
    chain refuses { type filter hook forward priority 7; tcp dport 1 reject; }
}
"""


@pytest.mark.parametrize("chain, source, port, expected", [
    ("ranges", "10.0.0.3", 1, "in networks"), ("ranges", "10.0.0.4", 1, "in networks"),
    ("ranges", "10.0.0.6", 1, "in networks"), ("ranges", "10.0.0.7", 1, True),
    ("ranges", "10.0.1.255", 1, "in networks"), ("ranges", "10.0.2.0", 1, True),
    ("ranges", "0.0.0.0", 1, True), ("ranges", "fd00::1", 1, True),
    ("parts", "10.0.0.9", 85, True), ("parts", "10.0.0.9", 90, False), ("parts", "10.0.1.9", 85, False),
    ("jumps", "10.0.2.1", 100, "deep"), ("jumps", "10.0.2.1", 99, "behind"), ("jumps", "10.0.2.2", 99, True),
    ("jumps", "10.0.2.2", 100, "deep"), ("jumps", "10.0.2.3", 1, False), ("jumps", "10.0.2.4", 99, True),
    ("jumps", "10.0.2.9", 99, "behind"), ("synonly", "10.0.0.1", 1, False), ("inverted", "11.0.0.1", 1, False),
    ("inverted", "10.1.1.1", 1, True), ("strange", "10.0.0.1", 2, True), ("strange", "10.0.0.1", 1, None),
    ("grows", "10.0.0.1", 1, True), ("grows", "fd00::1", 1, False), ("refuses", "10.0.0.1", 2, True),
    ("refuses", "10.0.0.1", 1, None)])
def test_a_packet_is_followed_as_the_kernel_does(host_netns, chain, source, port, expected):
    """expected: whether the chain accepts, the comment of the rule that drops, or None for no answer."""
    run("nft", "-f", "-", stdin=RULESET)
    (table,) = read("others")
    other = "10.9.9.9" if "." in source else "fd00::9"
    packet = decisions.first_packet(Connection(read_ip(source), read_ip(other), socket.IPPROTO_TCP, port))
    if expected is None:
        with pytest.raises(Unknown, match=r"meta key|expression reject"):
            walk(table, chain, packet)
        return
    outcome = walk(table, chain, packet)
    assert (outcome.code == nft.NF_ACCEPT) is (expected is True)
    if isinstance(expected, str):
        assert outcome.comment == expected


def read(name):
    sock = wire.open_socket(uapi.NETLINK_NETFILTER)
    try:
        return nft_read.read_tables(sock, lambda family, table: table == name)
    finally:
        sock.close()


@pytest.mark.parametrize("mac, passes", [(b"\x33\x33\0\0\0\1", True), (b"\2\0\0\0\0\x0b", False)])
def test_a_multicast_query_comes_to_a_restricted_pod_by_a_multicast_mac_only(rules, mac, passes):
    """An MLD query of a router. The frame to the pod's own MAC reaches this pod alone."""
    state = Compiler().state
    state.elements[LINK][LINK_LOCAL] = state.elements[SHUT_MACS][b"\2\0\0\0\0\x0b"] = ""
    rules.load(state)
    table = next(table for table in decisions.read() if table.family == nft.NFPROTO_INET)
    source, destination = read_ip("fe80::9"), read_ip("ff02::1")
    packet = decisions.first_packet(Connection(source, destination, socket.IPPROTO_ICMPV6, 0))
    packet.headers = {**packet.headers, NFT_PAYLOAD_LL_HEADER: mac + bytes(6) + b"\x86\xdd",
                      NFT_PAYLOAD_NETWORK_HEADER: bytes((0x60, 0, 0, 0, 0, 24, 58, 1)) + source + destination,
                      NFT_PAYLOAD_TRANSPORT_HEADER: b"\x82" + bytes(23)}
    assert (walk(table, "forward", packet).code == nft.NF_ACCEPT) is passes


def test_another_table_of_this_name_is_no_silent_yes(host_netns):
    """A later version may have such a table, whose verdict this version does not know. So the verdict is unknown."""
    run("nft", "add table bridge fastcni-policy; add chain bridge fastcni-policy forward "
               "{ type filter hook forward priority 0; }")
    found = decisions.decide(decisions.read(), Connection(read_ip("10.0.0.1"), read_ip("10.0.0.2"), 6, 80))
    assert found["bridge fastcni-policy forward"].allowed is None
    assert found[INGRESS].allowed and "there is no table inet fastcni-policy" in found[INGRESS].text
