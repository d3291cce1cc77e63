"""vlan: each key, the result, tagged traffic, CHECK, STATUS, and DEL of what is gone."""

import pytest
from real_kernel.node import addresses, links, run, source_seen, sysctl

pytestmark = pytest.mark.needs("8021q")
DUAL = ("10.22.0.0/24", "fd00:22::/64")


@pytest.fixture
def far(node, pod_netns):
    """A station of VLAN 5 in the master's network, behind link up0 of the host."""
    name = pod_netns()
    node.uplink(name)
    run("ip", "-n", name, "addr", "flush", "dev", "far0")
    for words in ("link add far5 link far0 type vlan id 5", "addr add 10.22.0.254/24 dev far5",
                  "addr add fd00:22::fe/64 dev far5 nodad", "link set far5 up"):
        run("ip", "-n", name, *words.split())
    return name


@pytest.fixture
def conf(node, far):
    return node.conf(*DUAL, type="vlan", bridge=None, master="up0", vlanId=5)


def test_pod_is_in_its_vlan_and_in_no_other(node, pod, pod_netns, far, conf):
    result = node.add(conf, pod)
    assert source_seen(pod, far, "10.22.0.254") == "10.22.0.2"
    assert source_seen(pod, far, "fd00:22::fe") == "fd00:22::2"
    link = links(pod)["eth0"]
    assert (link["linkinfo"]["info_kind"], link["linkinfo"]["info_data"]["id"]) == ("vlan", 5)
    assert link["linkinfo"]["info_data"]["protocol"] == "802.1Q"
    assert result["interfaces"] == [{"name": "eth0", "mac": link["address"], "sandbox": f"/run/netns/{pod}"}]
    assert [ip["interface"] for ip in result["ips"]] == [0, 0]
    node.check(conf, pod, result)
    other = pod_netns()
    node.add({**conf, "vlanId": 6}, other)
    assert source_seen(other, far, "10.22.0.254", wait=0.5) is None
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo"} and set(links()) == {"lo", "up0"}


def test_id_0_is_priority_alone(node, pod, conf):
    del conf["vlanId"]
    node.add(conf, pod)
    assert links(pod)["eth0"]["linkinfo"]["info_data"]["id"] == 0


@pytest.mark.parametrize("vid", [-1, 4095, 1 << 40])
def test_id_that_no_tag_has_room_for_is_refused(node, pod, conf, vid):
    error = node.refused("ADD", {**conf, "vlanId": vid}, pod)
    assert (error["code"], error["msg"]) == (7, f"invalid VLAN ID {vid} (must be between 0 and 4094 inclusive)")


def test_master_and_ipam_are_needed(node, pod, conf):
    assert node.refused("ADD", {**conf, "master": ""}, pod)["msg"] == \
        '"master" field is required. It specifies the host interface name to create the VLAN for'
    assert node.refused("ADD", {**conf, "ipam": {}}, pod)["msg"] == "no plugin name provided"
    assert node.refused("ADD", {**conf, "master": "up9"}, pod)["msg"] == 'failed to lookup master "up9": Link not found'


def test_a_vlan_of_a_master_is_one_pods(node, pod, pod_netns, conf):
    node.add(conf, pod)
    other = pod_netns()
    before = node.left(pod, other)
    error = node.refused("ADD", conf, other)
    assert error["msg"].startswith("failed to create vlan: ") and error["details"] == \
        'the master is "up0"; VLAN 5 of it is taken, by another pod or by the host (ip -d link show type vlan)'
    assert node.left(pod, other) == before


def test_master_has_to_be_up(node, pod, conf):
    run("ip", "link", "set", "up0", "down")
    before = node.left(pod)
    error = node.refused("ADD", conf, pod)
    assert (error["code"], error["msg"]) == (11, 'master "up0" is down') and node.left(pod) == before


def test_mtu_is_the_masters_or_less(node, pod, conf):
    node.add({**conf, "mtu": 1400}, pod)
    assert links(pod)["eth0"]["mtu"] == 1400
    for mtu in (-1, 1501):
        assert node.refused("ADD", {**conf, "mtu": mtu, "vlanId": 6}, pod, ifname="eth1")["msg"] == \
            f"invalid MTU {mtu}, must be [0, master MTU(1500)]"


@pytest.mark.parametrize("keys, args", [({"runtimeConfig": {"mac": "0a:00:00:00:00:01"}}, ""),
                                        ({"args": {"cni": {"mac": "0a:00:00:00:00:01"}}}, ""),
                                        ({}, "MAC=0a:00:00:00:00:01;K8S_POD_NAME=x")])
