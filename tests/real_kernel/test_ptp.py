"""ptp on the real kernel: a veth pair whose host end routes, with everything in the pod going through it."""

import os

import pytest
from real_kernel.node import (
    Inside,
    addresses,
    cid_of,
    elements,
    eventually,
    links,
    routes,
    run,
    set_sysctl,
    source_seen,
    sysctl,
)

from fastcni.spec.version import ALL

DUAL = ("10.22.0.0/24", "fd00:22::/64")


@pytest.fixture
def conf(node):
    return node.conf(type="ptp", routes=["0.0.0.0/0"])


def without_dad(pod):
    with Inside(pod):
        set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return pod


def test_result_and_kernel_agree(node, pod, conf):
    result = node.add(conf, pod)
    host, inside = result["interfaces"]
    assert links()[host["name"]]["address"] == host["mac"] and "UP" in links()[host["name"]]["flags"]
    assert inside == {"name": "eth0", "mac": links(pod)["eth0"]["address"], "sandbox": f"/run/netns/{pod}"}
    assert result["ips"] == [{"address": "10.22.0.2/24", "gateway": "10.22.0.1", "interface": 1}]
    assert result["routes"] == [{"dst": "0.0.0.0/0"}] and sysctl("net/ipv4/ip_forward") == "1"


def test_all_traffic_goes_through_the_host_end(node, pod, conf):
    host = node.add(conf, pod)["interfaces"][0]["name"]
    inside, outside = routes(pod), routes()
    assert addresses("eth0", pod) == ["10.22.0.2/24"] and addresses(host) == ["10.22.0.1/32"]
    assert set(inside) == {("default", "10.22.0.1"), ("10.22.0.0/24", "10.22.0.1"), ("10.22.0.1", "")}
    assert inside["10.22.0.1", ""]["scope"] == "link" and inside["10.22.0.1", ""]["prefsrc"] == "10.22.0.2"
    assert inside["10.22.0.0/24", "10.22.0.1"]["prefsrc"] == "10.22.0.2"
    assert outside["10.22.0.2", ""]["dev"] == host
    assert source_seen(pod, None, "10.22.0.1") == "10.22.0.2"


def test_pods_of_one_subnet_reach_each_other_through_the_host(node, pod_netns, conf):
    one, two = pod_netns(), pod_netns()
    node.add(conf, one)
    node.add(conf, two)
    assert source_seen(one, two, "10.22.0.3") == "10.22.0.2"


def test_dual_stack_waits_for_duplicate_address_detection(node, pod):
    conf = node.conf(*DUAL, type="ptp", routes=["0.0.0.0/0", "::/0"])
    host = node.add(conf, pod)["interfaces"][0]["name"]
    tentative = run("ip", "-n", pod, "-6", "addr", "show", "tentative")
    assert tentative == "" and addresses("eth0", pod) == ["10.22.0.2/24", "fd00:22::2/64"]
    assert ("default", "fd00:22::1") in routes(pod, family=6)
    assert sorted(addresses(host)) == ["10.22.0.1/32", "fd00:22::1/128"]
    assert sysctl("net/ipv6/conf/all/forwarding") == "1"


def test_duplicate_ipv6_address_is_an_error_and_leaves_nothing(node, pod):
    # The host end has the same address, and answers the pod's question who else has it.
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    ipam = {"type": "static", "addresses": [{"address": "fd00:22::7/64", "gateway": "fd00:22::7"}]}
    before = node.left(pod)
    error = node.refused("ADD", node.conf(type="ptp", enabledad=True, ipam=ipam), pod)
    assert "link eth0 has address fd00:22::7 in DADFAILED state" in error["msg"] and node.left(pod) == before


def test_ipv6_pod_is_reached_from_the_host(node, pod):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    node.add(node.conf("fd00:22::/64", type="ptp"), without_dad(pod))
    assert source_seen(None, pod, "fd00:22::2") == "fd00:22::1"


def test_mtu_is_that_of_both_ends(node, pod, conf):
    host = node.add({**conf, "mtu": 1400}, pod)["interfaces"][0]["name"]
    assert (links()[host]["mtu"], links(pod)["eth0"]["mtu"]) == (1400, 1400)


