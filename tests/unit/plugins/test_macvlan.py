"""macvlan: each key, traffic on the master's network, and rejected masters. test_devices.py has more tests."""

import pytest
from lab.node import Inside, addresses, links, routes, run, source_seen

DUAL = ("10.22.0.0/24", "fd00:22::/64")


@pytest.fixture
def conf(node, neighbor):
    return node.conf(*DUAL, type="macvlan", bridge=None, master="up0")


def macvlan(pod):
    return links(pod)["eth0"]["linkinfo"]


def test_pod_is_a_station_of_the_masters_network(node, pod, neighbor, conf):
    result = node.add(conf, pod)
    assert source_seen(pod, neighbor, "10.22.0.254") == "10.22.0.2"
    assert source_seen(pod, neighbor, "fd00:22::fe") == "fd00:22::2"
    assert [ip["interface"] for ip in result["ips"]] == [0, 0]
    assert result["interfaces"] == [{"name": "eth0", "mac": links(pod)["eth0"]["address"],
                                     "sandbox": f"/run/netns/{pod}"}]
    assert addresses("eth0", pod) == ["10.22.0.2/24", "fd00:22::2/64"]
    assert set(links()) == {"lo", "up0"}                # ADD leaves no link on the host
    node.check(conf, pod, result)
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo"}
    assert node.held() == {}


@pytest.mark.parametrize("mode", ["bridge", "private", "vepa", "passthru"])
def test_mode_is_set_and_checked(node, pod, conf, mode):
    result = node.add({**conf, "mode": mode}, pod)
    assert macvlan(pod)["info_data"]["mode"] == mode
    node.check({**conf, "mode": mode}, pod, result)
    other = "private" if mode != "private" else "vepa"
    assert node.check_refused({**conf, "mode": other}, pod, result) == \
        f"container macvlan mode {mode} does not match expected value: {other}"


def test_mode_is_bridge_by_default(node, pod, conf):
    node.add(conf, pod)
    assert macvlan(pod)["info_data"]["mode"] == "bridge"


def test_unknown_mode_is_refused(node, pod, conf):
    assert node.refused("ADD", {**conf, "mode": "tunnel"}, pod) == {
        "code": 7, "msg": 'unknown macvlan mode: "tunnel"'}


def test_bcqueuelen_is_the_length_of_the_broadcast_queue(node, pod, conf):
    node.add({**conf, "bcqueuelen": 77}, pod)
    assert macvlan(pod)["info_data"]["bcqueuelen"] == 77


def test_mtu_is_the_masters_or_less(node, pod, conf):
    node.add({**conf, "mtu": 1400}, pod)
    assert links(pod)["eth0"]["mtu"] == 1400
    node.delete(conf, pod)
    node.add(conf, pod)
    assert links(pod)["eth0"]["mtu"] == 1500
    for mtu in (-1, 1501):
        assert node.refused("ADD", {**conf, "mtu": mtu}, pod, ifname="eth1")["msg"] == \
            f"invalid MTU {mtu}, must be [0, master MTU(1500)]"


@pytest.mark.parametrize("asked, mac", [
    ({"mac": "0a:00:00:00:00:01"}, "0a:00:00:00:00:01"),
    ({"mac": "0a:00:00:00:00:01", "env": "0a:00:00:00:00:02"}, "0a:00:00:00:00:02")])
def test_mac_of_the_variable_overrides_the_key(node, pod, conf, asked, mac):
    env = {"CNI_ARGS": f"IgnoreUnknown=1;MAC={asked.pop('env')}"} if "env" in asked else {}
    result = node.add({**conf, **asked}, pod, env=env)
    assert links(pod)["eth0"]["address"] == mac == result["interfaces"][0]["mac"]


def test_without_ipam_the_link_is_up_and_has_no_address(node, pod, conf):
    result = node.add({**conf, "ipam": None, "dns": {"domain": "example.org"}}, pod)
    assert "UP" in links(pod)["eth0"]["flags"]
    assert addresses("eth0", pod) == []
    assert "ips" not in result
    assert result["dns"] == {"domain": "example.org"}
    node.check({**conf, "ipam": None}, pod, result)