def test_mac_can_be_asked_for(node, pod, conf, keys, args):
    """The reference has no such key, and reads no CNI_ARGS: what else is in them is no error."""
    conf["ipam"] = {"type": "static", "addresses": [{"address": "10.22.0.9/24"}]}
    env = {"CNI_ARGS": f"IgnoreUnknown=1;{args}"} if args else {}
    assert node.add({**conf, **keys}, pod, env=env)["interfaces"][0]["mac"] == "0a:00:00:00:00:01"
    assert links(pod)["eth0"]["address"] == "0a:00:00:00:00:01"


def test_dns_is_the_configurations_not_ipams(node, pod, conf):
    conf["ipam"] = {"type": "static", "addresses": [{"address": "10.22.0.9/24"}], "dns": {"domain": "a.example"}}
    assert node.add({**conf, "dns": {"domain": "b.example"}}, pod)["dns"] == {"domain": "b.example"}


def test_master_can_be_in_the_pod(node, pod, far, conf):
    run("ip", "link", "set", "up0", "netns", pod, "name", "inner")
    run("ip", "-n", pod, "link", "set", "inner", "up")
    conf.update(master="inner", linkInContainer=True)
    result = node.add(conf, pod)
    assert source_seen(pod, far, "10.22.0.254") == "10.22.0.2"
    node.check(conf, pod, result)
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo", "inner"}


def test_detection_and_ipv6_are_as_the_network_wants_them(node, pod, conf):
    node.add(conf, pod)
    assert sysctl("net/ipv6/conf/eth0/accept_dad", pod) == "0"
    assert sysctl("net/ipv4/conf/eth0/arp_notify", pod) == "0"         # as the reference
    node.delete(conf, pod)
    node.add({**conf, "enabledad": True}, pod)
    assert sysctl("net/ipv6/conf/eth0/accept_dad", pod) == "1"
    node.delete(conf, pod)
    conf["ipam"]["ranges"] = [[{"subnet": "10.22.0.0/24"}]]
    node.add({**conf, "disableIPv6": True}, pod)
    assert "inet6" not in run("ip", "-n", pod, "addr", "show", "eth0")


@pytest.mark.parametrize("gone", ["link", "netns", "master", "variable"])
def test_del_of_what_is_gone_succeeds_and_frees_the_address(node, pod, conf, gone):
    """The reference fails where the master is gone."""
    node.add(conf, pod)
    if gone == "link":
        run("ip", "-n", pod, "link", "del", "eth0")
    elif gone == "netns":
        run("ip", "netns", "del", pod)
    elif gone == "master":
        run("ip", "link", "del", "up0")
    node.delete(conf, "" if gone == "variable" else pod, cid=f"c-{pod}")
    assert node.held() == {}


def test_del_does_not_look_at_what_only_add_needs(node, pod, conf):
    node.add(conf, pod)
    node.delete({**conf, "vlanId": 9999, "master": "", "mtu": -1}, pod)
    assert set(links(pod)) == {"lo"}


def test_gc_frees_addresses_of_pods_that_are_no_more(node, pod, conf):
    node.add(conf, pod)
    node.ok("GC", {**conf, "cni.dev/valid-attachments": []})
    assert node.held() == {}


def test_check_compares_kind_id_mtu_and_master(node, pod, conf):
    result = node.add(conf, pod)
    assert node.check_refused({**conf, "vlanId": 6}, pod, result) == \
        "container VLAN ID 5 does not match expected value: 6"
    assert node.check_refused({**conf, "mtu": 1400}, pod, result) == \
        "container MTU 1500 does not match expected value: 1400"
    assert "up9" in node.check_refused({**conf, "master": "up9"}, pod, result)
    run("ip", "-n", pod, "link", "del", "eth0")
    run("ip", "-n", pod, "link", "add", "eth0", "address", result["interfaces"][0]["mac"], "type", "veth")
    assert node.check_refused(conf, pod, result) == "Error: Container interface eth0 not of type vlan"


def test_status_says_that_the_master_is_missing(node, conf):
    node.ok("STATUS", conf)
    error = node.refused("STATUS", {**conf, "master": "up9"})
    assert (error["code"], error["msg"]) == (50, 'master "up9" is not there: Link not found')


def test_addresses_are_those_of_ipam(node, pod, conf):
    node.add(conf, pod)
    assert addresses("eth0", pod) == ["10.22.0.2/24", "fd00:22::2/64"]
