"""sbr: the link that packets take, rules and tables, each key, CHECK, and DEL when state is missing."""

import errno
import fcntl
import threading

import pytest
from lab.node import Inside, arrives_by, ip_json, run

from fastcni.kernel import netns as kernel_netns
from fastcni.kernel import waiting, wire
from fastcni.spec.version import ALL

SBR = {"cniVersion": "1.1.0", "name": "net-b", "type": "sbr"}


@pytest.fixture
def pod(node, pod):
    node.two_links(pod, node.second_network())
    return pod


def rules(pod):
    """Return {source address: table} of the routing rules for a source address."""
    return {rule["src"]: rule["table"] for family in "46" for rule in ip_json(f"-{family}", "rule", netns=pod)
            if rule["src"] != "all"}


def table(pod, number, family=4):
    """Return [(dst, gateway or "")] of net1's routes in a table, without fe80::/64."""
    found = ip_json(f"-{family}", "route", "show", "table", number, "dev", "net1", netns=pod)
    return sorted((route["dst"], route.get("gateway", "")) for route in found if not route["dst"].startswith("fe80"))


def test_packets_from_the_second_address_leave_by_the_second_link(node, pod):
    assert (arrives_by(pod, "10.23.0.2"), arrives_by(pod, "fd00:23::2", 6)) == ("br0", "br0")
    result = node.add(SBR, pod, ifname="net1")
    assert result == node.results[pod]
    assert (arrives_by(pod, "10.23.0.2"), arrives_by(pod, "fd00:23::2", 6)) == ("br1", "br1")
    assert (arrives_by(pod, "10.22.0.2"), arrives_by(pod, "fd00:22::2", 6)) == ("br0", "br0")
    assert (arrives_by(pod, ""), arrives_by(pod, "", 6)) == ("br0", "br0")
    node.delete(SBR, pod, ifname="net1")
    assert rules(pod) == {}


def test_each_address_has_a_table_with_the_routes_of_its_link(node, pod):
    run("ip", *"route add 198.51.100.0/24 via 10.23.0.9 dev net1 metric 7 mtu 1300".split(), netns=pod)
    node.add(SBR, pod, ifname="net1")
    assert rules(pod) == {"10.23.0.2": "100", "fd00:23::2": "101"}
    assert table(pod, 100) == [("10.23.0.0/24", ""), ("198.51.100.0/24", "10.23.0.9"), ("default", "10.23.0.1")]
    assert table(pod, 101, 6) == [("default", "fd00:23::1"), ("fd00:23::/64", "")]
    moved, = ip_json("-d", "route", "show", "table", "100", "198.51.100.0/24", netns=pod)
    assert moved["metric"] == 7
    assert moved["metrics"] == [{"mtu": 1300}]
    assert table(pod, "main") == table(pod, "main", 6) == []
    assert {route["dst"] for route in ip_json("route", netns=pod)} == {"default", "10.22.0.0/24"}


def test_an_address_without_an_interface_belongs_to_the_pod(node, pod):
    """As in the reference plugin, the address gets a rule. Once, fastcni ignored the address."""
    ips = [{**ip, "interface": 99} for ip in node.results[pod]["ips"]]
    node.add({**SBR, "prevResult": {**node.results[pod], "ips": ips}}, pod, ifname="net1")
    assert sorted(rules(pod)) == ["10.23.0.2", "fd00:23::2"]


def test_tables_that_a_rule_or_a_route_names_are_not_taken(node, pod):
    run("ip", "rule", "add", "from", "203.0.113.7", "lookup", "100", netns=pod)
    run("ip", "-6", "rule", "add", "fwmark", "1", "lookup", "101", netns=pod)
    run("ip", "route", "add", "203.0.113.0/24", "dev", "eth0", "table", "103", netns=pod)
    node.add(SBR, pod, ifname="net1")
    assert rules(pod) == {"203.0.113.7": "100", "10.23.0.2": "102", "fd00:23::2": "104"}
    node.delete(SBR, pod, ifname="net1")
    assert rules(pod) == {"203.0.113.7": "100"}


