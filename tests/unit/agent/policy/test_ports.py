"""Which raw packets of a pod's root the rules at the pod's port let pass, on the real kernel. Needs root."""

import contextlib
import json
import socket
import sys

import pytest
from unit.agent.policy import frames
from unit.agent.policy.frames import MARK, arrived, ipv4, ipv6, link_local, neighbour, udp
from unit.agent.policy.pods import ADDRESSES, NODE, ON_BRIDGE, TCP, UDP, Node, mac_of_pod
from unit.agent.policy.site import Site
from unit.agent.policy.test_service import DB

from fastcni.agent.policy.attached import AttachedCompiler, Attachment
from fastcni.agent.policy.engine import Engine
from fastcni.agent.policy.objects import read_policy
from fastcni.agent.policy.ports import Port
from fastcni.agent.policy.ruleset import TABLE, see_bridged_traffic
from fastcni.spec.address import read_ip
from fastcni.spec.errors import CniError
from fastcni.testing.namespaces import Inside, run
from fastcni.testing.witnesses import eventually

NO_EGRESS = {"kind": "NetworkPolicy", "metadata": {"name": "no-egress"}, "spec": {
    "podSelector": {"matchLabels": {"egress": "none"}}, "policyTypes": ["Egress"]}}
NO_INGRESS = {"kind": "NetworkPolicy", "metadata": {"name": "no-ingress"}, "spec": {**DB, "policyTypes": ["Ingress"]}}
FROM_C = {"kind": "NetworkPolicy", "metadata": {"name": "from-c"}, "spec": {
    **DB, "ingress": [{"from": [{"ipBlock": {"cidr": f"{address}"}} for address in ("10.0.0.3/32", "fd00::3/128")]}]}}
MULTICAST = ("10.0.0.255", "255.255.255.255", "224.0.0.1", "224.0.0.251", "ff02::1", "ff05::1", "ff02::fb")
MAC_A, MAC_B, MAC_C = map(mac_of_pod, "abc")


@pytest.fixture
def site(host_netns, pod_netns, tmp_path):
    if not see_bridged_traffic():
        pytest.skip("needs br_netfilter in the kernel")
    node = Node(pod_netns)
    it = Site(node, tmp_path)
    yield it
    it.stop()
    node.close()


def to(address, source, mac, to_mac, port=5000):
    make = ipv6 if ":" in address else ipv4
    return make(mac, source[":" in address], address, udp(destination=port), to=to_mac)


# -- frames to a pod --------------------------------------------------------------------------------------------------

def test_broadcast_and_multicast_do_not_arrive_at_a_pod_without_ingress(site):
    """The rules found no pod for such destinations in their maps. Once, 16 of 18 datagrams arrived, from a sender
    without any capability."""
    site.write(FROM_C)
    for name in "ac":
        site.add(name)
    sent = {f"{address} to {mac}": to(address, ADDRESSES["a"], MAC_A, mac)
            for address in MULTICAST for mac in (MAC_B, frames.BROADCAST, "33:33:00:00:00:01", "01:00:5e:00:00:01")}
    site.add("b", app="other")
    assert len(site.delivered(sent, "a", "b", "c")) >= 12
    site.call("DEL", "b")
    site.add("b", app="db")
    assert site.arrived(sent, "a", "b", "c") == set()


def test_a_pod_without_ingress_gets_no_other_ethertypes_and_no_double_tags(site):
    """The agent does not know the sender, pod a. It stands for another runtime's pod on the bridge."""
    site.write(FROM_C)
    site.add("b", app="db")
    sent = {f"{kind:x}": frames.ethernet(MAC_A, MAC_B, kind) for kind in (
        frames.ETH_P_RARP, frames.ETH_P_MPLS, frames.ETH_P_EXPERIMENT, frames.ETH_P_LLDP, 0x88F7, 0x8864)}
    for tags in ([0, 0], [7, 8], [(frames.ETH_P_8021AD, 0), 0], [0, 0, 0], [0, (frames.ETH_P_8021AD, 0), 0, 0], [0]):
        for number, source in enumerate(ADDRESSES["a"]):
            make = (ipv4, ipv6)[number]
            sent[f"{source} {tags}"] = make(MAC_A, source, ADDRESSES["b"][number], udp(destination=5000), to=MAC_B,
                                            tags=tags)
    assert site.arrived(sent, "a", "b", "c") == set()


