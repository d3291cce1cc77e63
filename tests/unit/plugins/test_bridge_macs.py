"""bridge: the bridge keeps its MAC, and macspoofchk drops frames whose source is not the pod's MAC."""

import json
import socket

import pytest
from lab.node import Inside, addresses, elements, links, rules, run, source_seen

ETH_P_EXPERIMENT = 0x88B5               # IEEE 802, local experimental ethertype 1


LOWEST = "00:00:00:00:00:01"


def bridge_mac():
    return links()["br0"]["address"]


def add_lowest_port():
    run("ip", "link", "add", "name", "low0", "address", LOWEST, "master", "br0", "type", "ifb")


def frame_passes(sender, receiver, source):
    """Send a broadcast frame with the MAC `source` from one pod's eth0. Return whether the other pod receives the
    frame."""
    with Inside(receiver):
        listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_EXPERIMENT))
    with Inside(sender):
        speaker = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        speaker.bind(("eth0", 0))
    with listener, speaker:
        mac = bytes.fromhex(source.replace(":", ""))
        speaker.send(b"\xff" * 6 + mac + ETH_P_EXPERIMENT.to_bytes(2, "big") + bytes(50))
        listener.settimeout(0.3)
        try:
            return listener.recv(100)[6:12] == mac
        except TimeoutError:
            return False


def test_the_gateways_mac_stays_when_pods_are_added_and_deleted(node, pod_netns):
    # A bridge without a fixed MAC takes the lowest MAC of its ports. When that MAC changes, the pods' ARP entries
    # become stale.
    conf, pods = node.conf(isGateway=True), [pod_netns() for _ in range(3)]
    mac = node.add(conf, pods[0])["interfaces"][0]["mac"]
    assert bridge_mac() == mac
    for pod in pods[1:]:
        assert node.add(conf, pod)["interfaces"][0]["mac"] == mac == bridge_mac()
    node.delete(conf, pods[0])
    add_lowest_port()
    assert bridge_mac() == mac
    assert source_seen(pods[1], None, "10.22.0.1") == "10.22.0.3"


@pytest.mark.parametrize("keys", [{}, {"ipam": None}, {"isGateway": True}], ids=["IPAM", "layer 2", "gateway"])
def test_a_new_bridge_has_a_mac_that_no_port_has(node, pod_netns, keys):
    conf, one = node.conf(**keys), pod_netns()
    result = node.add(conf, one)
    mac = result["interfaces"][0]["mac"]
    assert mac == bridge_mac() != result["interfaces"][1]["mac"]
    assert int(mac[:2], 16) & 3 == 2
    add_lowest_port()
    second = node.add(conf, pod_netns())
    node.delete(conf, one)
    assert bridge_mac() == mac == second["interfaces"][0]["mac"]


def test_a_foreign_bridge_keeps_its_settings_until_it_becomes_the_gateway(node, pod_netns):
    run("ip", "link", "add", "br0", "type", "bridge")
    bridge, host, _ = node.add(node.conf(), pod_netns())["interfaces"]
    assert bridge["mac"] == bridge_mac() == host["mac"]             # the bridge has the MAC of its only port
    add_lowest_port()
    assert bridge_mac() == LOWEST
    run("ip", "link", "del", "low0")
    mac = node.add(node.conf(isGateway=True), pod_netns())["interfaces"][0]["mac"]
    add_lowest_port()
    assert bridge_mac() == mac != LOWEST


def test_bridge_with_a_fixed_mac_keeps_it(node, pod):
    run("ip", "link", "add", "br0", "address", "02:00:00:00:00:77", "type", "bridge")
    assert node.add(node.conf(isGateway=True), pod)["interfaces"][0]["mac"] == bridge_mac() == "02:00:00:00:00:77"


def test_bridge_outlives_its_pods_with_its_address(node, pod):
    conf = node.conf(isGateway=True)
    node.add(conf, pod)
    node.delete(conf, pod)
    assert addresses("br0") == ["10.22.0.1/24"]
    assert set(links()) == {"lo", "br0"}


def test_macspoofchk_is_one_rule_and_an_element_in_each_of_two_sets(node, pod_netns):
    conf = node.conf(macspoofchk=True)
    results = [node.add(conf, pod_netns()) for _ in range(3)]
    ports = [result["interfaces"][1]["name"] for result in results]
    macs = [result["interfaces"][2]["mac"] for result in results]
    assert sorted(elements("guarded", "bridge")) == sorted(ports)
    assert sorted(elements("allowed", "bridge")) == sorted(zip(ports, macs, strict=True))
    found = [item["rule"] for item in rules() if "rule" in item]
    assert [(rule["table"], rule["chain"]) for rule in found] == [("fastcni", "prerouting")]
    assert "drop" in json.dumps(found[0]["expr"])


def test_macspoofchk_drops_other_macs_and_lets_the_pods_own_pass(node, pod_netns):
    one, two, free = pod_netns(), pod_netns(), pod_netns()
    conf = node.conf(macspoofchk=True, isGateway=True)
    mac = node.add(conf, one)["interfaces"][2]["mac"]
    node.add(conf, two)
    assert frame_passes(one, two, mac)
    assert not frame_passes(one, two, "02:00:00:00:00:99")
    assert source_seen(one, two, "10.22.0.3") == "10.22.0.2"
    # A pod without macspoofchk on the same bridge may send from any MAC.
    node.add(node.conf(), free)
    assert frame_passes(free, two, "02:00:00:00:00:99")


@pytest.mark.parametrize("gone", ["nothing", "netns", "link", "bridge", "table"])
def test_del_removes_macspoofchk_elements_in_every_state(node, pod, gone):
    conf = node.conf(macspoofchk=True)
    result = node.add(conf, pod)
    if gone == "netns":
        run("ip", "netns", "del", pod)
    elif gone == "link":
        run("ip", "link", "del", result["interfaces"][1]["name"])
    elif gone == "bridge":
        run("ip", "link", "del", "br0")
    elif gone == "table":
        run("nft", "delete", "table", "bridge", "fastcni")
    node.delete(conf, pod)
    assert elements("guarded", "bridge") == []
    assert elements("allowed", "bridge") == []
    assert node.held() == {}
    node.delete(conf, pod)


@pytest.mark.parametrize("what", [("ruleset",), ("table", "bridge", "fastcni")], ids=" ".join)
def test_macspoofchk_survives_a_flush(node, pod_netns, what):
    conf, one, two = node.conf(macspoofchk=True), pod_netns(), pod_netns()
    node.add(conf, one)
    run("nft", "flush", *what)
    port = node.add(conf, two)["interfaces"][1]["name"]
    assert port in elements("guarded", "bridge")
    assert not frame_passes(two, one, "02:00:00:00:00:99")