def test_several_addresses_of_a_subnet_have_a_table_each(node, pod):
    node.delete(node.second_network(), pod, ifname="net1")
    ipam = {"type": "static", "addresses": [{"address": "10.23.0.5/24", "gateway": "10.23.0.1"},
                                            {"address": "10.23.0.6/24", "gateway": "10.23.0.1"}]}
    node.behind(node.second_network(ipam=ipam), pod, ifname="net1")
    result = node.add(SBR, pod, ifname="net1")
    assert rules(pod) == {"10.23.0.5": "100", "10.23.0.6": "101"}
    assert table(pod, 100) == table(pod, 101) == [("10.23.0.0/24", ""), ("default", "10.23.0.1")]
    node.check(SBR, pod, result, ifname="net1")
    node.delete(SBR, pod, ifname="net1")
    assert rules(pod) == {}


@pytest.mark.parametrize("keys, devices", [({}, ["eth0"]), ({"addSourceHints": True}, ["eth0", "net1"])])
def test_a_route_of_another_link_to_the_same_subnet_stays(node, pod, keys, devices):
    """The main use of sbr is a pod on two networks with one subnet."""
    run("ip", "route", "append", "10.23.0.0/24", "dev", "eth0", netns=pod)
    node.add({**SBR, **keys}, pod, ifname="net1")
    assert [route["dev"] for route in ip_json("route", "show", "10.23.0.0/24", netns=pod)] == devices
    assert arrives_by(pod, "10.23.0.2") == "br1"


# -- keys -------------------------------------------------------------------------------------------------

def test_table_adds_only_rules(node, pod):
    before = table(pod, "main"), table(pod, "main", 6)
    run("ip", "route", "add", "default", "via", "10.23.0.1", "table", "1000", netns=pod)
    conf = {**SBR, "table": 1000, "gateways": ["10.23.0.77"], "addSourceHints": True}
    result = node.add(conf, pod, ifname="net1")
    assert rules(pod) == {"10.23.0.2": "1000", "fd00:23::2": "1000"}
    assert (table(pod, "main"), table(pod, "main", 6)) == before
    assert table(pod, 1000) == [("default", "10.23.0.1")]
    assert arrives_by(pod, "10.23.0.2") == "br1"
    node.check(conf, pod, result, ifname="net1")
    assert node.check_refused({**SBR, "table": 7}, pod, result, ifname="net1") == \
        "sbr: no rule chooses table 7 for 10.23.0.2"
    node.delete(conf, pod, ifname="net1")
    assert rules(pod) == {}


def test_del_with_table_leaves_rules_to_other_tables(node, pod):
    run("ip", "rule", "add", "from", "10.23.0.2", "lookup", "500", netns=pod)
    node.add({**SBR, "table": 7}, pod, ifname="net1")
    node.delete({**SBR, "table": 7}, pod, ifname="net1")
    assert rules(pod) == {"10.23.0.2": "500"}
    node.delete(SBR, pod, ifname="net1")
    assert rules(pod) == {}


def test_del_removes_the_rules_of_an_add_that_was_repeated(node, pod):
    for _ in range(2):
        node.add({**SBR, "table": 7}, pod, ifname="net1")
    node.delete(SBR, pod, ifname="net1")
    assert rules(pod) == {}


def test_gateways_override_those_of_the_addresses(node, pod):
    """`gateways` also overrides the link's own default route, which the reference plugin prefers."""
    run("ip", "route", "append", "default", "via", "10.23.0.1", "dev", "net1", netns=pod)
    conf = {**SBR, "gateways": ["fd00:23::77", "10.23.0.77"]}
    result = node.add(conf, pod, ifname="net1")
    assert ("default", "10.23.0.77") in table(pod, 100)
    assert ("default", "10.23.0.1") not in table(pod, 100)
    assert ("default", "fd00:23::77") in table(pod, 101, 6)
    node.check(conf, pod, result, ifname="net1")
    assert node.check_refused(SBR, pod, result, ifname="net1") == \
        "sbr: no default route via 10.23.0.1 in the table of 10.23.0.2"


def test_addsourcehints_sets_the_source_address_of_routes(node, pod):
    run("ip", "route", "add", "198.51.100.0/24", "via", "10.23.0.9", "dev", "net1", netns=pod)
    run("ip", "route", "add", "203.0.113.0/24", "dev", "net1", netns=pod)
    result = node.add({**SBR, "addSourceHints": True}, pod, ifname="net1")
    assert table(pod, "main") == [("10.23.0.0/24", ""), ("203.0.113.0/24", "")]
    assert table(pod, "main", 6) == [("fd00:23::/64", "")]
    for family, subnet, source in ((4, "10.23.0.0/24", "10.23.0.2"), (6, "fd00:23::/64", "fd00:23::2")):
        hint, = ip_json(f"-{family}", "-d", "route", "show", subnet, netns=pod)
        assert (hint["prefsrc"], hint["protocol"]) == (source, "boot")
    node.check(SBR, pod, result, ifname="net1")


