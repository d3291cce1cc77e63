"""vrf: traffic in a VRF, routes that move to the VRF's table, each key, CHECK, and DEL when state is missing."""

import shutil
import threading

import features
import pytest
from lab.node import Inside, addresses, arrives_by, ip_json, links, run

from fastcni.kernel import netns as kernel_netns

needs_vrf = pytest.mark.needs("vrf")
needs_ping = pytest.mark.skipif(not shutil.which("ping"), reason="needs ping (Debian: iputils-ping)")
VERSIONS = ("0.3.1", "0.4.0", "1.0.0", "1.1.0")
VRF = {"cniVersion": "1.1.0", "name": "net-b", "type": "vrf", "vrfname": "blue"}


@pytest.fixture
def pod(node, pod):
    conf = node.second_network()
    conf["ipam"]["routes"] = [{"dst": "192.0.2.0/24"}, {"dst": "2001:db8::/32"}]
    node.two_links(pod, conf)
    return pod


def table(pod, number, family=4, device="net1"):
    """Return [(dst, gateway or "")] of a link's routes in a table, without link-local routes and without routes that
    the kernel added."""
    found = ip_json(f"-{family}", "route", "show", "table", number, "dev", device, netns=pod)
    return sorted((route["dst"], route.get("gateway", "")) for route in found if route.get("type") not in (
        "local", "broadcast", "multicast", "anycast") and not route["dst"].startswith(("fe80", "ff00")))


def vrf_of(pod, name="blue"):
    """Return the number of a VRF's table, or None if the VRF does not exist."""
    return links(pod).get(name, {}).get("linkinfo", {}).get("info_data", {}).get("table")


def vrfs(pod):
    return {name for name, link in links(pod).items() if link.get("linkinfo", {}).get("info_kind") == "vrf"}


MOVED = [("10.23.0.0/24", ""), ("192.0.2.0/24", "10.23.0.1")]
MOVED6 = [("2001:db8::/32", "fd00:23::1"), ("fd00:23::/64", "")]


@needs_vrf
def test_only_sockets_in_the_vrf_use_its_link(node, pod):
    assert (arrives_by(pod, ""), arrives_by(pod, "", 6)) == ("br1", "br1")
    result = node.add(VRF, pod, ifname="net1")
    assert result == node.results[pod]
    assert (arrives_by(pod, ""), arrives_by(pod, "", 6)) == ("br0", "br0")
    assert (arrives_by(pod, "", device="blue"), arrives_by(pod, "", 6, device="blue")) == ("br1", "br1")
    node.delete(VRF, pod, ifname="net1")
    assert vrfs(pod) == set()
    assert "master" not in links(pod)["net1"]


@needs_vrf
@needs_ping
def test_packets_to_the_pods_addresses_arrive_at_once(node, pod):
    node.add(VRF, pod, ifname="net1")
    assert run("ping", "-c", "1", "-W", "1", "10.23.0.2")
    assert run("ping", "-c", "1", "-W", "1", "fd00:23::2")


@needs_vrf
def test_addresses_stay_and_routes_move(node, pod):
    for command in ("route add 198.51.100.9 dev net1 scope link src 10.23.0.2",
                  "route add 198.51.100.0/24 via 198.51.100.9 dev net1 metric 7 mtu 1300",
                  "-6 route add 2001:db8:5::/48 via fd00:23::9 dev net1 src fd00:23::2"):
        run("ip", *command.split(), netns=pod)
    node.add(VRF, pod, ifname="net1")
    assert addresses("net1", pod) == ["10.23.0.2/24", "fd00:23::2/64"]
    assert links(pod)["net1"]["master"] == "blue"
    assert "UP" in links(pod)["blue"]["flags"]
    assert vrf_of(pod) == 1
    assert table(pod, 1) == sorted([*MOVED, ("198.51.100.9", ""), ("198.51.100.0/24", "198.51.100.9")])
    assert table(pod, 1, 6) == sorted([*MOVED6, ("2001:db8:5::/48", "fd00:23::9")])
    assert table(pod, "main") == table(pod, "main", 6) == []
    moved, = ip_json("-d", "route", "show", "table", "1", "198.51.100.0/24", netns=pod)
    assert moved["metric"] == 7
    assert moved["metrics"] == [{"mtu": 1300}]
    assert table(pod, "main", device="eth0") == [("10.22.0.0/24", ""), ("default", "10.22.0.1")]


@needs_vrf
def test_ipv6_addresses_that_the_kernel_would_drop_stay(node, pod):
    run("sysctl", "-q", "-w", "net.ipv6.conf.net1.keep_addr_on_down=0", netns=pod)
    node.add(VRF, pod, ifname="net1")
    assert addresses("net1", pod) == ["10.23.0.2/24", "fd00:23::2/64"]
    assert table(pod, 1, 6) == MOVED6
    assert arrives_by(pod, "fd00:23::2", 6, device="blue") == "br1"


