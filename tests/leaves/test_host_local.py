"""host-local: its configuration, the order of addresses, its texts, and sharing with the Go plugin."""

import json
import os
import posix
import random
import subprocess

import pytest

from fastcni.kit.request import Request
from fastcni.kit.undo import Undo
from fastcni.plugins import host_local
from fastcni.spec.errors import CniError

GO_PLUGIN = "/usr/lib/cni/host-local"


class Node:
    """A data directory and the network "net" on it, called as the door calls plugins."""

    def __init__(self, root):
        self.root, self.path, self.warnings = root, root / "net", []

    def conf(self, ipam, **top):
        return {"cniVersion": "1.0.0", "name": "net", "type": "bridge",
                "ipam": {"type": "host-local", "dataDir": str(self.root)} | ipam} | top

    def call(self, command, ipam, who="pod", ifname="eth0", args="", **top):
        document = self.conf(ipam, **top)
        req = Request(plugin="host-local", command=command, container_id=who, ifname=ifname, args=args,
                      conf=document, name="net", version=document["cniVersion"])
        try:
            conf = host_local.read(req)
            if command == "ADD":
                with Undo() as undo:
                    return host_local.add(req, conf, undo)
            function = {"DEL": "delete", "CHECK": "check", "GC": "gc", "STATUS": "status"}[command]
            return getattr(host_local, function)(req, conf)
        finally:
            self.warnings += req.warnings

    def add(self, ipam, who="pod", **more):
        """The addresses given, without prefix length."""
        result = self.call("ADD", ipam, who, **more)
        return [ip["address"].split("/")[0] for ip in result["ips"]]

    def refused(self, command, ipam, *args, **more):
        with pytest.raises(CniError) as e:
            self.call(command, ipam, *args, **more)
        return e.value

    def files(self):
        if not self.path.exists():
            return {}
        return {name: (self.path / name).read_bytes() for name in os.listdir(self.path)
                if name[0] in "0123456789abcdef:"}


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


SMALL = {"subnet": "10.1.0.0/29"}           # gateway .1, gives .2 to .6


# -- ADD and DEL ------------------------------------------------------------------------------------------

def test_add_gives_the_first_address_after_the_gateway_and_del_takes_it_back(node):
    numbers = {"mtu": 1400, "priority": 0, "table": 0}
    result = node.call("ADD", SMALL | {"routes": [{"dst": "0.0.0.0/0"},
                                                  {"dst": "10.9.0.0/16", "gw": "10.1.0.5"} | numbers]})
    assert result == {"ips": [{"address": "10.1.0.2/29", "gateway": "10.1.0.1"}],
                      "routes": [{"dst": "0.0.0.0/0"},
                                 {"dst": "10.9.0.0/16", "gw": "10.1.0.5", "mtu": 1400, "table": 0}]}
    assert node.files() == {"10.1.0.2": b"pod\r\neth0"}
    assert (node.path / "last_reserved_ip.0").read_bytes() == b"10.1.0.2"
    node.call("CHECK", SMALL)
    node.call("DEL", SMALL)
    assert node.files() == {}
    node.call("DEL", SMALL)
    assert node.refused("CHECK", SMALL).msg == "host-local: Failed to find address added by container pod"


def test_del_and_check_of_a_network_that_never_was_create_nothing(node):
    node.call("DEL", SMALL)
    node.call("STATUS", SMALL)
    assert "Failed to find address" in node.refused("CHECK", SMALL).msg
    assert list(node.root.iterdir()) == []


def test_del_takes_only_the_interface_it_names(node):
    node.add(SMALL)
    node.add(SMALL, ifname="eth1")
    node.add(SMALL, "pod2")
    node.call("DEL", SMALL)
    assert node.files() == {"10.1.0.3": b"pod\r\neth1", "10.1.0.4": b"pod2\r\neth0"}