def test_bytes_behind_neighbour_discovery_do_not_arrive_at_a_pod_without_ingress(site):
    site.write(FROM_C)
    site.add("b", app="db")
    pod = frames.Pod(MAC_A, ADDRESSES["a"], ADDRESSES["b"], NODE[0])
    forged = {title: frame for title, frame in pod.forged_neighbours().items() if "bytes" in title}
    forged["a solicitation in an MLD report"] = pod.ipv6(pod.own6, frames.report(), headers=[frames.ROUTER_ALERT])
    own = {title: frame for title, frame in pod.own().items() if "solicit" in title or "advert" in title}
    assert len(forged) >= 4 and len(own) >= 4
    taken = site.arrived({**forged, **own}, "a", "b", "c")
    assert taken == set(own) | {"bytes in the place of its option"}  # the rules at the sender's port check these bytes


def test_pods_resolve_each_other_and_reach_what_policies_allow(site):
    site.write(FROM_C)
    for name in "acd":
        site.add(name)
    site.add("b", app="db")
    for netns in site.names(*"abcd"):
        run("ip", "neigh", "flush", "all", netns=netns)
    asked = {(source, address, protocol, 80)
             for source in "acd" for address in ADDRESSES["b"] for protocol in (TCP, UDP)}
    expected = {one for one in asked if one[0] == "c"}
    assert site.node.reached(asked, expected) == expected
    asked = {(None, address, TCP, 80) for address in ADDRESSES["b"]}
    assert site.node.reached(asked, asked) == asked


# -- frames from a pod ------------------------------------------------------------------------------------------------

def test_a_pod_sends_from_its_own_addresses_only(site):
    """Once, 30 of 33 forged sources passed. The rules of the forged address applied to the packet, not the rules of the
    sender."""
    for name in "abc":
        site.add(name)
    pod = frames.Pod(MAC_A, ADDRESSES["a"], ADDRESSES["b"], NODE[0], MAC_C)
    own = pod.own()
    assert site.arrived({**pod.forged(), **own}, "a", "b", "c") == set(own)


def test_a_pod_behind_a_link_of_its_own_is_held_too(site):
    """Once, 12 forged sources of a ptp pod passed."""
    site.write(FROM_C, NO_EGRESS)
    site.add("b", app="db")
    site.add("d")
    gateway = site.gateway_mac("d")
    for number, target in enumerate(ADDRESSES["b"]):
        make = (ipv4, ipv6)[number]
        forged = {source: make(mac_of_pod("d"), source, target, udp(destination=5000), to=gateway) for source in (
            ADDRESSES["c"][number], ADDRESSES["a"][number], target, ("8.8.8.8", "2001:db8::8")[number],
            NODE[number], ("10.0.4.254", "fd00:4::fe")[number], ("0.0.0.0", "::")[number])}
        assert site.arrived(forged, "d", "b", "c") == set()
        own = {"own": make(mac_of_pod("d"), ADDRESSES["d"][number], ADDRESSES["c"][number], udp(destination=5000),
                           to=gateway)}
        assert site.arrived(own, "d", "c", "a") == {"own"}


def test_a_forged_packet_makes_no_connection_for_the_other_direction(site):
    """Once, a packet with the victim's address as its source made a conntrack entry. Later packets to the victim
    counted as answers."""
    site.write(FROM_C)
    for name in "ac":
        site.add(name)
    site.add("b", app="db")
    answers = {}
    for number, (own, other) in enumerate(zip(ADDRESSES["a"], ADDRESSES["b"], strict=True)):
        make = (ipv4, ipv6)[number]
        frames.send(site.names("a")[0], make(MAC_A, other, own, udp(source=5000, destination=6000), to=MAC_A),
                    make(MAC_A, other, own, udp(source=5000, destination=6000), to=site.gateway_mac("a")))
        answers[own] = make(MAC_A, own, other, udp(source=6000, destination=5000), to=MAC_B)
    assert site.delivered(answers, "a", "b", "c") == set()


def test_a_pod_without_egress_gets_nothing_out_by_broadcast(site):
    """Once, such a pod could send broadcasts from 0.0.0.0."""
    site.write(NO_EGRESS)
    site.add("a", egress="none")
    sent = {f"{source} to {address}": ipv4(MAC_A, source, address, udp(source=68, destination=67))
            for source in ("0.0.0.0", "10.0.0.1") for address in ("255.255.255.255", "10.0.0.255", "224.0.0.1")}
    sent |= {f"{source} to {address}": ipv6(MAC_A, source, address, udp())
             for source in ("::", "fd00::1", link_local(MAC_A)) for address in ("ff02::1", "ff05::1", "fd00::3")}
    assert site.arrived(sent, "a", "c", "b") == set()


