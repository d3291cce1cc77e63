"""bridge with disableFlooding: the bridge has an entry for each pod, answers ARP in the pod's name, and floods no frame
to the pod's port."""

import pytest
from lab.node import addresses, ip_json, links, run, source_seen, sysctl
from lab.unflooded import DUAL, FLAGS, Received, conf_of, flags, neighbours, restored, stations


@pytest.fixture
def conf(node):
    return conf_of(node)


def test_pods_the_gateway_and_the_host_reach_each_other_and_nobody_else_hears_of_it(node, conf, pod_netns):
    one, two, silent = pod_netns(), pod_netns(), pod_netns()
    first, second, third = (node.add(conf(), pod) for pod in (one, two, silent))
    assert flags(first) == flags(second) == FLAGS
    with Received(silent) as heard:
        for sender, receiver, address, source in (
                (one, two, "10.22.0.3", "10.22.0.2"), (one, None, "10.22.0.1", "10.22.0.2"),
                (None, two, "10.22.0.3", "10.22.0.1")):
            assert source_seen(sender, receiver, address) == source
        fourth = node.add(conf(), pod_netns())
        assert source_seen(one, None, "10.22.0.1") == "10.22.0.2"
        for result in (first, second, fourth):
            assert heard.from_mac(result["interfaces"][2]["mac"]) == []
    for pod, result in ((one, first), (two, second), (silent, third)):
        node.check(conf(), pod, result)


def test_the_mac_is_made_of_the_address_unless_one_is_requested(node, conf, pod_netns):
    assert node.add(conf(), pod_netns())["interfaces"][2]["mac"] == "0a:58:0a:16:00:02"
    macs = [node.add(conf("fd00:22::/64"), pod_netns())["interfaces"][2]["mac"] for _ in range(2)]
    assert len({*macs}) == 2 and all(mac.startswith("0e:") for mac in macs)
    asked = conf(runtimeConfig={"mac": "02:00:00:00:00:77"})
    assert node.add(asked, pod_netns())["interfaces"][2]["mac"] == "02:00:00:00:00:77"
    assert neighbours()["10.22.0.3"] == "02:00:00:00:00:77"


def test_pods_of_different_ipv6_networks_have_different_macs(node, conf, pod_netns):
    """Once, the MAC was a XOR of the address's halves. fd00:22:0:1::6 and fd00:22:0:3::4 had the same MAC, and the
    first pod lost its network."""
    macs = {node.add(conf(f"fd00:22:0:{prefix}::/64", runtimeConfig={"ips": [f"fd00:22:0:{prefix}::{host}/64"]}),
                     pod_netns())["interfaces"][2]["mac"] for prefix, host in ((1, 6), (3, 4), (3, 6))}
    assert len(macs) == 3


def test_an_add_refuses_the_mac_of_another_port(node, conf, pod_netns):
    one, two = pod_netns(), pod_netns()
    asked = conf(runtimeConfig={"mac": "02:00:00:00:00:77"})
    result = node.add(asked, one)
    before = node.left(one, two)
    answer = node.call("ADD", asked, two)
    assert answer.status == 1, answer
    assert "has the MAC 02:00:00:00:00:77" in answer.stdout.decode()
    assert node.left(one, two) == before
    node.check(asked, one, result)


def test_dual_stack_pods_reach_each_other_the_gateway_and_the_host_reaches_them(node, conf, pod_netns):
    one, two = pod_netns(), pod_netns()
    results = [node.add(conf(*DUAL), pod) for pod in (one, two)]
    assert flags(results[0]) == FLAGS
    for sender, receiver, address, source in (
            (one, two, "fd00:22::3", "fd00:22::2"), (two, None, "fd00:22::1", "fd00:22::3"),
            (None, one, "fd00:22::2", "fd00:22::1"), (one, two, "10.22.0.3", "10.22.0.2")):
        assert source_seen(sender, receiver, address) == source
    assert {"10.22.0.2", "10.22.0.3", "fd00:22::2", "fd00:22::3"} == {*neighbours()}
    for pod, result in zip((one, two), results, strict=True):
        node.check(conf(*DUAL), pod, result)
        node.delete(conf(*DUAL), pod)
    assert neighbours() == stations() == {}