def test_del_releases_addresses_of_ranges_that_are_configured_no_more(node):
    node.add({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]})
    node.call("DEL", {"subnet": "10.7.0.0/24"})
    assert node.files() == {}


def test_files_of_old_plugins_with_the_id_alone_are_checked_and_deleted(node):
    node.path.mkdir()
    (node.path / "10.1.0.4").write_bytes(b"pod")
    (node.path / "10.1.0.5").write_bytes(b"pod2")
    node.call("CHECK", SMALL)
    node.call("DEL", SMALL)
    assert node.files() == {"10.1.0.5": b"pod2"}


def test_a_container_gets_no_second_address_of_a_set(node):
    node.add(SMALL)
    assert node.refused("ADD", SMALL).msg == ("failed to allocate for range 0: 10.1.0.2 has been allocated to "
                                              "pod, duplicate allocation is not allowed")
    asked = node.refused("ADD", SMALL, runtimeConfig={"ips": ["10.1.0.6"]})
    assert "duplicate allocation is not allowed" in asked.msg
    assert list(node.files()) == ["10.1.0.2"]


def test_a_failed_add_releases_only_what_it_took(node):
    """The reference releases by owner, and with it what an earlier call left."""
    node.add({"subnet": "10.5.0.0/24"})
    node.add({"subnet": "fd00::/126", "rangeEnd": "fd00::2"}, "other")
    e = node.refused("ADD", {"ranges": [[{"subnet": "10.1.0.0/24"}],
                                        [{"subnet": "fd00::/126", "rangeEnd": "fd00::2"}]]})
    assert e.msg == "failed to allocate for range 1: no IP addresses available in range set: fd00::1-fd00::2"
    assert sorted(node.files()) == ["10.5.0.2", "fd00::2"]


# -- order ------------------------------------------------------------------------------------------------

def test_addresses_are_given_in_turn_and_wrap(node):
    assert [node.add(SMALL, f"p{n}")[0] for n in range(4)] == [f"10.1.0.{n}" for n in range(2, 6)]
    node.call("DEL", SMALL, "p0")
    assert node.add(SMALL, "p4") == ["10.1.0.6"]            # not the one just released
    assert node.add(SMALL, "p5") == ["10.1.0.2"]
    node.call("DEL", SMALL, "p5")
    assert node.add(SMALL, "p6") == ["10.1.0.2"]            # the cursor's own address is the last choice


def test_a_cursor_outside_of_the_set_or_torn_starts_at_the_front(node):
    for cursor in (b"192.168.0.1", b"", b"10.1.0", b"fd00::1", b"10.1.0.1\0"):
        node.add(SMALL)
        (node.path / "last_reserved_ip.0").write_bytes(cursor)
        node.call("DEL", SMALL)
        assert node.add(SMALL) == ["10.1.0.2"]
        node.call("DEL", SMALL)


def test_ranges_of_a_set_are_used_one_after_another(node):
    ipam = {"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.11"},
                        {"subnet": "10.2.0.0/24", "rangeStart": "10.2.0.1", "rangeEnd": "10.2.0.3"}]]}
    given = [node.add(ipam, f"p{n}")[0] for n in range(4)]
    assert given == ["10.1.0.10", "10.1.0.11", "10.2.0.2", "10.2.0.3"]
    node.call("DEL", ipam, "p2")
    result = node.call("ADD", ipam, "p4")
    assert result["ips"] == [{"address": "10.2.0.2/24", "gateway": "10.2.0.1"}]
    e = node.refused("ADD", ipam, "p5")
    assert e.code == 11
    assert e.msg == ("failed to allocate for range 0: no IP addresses available in range set: "
                     "10.1.0.10-10.1.0.11,10.2.0.1-10.2.0.3")
    assert e.details == '10.1.0.0/24,10.2.0.0/24 of network "net", 4 of 4 addresses in use'


