"""dummy: addresses on a link that leads nowhere, IPAM's dns, CHECK, STATUS, and DEL of what is gone."""

import pytest
from real_kernel.node import addresses, links, routes, run, source_seen, sysctl

DUAL = ("10.22.0.0/24", "fd00:22::/64")
pytestmark = pytest.mark.needs("dummy")


@pytest.fixture
def conf(node):
    return node.conf(*DUAL, type="dummy", bridge=None)


def test_pod_has_the_addresses_and_reaches_them(node, pod, conf):
    result = node.add(conf, pod)
    assert links(pod)["eth0"]["linkinfo"]["info_kind"] == "dummy" and "UP" in links(pod)["eth0"]["flags"]
    assert result["interfaces"] == [{"name": "eth0", "mac": links(pod)["eth0"]["address"],
                                     "sandbox": f"/run/netns/{pod}"}]
    assert [(ip["address"], ip["interface"]) for ip in result["ips"]] == [("10.22.0.2/24", 0), ("fd00:22::2/64", 0)]
    assert addresses("eth0", pod) == ["10.22.0.2/24", "fd00:22::2/64"]
    run("ip", "-n", pod, "link", "set", "lo", "up")
    assert source_seen(pod, pod, "10.22.0.2") == "10.22.0.2" and source_seen(pod, pod, "fd00:22::2") == "fd00:22::2"
    assert set(links()) == {"lo"}                       # nothing on the host
    node.check(conf, pod, result)
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo"} and node.held() == {}


def test_a_name_that_the_host_has_too_is_free_in_the_pod(node, pod, conf):
    run("ip", "link", "add", "same0", "type", "dummy")
    node.add(conf, pod, ifname="same0")
    assert links(pod)["same0"]["linkinfo"]["info_kind"] == "dummy"


@pytest.mark.parametrize("command", ["ADD", "CHECK", "STATUS"])
def test_ipam_is_required(node, pod, conf, command):
    del conf["ipam"]
    error = node.refused(command, conf, pod)
    assert (error["code"], error["msg"]) == (7, "dummy interface requires an IPAM configuration")
    assert set(links(pod)) == {"lo"}


def test_del_does_not_require_ipam(node, pod, conf):
    """The reference says `no plugin name provided`, and keeps the link."""
    node.add(conf, pod)
    node.delete({key: value for key, value in conf.items() if key != "ipam"}, pod)
    assert set(links(pod)) == {"lo"}


@pytest.mark.parametrize("asked, mac", [
    ({"env": "0a:00:00:00:00:02"}, "0a:00:00:00:00:02"),
    ({"env": "0a:00:00:00:00:02", "args": {"cni": {"mac": "0a:00:00:00:00:03"}}}, "0a:00:00:00:00:03"),
    ({"args": {"cni": {"mac": "0a:00:00:00:00:03"}}, "runtimeConfig": {"mac": "0a:00:00:00:00:04"}},
     "0a:00:00:00:00:04")])
def test_mac_of_the_runtime_goes_before_args_before_the_variable(node, pod, conf, asked, mac):
    env = {"CNI_ARGS": f"IgnoreUnknown=1;MAC={asked.pop('env')}"} if "env" in asked else {}
    result = node.add({**conf, **asked}, pod, env=env)
    assert links(pod)["eth0"]["address"] == mac == result["interfaces"][0]["mac"]


def test_dns_is_ipams_not_the_configurations(node, pod, conf, tmp_path):
    (tmp_path / "resolv.conf").write_text("nameserver 192.0.2.1\n")
    conf["ipam"]["resolvConf"] = str(tmp_path / "resolv.conf")
    result = node.add({**conf, "dns": {"nameservers": ["192.0.2.2"]}}, pod)
    assert result["dns"] == {"nameservers": ["192.0.2.1"]}


def test_routes_lead_into_the_link_and_are_checked(node, pod, conf):
    conf["ipam"]["routes"] = [{"dst": "0.0.0.0/0"}, {"dst": "2001:db8::/32"}]
    result = node.add(conf, pod)
    assert ("default", "10.22.0.1") in routes(pod) and ("2001:db8::/32", "fd00:22::1") in routes(pod, family=6)
    node.check(conf, pod, result)
    run("ip", "-n", pod, "route", "del", "default")
    assert "0.0.0.0/0" in node.check_refused(conf, pod, result)


def test_duplicate_address_detection_is_not_asked_for(node, pod, conf):
    node.add(conf, pod)
    assert sysctl("net/ipv6/conf/eth0/accept_dad", pod) == "0"


def test_disableipv6_leaves_none_on_the_link(node, pod, conf):
    conf["ipam"]["ranges"] = [[{"subnet": "10.22.0.0/24"}]]
    node.add({**conf, "disableIPv6": True}, pod)
    assert "inet6" not in run("ip", "-n", pod, "addr", "show", "eth0")


def test_pod_that_has_the_name_keeps_its_link(node, pod, conf):
    node.add(conf, pod)
    before = node.left(pod)
    assert 'failed to rename dummy to "eth0"' in node.refused("ADD", conf, pod)["msg"]
    assert node.left(pod) == before


@pytest.mark.parametrize("words, says", [
    ("link set eth0 down", "Interface eth0 is down"),
    ("addr del 10.22.0.2/24 dev eth0", "Failed to match addr 10.22.0.2/24 on interface eth0"),
    ("link set eth0 address 0a:00:00:00:00:01", "Interface eth0 Mac doesn't match: {mac}"),
    ("link del eth0", "Interface name eth0 not found")])
def test_check_sees_what_is_wrong(node, pod, conf, words, says):
    result = node.add(conf, pod)
    run("ip", "-n", pod, *words.split())
    assert node.check_refused(conf, pod, result) == says.format(mac=result["interfaces"][0]["mac"])


def test_check_sees_another_kind_of_link(node, pod, conf):
    result = node.add(conf, pod)
    run("ip", "-n", pod, "link", "del", "eth0")
    run("ip", "-n", pod, "link", "add", "eth0", "address", result["interfaces"][0]["mac"], "type", "veth")
    assert node.check_refused(conf, pod, result) == "Error: Container interface eth0 not of type dummy"


@pytest.mark.parametrize("gone", ["link", "netns", "variable"])
def test_del_of_what_is_gone_succeeds_and_frees_the_address(node, pod, conf, gone):
    node.add(conf, pod)
    if gone == "link":
        run("ip", "-n", pod, "link", "del", "eth0")
    elif gone == "netns":
        run("ip", "netns", "del", pod)
    node.delete(conf, "" if gone == "variable" else pod, cid=f"c-{pod}")
    assert node.held() == {}


def test_gc_frees_addresses_of_pods_that_are_no_more(node, pod, pod_netns, conf):
    other = pod_netns()
    node.add(conf, pod)
    node.add(conf, other)
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": f"c-{other}", "ifname": "eth0"}]})
    assert {content.split()[0] for content in node.held().values()} == {f"c-{other}"}


def test_status_is_fine_where_there_is_room(node, conf):
    node.ok("STATUS", conf)
    conf["ipam"]["ranges"] = [[{"subnet": "10.22.0.0/24", "rangeStart": "10.22.9.1"}]]
    assert node.refused("STATUS", conf)["code"]