def test_a_pod_without_egress_gets_nothing_out_by_icmpv6(site):
    """Once, ICMPv6 types 131 to 143 passed with 1,200 bytes to one MAC. Reports from `::` passed, too."""
    site.write(NO_EGRESS)
    site.add("a", egress="none")
    pod = frames.Pod(MAC_A, ADDRESSES["a"], ADDRESSES["b"], NODE[0])
    sent = {f"type {kind} from {source}, hop limit {hops}": ipv6(
                MAC_A, source, "ff02::16", (frames.ICMPV6, bytes((kind, 0, 0, 0)) + bytes(1200) + MARK), hop_limit=hops)
            for kind in range(128, 145) for source in ("::", pod.local, pod.own6) for hops in (1, 255)}
    reports = pod.reports()
    assert site.arrived({**sent, **pod.forged_reports(), **reports}, "a", "c", "b") == set(reports)


def test_a_bridge_hears_which_groups_a_pod_without_egress_listens_to(site):
    """The pod's kernel sends its usual multicast reports, and the bridge must receive them."""
    site.write(NO_EGRESS)
    site.add("a", egress="none")
    with Inside(site.names("a")[0]):
        it, link = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM), socket.if_nametoindex("eth0")
    with it:
        it.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP,
                      frames.ip_bytes("ff05::1234") + link.to_bytes(4, sys.byteorder))
        assert eventually(lambda: "port port-a grp ff05::1234" in run("bridge", "mdb", "show", "dev", "br0"))


def test_no_pod_takes_the_mac_of_another_one(site):
    """Once, one frame with another pod's MAC diverted that pod's traffic. Frames to 01:80:c2:00:00:0e (LLDP) pass no
    netfilter hook."""
    for name in "ab":
        site.add(name)
    sent = [frames.ethernet(MAC_B, f"01:80:c2:00:00:{last:02x}", frames.ETH_P_LLDP) for last in range(16)]
    sent += [frames.ethernet(MAC_B, to, frames.ETH_P_LLDP) for to in (frames.BROADCAST, MAC_C)]
    assert site.arrived({}, "b", "a", "b") == set()                 # the bridge learns the port of b's MAC
    frames.send(site.names("a")[0], *sent)
    assert site.arrived({}, "a", "c", "a") == set()                 # by then the bridge has handled the forged frames
    learned = run("bridge", "fdb", "show", "br", "br0")
    assert f"{MAC_B} dev port-b" in learned


def test_ports_stay_held_while_the_agent_is_away_and_after_it_comes_back(site):
    site.write(FROM_C)
    site.add("b", app="db")
    site.add("a")
    forged = {"forged": to(ADDRESSES["b"][0], ADDRESSES["c"], MAC_A, MAC_B)}
    site.stop()
    assert site.arrived(forged, "a", "b", "c") == set()
    site.start()
    assert eventually(lambda: site.it.ready)
    assert site.arrived(forged, "a", "b", "c") == set()
    site.it.stale = True
    assert eventually(lambda: "policies_restored" in site.events())
    assert site.arrived(forged, "a", "b", "c") == set()
    site.call("DEL", "a")
    assert site.arrived(forged, "a", "b", "c") == set()


@pytest.mark.parametrize("name", "ad")
def test_a_port_is_held_before_the_add_answers(host_netns, pod_netns, name):
    """The agent writes the rules of the pod's policies after its answer, but the checks of the port before."""
    if not see_bridged_traffic():
        pytest.skip("needs br_netfilter in the kernel")
    with contextlib.closing(Node(pod_netns)) as node, contextlib.closing(Engine(AttachedCompiler())) as engine:
        engine.compiler.put_policy(read_policy(NO_INGRESS))
        engine.load()
        port = Port(f"port-{name}", name in ON_BRIDGE, frames.mac_bytes(mac_of_pod(name)))
        engine.protect(Attachment(("net", "c", "eth0"), "default/x", {"app": "db"},
                                  tuple(map(read_ip, ADDRESSES[name])), 1, port))
        gateway = frames.mac_of(None, "br0" if name in ON_BRIDGE else "port-d")
        forged = {source: ipv4(mac_of_pod(name), source, ADDRESSES["c"][0], udp(), to=gateway)
                  for source in (ADDRESSES["b"][0], "8.8.8.8")}
        own = {"own": ipv4(mac_of_pod(name), ADDRESSES[name][0], ADDRESSES["c"][0], udp(), to=gateway)}
        last = frames.arp(MAC_B, MAC_B, ADDRESSES["b"][0])
        assert arrived(forged | own, node.names[name], node.names["c"], last, node.names["b"]) == {"own"}
        engine.rules.remove()


