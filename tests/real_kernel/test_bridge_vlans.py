"""bridge with vlan, vlanTrunk and preserveDefaultVlan, on a kernel that has VLAN filtering."""

import json

import pytest
from real_kernel.node import addresses, ip_json, links, run, source_seen


@pytest.fixture(autouse=True)
def vlan_filtering(node):
    """Skips where the kernel has no bridge VLAN filtering: a VLAN cannot be put on a port there."""
    run("ip", "link", "add", "probe0", "type", "bridge", "vlan_filtering", "1", check=False)
    run("ip", "link", "add", "probe1", "type", "veth", check=False)
    run("ip", "link", "set", "probe1", "master", "probe0", check=False)
    run("bridge", "vlan", "add", "vid", "5", "dev", "probe1", check=False)
    has = "5" in run("bridge", "-c=never", "vlan", "show", "dev", "probe1", check=False).split()
    for name in ("probe0", "probe1"):
        run("ip", "link", "del", name, check=False)
    if not has:
        pytest.skip("needs CONFIG_BRIDGE_VLAN_FILTERING, which this kernel lacks")


def vlans(port):
    """{VLAN id: flags} of a bridge port, as bridge(8) prints them."""
    found = {}
    for item in bridge_vlans(port):
        for vid in range(item["vlan"], item.get("vlanEnd", item["vlan"]) + 1):
            found[vid] = item.get("flags", [])
    return found


def bridge_vlans(port):
    shown = json.loads(run("bridge", "-j", "vlan", "show", "dev", port))
    return shown[0]["vlans"] if shown else []


OWN = ["PVID", "Egress Untagged"]


def test_vlan_is_the_ports_only_one_and_the_bridge_filters(node, pod):
    result = node.add(node.conf(vlan=100), pod)
    host = result["interfaces"][1]["name"]
    assert vlans(host) == {100: OWN}
    assert links()["br0"]["linkinfo"]["info_data"]["vlan_filtering"] == 1


def test_preserve_default_vlan_keeps_what_the_port_was_given(node, pod):
    host = node.add(node.conf(vlan=100, preserveDefaultVlan=True), pod)["interfaces"][1]["name"]
    assert vlans(host) == {1: ["Egress Untagged"], 100: OWN}


def test_trunk_alone_takes_what_is_untagged_as_vlan_1(node, pod):
    trunk = [{"minID": 10, "maxID": 13}, {"id": 30}, {"id": 12}]
    host = node.add(node.conf(vlanTrunk=trunk), pod)["interfaces"][1]["name"]
    assert vlans(host) == {1: OWN, 10: [], 11: [], 12: [], 13: [], 30: []}


def test_whole_trunk_fits_one_request(node, pod):
    host = node.add(node.conf(vlan=7, vlanTrunk=[{"minID": 1, "maxID": 4094}]), pod)["interfaces"][1]["name"]
    assert len(vlans(host)) == 4094


def test_gateway_of_a_vlan_is_on_the_bridges_leg_in_it(node, pod, pod_netns):
    result = node.add(node.conf(isGateway=True, vlan=100), pod)
    assert result["interfaces"][3]["name"] == "br0.100" and "sandbox" not in result["interfaces"][3]
    assert addresses("br0.100") == ["10.22.0.1/24"] and addresses("br0") == []
    assert source_seen(pod, None, "10.22.0.1") == "10.22.0.2"
    other = pod_netns()
    node.add(node.conf(isGateway=True, vlan=200, bridge="br0", name="other"), other)
    assert source_seen(other, pod, "10.22.0.2", wait=0.5) is None


def test_second_pod_uses_the_leg_that_is_there(node, pod, pod_netns):
    conf = node.conf(isGateway=True, vlan=100)
    node.add(conf, pod)
    before = {item["ifname"] for item in ip_json("link") if item["ifname"].startswith("br0")}
    node.add(conf, pod_netns())
    assert {item["ifname"] for item in ip_json("link") if item["ifname"].startswith("br0")} == before
