"""bridge: the effect of each configuration key, and the errors on a kernel that lacks a feature."""

import socket
import struct

import features
import pytest
from lab.node import addresses, ip_json, links, routes, rules, run, set_sysctl, source_seen, sysctl
from pyroute2 import IPRoute

DUAL = ("10.22.0.0/24", "fd00:22::/64")


def port_of(result):
    """Return the link (`ip -j -d link`) of the host's end that a result names."""
    return links()[result["interfaces"][1]["name"]]


def test_result_names_what_the_kernel_has(node, pod):
    result = node.add(node.conf(isGateway=True, routes=["0.0.0.0/0"]), pod)
    bridge, host, inside = result["interfaces"]
    with IPRoute() as here, IPRoute(netns=pod) as there:
        seen = {link.get("ifname"): link.get("address") for link in here.get_links()}
        inside_seen = {link.get("ifname"): link.get("address") for link in there.get_links()}
    assert seen["br0"] == bridge["mac"]
    assert seen[host["name"]] == host["mac"]
    assert inside_seen["eth0"] == inside["mac"]
    assert bridge["name"] == "br0"
    assert inside == {"name": "eth0", "mac": inside["mac"],
                                                  "sandbox": f"/run/netns/{pod}"}
    assert result["ips"] == [{"address": "10.22.0.2/24", "gateway": "10.22.0.1", "interface": 2}]
    assert result["routes"] == [{"dst": "0.0.0.0/0"}]
    assert addresses("eth0", pod) == ["10.22.0.2/24"]
    assert ("default", "10.22.0.1") in routes(pod)
    assert host["name"].startswith("veth")
    assert links()[host["name"]]["master"] == "br0"


def test_default_bridge_is_cni0_and_is_up(node, pod):
    node.add(node.conf(bridge=None), pod)
    assert "UP" in links()["cni0"]["flags"]
    assert sysctl("net/ipv6/conf/cni0/accept_ra") == "0"
    assert addresses("cni0") == []
    assert sysctl("net/ipv4/ip_forward") == "0"


def test_is_gateway_gives_the_bridge_the_first_address(node, pod):
    node.add(node.conf(isGateway=True), pod)
    assert addresses("br0") == ["10.22.0.1/24"]
    assert sysctl("net/ipv4/ip_forward") == "1"
    assert source_seen(pod, None, "10.22.0.1") == "10.22.0.2"
    assert ("default", "10.22.0.1") not in routes(pod)


def test_static_addresses_without_a_gateway_get_network_plus_one(node, pod):
    ipam = {"type": "static", "addresses": [{"address": "10.23.7.9/16"}, {"address": "fd00:23::9/64"}]}
    result = node.add(node.conf(isGateway=True, ipam=ipam), pod)
    assert [item["gateway"] for item in result["ips"]] == ["10.23.0.1", "fd00:23::1"]
    assert addresses("br0") == ["10.23.0.1/16", "fd00:23::1/64"]


def test_is_default_gateway_implies_is_gateway_and_a_default_route_per_family(node, pod):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")         # the new bridge's address must be usable immediately
    result = node.add(node.conf(*DUAL, isDefaultGateway=True), pod)
    assert result["routes"] == [{"dst": "0.0.0.0/0", "gw": "10.22.0.1"}, {"dst": "::/0", "gw": "fd00:22::1"}]
    assert ("default", "10.22.0.1") in routes(pod)
    assert ("default", "fd00:22::1") in routes(pod, family=6)
    assert sorted(addresses("br0")) == ["10.22.0.1/24", "fd00:22::1/64"]
    assert sysctl("net/ipv6/conf/all/forwarding") == "1"
    assert source_seen(pod, None, "fd00:22::1") == "fd00:22::2"


def test_dual_stack_pods_reach_each_other(node, pod_netns):
    one, two = pod_netns(), pod_netns()
    conf = node.conf(*DUAL, isGateway=True)
    node.add(conf, one)
    second = node.add(conf, two)
    assert [item["address"] for item in second["ips"]] == ["10.22.0.3/24", "fd00:22::3/64"]
    assert source_seen(one, two, "10.22.0.3") == "10.22.0.2"
    assert source_seen(one, two, "fd00:22::3") == "fd00:22::2"


