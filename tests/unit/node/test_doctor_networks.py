"""`fastcni doctor` on networks that share a subnet, a bridge or an address space."""

from types import SimpleNamespace

import pytest
from unit.node.conftest import LIST

from fastcni.node.attachments.attachment import RUNNING, Cached, Inventory, NodeAttachment
from fastcni.node.checks import ovs
from fastcni.node.checks.doctor import CHECKS
from fastcni.testing.namespaces import run


def bridge(name, subnet, more=(), **keys):
    ipam = {"type": "host-local", "ranges": [[{"subnet": subnet, **dict(more)}]]}
    return {"type": "bridge", "bridge": name, "isGateway": True, "ipam": ipam, **keys}


def kind(kind, subnet, **keys):
    return {"type": kind, "ipam": {"type": "host-local", "subnet": subnet}, **keys}


LOW, HIGH = {"rangeEnd": "10.1.0.99"}, {"rangeStart": "10.1.0.100"}
# ruff: noqa: E501 {case: (plugin of one network, plugin of another, a part of the finding or "")}
PAIRS = {
    "two bridges with one subnet": (bridge("a", "10.1.0.0/16"), bridge("b", "10.1.0.0/16"), "share the subnet 10.1.0.0/16"),
    "a subnet inside of another": (bridge("a", "10.1.0.0/16"), bridge("b", "10.1.2.0/24"), "share the subnet"),
    "one bridge": (bridge("a", "10.1.0.0/16"), bridge("a", "10.2.0.0/16"), "have one bridge, a"),
    "the default bridge": (kind("bridge", "10.1.0.0/16"), kind("bridge", "10.2.0.0/16"), "have one bridge, cni0"),
    "one bridge and one subnet": (bridge("a", "10.1.0.0/16"), bridge("a", "10.1.0.0/16"), "share the subnet"),
    "one subnet in two VLANs of ovs": (kind("ovs", "10.1.0.0/16", vlan=5), kind("ovs", "10.1.0.0/16", vlan=6), ""),
    "one subnet in one VLAN of ovs": (kind("ovs", "10.1.0.0/16", vlan=5), kind("ovs", "10.1.0.0/16", vlan=5), "share the subnet"),
    "one subnet of ptp and bridge": (kind("ptp", "10.1.0.0/16"), bridge("a", "10.1.0.0/16"), "share the subnet"),
    "one master and one subnet": (kind("macvlan", "10.1.0.0/16", master="e0"), kind("macvlan", "10.1.0.0/16", master="e0"),
                                  "share the subnet"),
    "two masters and one subnet": (kind("macvlan", "10.1.0.0/16", master="e0"), kind("macvlan", "10.1.0.0/16", master="e1"), ""),
    "parts of one subnet on one bridge": (bridge("a", "10.1.0.0/16", LOW), bridge("a", "10.1.0.0/16", HIGH), ""),
    "parts of one subnet on two bridges": (bridge("a", "10.1.0.0/16", LOW), bridge("b", "10.1.0.0/16", HIGH), "share the subnet"),
    "parts of one subnet of ptp": (
        {"type": "ptp", "ipam": bridge("a", "10.1.0.0/16", LOW)["ipam"]},
        {"type": "ptp", "ipam": bridge("a", "10.1.0.0/16", HIGH)["ipam"]}, ""),
    "VLANs of one bridge": (bridge("a", "10.1.0.0/16", vlan=5), bridge("a", "10.2.0.0/16", vlan=6), ""),
    "one bridge without addresses of the node": (
        {"type": "bridge", "bridge": "a", "ipam": {"type": "dhcp"}}, {"type": "bridge", "bridge": "a"}, ""),
    "two families": (bridge("a", "10.1.0.0/16"), bridge("b", "fd00:1::/64"), ""),
    "bridges without a gateway": (bridge("a", "10.1.0.0/16", isGateway=False), bridge("b", "10.1.0.0/16", isGateway=False), ""),
}


def findings(fastcni, check):
    document = fastcni("doctor", "--json", "--socket", "").document
    assert check in CHECKS
    return [it for it in document["findings"] if it["check"] == check]


@pytest.mark.parametrize("keys, part", [
    ({}, "the bridge br9 has 10.1.0.1/16, and network net1 gives it 10.2.0.1"), ({"forceAddress": True}, ""),
    ({"isGateway": False}, ""), ({"vlan": 7}, ""), ({"bridge": "br8"}, "")], ids=str)