def test_an_attachment_of_an_earlier_version_is_held_after_restore(site, tmp_path):
    """The attachment's file has no `port`, and the table has no element for the port. CHECK fails until RESTORE."""
    site.add("a")
    site.stop()
    run("nft", "delete", "table", "bridge", "fastcni-policy")
    document = json.loads((path := tmp_path / "pods" / "net@c-a@eth0.json").read_text())
    assert document.pop("port")["name"] == "port-a"
    path.write_text(json.dumps(document))
    site.start()
    forged = {"forged": to(ADDRESSES["b"][0], ADDRESSES["c"], MAC_A, MAC_B)}
    assert eventually(lambda: site.it.ready)
    assert site.arrived(forged, "a", "b", "c") == {"forged"}
    with pytest.raises(CniError, match="the rules of its port differ"):
        site.call("CHECK", "a", "K8S_POD_NAME=a")
    site.call("RESTORE", "a", "K8S_POD_NAME=a")
    assert site.arrived(forged, "a", "b", "c") == set()
    site.call("CHECK", "a", "K8S_POD_NAME=a")


def test_elements_of_ports_go_with_the_pod(site):
    site.write(FROM_C)
    assert eventually(lambda: site.it.ready)
    before = elements()
    for _ in range(2):
        for name in "abcd":
            site.pod(name, allowedAddressPairs=[{"ipAddress": "10.9.0.0/16"}, {"ipAddress": "fd00:9::9"}], dhcp=True,
                     allowedEtherTypes=["0x88cc"], allowRouterAdvertisements=True)
        assert elements() != before
        for name in "abcd":
            site.delete(name)
        assert eventually(lambda: elements() == before)


def elements():
    """Return {(family, set): elements} of the tables in `inet` and `bridge`."""
    found = {}
    for family in ("inet", "bridge"):
        for each in json.loads(run("nft", "-j", "list", "table", family, TABLE))["nftables"]:
            for kind in ("set", "map"):
                if each.get(kind, {}).get("elem"):
                    found[family, each[kind]["name"]] = each[kind]["elem"]
    return found


# -- keys ------------------------------------------------------------------------------------------------------------

VIP, VIP6, VMAC = "10.0.0.100", "fd00::100", "00:00:5e:00:01:05"


def test_allowed_address_pairs_let_a_virtual_router_work(site):
    """keepalived sends VRRP and gratuitous ARP from the virtual MAC. Packets of the service come from the virtual or
    the pod's MAC."""
    site.pod("a", allowedAddressPairs=[{"ipAddress": VIP, "macAddress": VMAC}, {"ipAddress": VIP6}])
    site.add("b")
    vrrp = 112, bytes(16) + MARK
    sent = {
        "VRRP": ipv4(VMAC, "10.0.0.1", "224.0.0.18", vrrp, to="01:00:5e:00:00:12"),
        "gratuitous ARP": frames.arp(VMAC, VMAC, VIP, VIP),
        "advertisement": ipv6(VMAC, VIP6, "ff02::1", frames.announces(VIP6, VMAC), hop_limit=255),
        "VRRP over IPv6": ipv6(VMAC, link_local(VMAC), "ff02::12", vrrp),
        "from the address": ipv4(VMAC, VIP, ADDRESSES["b"][0], udp(), to=MAC_B),
        "from the address and the pod's MAC": ipv4(MAC_A, VIP, ADDRESSES["b"][0], udp(), to=MAC_B),
        "from the IPv6 address": ipv6(MAC_A, VIP6, ADDRESSES["b"][1], udp(), to=MAC_B)}
    forged = {"another virtual address": ipv4(VMAC, "10.0.0.101", ADDRESSES["b"][0], udp(), to=MAC_B),
              "another virtual MAC": ipv4("00:00:5e:00:01:06", VIP, ADDRESSES["b"][0], udp(), to=MAC_B)}
    assert site.arrived({**sent, **forged}, "a", "b", "c") == set(sent)
    assert site.arrived({**sent, **forged}, "b", "a", "c") == set()


