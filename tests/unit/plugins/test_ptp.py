"""ptp on the real kernel: a veth pair whose host end receives all packets of the pod."""

import os

import pytest
from lab.node import (
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
    assert links()[host["name"]]["address"] == host["mac"]
    assert "UP" in links()[host["name"]]["flags"]
    assert inside == {"name": "eth0", "mac": links(pod)["eth0"]["address"], "sandbox": f"/run/netns/{pod}"}
    assert result["ips"] == [{"address": "10.22.0.2/24", "gateway": "10.22.0.1", "interface": 1}]
    assert result["routes"] == [{"dst": "0.0.0.0/0"}]
    assert sysctl("net/ipv4/ip_forward") == "1"


def test_all_traffic_goes_through_the_host_end(node, pod, conf):
    host = node.add(conf, pod)["interfaces"][0]["name"]
    inside, outside = routes(pod), routes()
    assert addresses("eth0", pod) == ["10.22.0.2/24"]
    assert addresses(host) == ["10.22.0.1/32"]
    assert set(inside) == {("default", "10.22.0.1"), ("10.22.0.0/24", "10.22.0.1"), ("10.22.0.1", "")}
    assert inside["10.22.0.1", ""]["scope"] == "link"
    assert inside["10.22.0.1", ""]["prefsrc"] == "10.22.0.2"
    assert inside["10.22.0.0/24", "10.22.0.1"]["prefsrc"] == "10.22.0.2"
    assert outside["10.22.0.2", ""]["dev"] == host
    assert source_seen(pod, None, "10.22.0.1") == "10.22.0.2"


def test_pods_of_one_subnet_reach_each_other_through_the_host(node, pod_netns, conf):
    one, two = pod_netns(), pod_netns()
    node.add(conf, one)
    node.add(conf, two)
    assert source_seen(one, two, "10.22.0.3") == "10.22.0.2"


@pytest.mark.parametrize("keys", [{}, {"enabledad": True}], ids=["without detection", "enabledad"])
def test_dual_stack_addresses_are_usable_when_add_returns(node, pod, keys):
    conf = node.conf(*DUAL, type="ptp", routes=["0.0.0.0/0", "::/0"], **keys)
    host = node.add(conf, pod)["interfaces"][0]["name"]
    tentative = "ip", "-n", pod, "-6", "addr", "show", "tentative"
    assert run(*tentative, "scope", "global") == ""
    assert eventually(lambda: run(*tentative) == "")  # a worker of the kernel checks the link-local address later
    assert addresses("eth0", pod) == ["10.22.0.2/24", "fd00:22::2/64"]
    assert ("default", "fd00:22::1") in routes(pod, family=6)
    assert sorted(addresses(host)) == ["10.22.0.1/32", "fd00:22::1/128"]
    assert sysctl("net/ipv6/conf/all/forwarding") == "1"


def test_duplicate_ipv6_address_is_an_error_and_leaves_nothing(node, pod):
    # The host's end has the address, too, and answers the pod's duplicate address detection.
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    ipam = {"type": "static", "addresses": [{"address": "fd00:22::7/64", "gateway": "fd00:22::7"}]}
    before = node.left(pod)
    error = node.refused("ADD", node.conf(type="ptp", enabledad=True, ipam=ipam), pod)
    assert "link eth0 has address fd00:22::7 in DADFAILED state" in error["msg"]
    assert node.left(pod) == before


def test_ipv6_pod_is_reached_from_the_host(node, pod):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    node.add(node.conf("fd00:22::/64", type="ptp"), without_dad(pod))
    assert source_seen(None, pod, "fd00:22::2") == "fd00:22::1"


def test_both_ends_have_the_mtu(node, pod, conf):
    host = node.add({**conf, "mtu": 1400}, pod)["interfaces"][0]["name"]
    assert (links()[host]["mtu"], links(pod)["eth0"]["mtu"]) == (1400, 1400)


MACS = {"runtimeConfig": "02:00:00:00:00:01", "args": "02:00:00:00:00:02", "CNI_ARGS": "02:00:00:00:00:03"}


@pytest.mark.parametrize("ways", [("runtimeConfig",), ("args",), ("CNI_ARGS",), ("args", "CNI_ARGS"),
                                  ("runtimeConfig", "args", "CNI_ARGS")], ids="+".join)
def test_mac_is_taken_from_the_source_of_highest_precedence(node, pod, conf, ways):
    if "runtimeConfig" in ways:
        conf["runtimeConfig"] = {"mac": MACS["runtimeConfig"]}
    if "args" in ways:
        conf["args"] = {"cni": {"mac": MACS["args"]}}
    args = f"IgnoreUnknown=1;MAC={MACS['CNI_ARGS']}" if "CNI_ARGS" in ways else ""
    result = node.add(conf, pod, env={"CNI_ARGS": args})
    assert result["interfaces"][1]["mac"] == links(pod)["eth0"]["address"] == MACS[ways[0]]
    assert result["interfaces"][0]["mac"] != MACS[ways[0]]


def test_bad_mac_is_refused_before_anything_is_made(node, pod, conf):
    before = node.left(pod)
    for mac in ("02:00", "02:00:00:00:00:01:02:03"):
        error = node.refused("ADD", {**conf, "runtimeConfig": {"mac": mac}}, pod)
        assert error["code"] == 7
        assert mac in error["msg"]
        assert node.left(pod) == before


def test_cni_args_that_the_reference_does_not_read_are_no_error(node, pod, tmp_path):
    # IPAM plugins such as dhcp accept these values. In the test, a shell script is the IPAM plugin.
    script = tmp_path / "any-ipam"
    script.write_text('#!/bin/sh\n[ $CNI_COMMAND = DEL ] || echo \'{"cniVersion": "1.1.0", "ips": '
                      '[{"address": "10.22.0.2/24", "gateway": "10.22.0.1"}]}\'\n')
    script.chmod(0o755)
    env = {"CNI_ARGS": f"COLOUR=red;plain;MAC={MACS['CNI_ARGS']}", "CNI_PATH": str(tmp_path)}
    result = node.add(node.conf(type="ptp", ipam={"type": "any-ipam"}), pod, env=env)
    assert result["interfaces"][1]["mac"] == MACS["CNI_ARGS"]
    node.delete(node.conf(type="ptp", ipam={"type": "any-ipam"}), pod, env=env)


def test_dns_of_the_network_overrides_that_of_ipam(node, pod, conf):
    assert node.add({**conf, "dns": {"search": ["example.org"]}}, pod)["dns"] == {"search": ["example.org"]}


def test_dns_of_ipam_is_used_if_the_network_has_none(node, pod):
    ipam = {"type": "static", "addresses": [{"address": "10.22.0.9/24", "gateway": "10.22.0.1"}],
            "dns": {"domain": "a.example"}}
    assert node.add(node.conf(type="ptp", ipam=ipam, dns={}), pod)["dns"] == {"domain": "a.example"}


def test_addresses_that_share_a_subnet_or_only_the_gateway(node, pod):
    # The reference plugin fails at the second attachment: it adds an address to the host's end that exists already.
    ipam = {"type": "static", "addresses": [
        {"address": address, "gateway": gateway} for address, gateway in (
            ("10.22.0.5/24", "10.22.0.1"), ("10.22.0.6/24", "10.22.0.1"), ("192.0.2.7/32", "10.22.0.1"),
            ("fd00:22::5/64", "fd00:22::1"), ("fd00:22::6/64", "fd00:22::1"))]}
    conf = node.conf(type="ptp", ipam=ipam)
    result = node.add(conf, pod)
    host = result["interfaces"][0]["name"]
    assert sorted(addresses(host)) == ["10.22.0.1/32", "fd00:22::1/128"]
    assert {dst for dst, _ in routes()} == {"10.22.0.5", "10.22.0.6", "192.0.2.7"}
    for address in ("10.22.0.6", "192.0.2.7", "fd00:22::6"):
        assert source_seen(None, pod, address) in ("10.22.0.1", "fd00:22::1")
    node.check(conf, pod, result)


def test_host_has_a_route_to_each_address_and_del_leaves_none(node, pod):
    conf = node.conf(*DUAL, type="ptp")
    host = node.add(conf, pod)["interfaces"][0]["name"]
    assert routes()["10.22.0.2", ""]["scope"] == "host"
    assert routes()["10.22.0.2", ""]["dev"] == routes(family=6)["fd00:22::2", ""]["dev"] == host
    node.delete(conf, pod)
    assert routes() == {}
    assert not {dst for dst, _ in routes(family=6)} & {"fd00:22::1", "fd00:22::2"}


@pytest.mark.parametrize("backend", ["nftables", "iptables"])
def test_both_backends_masquerade_and_leave_nothing(node, pod_netns, backend):
    outside, pod = pod_netns(), pod_netns()
    node.uplink(outside)
    conf = node.conf("10.33.0.0/24", "fd00:33::/64", type="ptp", routes=["0.0.0.0/0", "::/0"], ipMasq=True,
                     ipMasqBackend=backend)
    run("ip", "addr", "add", "10.22.0.1/24", "dev", "up0")
    run("ip", "addr", "add", "fd00:22::1/64", "dev", "up0", "nodad")
    result = node.add(conf, pod)
    assert source_seen(pod, outside, "10.22.0.254") == "10.22.0.1"
    assert source_seen(pod, outside, "fd00:22::fe") == "fd00:22::1"
    assert bool(elements("pods4")) is (backend == "nftables") is not ("CNI-" in run("nft", "list", "ruleset"))
    node.delete({**conf, "prevResult": result}, pod)
    assert elements("pods4") == elements("pods6") == []
    assert "CNI-" not in run("nft", "list", "ruleset")


def test_address_without_a_gateway_is_refused_before_anything_is_made(node, pod):
    before = node.left(pod)
    ipam = {"type": "static", "addresses": [{"address": "10.22.0.9/24"}]}
    error = node.refused("ADD", node.conf(type="ptp", enabledad=True, ipam=ipam), pod)
    assert "10.22.0.9/24" in error["msg"]
    assert "gateway" in error["msg"]
    assert node.left(pod) == before
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
    assert set(links()) == set(links(pod)) == {"lo"}
    assert node.held() == {}
    assert routes() == {}


SPOILED = {
    "no link": (("link", "del", "eth0"), "Interface name eth0 not found"),
    "another MAC": (("link", "set", "eth0", "address", "02:00:00:00:00:77"), "Mac doesn't match"),
    "no address": (("addr", "del", "10.22.0.2/24", "dev", "eth0"), "Failed to match addr 10.22.0.2/24"),
    "no route to the subnet": (("route", "del", "10.22.0.0/24"), "Failed to find Gateway"),
    "no default route": (("route", "del", "default"), "Expected Route 0.0.0.0/0"),
}


def test_check_finds_that_the_host_end_is_gone(node, pod, conf):
    result = node.add(conf, pod)
    mac = result["interfaces"][1]["mac"]
    run("ip", "link", "del", "eth0", netns=pod)
    for command in (f"link add eth0 address {mac} type veth peer name other", "link set other up", "link set eth0 up",
                  "addr add 10.22.0.2/24 dev eth0", "route add default via 10.22.0.1"):
        run("ip", *command.split(), netns=pod)
    assert "ptp: host end of eth0 was not found" in node.check_refused(conf, pod, result)


@pytest.mark.parametrize("what", SPOILED)
def test_check_reports_the_change(node, pod, conf, what):
    result = node.add(conf, pod)
    node.check(conf, pod, result)
    command, msg = SPOILED[what]
    run("ip", *command, netns=pod)
    assert msg in node.check_refused(conf, pod, result)


def test_check_needs_a_prev_result_and_a_veth(node, pod, conf):
    result = node.add(conf, pod)
    error = node.refused("CHECK", conf, pod)
    assert (error["code"], error["msg"]) == (999, "ptp: Required prevResult missing")
    mac = result["interfaces"][1]["mac"]
    run("ip", "link", "del", "eth0", netns=pod)
    run("ip", "link", "add", "name", "eth0", "address", mac, "type", "ifb", netns=pod)
    assert "Container interface eth0 not of type veth/p2p" in node.check_refused(conf, pod, result)


@pytest.mark.parametrize("gone", ["nothing", "netns", "link", "files", "netns unnamed"])
def test_del_leaves_nothing_and_may_be_repeated(node, pod, gone):
    conf = node.conf(*DUAL, type="ptp", ipMasq=True)
    node.add(conf, without_dad(pod))
    if gone.startswith("netns"):
        run("ip", "netns", "del", pod)
    elif gone == "link":
        run("ip", "link", "del", "eth0", netns=pod)
    elif gone == "files":
        for name in node.held():
            os.unlink(f"{node.data_dir}/net-a/{name}")
    for _ in range(2):
        node.delete(conf, "" if gone == "netns unnamed" else pod, cid=cid_of(pod))
    assert eventually(lambda: set(links()) == {"lo"})
    assert node.held() == {}
    assert elements("pods4") == elements("pods6") == []


def test_status_needs_an_ipam_plugin(node):
    node.ok("STATUS", node.conf(type="ptp"))
    assert "no plugin name provided" in node.refused("STATUS", node.conf(type="ptp", ipam=None))["msg"]


def test_gc_keeps_valid_attachments(node, pod_netns):
    conf = node.conf(type="ptp", ipMasq=True)
    kept, lost = pod_netns(), pod_netns()
    node.add(conf, kept)
    node.add(conf, lost)
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": cid_of(kept), "ifname": "eth0"}]})
    assert set(node.held()) == {"10.22.0.2"}
    assert [key for key, _ in elements("pods4")] == ["10.22.0.2"]