def test_a_hint_that_the_kernel_refuses_is_a_warning_and_its_route_stays(node, pod):
    run("ip", "addr", "del", "fd00:23::2/64", "dev", "net1", netns=pod)
    run("ip", "-6", "route", "add", "fd00:23::/64", "dev", "net1", netns=pod)
    reply = node.call("ADD", {**SBR, "addSourceHints": True}, pod, ifname="net1")
    assert reply.status == 0
    assert b"failed to add a source hint for fd00:23::2/64" in reply.stderr
    assert table(pod, "main", 6) == [("fd00:23::/64", "")]


@pytest.mark.parametrize("keys, msg", [
    ({"gateways": ["10.23.0.1", "10.23.0.2", "::1"]},
     "gateways list cannot contain more than 2 entries (one IPv4, one IPv6)"),
    ({"gateways": ["10.23.0.1", "10.23.0.2"]},
     "gateways list contains multiple IPv4 addresses: 10.23.0.1 and 10.23.0.2"),
    ({"gateways": ["::1", "::2"]}, "gateways list contains multiple IPv6 addresses: ::1 and ::2"),
    ({"gateways": ["10.23.0"]}, "invalid static gateway IP address: 10.23.0"),
    ({"table": 0}, "failed to load netconf: table: expected an integer from 1 up to 4294967295, got number 0"),
    ({"table": "x"}, 'failed to load netconf: table: expected an integer from 1 up to 4294967295, got string "x"'),
    ({"addSourceHints": 1}, "failed to load netconf: addSourceHints: expected true or false, got number 1"),
])
def test_bad_values_are_refused_but_not_by_del(node, pod, keys, msg):
    error = node.refused("ADD", {**SBR, **keys}, pod, ifname="net1")
    assert (error["code"], error["msg"]) == (7, msg)
    node.add(SBR, pod, ifname="net1")
    node.delete({**SBR, **keys}, pod, ifname="net1")
    assert rules(pod) == {}


def test_sbr_must_be_chained_and_needs_addresses(node, pod):
    error = node.refused("ADD", {**SBR, "prevResult": None}, pod, ifname="net1")
    assert (error["code"], error["msg"]) == (7, "This plugin must be called as chained plugin")
    assert node.refused("ADD", SBR, pod, ifname="net9")["msg"] == "No IP addresses supplied on interface: net9"
    run("ip", "link", "set", "net1", "down", netns=pod)
    run("ip", "link", "set", "net1", "name", "net2", netns=pod)
    assert node.refused("ADD", SBR, pod, ifname="net1")["msg"] == "Cannot find network interface net1"


@pytest.mark.parametrize("version", ALL)
def test_add_and_del_at_every_version(node, pod, version):
    node.delete(node.second_network(), pod, ifname="net1")
    node.behind(node.second_network(cniVersion=version), pod, ifname="net1")
    conf = {**SBR, "cniVersion": version}
    result = node.add(conf, pod, ifname="net1")
    assert result == node.results[pod]
    assert sorted(rules(pod).values()) == ["100", "101"]
    if version >= "0.4.0":
        node.check(conf, pod, result, ifname="net1")
    node.delete(conf, pod, ifname="net1")
    assert rules(pod) == {}


# -- CHECK, DEL and STATUS --------------------------------------------------------------------------------

def test_check_of_the_plugin_before_it_finds_its_routes_where_they_are_now(node, pod):
    """sbr has moved the routes to another table. The reference plugin checks only the main table, and fails."""
    conf = node.second_network()
    conf["ipam"]["routes"] = [{"dst": "198.51.100.0/24"}, {"dst": "2001:db8:5::/48"}]
    node.delete(conf, pod, ifname="net1")
    node.behind(conf, pod, ifname="net1")
    result = node.add(SBR, pod, ifname="net1")
    node.check(conf, pod, result, ifname="net1")
    run("ip", "route", "del", "198.51.100.0/24", "table", "100", netns=pod)
    assert "Expected Route 198.51.100.0/24" in node.check_refused(conf, pod, result, ifname="net1")
    run("ip", "route", "del", "10.23.0.0/24", "table", "100", netns=pod)
    assert "Failed to find Gateway 10.23.0.1" in node.check_refused(conf, pod, result, ifname="net1")