@needs_vrf
def test_add_waits_for_duplicate_address_detection(node, pod):
    run("sysctl", "-q", "-w", "net.ipv6.conf.net1.accept_dad=1", netns=pod)
    run("ip", "addr", "add", "fd00:23::77/64", "dev", "net1", netns=pod)
    node.add(VRF, pod, ifname="net1")
    found, = ip_json("-6", "addr", "show", "dev", "net1", "to", "fd00:23::77", netns=pod)
    assert "tentative" not in found["addr_info"][0]
    assert arrives_by(pod, "fd00:23::77", 6, device="blue") == "br1"


@needs_vrf
def test_a_link_without_ipv6_can_be_in_a_vrf(node, pod):
    run("sysctl", "-q", "-w", "net.ipv6.conf.net1.disable_ipv6=1", netns=pod)
    node.add(VRF, pod, ifname="net1")
    assert table(pod, 1) == MOVED
    assert arrives_by(pod, "", device="blue") == "br1"


@needs_vrf
def test_links_of_a_pod_share_a_vrf_and_del_of_the_last_removes_it(node, pod):
    node.behind(node.conf("10.24.0.0/24", name="net-c", bridge="br2", isGateway=True), pod, ifname="net2")
    other = {**VRF, "name": "net-c"}
    node.add(VRF, pod, ifname="net1")
    node.add(other, pod, ifname="net2")
    assert vrfs(pod) == {"blue"}
    assert table(pod, 1) == MOVED
    assert table(pod, 1, device="net2") == [("10.24.0.0/24", "")]
    node.delete(VRF, pod, ifname="net1")
    assert vrfs(pod) == {"blue"}
    assert links(pod)["net2"]["master"] == "blue"
    node.delete(other, pod, ifname="net2")
    assert vrfs(pod) == set()


# -- keys -------------------------------------------------------------------------------------------------

@needs_vrf
def test_table_sets_the_vrfs_table(node, pod):
    conf = {**VRF, "table": 70000}
    result = node.add(conf, pod, ifname="net1")
    assert vrf_of(pod) == 70000
    assert table(pod, 70000) == MOVED
    node.check(conf, pod, result, ifname="net1")
    assert node.check_refused({**VRF, "table": 5}, pod, result, ifname="net1") == \
        "VRF blue has routing table 70000, not 5"


@needs_vrf
def test_table_must_be_that_of_the_existing_vrf(node, pod):
    run("ip", "link", "add", "blue", "type", "vrf", "table", "10", netns=pod)
    before = node.left(pod)
    assert node.refused("ADD", {**VRF, "table": 11}, pod, ifname="net1")["msg"] == \
        "cmdAdd failed: VRF blue already exist with different routing table 10"
    assert node.left(pod) == before
    for asked in ({}, {"table": 10}):
        node.add({**VRF, **asked}, pod, ifname="net1")
        run("ip", "link", "set", "net1", "nomaster", netns=pod)
    assert vrf_of(pod) == 10


@needs_vrf
def test_a_free_table_has_no_vrf_no_rule_and_no_routes(node, pod):
    run("ip", "link", "add", "red", "type", "vrf", "table", "1", netns=pod)
    run("ip", "rule", "add", "fwmark", "1", "lookup", "2", netns=pod)
    run("ip", "route", "add", "203.0.113.0/24", "dev", "eth0", "table", "3", netns=pod)
    node.add(VRF, pod, ifname="net1")
    assert vrf_of(pod) == 4


@needs_vrf
def test_a_link_of_that_name_that_is_no_vrf_is_refused_and_stays(node, pod):
    run("ip", "link", "add", "blue", "type", "bridge", netns=pod)
    assert node.refused("ADD", VRF, pod, ifname="net1")["msg"] == "cmdAdd failed: Netlink blue is not a VRF"
    node.delete(VRF, pod, ifname="net1")
    assert "blue" in links(pod)


@needs_vrf
def test_a_link_with_a_master_is_refused(node, pod):
    node.add(VRF, pod, ifname="net1")
    before = node.left(pod)
    error = node.refused("ADD", {**VRF, "vrfname": "red"}, pod, ifname="net1")
    assert error["msg"] == "cmdAdd failed: interface net1 has already a master set: blue"
    assert node.left(pod) == before


@pytest.mark.parametrize("keys, msg", [
    ({"vrfname": None}, "configuration is expected to have a valid vrf name"),
    ({"vrfname": ""}, "configuration is expected to have a valid vrf name"),
    ({"vrfname": "a/b"}, "configuration is expected to have a valid vrf name"),
    ({"vrfname": "sixteen-letters-"}, "configuration is expected to have a valid vrf name"),
    ({"vrfname": 5}, "failed to load netconf: vrfname: expected a string, got number 5"),
    ({"table": -1}, "failed to load netconf: table: expected an integer from 0 up to 4294967295, got number -1"),
    ({"table": 1 << 32}, "failed to load netconf: table: expected an integer from 0 up to 4294967295, "
                         "got number 4294967296"),
])
def test_bad_values_are_refused_but_not_by_del(node, pod, keys, msg):
    error = node.refused("ADD", {**VRF, **keys}, pod, ifname="net1")
    assert (error["code"], error["msg"]) == (7, msg)
    node.delete({**VRF, **keys}, pod, ifname="net1")


