"""bridge with the keys vlan, vlanTrunk and preserveDefaultVlan, on a kernel with VLAN filtering."""

import json

import pytest
from lab.node import addresses, ip_json, links, run, source_seen

from fastcni.plugins import bridge
from fastcni.spec.errors import CniError

pytestmark = pytest.mark.needs("bridge-vlan-filtering")


def vlans(port):
    """Return {VLAN ID: flags} of a bridge port, as bridge(8) prints them."""
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


def test_preserve_default_vlan_keeps_the_ports_default_vlan(node, pod):
    host = node.add(node.conf(vlan=100, preserveDefaultVlan=True), pod)["interfaces"][1]["name"]
    assert vlans(host) == {1: ["Egress Untagged"], 100: OWN}


def test_trunk_alone_puts_untagged_frames_into_vlan_1(node, pod):
    trunk = [{"minID": 10, "maxID": 13}, {"id": 30}, {"id": 12}]
    host = node.add(node.conf(vlanTrunk=trunk), pod)["interfaces"][1]["name"]
    assert vlans(host) == {1: OWN, 10: [], 11: [], 12: [], 13: [], 30: []}


def test_a_trunk_of_all_vlans_fits_one_request(node, pod):
    host = node.add(node.conf(vlan=7, vlanTrunk=[{"minID": 1, "maxID": 4094}]), pod)["interfaces"][1]["name"]
    assert len(vlans(host)) == 4094


def test_gateway_of_a_vlan_is_on_the_vlan_interface(node, pod, pod_netns):
    result = node.add(node.conf(isGateway=True, vlan=100), pod)
    assert result["interfaces"][3]["name"] == "br0.100"
    assert "sandbox" not in result["interfaces"][3]
    assert addresses("br0.100") == ["10.22.0.1/24"]
    assert addresses("br0") == []
    assert source_seen(pod, None, "10.22.0.1") == "10.22.0.2"
    other = pod_netns()
    node.add(node.conf(isGateway=True, vlan=200, bridge="br0", name="other"), other)
    assert source_seen(other, pod, "10.22.0.2", wait=0.5) is None


def test_second_pod_uses_the_existing_vlan_interface(node, pod, pod_netns):
    conf = node.conf(isGateway=True, vlan=100)
    node.add(conf, pod)
    before = {item["ifname"] for item in ip_json("link") if item["ifname"].startswith("br0")}
    node.add(conf, pod_netns())
    assert {item["ifname"] for item in ip_json("link") if item["ifname"].startswith("br0")} == before


@pytest.mark.parametrize("keys, untagged", [({"vlan": 20}, 20), ({}, 1)], ids=["vlan", "the trunk alone"])
def test_untagged_vlan_stays_so_when_the_trunk_has_it_too(node, pod, keys, untagged):
    # If the trunk added the VLAN again, the VLAN would lose PVID, and the bridge would drop the pod's untagged frames.
    trunk = [{"id": untagged}, {"id": 30}]
    host = node.add(node.conf(vlanTrunk=trunk, **keys), pod)["interfaces"][1]["name"]
    assert vlans(host) == {untagged: OWN, 30: []}


def test_empty_trunk_has_a_new_bridge_filter_and_leaves_the_port_alone(node, pod):
    host = node.add(node.conf(vlanTrunk=[]), pod)["interfaces"][1]["name"]
    assert vlans(host) == {1: OWN}
    assert links()["br0"]["linkinfo"]["info_data"]["vlan_filtering"] == 1


def test_vlan_replaces_the_bridges_default_vlan(node, pod_netns):
    run("ip", "link", "add", "br0", "type", "bridge", "vlan_filtering", "1", "vlan_default_pvid", "9")
    one, two = pod_netns(), pod_netns()
    assert vlans(node.add(node.conf(vlan=100), one)["interfaces"][1]["name"]) == {100: OWN}
    assert vlans(node.add(node.conf(vlan=9), two)["interfaces"][1]["name"]) == {9: OWN}


def test_default_vlan_is_preserved_with_a_trunk(node, pod):
    conf = node.conf(vlan=100, vlanTrunk=[{"minID": 5, "maxID": 6}], preserveDefaultVlan=True)
    assert vlans(node.add(conf, pod)["interfaces"][1]["name"]) == {1: ["Egress Untagged"], 5: [], 6: [], 100: OWN}


def test_pods_of_one_vlan_reach_each_other_and_those_of_another_do_not(node, pod_netns):
    one, two, other = pod_netns(), pod_netns(), pod_netns()
    for pod, vlan in ((one, 100), (two, 100), (other, 200)):
        node.add(node.conf(vlan=vlan), pod)
    assert source_seen(one, two, "10.22.0.3") == "10.22.0.2"
    assert source_seen(one, other, "10.22.0.4", wait=0.3) is None


def test_a_foreign_bridge_without_vlan_filtering_is_reported(node, pod):
    run("ip", "link", "add", "br0", "type", "bridge")
    reply = node.call("ADD", node.conf(vlan=100), pod)
    assert reply.status == 0
    assert b'"br0" existed without vlan_filtering' in reply.stderr
    assert links()["br0"]["linkinfo"]["info_data"]["vlan_filtering"] == 0


@pytest.mark.parametrize("keys", [{"vlan": 100}, {"vlan": 100, "macspoofchk": True, "ipspoofchk": True}],
                         ids=["alone", "with ipspoofchk"])
def test_a_vlan_interface_has_dual_stack_gateways(node, pod, keys):
    conf = node.conf("10.22.0.0/24", "fd00:22::/64", isDefaultGateway=True, **keys)
    result = node.add(conf, pod)
    assert sorted(addresses("br0.100")) == ["10.22.0.1/24", "fd00:22::1/64"]
    assert source_seen(pod, None, "10.22.0.1") == "10.22.0.2"
    assert source_seen(pod, None, "fd00:22::1") == "fd00:22::2"
    node.check(conf, pod, result)
    node.delete({**conf, "prevResult": result}, pod)
    assert {name for name in links() if not name.startswith("veth")} == {"lo", "br0", "br0.100"}


def test_a_vlan_interface_on_a_full_bridge_is_refused(node, pod):
    run("ip", "link", "add", "br0", "address", "02:00:00:00:00:05", "type", "bridge", "vlan_filtering", "1")
    run("ip", "link", "set", "br0", "up")
    run("ip", "-batch", "-", stdin="".join(f"link add p{i} master br0 type ifb\n" for i in range(1022)))
    before = node.left(pod)
    error = node.refused("ADD", node.conf(isGateway=True, vlan=100), pod)
    assert (error["code"], error["msg"]) == (11, 'bridge "br0" is full: a Linux bridge has 1,023 ports')
    assert node.left(pod) == before


def test_failed_add_keeps_a_vlan_interface_that_another_pod_uses(node, pod_netns, monkeypatch):
    # Once, the rollback removed the gateway addresses, although another pod of the VLAN used them.
    conf, lost, other = node.conf(isGateway=True, vlan=100), pod_netns(), pod_netns()

    def fail_late(*_):
        monkeypatch.undo()
        node.add(conf, other)
        raise CniError(999, "too late")

    monkeypatch.setattr(bridge.bridges.Port, "wait_until_up", fail_late)
    assert node.refused("ADD", conf, lost)["msg"] == "too late"
    assert addresses("br0.100") == ["10.22.0.1/24"]
    assert source_seen(other, None, "10.22.0.1") == "10.22.0.3"
