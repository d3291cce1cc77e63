"""ipvlan: each key, traffic on the master's network, and ipvlan after another plugin. test_devices.py has more
tests."""

import pytest
from lab.node import addresses, links, routes, run, source_seen

pytestmark = pytest.mark.needs("ipvlan")
DUAL = ("10.22.0.0/24", "fd00:22::/64")


@pytest.fixture
def conf(node, neighbor):
    return node.conf(*DUAL, type="ipvlan", bridge=None, master="up0")


def mode(pod):
    return links(pod)["eth0"]["linkinfo"]["info_data"]["mode"]


def test_pod_has_the_masters_mac_and_other_addresses(node, pod, neighbor, conf):
    result = node.add(conf, pod)
    assert source_seen(pod, neighbor, "10.22.0.254") == "10.22.0.2"
    assert source_seen(pod, neighbor, "fd00:22::fe") == "fd00:22::2"
    link = links(pod)["eth0"]
    assert link["address"] == links()["up0"]["address"]
    assert (link["linkinfo"]["info_kind"], mode(pod)) == ("ipvlan", "l2")
    assert result["interfaces"] == [{"name": "eth0", "mac": link["address"], "sandbox": f"/run/netns/{pod}"}]
    assert [ip["interface"] for ip in result["ips"]] == [0, 0]
    node.check(conf, pod, result)
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo"}
    assert set(links()) == {"lo", "up0"}
    assert node.held() == {}


@pytest.mark.parametrize("wanted", ["l2", "l3", "l3s"])
def test_mode_is_set_and_checked(node, pod, conf, wanted):
    result = node.add({**conf, "mode": wanted}, pod)
    assert mode(pod) == wanted
    node.check({**conf, "mode": wanted}, pod, result)
    other = "l2" if wanted != "l2" else "l3"
    assert node.check_refused({**conf, "mode": other}, pod, result) == \
        f"Container IPVlan mode {wanted} does not match expected value: {other}"


def test_mode_of_the_latest_pod_applies_to_all_pods_of_a_master(node, pod, pod_netns, conf):
    """The kernel has one mode for all ipvlans of a master. CHECK of an earlier pod reports the change."""
    other = pod_netns()
    result = node.add(conf, pod)
    node.add({**conf, "mode": "l3"}, other)
    assert mode(pod) == "l3"
    assert node.check_refused(conf, pod, result) == "Container IPVlan mode l3 does not match expected value: l2"


def test_unknown_mode_is_refused(node, pod, conf):
    assert node.refused("ADD", {**conf, "mode": "l4"}, pod) == {
        "code": 7, "msg": 'unknown ipvlan mode: "l4"', "details": "there are l2, l3, l3s"}


def test_mtu_is_set(node, pod, conf):
    node.add({**conf, "mtu": 1400}, pod)
    assert links(pod)["eth0"]["mtu"] == 1400


def test_master_is_the_link_of_the_default_route_by_default(node, pod, conf):
    del conf["master"]
    assert node.refused("ADD", conf, pod)["msg"] == "no default route interface found"
    run("ip", "addr", "add", "10.22.0.250/24", "dev", "up0")
    run("ip", "route", "add", "default", "via", "10.22.0.254")
    node.add(conf, pod)
    assert links(pod)["eth0"]["link_index"] == links()["up0"]["ifindex"]
    run("ip", "route", "del", "default")
    node.delete(conf, pod)                  # the reference plugin's DEL fails here
    assert node.held() == {}


def behind(conf, *names, ips=()):
    """Return the configuration with the prevResult of an earlier plugin. names, ips: its interfaces and addresses."""
    return {**conf, "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": name} for name in names],
                                   "ips": [{"address": ip, "gateway": "10.22.0.254", "interface": 0} for ip in ips],
                                   "routes": [{"dst": "0.0.0.0/0"}]}}


def test_behind_another_plugin_its_interface_is_the_master_and_its_addresses_the_pods(node, pod, neighbor, conf):
    conf = {key: conf[key] for key in conf if key not in ("master", "ipam")}
    result = node.add(behind(conf, "up0", ips=["10.22.0.7/24"]), pod)
    assert links(pod)["eth0"]["link_index"] == links()["up0"]["ifindex"]
    assert addresses("eth0", pod) == ["10.22.0.7/24"]
    assert ("default", "10.22.0.254") in routes(pod)
    assert source_seen(pod, neighbor, "10.22.0.254") == "10.22.0.7"
    # ipvlan's result replaces the earlier interfaces
    assert [item["name"] for item in result["interfaces"]] == ["eth0"]
    node.check(conf, pod, result)
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo"}


def test_behind_another_plugin_with_ipam_the_addresses_are_ipams(node, pod, conf):
    del conf["master"]
    node.add(behind(conf, "up0", ips=["10.22.0.7/24"]), pod)
    assert addresses("eth0", pod) == ["10.22.0.2/24", "fd00:22::2/64"]


@pytest.mark.parametrize("names", [(), ("up0", "up1"), ("",)])
def test_behind_another_plugin_there_has_to_be_one_interface(node, pod, conf, names):
    del conf["master"]
    assert node.refused("ADD", behind(conf, *names), pod)["msg"] == \
        "chained master failure. PrevResult lacks a single named interface"
    assert node.held() == {}


def test_without_addresses_there_is_no_ipvlan(node, pod, conf):
    error = node.refused("ADD", {**conf, "ipam": None}, pod)
    assert (error["code"], error["msg"]) == (7, "no plugin name provided")
    assert node.refused("ADD", behind({**conf, "ipam": {}}, "up0"), pod)["msg"] == "no plugin name provided"


def test_a_master_with_macvlans_is_refused_with_the_reason(node, pod, conf):
    run("ip", "link", "add", "mv0", "link", "up0", "type", "macvlan", "mode", "bridge")
    before = node.left(pod)
    error = node.refused("ADD", conf, pod)
    assert error["msg"].startswith("failed to create ipvlan: ")
    assert error["details"].startswith('the master is "up0"; a link can have macvlans, have ipvlans, or be')
    assert node.left(pod) == before


def test_status_does_not_need_a_master(node, conf):
    del conf["master"]
    node.ok("STATUS", conf)                 # an earlier plugin of the list may create the master