def test_another_gateway_on_the_bridge_is_refused_unless_forced(node, pod_netns):
    one, two = pod_netns(), pod_netns()
    node.add(node.conf(isGateway=True), one)
    other = node.conf("10.33.0.0/24", isGateway=True, name="net-b")
    before = node.left(one, two)
    error = node.refused("ADD", other, two)
    assert '"br0" already has an IP address different from 10.33.0.1/24' in error["msg"]
    assert "details" not in error
    assert node.left(one, two) == before
    node.add({**other, "forceAddress": True}, two)
    assert addresses("br0") == ["10.33.0.1/24"]


def test_all_gateways_of_a_network_are_the_bridges(node, pod):
    # The reference plugin reports a conflict of the second IPv4 gateway with the first.
    subnets = ("10.22.0.0/24", "10.23.0.0/24", "fd00:22::/64", "fd00:23::/64")
    result = node.add(node.conf(*subnets, isDefaultGateway=True), pod)
    gateways = ["10.22.0.1/24", "10.23.0.1/24", "fd00:22::1/64", "fd00:23::1/64"]
    assert [item["gateway"] for item in result["ips"]] == [text.partition("/")[0] for text in gateways]
    assert sorted(addresses("br0")) == gateways
    for text in gateways:
        assert source_seen(pod, None, text.partition("/")[0])
    assert result["routes"] == [{"dst": "0.0.0.0/0", "gw": "10.22.0.1"}, {"dst": "::/0", "gw": "fd00:22::1"}]


def test_several_addresses_share_a_gateway(node, pod):
    ipam = {"type": "static", "addresses": [{"address": "10.22.0.5/24"}, {"address": "10.22.0.6/24"}]}
    node.add(node.conf(ipam=ipam, isGateway=True), pod)
    assert addresses("br0") == ["10.22.0.1/24"]
    assert addresses("eth0", pod) == ["10.22.0.5/24", "10.22.0.6/24"]


def test_bridge_with_the_gateway_and_another_address_is_left_alone(node, pod):
    for command in ("link add br0 type bridge", "addr add 10.99.0.1/16 dev br0", "addr add 10.22.0.1/24 dev br0"):
        run("ip", *command.split())
    node.add(node.conf(isGateway=True), pod)
    assert addresses("br0") == ["10.99.0.1/16", "10.22.0.1/24"]


# when the first address is deleted, the kernel also deletes the second
OLD = ["10.99.0.1/16", "10.99.0.2/16", "fd00:22::9/60", "fd00:99::1/64"]


@pytest.fixture
def old_bridge(node):
    run("ip", "link", "add", "br0", "type", "bridge")
    run("ip", "link", "set", "br0", "up")
    for address in OLD:
        run("ip", "addr", "add", address, "dev", "br0", *(["nodad"] if ":" in address else []))


def test_force_address_replaces_only_conflicting_addresses(node, pod, old_bridge):
    node.add(node.conf(*DUAL, isGateway=True, forceAddress=True), pod)
    assert sorted(addresses("br0")) == ["10.22.0.1/24", "fd00:22::1/64", "fd00:99::1/64"]


def test_replaced_addresses_are_restored_when_a_later_step_fails(node, pod, old_bridge):
    before = node.left(pod)
    conf = node.conf(*DUAL, isGateway=True, forceAddress=True, ipMasq=True, ipMasqBackend="iptables")
    node.refused("ADD", conf, pod, env={"PATH": "/nowhere"})
    assert node.left(pod) == before


def test_gateway_on_the_bridge_is_usable_at_once(node, pod):
    node.add(node.conf(*DUAL, isGateway=True), pod)
    assert run("ip", "-6", "addr", "show", "dev", "br0", "tentative", "scope", "global") == ""
    assert source_seen(pod, None, "fd00:22::1") == "fd00:22::2"


