"""The choice of a node's subnets."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcni.agent import subnets
from fastcni.agent.contract import Family, NetworkConf, Node, NoSubnetLeft

FAMILY = Family(ip_network("10.0.0.0/16"), 24, ip_network("10.0.1.0/24"), ip_network("10.0.255.0/24"))
HUGE = Family(ip_network("fd00::/16"), 64, ip_network("fd00:0:0:1::/64"), ip_network("fd00:ffff:ffff:ffff::/64"))


def net(number, length=24):
    return ip_network(f"10.0.{number}.0/{length}")


def test_the_former_subnet_is_taken_again_if_it_is_free():
    assert subnets.choose_one(FAMILY, net(7), [net(1)]) == net(7)
    assert subnets.choose_one(FAMILY, net(7), [net(7)]) != net(7)
    assert subnets.choose_one(FAMILY, net(6, 23), []).prefixlen == 24          # SubnetLen has changed from 23 to 24
    assert subnets.choose_one(FAMILY, net(0), []) != net(0)                    # the earlier subnet is below SubnetMin


def test_nodes_that_join_at_once_seldom_meet():
    assert len({subnets.choose_one(FAMILY, None, []) for _ in range(50)}) > 20


def test_a_full_network_is_an_error_that_names_it():
    with pytest.raises(NoSubnetLeft, match=r"10\.0\.0\.0/16 has no free subnet /24: 255 are taken"):
        subnets.choose_one(FAMILY, None, [net(number) for number in range(1, 256)])


def test_the_last_free_one_is_found():
    assert subnets.choose_one(FAMILY, None, [net(number) for number in range(1, 256) if number != 99]) == net(99)


def test_a_huge_network_takes_no_time():
    assert subnets.choose_one(HUGE, None, [ip_network("fd00::/17")]).subnet_of(HUGE.network)


@given(st.lists(st.tuples(st.integers(0, 255), st.sampled_from([20, 22, 24, 26])), max_size=40))
def test_what_is_free_overlaps_nothing_that_is_taken(taken):
    taken = [ip_network(f"10.0.{number}.0/{length}", strict=False) for number, length in taken]
    found = list(subnets.free(FAMILY, taken))
    every = [net(number) for number in range(1, 256)]
    assert found == [each for each in every if not any(each.overlaps(other) for other in taken)]


def node(name, *texts):
    found = [ip_network(text) for text in texts]
    return Node(name, {each.version: each for each in found}, {}, "vxlan")


CONF = NetworkConf({4: FAMILY, 6: HUGE}, {})
ME = node("me", "10.0.5.0/24", "fd00:0:0:5::/64")


@pytest.mark.parametrize(("others", "left_out"), [
    ([node("a", "10.0.1.0/24"), node("b", "10.0.2.0/24", "fd00:0:0:2::/64")], {}),
    ([node("a", "10.1.0.0/24")], {"a": "its subnet 10.1.0.0/24 is not in 10.0.0.0/16"}),
    ([node("a", "128.0.0.0/1")], {"a": "its subnet 128.0.0.0/1 is not in 10.0.0.0/16"}),
    ([node("a", "10.0.0.0/16")], {"a": "node me has its subnet, too"}),
    ([node("z", "10.0.5.0/24")], {"z": "node me has its subnet, too"}),
    ([node("b", "10.0.1.0/24"), node("a", "10.0.1.0/24")], {"b": "node a has its subnet, too"}),
    ([node("a", "10.0.1.0/24"), node("b", "10.0.0.0/22"), node("c", "10.0.2.0/24")], {
        "b": "node a has its subnet, too"}),
    ([node("a", "10.0.1.0/24", "fd00:0:0:5::/64")], {"a": "node me has its subnet, too"}),
    ([node("a", "10.0.1.0/24", "fe80::/64")], {"a": "its subnet fe80::/64 is not in fd00::/16"}),
])
def test_a_node_whose_subnet_cannot_be_true_is_left_out(others, left_out):
    found, skipped = subnets.usable(CONF, ME, [ME, *others])
    assert skipped == left_out
    assert [each.name for each in found] == sorted({each.name for each in others} - left_out.keys())


def test_a_former_record_of_this_node_is_left_out():
    """After a change of SubnetLen, the node's earlier record lasts a day. Once, packets to the earlier subnet left the
    node through its tunnel and returned to it until their TTL ended."""
    public = {4: ip_address("192.0.2.1")}
    me, former = replace(ME, public=public), replace(node("10.0.64.0-20", "10.0.64.0/20"), public=public)
    found, skipped = subnets.usable(CONF, me, [me, former, replace(node("a", "10.0.1.0/24"), public={
        4: ip_address("192.0.2.2")})])
    assert [each.name for each in found] == ["a"]
    assert skipped == {"10.0.64.0-20": "it has this node's address 192.0.2.1: a former record of this node"}


@given(st.lists(st.tuples(st.integers(0, 255), st.sampled_from([20, 22, 24, 26])), max_size=20))
def test_no_two_nodes_that_are_left_overlap(spans):
    others = [node(f"n{at:02}", str(ip_network(f"10.0.{number}.0/{length}", strict=False)))
              for at, (number, length) in enumerate(spans)]
    found, skipped = subnets.usable(CONF, ME, others)
    assert len(found) + len(skipped) == len(others)
    for at, one in enumerate([ME, *found]):
        assert not any(subnets.overlap(one.subnets, other.subnets) for other in found[at:] if other is not one)