@pytest.mark.parametrize("keys", [{"ipMasq": True}, {"hairpinMode": True}, {"promiscMode": True}, {"enabledad": True},
                                  {"macspoofchk": True}, {"ipspoofchk": True}, {"disableIPv6": True}],
                         ids=lambda keys: next(iter(keys)))
def test_it_works_with_the_other_keys(node, conf, pod_netns, keys):
    one, two = pod_netns(), pod_netns()
    before = node.left(one, two)
    results = [node.add(conf(**keys), pod) for pod in (one, two)]
    assert source_seen(one, two, "10.22.0.3") == "10.22.0.2"
    assert source_seen(None, two, "10.22.0.3") == "10.22.0.1"
    for pod, result in zip((one, two), results, strict=True):
        node.check(conf(**keys), pod, result)
        node.delete({**conf(**keys), "prevResult": result}, pod)
    run("ip", "link", "del", "br0")
    assert node.left(one, two) == before


def test_pods_of_both_modes_share_a_bridge(node, conf, pod_netns):
    plain, quiet = pod_netns(), pod_netns()
    node.add(conf(disableFlooding=False), plain)
    node.add(conf(), quiet)
    assert source_seen(plain, quiet, "10.22.0.3") == "10.22.0.2"
    assert source_seen(quiet, plain, "10.22.0.2") == "10.22.0.3"


@pytest.mark.parametrize("keys, text", [
    ({"ipam": None}, "without IPAM"), ({"ipam": {"type": "dhcp"}}, "with dhcp"),
    ({"vlan": 5}, "with vlan and vlanTrunk"), ({"vlanTrunk": [{"id": 5}]}, "with vlan and vlanTrunk"),
], ids=["no IPAM", "dhcp", "vlan", "vlanTrunk"])
def test_keys_that_exclude_it_are_refused(node, conf, pod, keys, text):
    before = node.left(pod)
    error = node.refused("ADD", conf(**keys), pod)
    assert (error["code"], error["msg"]) == (7, f"cannot use disableFlooding {text}")
    assert node.left(pod) == before


def test_del_removes_the_neighbours_with_and_without_the_namespace_and_prev_result(node, conf, pod_netns):
    pods = [pod_netns() for _ in range(4)]
    results = [node.add(conf(*DUAL), pod) for pod in pods]
    for pod in pods[2:]:
        run("ip", "link", "del", "eth0", netns=pod)
    node.delete(conf(*DUAL), pods[0])
    node.delete({**conf(*DUAL), "prevResult": results[2]}, pods[2], env={"CNI_NETNS": None})
    assert {*neighbours()} == {"10.22.0.3", "fd00:22::3", "10.22.0.5", "fd00:22::5"}
    node.delete(conf(*DUAL), pods[3], env={"CNI_NETNS": None})
    assert {*neighbours()} == {"10.22.0.3", "fd00:22::3"}


def test_a_failed_add_leaves_no_neighbour(node, conf, pod):
    node.refused("ADD", conf(ipMasq=True, ipMasqBackend="iptables"), pod, env={"PATH": "/nowhere"})
    assert "br0" not in links()
    run("ip", "link", "add", "br0", "type", "bridge")
    node.refused("ADD", conf(ipMasq=True, ipMasqBackend="iptables"), pod, env={"PATH": "/nowhere"})
    assert neighbours() == stations() == {}


def test_a_repeated_add_is_refused_and_the_pod_keeps_its_network(node, conf, pod):
    result = node.add(conf(), pod)
    held = node.held()
    assert "already exists" in node.refused("ADD", conf(), pod)["msg"]
    assert node.held() == held
    node.check(conf(), pod, result)
    assert source_seen(None, pod, "10.22.0.2") == "10.22.0.1"


def fixed(conf, **keys):
    return conf(ipam={"type": "static", "addresses": [{"address": "10.22.0.9/24"}]}, **keys)