def test_default_route_of_ipam_without_gw_is_added_once(node, pod):
    result = node.add(node.conf(*DUAL, isDefaultGateway=True, routes=["0.0.0.0/0"]), pod)
    assert result["routes"] == [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00:22::1"}]
    assert ("default", "10.22.0.1") in routes(pod)


def test_without_ipam_there_is_no_gateway_and_nothing_to_masquerade(node, pod):
    node.add(node.conf(ipam=None, isGateway=True, ipMasq=True), pod)
    assert addresses("br0") == []
    assert sysctl("net/ipv4/ip_forward") == "0"
    assert rules() == []


def test_ipv6_gateways_of_different_subnets_share_a_bridge(node, pod_netns):
    node.add(node.conf("fd00:22::/64", isGateway=True), pod_netns())
    node.add(node.conf("fd00:33::/64", isGateway=True, name="net-b"), pod_netns())
    assert sorted(addresses("br0")) == ["fd00:22::1/64", "fd00:33::1/64"]


def test_an_mtu_that_is_too_small_for_ipv6_is_named(node, pod):
    """Once, the errors were `No such file or directory` and `Invalid argument`, without the key's name."""
    for keys in ({"type": "bridge"}, {"type": "ptp"}):
        error = node.refused("ADD", node.conf("10.22.0.0/24", "fd00:22::/64", mtu=1279, **keys), pod)
        assert error["code"] == 7 and "is 1279, and IPv6 needs 1280 or more" in error["msg"], error
        node.add(node.conf("10.22.0.0/24", mtu=1279, **keys), pod)
        node.delete(node.conf("10.22.0.0/24", mtu=1279, **keys), pod)


def test_mtu_is_that_of_a_new_bridge_and_of_both_ends(node, pod_netns):
    one, two = pod_netns(), pod_netns()
    port = port_of(node.add(node.conf(mtu=1400), one))
    assert (links()["br0"]["mtu"], port["mtu"], links(one)["eth0"]["mtu"]) == (1400, 1400, 1400)
    run("ip", "link", "set", "br0", "mtu", "1380")
    node.add(node.conf(), two)
    assert links(two)["eth0"]["mtu"] == 1500


def test_port_flags_are_off_unless_asked_for(node, pod):
    data = port_of(node.add(node.conf(), pod))["linkinfo"]["info_slave_data"]
    assert (data["hairpin"], data["isolated"]) == (False, False)
    assert links()["br0"]["promiscuity"] == 0


def test_hairpin_mode_is_a_flag_of_the_port(node, pod):
    assert port_of(node.add(node.conf(hairpinMode=True), pod))["linkinfo"]["info_slave_data"]["hairpin"] is True


def test_promisc_mode_is_a_flag_of_the_bridge(node, pod_netns):
    conf = node.conf(promiscMode=True)
    node.add(conf, pod_netns())
    node.add(conf, pod_netns())
    assert links()["br0"]["promiscuity"] == 1


def capture_on(name):
    """Return a socket that captures all packets on a link, like tcpdump. It increments the link's promiscuity."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    membership = struct.pack("iHH8s", socket.if_nametoindex(name), 1, 0, b"")        # PACKET_MR_PROMISC
    sock.setsockopt(263, 1, membership)                                              # SOL_PACKET, ADD_MEMBERSHIP
    return sock


def test_a_packet_capture_on_the_bridge_does_not_count_as_promisc_mode(node, pod_netns):
    run("ip", "link", "add", "br0", "type", "bridge")
    plain, wanted = pod_netns(), pod_netns()
    with capture_on("br0"):
        result = node.add(node.conf(), plain)
        assert links()["br0"]["promiscuity"] == 1
        node.check(node.conf(), plain, result)
        node.add(node.conf(promiscMode=True), wanted)
    assert links()["br0"]["promiscuity"] == 1


def test_bridge_settings_are_rolled_back_when_add_fails(node, pod):
    run("ip", "link", "add", "br0", "type", "bridge")
    before = ip_json("-d", "link", "show", "br0")
    ipam = {"type": "static", "addresses": [{"address": "10.22.0.5/24"}], "routes": [{"dst": "192.0.2.0/24",
                                                                                     "gw": "172.16.0.1"}]}
    node.refused("ADD", node.conf(ipam=ipam, promiscMode=True), pod)
    after = ip_json("-d", "link", "show", "br0")
    assert (after[0]["flags"], after[0]["promiscuity"]) == (before[0]["flags"], 0)
    assert "UP" not in after[0]["flags"]


def test_port_isolation_keeps_pods_from_each_other_but_not_from_the_gateway(node, pod_netns):
    one, two = pod_netns(), pod_netns()
    conf = node.conf(isGateway=True, portIsolation=True)
    assert port_of(node.add(conf, one))["linkinfo"]["info_slave_data"]["isolated"] is True
    node.add(conf, two)
    assert source_seen(one, None, "10.22.0.1") == "10.22.0.2"
    assert source_seen(one, two, "10.22.0.3", wait=0.2) is None


@pytest.mark.parametrize("enabled, values", [(False, ("0",)), (True, ("1", "1"))], ids=["off", "on"])
def test_enabledad_leaves_duplicate_address_detection_on(node, pod, enabled, values):
    node.add(node.conf("fd00:22::/64", enabledad=enabled), pod)
    names = ["accept_dad", "enhanced_dad"][:len(values)]
    assert tuple(sysctl(f"net/ipv6/conf/eth0/{name}", pod) for name in names) == values
    assert addresses("eth0", pod) == ["fd00:22::2/64"]


def test_gratuitous_arp_is_left_to_the_kernel(node, pod):
    node.add(node.conf(), pod)
    assert sysctl("net/ipv4/conf/eth0/arp_notify", pod) == "1"


def test_disabled_container_interface_stays_down(node, pod):
    result = node.add(node.conf(ipam=None, disableContainerInterface=True), pod)
    assert "UP" not in links(pod)["eth0"]["flags"]
    assert port_of(result)["operstate"] != "UP"


def test_layer_2_only_brings_the_interface_up_without_addresses(node, pod):
    conf = node.conf(ipam=None)
    result = node.add(conf, pod)
    assert "UP" in links(pod)["eth0"]["flags"]
    assert addresses("eth0", pod) == []
    assert [item["name"] for item in result["interfaces"]] == ["br0", port_of(result)["ifname"], "eth0"]
    assert not set(result) & {"ips", "routes", "dns"}
    node.check(conf, pod, result)
    node.ok("STATUS", conf)
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo"}


MACS = {"runtimeConfig": "02:00:00:00:00:01", "args": "02:00:00:00:00:02", "CNI_ARGS": "02:00:00:00:00:03"}


@pytest.mark.parametrize("ways", [("runtimeConfig",), ("args",), ("CNI_ARGS",), ("args", "CNI_ARGS"),
                                  ("runtimeConfig", "args", "CNI_ARGS")], ids="+".join)
def test_mac_is_taken_from_the_source_of_highest_precedence(node, pod, ways):
    keys = {}
    if "runtimeConfig" in ways:
        keys["runtimeConfig"] = {"mac": MACS["runtimeConfig"]}
    if "args" in ways:
        keys["args"] = {"cni": {"mac": MACS["args"]}}
    args = f"IgnoreUnknown=1;MAC={MACS['CNI_ARGS']}" if "CNI_ARGS" in ways else ""
    result = node.add(node.conf(**keys), pod, env={"CNI_ARGS": args})
    assert result["interfaces"][2]["mac"] == links(pod)["eth0"]["address"] == MACS[ways[0]]


@pytest.mark.parametrize("mac", ["02:00:00:00:00:01:02:03", "01:00:5e:00:00:01", "00:00:00:00:00:00"],
                         ids=["8 bytes", "multicast", "zero"])
def test_mac_that_no_link_can_have_is_refused(node, pod, mac):
    before = node.left(pod)
    node.refused("ADD", node.conf(runtimeConfig={"mac": mac}), pod)
    assert node.left(pod) == before


def test_dns_of_the_network_overrides_that_of_ipam(node, pod_netns, tmp_path):
    resolv_conf = tmp_path / "resolv.conf"
    resolv_conf.write_text("nameserver 192.0.2.1\nsearch example.org\n")
    ipam = node.host_local(resolvConf=str(resolv_conf))
    result = node.add(node.conf(ipam=ipam), pod_netns())
    assert result["dns"] == {"nameservers": ["192.0.2.1"], "search": ["example.org"]}
    dns = {"nameservers": ["192.0.2.9"], "options": ["ndots:5"]}
    assert node.add(node.conf(ipam=ipam, dns=dns), pod_netns())["dns"] == dns


@pytest.mark.parametrize("keys", [{"vlan": 100}, {"vlanTrunk": [{"id": 5}]}], ids=["vlan", "vlanTrunk"])
@pytest.mark.parametrize("bridge", ["new", "there already"])
def test_vlans_without_kernel_support_are_refused(node, pod, keys, bridge):
    if features.has("bridge-vlan-filtering"):
        pytest.skip("this kernel filters VLANs")
    if bridge == "there already":
        run("ip", "link", "add", "name", "br0", "address", "02:00:00:00:00:05", "type", "bridge")
        run("ip", "link", "set", "br0", "up")
    before = node.left(pod)
    error = node.refused("ADD", node.conf(isGateway=True, **keys), pod)
    assert error["code"] == 2, error
    assert next(iter(keys)) in error["msg"], error
    assert node.left(pod) == before