def test_policies_hold_for_a_further_address(site):
    site.write(NO_INGRESS, NO_EGRESS)
    pair = {"allowedAddressPairs": [{"ipAddress": VIP}]}
    site.pod("b", runtimeConfig={"labels": {"app": "db"}}, **pair)
    sent = {"to the further address": ipv4(MAC_A, "10.0.0.1", VIP, udp(), to=MAC_B)}
    assert arrived(sent, *site.names("a", "b"), frames.arp(MAC_A, MAC_A, "10.0.0.1")) == set()
    site.pod("a", runtimeConfig={"labels": {"egress": "none"}}, **pair)
    sent = {"from the further address": ipv4(MAC_A, VIP, ADDRESSES["c"][0], udp(), to=MAC_C)}
    assert arrived(sent, *site.names("a", "c"), frames.arp(MAC_A, MAC_A, "10.0.0.1")) == set()


@pytest.mark.parametrize("name", "ad")
def test_a_prefix_passes_while_no_policy_restricts_the_pod(site, name):
    """The maps contain single addresses, so policies cannot apply to a prefix."""
    site.write(NO_EGRESS)
    pairs = {"allowedAddressPairs": [{"ipAddress": "10.9.0.0/16"}, {"ipAddress": "fd00:9::/64"}]}
    own = mac_of_pod(name)
    gateway = site.gateway_mac(name)
    sent = {"IPv4": ipv4(own, "10.9.8.7", ADDRESSES["c"][0], udp(), to=gateway),
            "IPv6": ipv6(own, "fd00:9::7", ADDRESSES["c"][1], udp(), to=gateway),
            "beside IPv4": ipv4(own, "10.10.0.1", ADDRESSES["c"][0], udp(), to=gateway),
            "beside IPv6": ipv6(own, "fd00:9:0:1::7", ADDRESSES["c"][1], udp(), to=gateway)}
    if name == "a":
        sent |= {"ARP": frames.arp(own, own, "10.9.8.7"),
                 "advertisement": ipv6(own, "fd00:9::7", "ff02::1", frames.announces("fd00:9::7", own), hop_limit=255)}
    site.pod(name, **pairs)
    assert site.arrived(sent, name, "c", "b") == set(sent) - {"beside IPv4", "beside IPv6"}
    site.pod(name, runtimeConfig={"labels": {"egress": "none"}}, **pairs)
    assert site.arrived(sent, name, "c", "b") == set()


def test_allowed_ethertypes_pass_both_ways_and_others_do_not(site):
    site.write(NO_INGRESS)
    types = {"allowedEtherTypes": ["0x8847", 0x88B5]}
    site.pod("a", **types)
    site.pod("b", runtimeConfig={"labels": {"app": "db"}}, **types)
    sent = {f"{kind:x}": frames.ethernet(MAC_A, MAC_B, kind) for kind in (0x8847, 0x88B5, 0x88CC)}
    last = frames.arp(MAC_A, MAC_A, ADDRESSES["a"][0])
    assert arrived(sent, *site.names("a", "b"), last) == {"8847", "88b5"}


def test_messages_of_routers_pass_with_their_key(site):
    sent = {"advertisement": ipv6(MAC_A, link_local(MAC_A), "ff02::1", neighbour(frames.ROUTER_ADVERT), hop_limit=255),
            "redirect": ipv6(MAC_A, link_local(MAC_A), ADDRESSES["b"][1], neighbour(frames.REDIRECT), hop_limit=255),
            "IGMP query": ipv4(MAC_A, ADDRESSES["a"][0], "224.0.0.1", frames.igmp(frames.IGMP_QUERY))}
    site.add("b")
    for allowed in (False, True):
        site.pod("a", allowRouterAdvertisements=allowed)
        assert site.arrived(sent, "a", "b", "c") == (set(sent) if allowed else set())