def test_check_ignores_a_route_in_a_table_without_a_rule(node, pod):
    result = node.add(SBR, pod, ifname="net1")
    node.delete(SBR, pod, ifname="net1")
    assert "Failed to find Gateway 10.23.0.1" in node.check_refused(node.second_network(), pod, result, ifname="net1")


@pytest.mark.parametrize("msg, change", [
    ("sbr: no rule chooses a table for 10.23.0.2", "rule del from 10.23.0.2"),
    ("sbr: no rule chooses a table for fd00:23::2", "-6 rule del from fd00:23::2"),
    ("sbr: no default route via 10.23.0.1 in the table of 10.23.0.2", "route del default table 100"),
    ("sbr: no default route via fd00:23::1 in the table of fd00:23::2", "-6 route del default table 101"),
    ("Cannot find network interface net1", "link del net1"),
])
def test_check_reports_missing_rules_and_routes(node, pod, msg, change):
    result = node.add(SBR, pod, ifname="net1")
    node.check(SBR, pod, result, ifname="net1")
    run("ip", *change.split(), netns=pod)
    assert node.check_refused(SBR, pod, result, ifname="net1") == msg


@pytest.mark.parametrize("gone", ["link", "addresses", "rules", "netns", "variable", "namespace under the path"])
def test_del_of_missing_state_succeeds(node, pod, tmp_path, gone):
    node.add(SBR, pod, ifname="net1")
    netns = pod
    if gone == "link":
        run("ip", "link", "del", "net1", netns=pod)
    elif gone == "addresses":
        run("ip", "addr", "flush", "dev", "net1", netns=pod)
    elif gone == "rules":
        run("ip", "rule", "del", "from", "10.23.0.2", netns=pod)
    elif gone == "netns":
        run("ip", "netns", "del", pod)
    else:
        netns = "" if gone == "variable" else str(tmp_path / "file")
        (tmp_path / "file").touch()
    for _ in range(2):
        node.delete(SBR, netns, cid="any", ifname="net1")
    if netns == pod and gone != "netns":
        assert rules(pod) == {}


def test_del_creates_no_file_at_the_path_of_the_namespace(node, pod, tmp_path):
    """The reference plugin leaves an empty file."""
    node.delete(SBR, str(tmp_path / "pod"), ifname="net1")
    assert not (tmp_path / "pod").exists()


@pytest.mark.parametrize("previous", [None, {}, {"ips": "x"}, 7])
def test_del_needs_no_prevresult(node, pod, previous):
    node.add(SBR, pod, ifname="net1")
    node.delete({**SBR, "prevResult": previous}, pod, ifname="net1")
    assert rules(pod) == {}


def test_the_plugin_waits_for_the_lock_of_the_namespace(node, pod):
    done = threading.Event()
    with Inside(None), open(f"/run/netns/{pod}") as other:
        with kernel_netns.locked(other.fileno(), print):
            def add():
                with Inside(node.name):
                    node.add(SBR, pod, ifname="net1")
                done.set()
            waiting = threading.Thread(target=add)
            waiting.start()
            assert not done.wait(0.3)
            assert rules(pod) == {}
        waiting.join(10)
    assert done.is_set()
    assert len(rules(pod)) == 2


def test_the_plugin_does_not_wait_for_a_lock_that_the_pod_holds(node, pod, monkeypatch):
    """An unprivileged process in a pod can flock() its namespace. Once, ADD and DEL waited for this lock for ever."""
    monkeypatch.setattr(waiting, "NAMESPACE_LOCK_TIMEOUT_S", 0.05)
    with open(f"/run/netns/{pod}") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        reply = node.call("ADD", SBR, pod, ifname="net1")
        assert reply.status == 0
        assert b"going on without the lock" in reply.stderr
        assert len(rules(pod)) == 2
        node.delete(SBR, pod, ifname="net1")
    assert rules(pod) == {}


def test_status_reports_a_kernel_without_routing_rules(node, monkeypatch):
    node.ok("STATUS", SBR)

    def refuse(*_):
        raise wire.NetlinkError(errno.EAFNOSUPPORT, "list routing rules")
    monkeypatch.setattr(wire, "dump", refuse)
    assert node.refused("STATUS", SBR)["code"] == 50
