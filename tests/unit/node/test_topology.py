"""The picture of a node: each pod's parent link, and the JSON document for the status page."""

import os

import namespace_files
import pytest

from fastcni.kernel.rtnl import Link
from fastcni.node.attachments import topology
from fastcni.node.attachments.attachment import Cached, NodeAttachment
from fastcni.node.attachments.topology import NONE, ROUTED, ROUTES, UNKNOWN, Parent, parent_of
from fastcni.testing.namespaces import run


def link(index, name, kind, master=0):
    it = Link()
    it.index, it.name, it.kind, it.master = index, name, kind, master
    return it


LINKS = {it.index: it for it in (link(1, "cni0", "bridge"), link(2, "veth1", "veth", 1), link(3, "veth2", "veth"),
                                 link(4, "bwp1", "ifb"))}
BY_NAME = {it.name: it for it in LINKS.values()}


@pytest.mark.parametrize("links, plugins, expected", [
    # the kernel's answer takes precedence over the configuration
    (["veth1"], [{"type": "bridge", "bridge": "other"}], Parent("cni0", "bridge")),
    (["bwp1", "veth2"], [], Parent(ROUTES, ROUTED)),
    (["gone1"], [{"type": "bridge"}], Parent("cni0", "bridge")),
    ([], [{"type": "bridge", "bridge": "br7"}], Parent("br7", "bridge")),
    ([], [{"type": "chain", "plugins": [{"type": "bridge", "bridge": "br7"}]}], Parent("br7", "bridge")),
    ([], [{"type": "macvlan", "master": "eth0"}], Parent("eth0", "macvlan")),
    ([], [{"type": "ipvlan"}], Parent("link of the default route", "ipvlan")),
    ([], [{"type": "ptp"}], Parent(ROUTES, ROUTED)),
    ([], [{"type": "ovs", "bridge": "br1"}], Parent("br1", "ovs")),
    ([], [{"type": "ovs"}], Parent("br-int", "ovs")),
    ([], [{"type": "other"}, "damaged"], Parent(UNKNOWN, NONE)),
    ([], [], Parent(UNKNOWN, NONE))])
def test_a_pod_has_a_parent(links, plugins, expected):
    it = NodeAttachment("net", "c1", "eth0", "running", "", links=tuple(links))
    assert parent_of(it, LINKS, BY_NAME, {"net": {"plugins": plugins}}) == expected


def test_the_configuration_at_add_counts_more_than_the_present_one():
    cached = Cached("/cache", config={"type": "macvlan", "master": "eth1"})
    it = NodeAttachment("net", "c1", "eth0", "running", "", cached=cached)
    assert parent_of(it, LINKS, BY_NAME, {"net": {"type": "bridge"}}) == Parent("eth1", "macvlan")


def test_a_pod_whose_namespace_is_gone_is_drawn(directories, tmp_path):
    document = directories.configure()
    (tmp_path / "netns").mkdir()
    directories.cached("c1", netns=f"{tmp_path}/netns/c1", result={
        "cniVersion": "1.0.0", "ips": [{"address": "10.88.0.2/24"}]})
    namespace_files.end(f"{tmp_path}/netns/c1")
    found = topology.document(directories.places)
    (it,) = found["attachments"]
    assert (it["parent"], it["state"], it["addresses"]) == (document["plugins"][0]["bridge"], "gone", ["10.88.0.2"])
    assert "seen" not in it and found["node"] == os.uname().nodename
    assert found["parents"] == [{"name": "br0", "kind": "bridge", "up": None, "mtu": None, "addresses": []}]


def test_what_is_too_much_is_counted(directories, monkeypatch):
    monkeypatch.setattr(topology, "MAX_ATTACHMENTS", 2)
    for at in range(5):
        directories.cached(f"c{at}")
    found = topology.document(directories.places)
    assert len(found["attachments"]) == 2 and found["omitted"] == 3


def test_a_pod_on_a_bridge(host, pod_netns, monkeypatch):
    """The command must neither enter a namespace nor run a program."""
    run("ip", "link", "add", "uplink", "type", "bridge")
    run("ip", "address", "add", "192.0.2.10/24", "dev", "uplink")
    host.add("c1", pod_netns(), ports=[(8080, 80)])
    for name in ("look_at_iptables", "namespaces"):
        monkeypatch.setattr(f"fastcni.node.attachments.inventory.{name}", None)
    found = topology.document(host.places)
    (it,) = found["attachments"]
    assert (it["parent"], it["state"], it["ports"]) == ("br0", "running", ["8080/tcp -> 10.88.0.2:80"])
    (parent,) = found["parents"]
    assert (parent["name"], parent["up"], parent["addresses"]) == ("br0", True, ["10.88.0.1"])
    assert [(each["name"], each["addresses"]) for each in found["links"]] == [("uplink", ["192.0.2.10"])]
