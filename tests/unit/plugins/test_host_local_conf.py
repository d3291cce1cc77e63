"""host-local: requested addresses, the configuration's keys, and the texts of their errors."""

import pytest
from unit.kit.ipam.node import SMALL, Node

from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import Request
from fastcni.kit.call.undo import Undo
from fastcni.plugins import host_local
from fastcni.spec.errors import CniError


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


# -- requested addresses ----------------------------------------------------------------------------------

@pytest.mark.parametrize("text", ["10.1.0.4", "10.1.0.4/24"])
def test_an_address_can_be_asked_for_in_three_ways(node, text):
    for n, more in enumerate(({"args": f"IP={text}"}, {"args": f"IgnoreUnknown=1;IP={text};K8S_POD_NAME=x"},
                              {"runtimeConfig": {"ips": [text]}})):
        assert node.add(SMALL, f"p{n}", **more) == ["10.1.0.4"]
        assert (node.path / "last_reserved_ip.0").read_bytes() == b"10.1.0.4"
        node.call("DEL", SMALL, f"p{n}")
    document = node.conf(SMALL) | {"args": {"cni": {"ips": [text]}}}
    req = Request(Mode(), command="ADD", container_id="p", ifname="eth0", conf=document, name="net", version="1.0.0")
    with Undo() as undo:
        assert host_local.add(req, host_local.read(req), undo)["ips"][0]["address"] == "10.1.0.4/29"


def test_an_address_asked_for_in_two_ways_is_one_address(node):
    document = node.conf(SMALL) | {"args": {"cni": {"ips": ["10.1.0.4"]}}, "runtimeConfig": {"ips": ["10.1.0.4/29"]}}
    req = Request(Mode(), command="ADD", container_id="p", ifname="eth0", conf=document, name="net", version="1.0.0")
    with Undo() as undo:
        assert [ip["address"] for ip in host_local.add(req, host_local.read(req), undo)["ips"]] == ["10.1.0.4/29"]


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
def test_requests_that_cannot_be_met_are_refused_with_a_text(node, ips, code, text):
    node.add(SMALL, "p", args="IP=10.1.0.3")
    before = node.files()
    e = node.refused("ADD", SMALL, runtimeConfig={"ips": ips})
    assert e.code == code and e.msg.startswith(text)
    assert node.files() == before


def test_an_impossible_request_creates_no_directory(node):
    node.refused("ADD", SMALL, runtimeConfig={"ips": ["10.9.0.3"]})
    assert list(node.root.iterdir()) == []


def test_bad_cni_args_are_refused_but_not_by_del(node):
    for command in ("ADD", "CHECK"):
        e = node.refused(command, SMALL, args="IP=10.1.0.300")
        assert (e.code, e.msg) == (4, 'ARGS: error parsing value of pair "IP=10.1.0.300": '
                                      "invalid IP address: 10.1.0.300")
    assert node.add(SMALL, args="IP=") == ["10.1.0.2"]
    node.call("DEL", SMALL, args="IP=10.1.0.300")
    assert node.files() == {}


# -- configuration ----------------------------------------------------------------------------------------

def one(**keys):
    return {"ranges": [[keys]]}


@pytest.mark.parametrize("ipam, text", [
    ({}, "no IP ranges specified"),
    ({"rangeStart": "10.1.0.4"}, "no IP ranges specified"),
    ({"ranges": []}, "no IP ranges specified"),
    ({"ranges": [[]]}, "invalid range set 0: empty range set"),
    (one(), "invalid range set 0: IP <nil> not v4 nor v6: the subnet is missing"),
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
     "invalid range set 0: RangeStart 10.1.0.9 not in network 10.1.0.0/24 up to RangeEnd 10.1.0.8"),
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
def test_bad_configurations_are_refused_but_not_by_del(node, ipam, text, command):
    """DEL reads only `dataDir` of this configuration."""
    if command == "DEL" and "dataDir" not in ipam:
        node.add(SMALL)
        node.call("DEL", ipam)
        assert node.files() == {}
        return
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
    req = Request(Mode(), command="ADD", container_id="p", ifname="e", conf={"name": "net"}, name="net")
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
    assert e.code == 5
    assert f"{node.root}/file" in e.msg
    assert "ipam.dataDir" in e.details
