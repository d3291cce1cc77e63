"""vlan: each key, tagged traffic, and rejected masters. test_devices.py has more tests."""

import pytest
from lab.node import links, run, source_seen, sysctl

pytestmark = pytest.mark.needs("8021q")
DUAL = ("10.22.0.0/24", "fd00:22::/64")


@pytest.fixture
def neighbor(neighbor):
    """Give the neighbour its addresses in VLAN 5, and return the neighbour's namespace."""
    run("ip", "addr", "flush", "dev", "ext0", netns=neighbor)
    for command in ("link add ext5 link ext0 type vlan id 5", "addr add 10.22.0.254/24 dev ext5",
                  "addr add fd00:22::fe/64 dev ext5 nodad", "link set ext5 up"):
        run("ip", *command.split(), netns=neighbor)
    return neighbor


@pytest.fixture
def conf(node, neighbor):
    return node.conf(*DUAL, type="vlan", bridge=None, master="up0", vlanId=5)


def test_pod_is_in_its_vlan_and_in_no_other(node, pod, pod_netns, neighbor, conf):
    result = node.add(conf, pod)
    assert source_seen(pod, neighbor, "10.22.0.254") == "10.22.0.2"
    assert source_seen(pod, neighbor, "fd00:22::fe") == "fd00:22::2"
    link = links(pod)["eth0"]
    assert (link["linkinfo"]["info_kind"], link["linkinfo"]["info_data"]["id"]) == ("vlan", 5)
    assert link["linkinfo"]["info_data"]["protocol"] == "802.1Q"
    assert result["interfaces"] == [{"name": "eth0", "mac": link["address"], "sandbox": f"/run/netns/{pod}"}]
    assert [ip["interface"] for ip in result["ips"]] == [0, 0]
    node.check(conf, pod, result)
    other = pod_netns()
    node.add({**conf, "vlanId": 6}, other)
    assert source_seen(other, neighbor, "10.22.0.254", wait=0.5) is None
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo"}
    assert set(links()) == {"lo", "up0"}


def test_id_0_is_a_priority_tag(node, pod, conf):
    del conf["vlanId"]
    node.add(conf, pod)
    assert links(pod)["eth0"]["linkinfo"]["info_data"]["id"] == 0


@pytest.mark.parametrize("vid", [-1, 4095, 1 << 40])
def test_an_id_that_does_not_fit_a_tag_is_refused(node, pod, conf, vid):
    error = node.refused("ADD", {**conf, "vlanId": vid}, pod)
    assert (error["code"], error["msg"]) == (7, f"invalid VLAN ID {vid} (must be between 0 and 4094 inclusive)")


def test_master_and_ipam_are_needed(node, pod, conf):
    assert node.refused("ADD", {**conf, "master": ""}, pod)["msg"] == \
        '"master" field is required. It specifies the host interface name to create the VLAN for'
    assert node.refused("ADD", {**conf, "ipam": {}}, pod)["msg"] == "no plugin name provided"
    assert node.refused("ADD", {**conf, "master": "up9"}, pod)["msg"] == 'failed to lookup master "up9": Link not found'


def test_a_vlan_of_a_master_serves_one_pod(node, pod, pod_netns, conf):
    node.add(conf, pod)
    other = pod_netns()
    before = node.left(pod, other)
    error = node.refused("ADD", conf, other)
    assert error["msg"].startswith("failed to create vlan: ")
    assert error["details"] == \
        'the master is "up0"; VLAN 5 of this master is taken, by another pod or by the host (ip -d link show type vlan)'
    assert node.left(pod, other) == before


def test_master_has_to_be_up(node, pod, conf):
    run("ip", "link", "set", "up0", "down")
    before = node.left(pod)
    error = node.refused("ADD", conf, pod)
    assert (error["code"], error["msg"]) == (11, 'master "up0" is down')
    assert node.left(pod) == before


def test_mtu_is_the_masters_or_less(node, pod, conf):
    node.add({**conf, "mtu": 1400}, pod)
    assert links(pod)["eth0"]["mtu"] == 1400
    for mtu in (-1, 1501):
        assert node.refused("ADD", {**conf, "mtu": mtu, "vlanId": 6}, pod, ifname="eth1")["msg"] == \
            f"invalid MTU {mtu}, must be [0, master MTU(1500)]"


def test_cni_args_may_have_more_than_a_mac(node, pod, conf):
    """The reference plugin ignores CNI_ARGS, so arguments other than MAC are no error."""
    conf["ipam"] = {"type": "static", "addresses": [{"address": "10.22.0.9/24"}]}
    env = {"CNI_ARGS": "IgnoreUnknown=1;MAC=0a:00:00:00:00:01;K8S_POD_NAME=x"}
    assert node.add(conf, pod, env=env)["interfaces"][0]["mac"] == "0a:00:00:00:00:01"
    assert links(pod)["eth0"]["address"] == "0a:00:00:00:00:01"


def test_duplicates_are_looked_for_where_the_network_asks_for_it(node, pod, conf):
    node.add({**conf, "enabledad": True}, pod)
    assert sysctl("net/ipv6/conf/eth0/accept_dad", pod) == "1"


def test_check_compares_id_and_mtu(node, pod, conf):
    result = node.add(conf, pod)
    assert node.check_refused({**conf, "vlanId": 6}, pod, result) == \
        "container VLAN ID 5 does not match expected value: 6"
    assert node.check_refused({**conf, "mtu": 1400}, pod, result) == \
        "container MTU 1500 does not match expected value: 1400"