def test_a_lease_is_asked_for_and_given_in_spite_of_policies_with_the_key_dhcp(site):
    site.write(NO_INGRESS, NO_EGRESS)
    for dhcp in (True, False):
        site.node.forget_flows()
        site.pod("a", dhcp=dhcp, runtimeConfig={"labels": {"app": "db", "egress": "none"}})
        asked = {"discover": ipv4(MAC_A, "0.0.0.0", "255.255.255.255", udp(source=68, destination=67)),
                 "renew": ipv4(MAC_A, "10.0.0.1", ADDRESSES["c"][0], udp(source=68, destination=67), to=MAC_C),
                 "rebind": ipv4(MAC_A, "10.0.0.1", "255.255.255.255", udp(source=68, destination=67))}
        other = {"another port": ipv4(MAC_A, "0.0.0.0", "255.255.255.255", udp(source=68, destination=66)),
                 "renew from another port": ipv4(MAC_A, "10.0.0.1", ADDRESSES["c"][0], udp(source=69, destination=67),
                                                 to=MAC_C)}
        assert site.arrived({**asked, **other}, "a", "c", "b") == (set(asked) if dhcp else set())
        answered = {"broadcast": ipv4(MAC_C, ADDRESSES["c"][0], "255.255.255.255", udp(source=67, destination=68)),
                    "unicast": ipv4(MAC_C, ADDRESSES["c"][0], "10.0.0.1", udp(source=67, destination=68), to=MAC_A)}
        other = {"broadcast ": ipv4(MAC_C, ADDRESSES["c"][0], "255.255.255.255", udp(source=67, destination=69))}
        last = frames.arp(MAC_C, MAC_C, ADDRESSES["c"][0])
        site.node.forget_flows()
        assert arrived({**answered, **other}, *site.names("c", "a"), last) == (set(answered) if dhcp else set())


@pytest.mark.parametrize("keys, text", [
    ({"allowedAddressPairs": [{}]}, r"allowedAddressPairs\[0\].ipAddress: expected an address or a prefix"),
    ({"allowedAddressPairs": [{"ipAddress": "10.0.0.1/33"}]}, "expected an address or a prefix"),
    ({"allowedAddressPairs": [{"ipAddress": VIP, "macAddress": "01:00:5e:00:00:01"}]}, "the MAC of one station"),
    ({"allowedAddressPairs": [{"ipAddress": VIP, "macAddress": "nonsense"}]}, "invalid MAC address"),
    ({"allowedAddressPairs": {}}, "expected a list"),
    ({"allowedEtherTypes": ["x"]}, r'allowedEtherTypes\[0\]: expected an ethertype like "0x88cc", got string "x"'),
    ({"allowedEtherTypes": [512]}, "expected an ethertype"), ({"allowedEtherTypes": [True]}, "expected an ethertype"),
    ({"allowedEtherTypes": ["0x8100"]}, "a VLAN tag in a VLAN tag"),
    ({"allowedEtherTypes": [2048]}, "checked by address"),
    ({"allowRouterAdvertisements": 1}, "expected true or false"), ({"dhcp": "yes"}, "expected true or false")])
def test_a_bad_key_is_refused(site, keys, text):
    with pytest.raises(CniError, match=text) as caught:
        site.pod("a", **keys)
    assert caught.value.code == 7


def test_a_pod_whose_port_is_unknown_is_refused(site):
    interfaces = [{"name": "br0"}, {"name": "eth0", "sandbox": "/pod", "mac": MAC_A}]
    previous = {"cniVersion": "1.1.0", "interfaces": interfaces, "ips": [{"address": "10.0.0.1/24", "interface": 1}]}
    with pytest.raises(CniError, match="one veth on the host, the pod's port; found 0 among br0"):
        site.call("ADD", "a", prevResult=previous)
    del interfaces[1]["mac"]
    with pytest.raises(CniError, match="prevResult has no MAC of eth0"):
        site.call("ADD", "a", prevResult=previous)


@pytest.mark.parametrize("family", (0, 1))
def test_an_echo_reply_without_a_request_passes_neither_from_nor_to_a_restricted_pod(site, family):
    """For conntrack, a reply without a request begins no connection, but the packet passes. Once, replies of an ended
    connection arrived."""
    site.write(FROM_C)
    for name, labels in (("a", {}), ("b", {"app": "db"}), ("c", {})):
        site.pod(name, runtimeConfig={"labels": labels})
    make, packet = ((ipv4, (frames.ICMP, bytes((0, 0)) + bytes(6) + frames.MARK)),
                    (ipv6, (frames.ICMPV6, bytes((129, 0)) + bytes(6) + frames.MARK)))[family]
    for source, target, last_from, arrives in (("b", "a", "c", False), ("c", "b", "c", False), ("a", "c", "a", True)):
        sent = {"reply": make(mac_of_pod(source), ADDRESSES[source][family], ADDRESSES[target][family], packet,
                              to=mac_of_pod(target))}
        assert site.arrived(sent, source, target, last_from) == ({"reply"} if arrives else set())