def test_a_bridge_with_the_address_of_a_former_subnet(host_netns, directories, fastcni, keys, part):
    run("ip", "link", "add", "br9", "type", "bridge")
    directories.configure({**LIST, "plugins": [bridge("br9", "10.2.0.0/16") | keys]})
    assert not findings(fastcni, "bridge-gateways")
    run("ip", "address", "add", "10.1.0.1/16", "dev", "br9")
    assert [part in it["what"] for it in findings(fastcni, "bridge-gateways")] == [True] * bool(part)
    run("ip", "address", "add", "10.2.0.1/16", "dev", "br9")
    assert not findings(fastcni, "bridge-gateways")


def test_force_address_counts_also_if_bridge_is_not_the_first_plugin(host_netns, directories, fastcni):
    run("ip", "link", "add", "br9", "type", "bridge")
    run("ip", "address", "add", "10.1.0.1/16", "dev", "br9")
    directories.configure({**LIST, "plugins": [{"type": "acme"}, bridge("br9", "10.2.0.0/16", forceAddress=True)]})
    assert not findings(fastcni, "bridge-gateways")


@pytest.mark.parametrize("pair", PAIRS)
def test_networks_that_share_what_only_one_may_have(directories, fastcni, pair):
    *plugins, part = PAIRS[pair]
    for name, plugin in zip("xy", plugins, strict=True):
        directories.configure({**LIST, "name": name, "plugins": [plugin]}, f"{name}.conflist")
    found = findings(fastcni, "shared-networks")
    assert [part in it["what"] for it in found] == [True] * bool(part)
    for it in found:
        assert it["what"].startswith("networks x and y ") and str(directories.conf / "y.conflist") in it["do"]


def test_networks_of_one_space_with_two_stores(directories, fastcni, tmp_path):
    for name, path, space in (("x", "a", "pods"), ("y", "b", "pods"), ("z", "b", "other")):
        ipam = {"type": "cluster", "subnet": "10.1.0.0/16", "network_name": space, "dataDir": str(tmp_path / "state"),
                "store": {"type": "local", "path": str(tmp_path / path)}}
        directories.configure({**LIST, "name": name, "plugins": [{"type": "ptp", "ipam": ipam}]}, f"{name}.conflist")
    (found,) = findings(fastcni, "cluster-stores")
    assert found["severity"] == "error" and "the address space pods have 2 stores: x: " in found["what"]
    assert "y: " in found["what"] and "z: " not in found["what"]


@pytest.mark.parametrize("kinds, expected", [(("bridge", "bridge"), 1), (("bridge", "ptp"), 1)])
def test_pods_with_one_address_by_their_configurations(directories, host_netns, pod_netns, fastcni, kinds, expected):
    for number, each in enumerate(kinds):
        plugin = {"type": each, "isGateway": True, "ipam": {"type": "static", "addresses": [
            {"address": "10.88.0.5/24", "gateway": "10.88.0.1"}]}}
        plugin |= {"bridge": f"br{number}"} if each == "bridge" else {}
        directories.configure({**LIST, "name": f"net{number}", "plugins": [plugin]}, f"{number}.conflist")
        directories.add(f"c{number}", pod_netns(), f"net{number}")
    found = findings(fastcni, "duplicate-addresses")
    assert len(found) == expected and "2 running pods have the address 10.88.0.5: c0/eth0, c1/eth0" in found[0]["what"]
    assert "delete all but one" in found[0]["do"]


def test_a_pod_of_ovs_whose_cache_file_has_no_configuration_is_looked_up_in_the_usual_database(monkeypatch):
    """doctor ended with RuntimeError, "generator raised StopIteration": libcni before 0.8 caches no configuration, so the
    pod's types came from the network's present one."""
    result = {"interfaces": [{"name": "veth1"}, {"name": "eth0", "sandbox": "/run/netns/pod"}]}
    pod = NodeAttachment("net", "c1", "eth0", RUNNING, "", plugins=("ovs",), cached=Cached("", result=result))
    ports = {"veth1"}
    known = SimpleNamespace(error=None, trouble="", bridges=(), has=lambda port, bridge: port in ports)
    monkeypatch.setattr(ovs, "Names", lambda address, answers: known)
    node = SimpleNamespace(inventory=Inventory((pod,)), unseen=[])
    assert list(ovs.ports(node)) == node.unseen == []
    ports.clear()
    assert list(ovs.ports(node)) == []          # the file of the result no longer exists: a DEL runs
