"""disableIPv6: pods of an IPv4 network have no IPv6 address on their links, and send no IPv6 packet."""

import pytest
from lab.node import addresses, ip_json, source_seen, sysctl

DUAL = ("10.22.0.0/24", "fd00:22::/64")


def host_end(result):
    return next(item["name"] for item in result["interfaces"] if item["name"].startswith("veth"))


@pytest.mark.parametrize("kind", ["bridge", "ptp"])
def test_neither_end_has_ipv6(node, pod, kind):
    result = node.add(node.conf(type=kind, isGateway=True, disableIPv6=True), pod)
    assert sysctl("net/ipv6/conf/eth0/disable_ipv6", pod) == "1"
    assert sysctl("net/ipv6/conf/lo/disable_ipv6", pod) == "0"
    assert sysctl(f"net/ipv6/conf/{host_end(result)}/disable_ipv6") == "1"
    for netns, name in ((pod, "eth0"), (None, host_end(result))):
        assert [a for link in ip_json("-6", "addr", "show", "dev", name, netns=netns) for a in link["addr_info"]] == []
    assert addresses("eth0", pod) == ["10.22.0.2/24"]
    assert source_seen(pod, None, "10.22.0.1") == "10.22.0.2"
    node.check(node.conf(type=kind, isGateway=True, disableIPv6=True), pod, result)


@pytest.mark.parametrize("kind", ["bridge", "ptp"])
def test_without_the_key_ipv6_is_as_the_kernel_has_it(node, pod, kind):
    result = node.add(node.conf(type=kind, isGateway=True), pod)
    assert sysctl("net/ipv6/conf/eth0/disable_ipv6", pod) == "0"
    assert sysctl(f"net/ipv6/conf/{host_end(result)}/disable_ipv6") == "0"


@pytest.mark.parametrize("kind", ["bridge", "ptp"])
def test_an_ipv6_address_in_such_a_network_is_refused_and_nothing_left(node, pod, kind):
    before = node.left(pod)
    error = node.refused("ADD", node.conf(*DUAL, type=kind, disableIPv6=True), pod)
    assert (error["code"], error["msg"]) == (7, "IPAM gave fd00:22::2/64, but disableIPv6 is true")
    assert node.left(pod) == before


def test_a_link_of_layer_two_has_no_ipv6_either(node, pod):
    node.add(node.conf(ipam=None, disableIPv6=True), pod)
    assert sysctl("net/ipv6/conf/eth0/disable_ipv6", pod) == "1"
