"""The choice of a node's subnets."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcni.agent import subnets
from fastcni.agent.contract import Family, NoSubnetLeft

FAMILY = Family(ip_network("10.0.0.0/16"), 24, ip_network("10.0.1.0/24"), ip_network("10.0.255.0/24"))
HUGE = Family(ip_network("fd00::/16"), 64, ip_network("fd00:0:0:1::/64"), ip_network("fd00:ffff:ffff:ffff::/64"))


def net(number, length=24):
    return ip_network(f"10.0.{number}.0/{length}")


def test_the_former_subnet_is_taken_again_if_it_is_free():
    assert subnets.choose_one(FAMILY, net(7), [net(1)]) == net(7)
    assert subnets.choose_one(FAMILY, net(7), [net(7)]) != net(7)
    assert subnets.choose_one(FAMILY, net(6, 23), []).prefixlen == 24          # the configuration was changed
    assert subnets.choose_one(FAMILY, net(0), []) != net(0)                    # below SubnetMin


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