def test_dns_of_the_network_goes_before_that_of_ipam(node, pod, conf):
    assert node.add({**conf, "dns": {"search": ["example.org"]}}, pod)["dns"] == {"search": ["example.org"]}


def test_address_without_a_gateway_is_refused_before_anything_is_made(node, pod):
    before = node.left(pod)
    ipam = {"type": "static", "addresses": [{"address": "10.22.0.9/24"}]}
    error = node.refused("ADD", node.conf(type="ptp", enabledad=True, ipam=ipam), pod)
    assert "10.22.0.9/24" in error["msg"] and "gateway" in error["msg"] and node.left(pod) == before
    assert sysctl("net/ipv4/ip_forward") == "0"


def test_ipam_is_required(node, pod):
    before = node.left(pod)
    assert "no plugin name provided" in node.refused("ADD", node.conf(type="ptp", ipam=None), pod)["msg"]
    assert node.left(pod) == before


@pytest.mark.parametrize("version", ALL)
def test_add_check_and_del_at_every_version(node, pod, conf, version):
    conf["cniVersion"] = version
    result = node.add(conf, pod)
    assert result["cniVersion"] == version
    if version in ("0.1.0", "0.2.0"):
        assert result["ip4"] == {"ip": "10.22.0.2/24", "gateway": "10.22.0.1", "routes": [{"dst": "0.0.0.0/0"}]}
    else:
        assert [item["name"] for item in result["interfaces"]][1:] == ["eth0"]
    if version in ("0.4.0", "1.0.0", "1.1.0"):
        node.check(conf, pod, result)
    node.delete({**conf, "prevResult": result}, pod)
    assert set(links()) == set(links(pod)) == {"lo"} and node.held() == {} and routes() == {}


SPOILED = {
    "no link": (("link", "del", "eth0"), "Interface name eth0 not found"),
    "another MAC": (("link", "set", "eth0", "address", "02:00:00:00:00:77"), "Mac doesn't match"),
    "no address": (("addr", "del", "10.22.0.2/24", "dev", "eth0"), "Failed to match addr 10.22.0.2/24"),
    "no route to the subnet": (("route", "del", "10.22.0.0/24"), "Failed to find Gateway"),
    "no default route": (("route", "del", "default"), "Expected Route 0.0.0.0/0"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_check_finds(node, pod, conf, what):
    result = node.add(conf, pod)
    node.check(conf, pod, result)
    command, words = SPOILED[what]
    run("ip", "-n", pod, *command)
    assert words in node.check_refused(conf, pod, result)


def test_check_needs_a_prev_result_and_a_veth(node, pod, conf):
    result = node.add(conf, pod)
    assert "ptp: Required prevResult missing" in node.refused("CHECK", conf, pod)["msg"]
    mac = result["interfaces"][1]["mac"]
    run("ip", "-n", pod, "link", "del", "eth0")
    run("ip", "-n", pod, "link", "add", "name", "eth0", "address", mac, "type", "ifb")
    assert "Container interface eth0 not of type veth/p2p" in node.check_refused(conf, pod, result)


@pytest.mark.parametrize("gone", ["nothing", "netns", "link", "files", "netns unnamed"])
def test_del_leaves_nothing_and_may_be_repeated(node, pod, gone):
    conf = node.conf(*DUAL, type="ptp", ipMasq=True)
    node.add(conf, without_dad(pod))
    if gone.startswith("netns"):
        run("ip", "netns", "del", pod)
    elif gone == "link":
        run("ip", "-n", pod, "link", "del", "eth0")
    elif gone == "files":
        for name in node.held():
            os.unlink(f"{node.data_dir}/net-a/{name}")
    for _ in range(2):
        node.delete(conf, "" if gone == "netns unnamed" else pod, cid=cid_of(pod))
    assert eventually(lambda: set(links()) == {"lo"}) and node.held() == {}
    assert elements("pods4") == elements("pods6") == []


def test_status_and_gc(node, pod_netns):
    conf = node.conf("10.22.0.0/29", type="ptp", ipMasq=True)
    kept, lost = pod_netns(), pod_netns()
    node.add(conf, kept)
    node.add(conf, lost)
    node.ok("STATUS", conf)
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": cid_of(kept), "ifname": "eth0"}]})
    assert set(node.held()) == {"10.22.0.2"} and [key for key, _ in elements("pods4")] == ["10.22.0.2"]