def test_the_order_of_the_sets_is_capability_single_list(node):
    ipam = {"subnet": "10.2.0.0/24", "ranges": [[{"subnet": "10.3.0.0/24"}], [{"subnet": "fd00::/64"}]]}
    capitalised = {"Subnet": "10.1.0.0/24", "RangeStart": "", "Gateway": ""}        # as containerd writes it
    given = node.add(ipam, runtimeConfig={"ipRanges": [[capitalised]]})
    assert given == ["10.1.0.2", "10.2.0.2", "10.3.0.2", "fd00::2"]
    cursors = {path.name: path.read_bytes() for path in node.path.glob("last*")}
    assert cursors == {"last_reserved_ip.0": b"10.1.0.2", "last_reserved_ip.1": b"10.2.0.2",
                       "last_reserved_ip.2": b"10.3.0.2", "last_reserved_ip.3": b"fd00::2"}


def test_the_gateway_may_be_anywhere_and_is_never_given(node):
    assert node.add({"subnet": "10.1.0.0/29", "gateway": "10.1.0.2"}, "p0") == ["10.1.0.1"]
    assert node.add({"subnet": "10.1.0.0/29", "gateway": "10.1.0.2"}, "p1") == ["10.1.0.3"]
    result = node.call("ADD", {"subnet": "10.2.0.0/29", "gateway": "192.0.2.1"}, "p2")
    assert result["ips"] == [{"address": "10.2.0.1/29", "gateway": "192.0.2.1"}]


def test_an_ipv6_range_ends_with_its_last_address_an_ipv4_range_before_the_broadcast(node):
    for n, ipam in enumerate(({"subnet": "fd00::/126"}, {"subnet": "10.1.0.0/30"})):
        with pytest.raises(CniError):
            for i in range(10):
                node.add(ipam, f"p{n}{i}")
    assert sorted(node.files()) == ["10.1.0.2", "fd00::2", "fd00::3"]


def test_a_sixty_four_works_from_end_to_end(node):
    ipam = {"subnet": "fd00:9::/64", "rangeStart": "fd00:9::ffff:ffff:ffff:fffe"}
    assert node.add(ipam, "a") == ["fd00:9::ffff:ffff:ffff:fffe"]
    assert node.add(ipam, "b") == ["fd00:9::ffff:ffff:ffff:ffff"]
    assert node.refused("ADD", ipam, "c").details == 'fd00:9::/64 of network "net", 2 of 2 addresses in use'
    assert node.add({"subnet": "fd00:9::/64"}, "c") == ["fd00:9::2"]


# -- requested addresses ----------------------------------------------------------------------------------

@pytest.mark.parametrize("text", ["10.1.0.4", "10.1.0.4/24"])
def test_an_address_can_be_asked_for_in_three_ways(node, text):
    for n, more in enumerate(({"args": f"IP={text}"}, {"args": f"IgnoreUnknown=1;IP={text};K8S_POD_NAME=x"},
                              {"runtimeConfig": {"ips": [text]}})):
        assert node.add(SMALL, f"p{n}", **more) == ["10.1.0.4"]
        assert (node.path / "last_reserved_ip.0").read_bytes() == b"10.1.0.4"
        node.call("DEL", SMALL, f"p{n}")
    document = node.conf(SMALL) | {"args": {"cni": {"ips": [text]}}}
    req = Request(command="ADD", container_id="p", ifname="eth0", conf=document, name="net", version="1.0.0")
    with Undo() as undo:
        assert host_local.add(req, host_local.read(req), undo)["ips"][0]["address"] == "10.1.0.4/29"