def test_an_address_that_moves_is_reached_at_once_and_a_late_del_takes_nothing_from_its_new_pod(node, conf, pod_netns):
    peer, old, new = pod_netns(), pod_netns(), pod_netns()
    node.add(conf(), peer)
    node.add(fixed(conf), old)
    assert source_seen(peer, old, "10.22.0.9") == "10.22.0.2"
    run("ip", "link", "del", "eth0", netns=old)                 # the link vanishes without a DEL
    result = node.add(fixed(conf), new)
    assert source_seen(peer, new, "10.22.0.9") == "10.22.0.2"
    assert source_seen(None, new, "10.22.0.9") == "10.22.0.1"
    node.delete(fixed(conf), old)
    node.check(fixed(conf), new, result)


def test_the_gateway_of_a_second_network_on_the_bridge_leaves_the_first_ones_pods_known(node, conf, pod_netns):
    """A new gateway address sets the bridge's MAC. When a link's MAC is set, the kernel deletes the link's neighbour
    entries."""
    one, two = pod_netns(), pod_netns()
    result = node.add(conf(), one)
    node.add(conf("fd00:33::/64", name="net-b"), two)
    node.check(conf(), one, result)


def test_what_a_deleted_pod_left_does_not_block_a_pod_of_the_default_mode(node, conf, pod_netns):
    """DEL of the reference plugin deletes only the link, so the earlier pod's entry remains."""
    old, new = pod_netns(), pod_netns()
    node.add(conf(), pod_netns())                   # without a port, the bridge would lose its neighbour entries
    node.add(fixed(conf), old)
    run("ip", "link", "del", "eth0", netns=old)
    assert neighbours()["10.22.0.9"] == "0a:58:0a:16:00:09"
    mac = node.add(fixed(conf, disableFlooding=False), new)["interfaces"][2]["mac"]
    assert source_seen(new, None, "10.22.0.1") == "10.22.0.9"
    assert source_seen(None, new, "10.22.0.9") == "10.22.0.1"
    assert neighbours()["10.22.0.9"] == mac


def test_gc_deletes_and_reports_what_a_deleted_pod_left(node, conf, pod_netns):
    gone, here = pod_netns(), pod_netns()
    node.add(fixed(conf), gone)
    result = node.add(conf(), here)
    run("ip", "link", "del", "eth0", netns=gone)
    node.ok("GC", {**conf(), "cni.dev/valid-attachments": [{"containerID": f"c-{here}", "ifname": "eth0"}]})
    assert {*neighbours()} == {"10.22.0.2"}
    node.check(conf(), here, result)


LOSSES = {
    "flags": ("bridge link set dev {port} bcast_flood on", 'port "{port}" has other flags'),
    "fdb": ("bridge fdb del {mac} dev {port} master",
            'the FDB of bridge "br0" has no static entry {mac} on port "{port}"'),
    "neighbour": ("ip neigh flush dev br0", 'bridge "br0" has no neighbour 10.22.0.2 of fastcni'),
    "down": ("ip link set br0 down", 'bridge "br0" has no neighbour 10.22.0.2 of fastcni'),
    "mac": ("ip neigh replace 10.22.0.2 lladdr 02:00:00:00:00:01 dev br0 protocol 252",
            'neighbour 10.22.0.2 of bridge "br0" has the MAC 02:00:00:00:00:01, the pod {mac}'),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_check_names_what_is_missing_and_restore_restores_it(node, conf, pod, loss):
    result = node.add(conf(), pod)
    names = {"port": result["interfaces"][1]["name"], "mac": result["interfaces"][2]["mac"]}
    command, text = (each.format(**names) for each in LOSSES[loss])
    run(*command.split())
    assert node.check_refused(conf(), pod, result) == f"disableFlooding: {text}"
    restored(conf(), pod, result)
    node.check(conf(), pod, result)


def test_the_bridge_neither_snoops_nor_has_the_ports_ipv6(node, conf, pod):
    result = node.add(conf(), pod)
    assert links()["br0"]["linkinfo"]["info_data"]["mcast_snooping"] == 0
    assert sysctl(f"net/ipv6/conf/{result['interfaces'][1]['name']}/disable_ipv6") == "1"
    assert addresses("eth0", pod) == ["10.22.0.2/24"]
    assert ip_json("-6", "addr", "show", "dev", "eth0", "scope", "link", netns=pod)[0]["addr_info"]