def test_vrf_must_be_chained_to_a_link(node, pod):
    error = node.refused("ADD", {**VRF, "prevResult": None}, pod, ifname="net1")
    assert (error["code"], error["msg"]) == (7, "missing prevResult from earlier plugin")
    assert node.refused("ADD", VRF, pod, ifname="net9")["msg"] == "cmdAdd failed: could not get link by name net9"


def test_vrf_supports_versions_from_0_3_1(node, pod):
    assert node.refused("ADD", {**VRF, "cniVersion": "0.3.0"}, pod, ifname="net1")["code"] == 1


@needs_vrf
@pytest.mark.parametrize("version", VERSIONS)
def test_add_and_del_at_every_version(node, pod, version):
    node.delete(node.second_network(), pod, ifname="net1")
    node.behind(node.second_network(cniVersion=version), pod, ifname="net1")
    conf = {**VRF, "cniVersion": version}
    result = node.add(conf, pod, ifname="net1")
    assert result == node.results[pod]
    assert vrfs(pod) == {"blue"}
    if version >= "0.4.0":
        node.check(conf, pod, result, ifname="net1")
    node.delete(conf, pod, ifname="net1")
    assert vrfs(pod) == set()


# -- CHECK, DEL and STATUS --------------------------------------------------------------------------------

@needs_vrf
def test_check_of_the_plugin_before_it_finds_its_routes_where_they_are_now(node, pod):
    """vrf has moved the routes to another table. The reference plugin checks only the main table, and fails."""
    result = node.add(VRF, pod, ifname="net1")
    node.check(node.second_network(), pod, result, ifname="net1")
    run("ip", "route", "del", "192.0.2.0/24", "table", "1", netns=pod)
    assert "Expected Route 192.0.2.0/24" in node.check_refused(node.second_network(), pod, result, ifname="net1")


@needs_vrf
@pytest.mark.parametrize("change", ["link set net1 nomaster", "link del net1", "link del blue"])
def test_check_reports_a_link_outside_the_vrf(node, pod, change):
    result = node.add(VRF, pod, ifname="net1")
    node.check(VRF, pod, result, ifname="net1")
    run("ip", *change.split(), netns=pod)
    assert node.check_refused(VRF, pod, result, ifname="net1") == "failed to find net1 associated to vrf blue"


@needs_vrf
@pytest.mark.parametrize("gone", ["link", "vrf", "netns", "variable", "namespace under the path", "prevResult"])
def test_del_of_missing_state_succeeds(node, pod, tmp_path, gone):
    node.add(VRF, pod, ifname="net1")
    netns = pod
    if gone == "link":
        run("ip", "link", "del", "net1", netns=pod)
    elif gone == "vrf":
        run("ip", "link", "del", "blue", netns=pod)
    elif gone == "netns":
        run("ip", "netns", "del", pod)
    elif gone != "prevResult":
        netns = "" if gone == "variable" else str(tmp_path / "file")
        (tmp_path / "file").touch()
    for _ in range(2):
        node.delete({**VRF, "prevResult": None}, netns, cid="any", ifname="net1")
    if netns == pod and gone != "netns":
        assert vrfs(pod) == set()


@needs_vrf
def test_del_leaves_a_link_in_another_vrf(node, pod):
    node.add(VRF, pod, ifname="net1")
    run("ip", "link", "add", "red", "type", "vrf", "table", "10", netns=pod)
    run("ip", "link", "set", "net1", "master", "red", netns=pod)
    node.delete(VRF, pod, ifname="net1")
    assert links(pod)["net1"]["master"] == "red"
    assert vrfs(pod) == {"red"}


@needs_vrf
def test_the_plugin_waits_for_the_lock_of_the_namespace(node, pod):
    with Inside(None), open(f"/run/netns/{pod}") as other:
        with kernel_netns.locked(other.fileno(), print):
            def add():
                with Inside(node.name):
                    node.add(VRF, pod, ifname="net1")
            waiting = threading.Thread(target=add)
            waiting.start()
            waiting.join(0.3)
            assert waiting.is_alive()
            assert vrfs(pod) == set()
        waiting.join(10)
    assert vrfs(pod) == {"blue"}


@needs_vrf
def test_status_succeeds_on_a_kernel_with_vrfs(node):
    node.ok("STATUS", VRF)


@pytest.mark.skipif(features.has("vrf"), reason="this kernel has VRFs")
def test_status_and_add_report_a_kernel_without_vrfs(node, pod):
    error = node.refused("STATUS", VRF)
    assert (error["code"], error["msg"]) == (50, "this kernel has no vrf links")
    before = node.left(pod)
    error = node.refused("ADD", VRF, pod, ifname="net1")
    assert "could not add VRF blue" in error["msg"]
    assert node.left(pod) == before