def test_requests_are_a_union_one_for_each_set(node):
    ipam = {"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}], [{"subnet": "10.2.0.0/24"}]]}
    given = node.add(ipam, args="IP=fd00::77", runtimeConfig={"ips": ["10.1.0.9", "fd00::77"]})
    assert given == ["10.1.0.9", "fd00::77", "10.2.0.2"]


@pytest.mark.parametrize("ips, code, text", [
    (["10.1.0.1"], 7, "failed to allocate for range 0: requested ip 10.1.0.1 is subnet's gateway"),
    (["10.1.0.3"], 11, "failed to allocate for range 0: requested IP address 10.1.0.3 is not available in "
                       "range set 10.1.0.1-10.1.0.6"),
    (["10.9.0.3", "fd00::1"], 7, "failed to allocate all requested IPs: 10.9.0.3 fd00::1"),
    (["10.1.0.4", "10.1.0.5"], 7, "failed to allocate all requested IPs: 10.1.0.5"),
    (["10.1.0.7"], 7, "failed to allocate all requested IPs: 10.1.0.7"),
    (["x"], 7, "cannot understand ip: invalid IP address: x"),
    ([""], 7, "cannot understand ip: "),
])
def test_requests_that_cannot_be_met_are_refused_in_words(node, ips, code, text):
    node.add(SMALL, "p", args="IP=10.1.0.3")
    before = node.files()
    e = node.refused("ADD", SMALL, runtimeConfig={"ips": ips})
    assert e.code == code and e.msg.startswith(text)
    assert node.files() == before


def test_an_impossible_request_creates_no_directory(node):
    node.refused("ADD", SMALL, runtimeConfig={"ips": ["10.9.0.3"]})
    assert list(node.root.iterdir()) == []


def test_bad_cni_args_are_refused_also_by_del(node):
    for command in ("ADD", "DEL", "CHECK"):
        e = node.refused(command, SMALL, args="IP=10.1.0.300")
        assert (e.code, e.msg) == (4, 'ARGS: error parsing value of pair "IP=10.1.0.300": '
                                      "invalid IP address: 10.1.0.300")
    assert node.add(SMALL, args="IP=") == ["10.1.0.2"]


# -- configuration ----------------------------------------------------------------------------------------

def one(**keys):
    return {"ranges": [[keys]]}


@pytest.mark.parametrize("ipam, text", [
    ({}, "no IP ranges specified"),
    ({"rangeStart": "10.1.0.4"}, "no IP ranges specified"),
    ({"ranges": []}, "no IP ranges specified"),
    ({"ranges": [[]]}, "invalid range set 0: empty range set"),
    (one(), "invalid range set 0: IP <nil> not v4 nor v6"),
    (one(subnet="10.1.0.0/31"), "invalid range set 0: Network 10.1.0.0/31 too small to allocate from"),
    (one(subnet="10.1.0.1/32"), "invalid range set 0: Network 10.1.0.1/32 too small to allocate from"),
    (one(subnet="fd00::/127"), "invalid range set 0: Network fd00::/127 too small to allocate from"),
    (one(subnet="10.1.0.5/24"), "invalid range set 0: Network has host bits set. For a subnet mask of length 24 "
                                "the network address is 10.1.0.0"),
    (one(subnet="::ffff:10.0.0.0/104"), "invalid range set 0: IPNet IP and Mask version mismatch"),
    (one(subnet="10.1.0.0/24", rangeStart="10.2.0.1"),
     "invalid range set 0: RangeStart 10.2.0.1 not in network 10.1.0.0/24"),
    (one(subnet="10.1.0.0/24", rangeEnd="10.2.0.1"),
     "invalid range set 0: RangeEnd 10.2.0.1 not in network 10.1.0.0/24"),
    (one(subnet="10.1.0.0/24", rangeEnd="10.1.0.0"),
     "invalid range set 0: RangeEnd 10.1.0.0 not in network 10.1.0.0/24"),
    (one(subnet="10.1.0.0/24", rangeStart="10.1.0.255"),
     "invalid range set 0: RangeStart 10.1.0.255 not in network 10.1.0.0/24"),
    (one(subnet="10.1.0.0/24", rangeStart="fd00::1"),
     "invalid range set 0: RangeStart fd00::1 not in network 10.1.0.0/24"),
    (one(subnet="10.1.0.0/24", rangeStart="10.1.0.9", rangeEnd="10.1.0.8"),
     "invalid range set 0: RangeStart 10.1.0.9 not in network 10.1.0.0/24"),
    ({"subnet": "10.0.0.0/24", "ranges": [[{"subnet": "10.1.0.0/31"}]]},
     "invalid range set 1: Network 10.1.0.0/31 too small to allocate from"),
    ({"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00::/64"}]]},
     "invalid range set 0: mixed address families"),
    ({"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "10.1.0.128/25"}]]},
     "invalid range set 0: subnets 10.1.0.1-10.1.0.254 and 10.1.0.129-10.1.0.254 overlap"),
    ({"ranges": [[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00::/64"}], [{"subnet": "10.2.0.0/16"}]]},
     "range set 0 overlaps with 2"),
    ({"subnet": "10.1.0.0/24", "dataDir": "relative/dir"},
     'failed to load netconf: ipam.dataDir: expected an absolute path, got string "relative/dir"'),
    ({"ranges": [{"subnet": "10.1.0.0/24"}]},
     'failed to load netconf: ipam.ranges[0]: expected a list of ranges, got '),
    ({"ranges": [["10.1.0.0/24"]]},
     'failed to load netconf: ipam.ranges[0][0]: expected an object with "subnet", got string "10.1.0.0/24"'),
    ({"subnet": "10.1.0.0/24", "routes": [{"gw": "10.1.0.1"}]},
     "failed to load netconf: ipam.routes[0].dst: missing; a route needs one"),
])
@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK"])
def test_bad_configurations_are_refused_by_add_del_and_check(node, ipam, text, command):
    e = node.refused(command, ipam)
    assert e.code == 7 and e.msg.startswith(text)
    assert list(node.root.iterdir()) == []


@pytest.mark.parametrize("ipam, names", [
    (one(subnet="10.1.0.0"), ("ipam.ranges[0][0].subnet", "invalid CIDR address: 10.1.0.0")),
    (one(subnet=17), ("ipam.ranges[0][0].subnet", "17")),
    (one(subnet="10.1.0.0/24", gateway="x"), ("ipam.ranges[0][0].gateway", "invalid IP address: x")),
    ({"subnet": "10.1.0.0/24", "fsync": "yes"}, ("ipam.fsync", "yes")),
    ({"subnet": "10.1.0.0/24", "dataDir": 1}, ("ipam.dataDir", "1")),
    ({"subnet": "10.1.0.0/24", "ranges": "x"}, ("ipam.ranges", "x")),
    ({"subnet": "10.1.0.0/24", "routes": [{"dst": "10.0.0.1"}]}, ("ipam.routes[0].dst", "10.0.0.1")),
])
def test_wrong_types_and_values_are_named_with_their_key(node, ipam, names):
    e = node.refused("ADD", ipam)
    assert e.code == 7 and all(name in str(e) for name in names)


def test_no_ipam_key_is_named(node):
    req = Request(command="ADD", container_id="p", ifname="e", conf={"name": "net"}, name="net")
    with pytest.raises(CniError, match="IPAM config missing 'ipam' key"):
        host_local.read(req)


def test_old_versions_have_one_address_of_a_family(node):
    ipam = {"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]}
    assert node.refused("ADD", ipam, cniVersion="0.2.0").msg == \
        "CNI version 0.2.0 does not support more than 1 address per family"
    assert node.add({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}, cniVersion="0.2.0")
    assert node.add(ipam, "p2", cniVersion="0.3.0")


def test_resolv_conf_becomes_dns(node, tmp_path):
    path = tmp_path / "resolv.conf"
    path.write_text("# x\n; y\nnameserver 10.0.0.1 extra\n nameserver fd00::1\ndomain a.example\n"
                    "domain b.example\nsearch one two\nsearch three\noptions ndots:5 rotate\nsortlist 1\n"
                    "nameserver\n")
    result = node.call("ADD", SMALL | {"resolvConf": str(path)})
    assert result["dns"] == {"nameservers": ["10.0.0.1", "fd00::1"], "domain": "b.example",
                             "search": ["one", "two", "three"], "options": ["ndots:5", "rotate"]}
    e = node.refused("ADD", SMALL | {"resolvConf": "/nowhere/resolv.conf"}, "p2")
    assert e.msg == "open /nowhere/resolv.conf: no such file or directory"
    assert sorted(node.files()) == ["10.1.0.2"]


def test_a_data_directory_that_cannot_be_made_is_named(node):
    (node.root / "file").touch()
    e = node.refused("ADD", SMALL | {"dataDir": str(node.root / "file")})
    assert e.code == 5 and f"{node.root}/file" in e.msg and "ipam.dataDir" in e.details


# -- full, STATUS, GC -------------------------------------------------------------------------------------

def test_full_range_names_the_network_and_status_says_so_too(node):
    for n in range(5):
        node.call("STATUS", SMALL)
        node.add(SMALL, f"p{n}")
    e = node.refused("ADD", SMALL, "more")
    assert (e.code, e.msg) == (11, "failed to allocate for range 0: "
                                   "no IP addresses available in range set: 10.1.0.1-10.1.0.6")
    assert e.details == '10.1.0.0/29 of network "net", 5 of 5 addresses in use'
    e = node.refused("STATUS", SMALL)
    assert (e.code, e.msg) == \
        (50, 'range set 0 is full: 10.1.0.0/29 of network "net", 5 of 5 addresses in use')
    node.call("DEL", SMALL, "p3")
    node.call("STATUS", SMALL)
    assert node.add(SMALL, "more") == ["10.1.0.5"]


def test_status_does_not_ask_for_ranges_that_come_with_add(node):
    node.call("STATUS", {})
    node.call("GC", {}, **{"cni.dev/valid-attachments": []})
    assert node.refused("STATUS", {"subnet": "10.1.0.0/31"}).code == 7
    (node.root / "net").touch()
    assert node.refused("STATUS", SMALL).code == 50


def test_gc_keeps_valid_attachments_and_releases_the_rest(node):
    ipam = {"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}
    for n in range(4):
        node.add(ipam, f"p{n}")
    node.add(ipam, "p0", ifname="eth1")
    for last, content in ((50, b"p1"), (51, b"gone"), (52, b""), (53, b"\0\0"), (54, b"keep for the printer")):
        (node.path / f"10.1.0.{last}").write_bytes(content)
    node.call("GC", ipam, **{"cni.dev/valid-attachments": [{"containerID": "p0", "ifname": "eth0"},
                                                           {"containerID": "p1", "ifname": "eth0"}]})
    assert sorted(node.files()) == ["10.1.0.2", "10.1.0.3", "10.1.0.50", "10.1.0.54", "fd00::2", "fd00::3"]
    node.call("GC", ipam, **{"cni.dev/valid-attachments": []})
    assert sorted(node.files()) == ["10.1.0.54"]


def test_del_goes_on_after_an_address_that_cannot_be_released(node, monkeypatch):
    node.add({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]})
    unlink = os.unlink

    def refuse(name, **more):
        if name == "10.1.0.2":
            raise OSError(5, os.strerror(5))
        unlink(name, **more)

    monkeypatch.setattr(posix, "unlink", refuse)
    e = node.refused("DEL", SMALL)
    assert e.msg == f"remove {node.path}/10.1.0.2: Input/output error (errno 5)"
    assert list(node.files()) == ["10.1.0.2"]
    monkeypatch.undo()
    node.call("DEL", SMALL)
    assert node.files() == {}


def test_torn_files_are_given_out_again_with_a_warning(node):
    node.path.mkdir()
    for n in range(2, 7):
        (node.path / f"10.1.0.{n}").touch()
    assert [node.add(SMALL, f"p{n}")[0] for n in range(5)] == [f"10.1.0.{n}" for n in range(2, 7)]
    assert sum("reclaimed" in text for text in node.warnings) == 5
    assert node.refused("ADD", SMALL, "more").code == 11


# -- with the Go plugin -----------------------------------------------------------------------------------

def go(node, command, ipam, who, ifname="eth0"):
    """The Go plugin's result, or its error document."""
    env = {"CNI_COMMAND": command, "CNI_CONTAINERID": who, "CNI_IFNAME": ifname, "CNI_NETNS": "/nowhere",
           "CNI_PATH": "/usr/lib/cni", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([GO_PLUGIN], input=json.dumps(node.conf(ipam)), env=env,
                          check=False, capture_output=True, text=True)
    return json.loads(done.stdout) if done.stdout else {}


@pytest.fixture
def shared(node):
    if not os.access(GO_PLUGIN, os.X_OK):
        pytest.skip(f"no Go plugin to share with at {GO_PLUGIN}")
    return node


def test_both_work_in_turn_on_one_directory(shared):
    """Whoever comes next goes on where the other stopped, and either deletes what the other added."""
    ipam = {"ranges": [[{"subnet": "10.1.0.0/28"}], [{"subnet": "fd00::/124"}]]}
    rng, held = random.Random(1), {}
    for n in range(60):
        ours, who = rng.random() < 0.5, f"pod{n}"
        if held and (rng.random() < 0.4 or len(held) > 10):
            who = rng.choice(sorted(held))
            assert not (shared.call("DEL", ipam, who) if ours else go(shared, "DEL", ipam, who))
            del held[who]
        else:
            given = shared.add(ipam, who) if ours else [ip["address"].split("/")[0]
                                                        for ip in go(shared, "ADD", ipam, who)["ips"]]
            assert not set(given) & {a for both in held.values() for a in both}
            held[who] = given
        assert sorted(shared.files()) == sorted(a for both in held.values() for a in both)
        for who in held:
            shared.call("CHECK", ipam, who)
    assert not [text for text in shared.warnings if "torn" in text]


def test_both_give_the_same_addresses_for_the_same_story(shared, tmp_path_factory):
    ipam = {"ranges": [[{"subnet": "10.1.0.0/29", "gateway": "10.1.0.4"},
                        {"subnet": "10.2.0.0/29", "rangeStart": "10.2.0.3"}], [{"subnet": "fd00::/125"}]]}
    theirs = Node(tmp_path_factory.mktemp("go"))
    rng, held = random.Random(2), []
    for n in range(80):
        if held and (rng.random() < 0.45 or len(held) == 6):
            who = held.pop(rng.randrange(len(held)))
            shared.call("DEL", ipam, who)
            go(theirs, "DEL", ipam, who)
        else:
            held.append(f"p{n}")
            mine = shared.call("ADD", ipam, f"p{n}")
            other = go(theirs, "ADD", ipam, f"p{n}")
            assert mine["ips"] == [{k: v for k, v in ip.items() if k != "interface"} for ip in other["ips"]]
        assert shared.files() == theirs.files()


def test_both_at_once_from_many_processes_give_no_address_twice(shared):
    ipam = {"subnet": "10.1.0.0/24"}
    children = []
    for worker in range(4):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for n in range(15):
                    who = f"w{worker}-{n}"
                    if worker % 2:
                        assert "ips" in go(shared, "ADD", ipam, who)
                    else:
                        shared.add(ipam, who)
                    if n % 3 == 0:
                        shared.call("DEL", ipam, who) if worker < 2 else go(shared, "DEL", ipam, who)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    owners = list(shared.files().values())
    assert len(owners) == len(set(owners)) == 4 * 10