def test_master_is_the_link_of_the_default_route_by_default(node, pod, conf):
    del conf["master"]
    assert node.refused("ADD", conf, pod)["msg"] == "no default route interface found"
    run("ip", "addr", "add", "10.22.0.250/24", "dev", "up0")
    run("ip", "route", "add", "default", "via", "10.22.0.254")
    node.add(conf, pod)
    assert links(pod)["eth0"]["link_index"] == links()["up0"]["ifindex"]


def test_default_route_of_ipv6_also_chooses_the_master(node, pod, conf):
    run("ip", "-6", "route", "add", "default", "dev", "up0")
    node.add({key: conf[key] for key in conf if key != "master"}, pod)
    assert links(pod)["eth0"]["link_index"] == links()["up0"]["ifindex"]


def test_master_that_is_missing_is_named(node, pod, conf):
    error = node.refused("ADD", {**conf, "master": "up9"}, pod)
    assert (error["code"], error["msg"]) == (7, 'failed to lookup master "up9": Link not found')
    assert node.held() == {}


def test_routes_have_the_attributes_of_the_result(node, pod, conf):
    """The attributes include mtu and advmss, which the reference plugin ignores."""
    conf["ipam"]["routes"] = [
        {"dst": "198.51.100.0/24", "mtu": 1300, "advmss": 1200, "priority": 7},
        {"dst": "203.0.113.0/24", "table": 500}, {"dst": "2001:db8::/32", "mtu": 1290},
        {"dst": "192.0.2.0/24", "scope": 253, "gw": "0.0.0.0"}]
    result = node.add(conf, pod)
    found = routes(pod)
    assert found["198.51.100.0/24", "10.22.0.1"]["metric"] == 7
    assert found["198.51.100.0/24", "10.22.0.1"]["metrics"] == [{"mtu": 1300, "advmss": 1200}]
    assert routes(pod, family=6)["2001:db8::/32", "fd00:22::1"]["metrics"] == [{"mtu": 1290}]
    assert "203.0.113.0/24 via 10.22.0.1" in run("ip", "route", "show", "table", "500", netns=pod)
    node.check(conf, pod, result)
    run("ip", "route", "flush", "table", "500", netns=pod)
    assert "203.0.113.0/24" in node.check_refused(conf, pod, result)


@pytest.mark.parametrize("key, number", [("priority", -1), ("mtu", 1 << 32), ("scope", 256), ("table", -5)])
def test_number_of_a_route_outside_the_kernels_range_is_refused(node, pod, conf, key, number):
    conf["ipam"]["routes"] = [{"dst": "198.51.100.0/24", key: number}]
    before = node.left(pod)
    error = node.refused("ADD", conf, pod)
    assert error["code"] == 7
    assert f"{key} {number}" in error["msg"]
    assert node.left(pod) == before


@pytest.mark.parametrize("commands, mode, why", [
    (["link add br0 type bridge", "link set up0 master br0"], "bridge", "be a port of a bridge"),
    (["link add mv0 link up0 type macvlan mode bridge"], "passthru", "has it for itself alone")])
def test_a_master_that_takes_no_macvlan_is_named_with_the_reason(node, pod, conf, commands, mode, why):
    for command in commands:
        run("ip", *command.split())
    before = node.left(pod)
    error = node.refused("ADD", {**conf, "mode": mode}, pod)
    assert error["msg"].startswith("failed to create macvlan: ")
    assert error["details"].startswith('the master is "up0"; ')
    assert why in error["details"]
    assert node.left(pod) == before


def test_status_warns_of_a_missing_default_route(node, conf):
    reply = node.call("STATUS", {**conf, "master": ""})  # STATUS only warns, because the default route may appear later
    assert reply.status == 0
    assert b"no default route interface found" in reply.stderr


def test_two_pods_of_one_master_reach_each_other_in_bridge_mode_but_not_in_private(node, pod, pod_netns, conf):
    other = pod_netns()
    for mode, received in (("bridge", "10.22.0.2"), ("private", None)):
        conf["mode"] = mode
        for name in (pod, other):
            node.add(conf, name)
        assert source_seen(pod, other, addresses("eth0", other)[0].partition("/")[0], wait=0.5) == \
            (received and addresses("eth0", pod)[0].partition("/")[0])
        for name in (pod, other):
            node.delete(conf, name)


def test_thread_returns_to_its_namespace(node, pod, conf):
    with Inside(None):
        node.add(conf, pod)
        assert "up0" in links()
