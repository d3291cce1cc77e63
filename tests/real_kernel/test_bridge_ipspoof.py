"""bridge with ipspoofchk: frames of a pod pass only if they are from the pod's addresses."""

import pytest
from agent.policy import frames
from agent.policy.frames import (
    ECHO6,
    ETH_P_8021AD,
    ETH_P_ARP,
    ETH_P_EXPERIMENT,
    ETH_P_RARP,
    ICMPV6,
    MARK,
    MLD_QUERY,
    MLD_REPORT,
    NEIGHBOUR_ADVERT,
    NEIGHBOUR_SOLICIT,
    NONCE,
    REDIRECT,
    ROUTER_ADVERT,
    ROUTER_ALERT,
    ROUTER_SOLICIT,
    SOURCE_LINK,
    TARGET_LINK,
    link_local,
    mac_bytes,
    neighbour,
    report,
    udp,
)
from real_kernel.node import cid_of, elements, rules, run, set_sysctl, source_seen

from fastcni.kernel import nft, wire
from fastcni.kit.firewall import ipspoofcheck

DUAL = ("10.22.0.0/24", "fd00:22::/64")
OTHER_MAC = "02:00:00:00:00:99"
SETS = ("guarded", "allowed", "bound", "bound4", "bound6")


@pytest.fixture
def conf(node):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return node.conf(*DUAL, isGateway=True, ipspoofchk=True)


# -- frames by hand ---------------------------------------------------------------------------------------

def ipv4(mac, source, **more):
    return frames.ipv4(mac, source, "255.255.255.255", udp(), **more)


def ipv6(mac, source, packet=None, **more):
    return frames.ipv6(mac, source, "ff02::1", packet or udp(), hop_limit=255, **more)


def arp(mac, sender_mac, sender_ip, kind=ETH_P_ARP):
    return frames.arp(mac, sender_mac, sender_ip, kind=kind)


def solicits(target, mac, **more):
    return neighbour(NEIGHBOUR_SOLICIT, target, [(SOURCE_LINK, mac_bytes(mac))] if mac else (), **more)


def announces(target, mac, **more):
    return neighbour(NEIGHBOUR_ADVERT, target, [(TARGET_LINK, mac_bytes(mac))] if mac else (), **more)


def passed(sender, receiver, sent):
    """Which of {title: frame} the receiver's eth0 receives; the last one always passes."""
    *_, last = sent
    return frames.arrived(sent, sender, receiver, sent[last])


def own_frames(mac):
    own, local, alert = "fd00:22::2", link_local(mac), {"headers": [ROUTER_ALERT]}
    return {
        "IPv4": ipv4(mac, "10.22.0.2"),
        "IPv4 in a VLAN": ipv4(mac, "10.22.0.2", tags=[7]),
        "ARP": arp(mac, mac, "10.22.0.2"),
        "ARP probe": arp(mac, mac, "0.0.0.0"),
        "IPv6": ipv6(mac, own),
        "IPv6 in a VLAN": ipv6(mac, own, tags=[7]),
        "IPv6, link-local": ipv6(mac, local),
        "ICMPv6 echo": ipv6(mac, own, (ICMPV6, bytes((ECHO6, 0, 0, 0, 0, 0, 0, 0)) + MARK)),
        "solicitation of a neighbour": ipv6(mac, own, solicits("fd00:22::3", mac)),
        "the same without its MAC": ipv6(mac, own, solicits("fd00:22::3", "")),
        "solicitation of a router": ipv6(mac, local, neighbour(
            ROUTER_SOLICIT, options=[(SOURCE_LINK, mac_bytes(mac))])),
        "the same from ::": ipv6(mac, "::", neighbour(ROUTER_SOLICIT)),
        "advertisement of its address": ipv6(mac, own, announces(own, mac)),
        "the same without its MAC ": ipv6(mac, own, announces(own, "")),
        "advertisement of its link-local": ipv6(mac, local, announces(local, mac)),
        "duplicate address detection": ipv6(mac, "::", neighbour(NEIGHBOUR_SOLICIT, own, [(NONCE, b"random")])),
        "the same, link-local": ipv6(mac, "::", neighbour(NEIGHBOUR_SOLICIT, local)),
        "MLD report": ipv6(mac, local, report(), **alert),
        "MLD report from ::": ipv6(mac, "::", report(), **alert),
        "MLDv1 report from ::": ipv6(mac, "::", report(MLD_REPORT), **alert),
        "the last one": ipv4(mac, "10.22.0.2"),
    }


def forged_frames(mac):
    """All but the first have the pod's MAC, so macspoofchk alone lets them pass."""
    own, local = "fd00:22::2", link_local(mac)
    double = [7, 8], [0, 0], [(ETH_P_8021AD, 0), 0], [0, 0, 0], [0, (ETH_P_8021AD, 0), 0, 0]
    return {
        "another MAC": ipv4(OTHER_MAC, "10.22.0.2"),
        "a neighbour's IPv4": ipv4(mac, "10.22.0.3"),
        "a neighbour's IPv4 in a VLAN": ipv4(mac, "10.22.0.3", tags=[7]),
        **{f"its IPv4 in VLANs {tags}": ipv4(mac, "10.22.0.2", tags=tags) for tags in double},
        **{f"its IPv6 in VLANs {tags}": ipv6(mac, own, tags=tags) for tags in double},
        "the gateway's IPv4": ipv4(mac, "10.22.0.1"),
        "0.0.0.0": ipv4(mac, "0.0.0.0"),
        "ARP for a neighbour": arp(mac, mac, "10.22.0.3"),
        "ARP with another MAC": arp(mac, OTHER_MAC, "10.22.0.2"),
        "ARP probe with another MAC": arp(mac, OTHER_MAC, "0.0.0.0"),
        "RARP": arp(mac, mac, "10.22.0.2", kind=ETH_P_RARP),
        "a neighbour's IPv6": ipv6(mac, "fd00:22::3"),
        "a neighbour's IPv6 in a VLAN": ipv6(mac, "fd00:22::3", tags=[7]),
        "another link-local": ipv6(mac, link_local(OTHER_MAC)),
        "::": ipv6(mac, "::"),
        "echo from ::": ipv6(mac, "::", (ICMPV6, bytes((ECHO6, 0, 0, 0, 0, 0, 0, 0)) + MARK)),
        "solicitation with another MAC": ipv6(mac, own, solicits("fd00:22::3", OTHER_MAC)),
        "bytes behind a solicitation": ipv6(mac, own, solicits("fd00:22::3", mac, behind=MARK)),
        "bytes in the place of its option": ipv6(mac, own, solicits("fd00:22::3", "", behind=b"8 bytes!")),
        "three bytes behind it": ipv6(mac, own, solicits("fd00:22::3", "", behind=b"3by")),
        "another option": ipv6(mac, own, neighbour(NEIGHBOUR_SOLICIT, "fd00:22::3", [(99, b"6bytes")])),
        "bytes behind a solicitation of a router": ipv6(mac, local, neighbour(ROUTER_SOLICIT, behind=MARK)),
        "bytes behind duplicate address detection": ipv6(mac, "::", neighbour(NEIGHBOUR_SOLICIT, own, behind=MARK)),
        "advertisement for a neighbour": ipv6(mac, own, announces("fd00:22::3", mac)),
        "advertisement with another MAC": ipv6(mac, own, announces(own, OTHER_MAC)),
        "bytes behind an advertisement": ipv6(mac, own, announces(own, mac, behind=MARK)),
        "advertisement behind a header": ipv6(mac, own, announces(own, mac), headers=[ROUTER_ALERT]),
        "advertisement from a neighbour": ipv6(mac, "fd00:22::3", announces(own, mac)),
        "a neighbour's duplicate address detection": ipv6(mac, "::", neighbour(NEIGHBOUR_SOLICIT, "fd00:22::3")),
        "router advertisement": ipv6(mac, local, neighbour(ROUTER_ADVERT)),
        "the same behind a header ": ipv6(mac, local, neighbour(ROUTER_ADVERT), headers=[ROUTER_ALERT]),
        "redirect": ipv6(mac, local, neighbour(REDIRECT, "fd00:22::3")),
        "MLD query": ipv6(mac, local, report(MLD_QUERY), headers=[ROUTER_ALERT]),
        "another protocol": frames.ethernet(mac, frames.BROADCAST, ETH_P_EXPERIMENT),
    }


# -- frames that pass -------------------------------------------------------------------------------------

def test_pod_can_send_only_from_its_own_addresses(node, pod_netns, conf):
    pod, neighbour = pod_netns(), pod_netns()
    mac = node.add(conf, pod)["interfaces"][2]["mac"]
    node.add(node.conf(*DUAL, isGateway=True), neighbour)
    own = own_frames(mac)
    assert passed(pod, neighbour, {**forged_frames(mac), **own}) == set(own)


def test_macspoofchk_alone_binds_the_mac_and_no_address(node, pod_netns, conf):
    # Without ipspoofchk every forged frame above would have arrived.
    pod, neighbour = pod_netns(), pod_netns()
    mac = node.add({**conf, "ipspoofchk": False, "macspoofchk": True}, pod)["interfaces"][2]["mac"]
    node.add(node.conf(*DUAL, isGateway=True), neighbour)
    sent = {**forged_frames(mac), **own_frames(mac)}
    assert passed(pod, neighbour, sent) == set(sent) - {"another MAC"}


def test_bound_pods_reach_each_other_and_the_gateway(node, pod_netns, conf):
    one, two = pod_netns(), pod_netns()
    conf = {**conf, "enabledad": True}
    for pod in (one, two):
        node.add(conf, pod)
    for family in ("10.22.0.", "fd00:22::"):
        assert source_seen(one, two, f"{family}3") == f"{family}2"
        assert source_seen(two, None, f"{family}1") == f"{family}3"


def test_all_addresses_of_a_pod_are_its_own(node, pod_netns):
    pod, neighbour = pod_netns(), pod_netns()
    ipam = {"type": "static", "addresses": [{"address": "10.22.0.2/24"}, {"address": "10.22.0.5/24"}]}
    mac = node.add(node.conf(ipam=ipam, ipspoofchk=True), pod)["interfaces"][2]["mac"]
    node.add(node.conf(ipam=None), neighbour)
    sent = {source: ipv4(mac, source) for source in ("10.22.0.3", "10.22.0.5", "10.22.0.2")}
    assert passed(pod, neighbour, sent) == {"10.22.0.5", "10.22.0.2"}


def test_source_checks_use_the_requested_mac(node, pod_netns, conf):
    pod, neighbour = pod_netns(), pod_netns()
    node.add({**conf, "runtimeConfig": {"mac": OTHER_MAC}}, pod)
    node.add(node.conf(*DUAL, isGateway=True), neighbour)
    own = own_frames(OTHER_MAC)
    assert passed(pod, neighbour, own) == set(own)


def test_a_bound_pod_takes_no_mac_by_a_reserved_destination(node, pod_netns, conf):
    """Frames to 01:80:c2:00:00:0e (LLDP) pass no hook, and the bridge learned from them."""
    pod, neighbour_pod = pod_netns(), pod_netns()
    mac = node.add(conf, pod)["interfaces"][2]["mac"]
    node.add(node.conf(*DUAL, isGateway=True), neighbour_pod)
    forged = {f"02:00:00:00:00:{last:02x}": f"01:80:c2:00:00:{last:02x}" for last in range(16)}
    frames.send(pod, *(frames.ethernet(source, to, frames.ETH_P_LLDP) for source, to in forged.items()))
    assert passed(pod, neighbour_pod, {"own": ipv4(mac, "10.22.0.2")})
    learned = run("bridge", "fdb", "show", "br", "br0")
    assert mac in learned and not [source for source in forged if source in learned]


# -- elements and rules -----------------------------------------------------------------------------------

def counted():
    return {name: len(elements(name, "bridge")) for name in SETS}


def test_rules_stay_the_same_however_many_pods_there_are(node, pod_netns, conf):
    mac = node.add(conf, pod_netns())["interfaces"][2]["mac"]
    one = [item for item in rules() if "rule" in item or "chain" in item]
    assert len([item for item in one if item.get("rule", {}).get("chain") == "addresses"]) == ipspoofcheck.RULES
    for _ in range(3):
        node.add(conf, pod_netns())
    assert [item for item in rules() if "rule" in item or "chain" in item] == one
    assert counted() == {"guarded": 4, "allowed": 4, "bound": 4, "bound4": 4, "bound6": 8}
    assert link_local(mac) in {address for _, address in elements("bound6", "bridge")}


def test_elements_carry_the_mark_of_their_pod(node, pod, conf):
    node.add(conf, pod)
    sets = [item["set"] for item in rules() if "set" in item]
    comments = [each["elem"]["comment"] for each in (elem for one in sets for elem in one["elem"])]
    assert len(comments) == 6
    assert all(f"id: {cid_of(pod)}" in comment for comment in comments)


@pytest.mark.parametrize("told", ["prevResult", "prevResult of another MAC", "a MAC of 8 bytes", "nothing",
                                  "nonsense"])
@pytest.mark.parametrize("gone", ["nothing", "netns", "ruleset"])
def test_del_deletes_only_the_pods_elements(node, pod_netns, conf, told, gone):
    pod, other = pod_netns(), pod_netns()
    result = node.add(conf, pod)
    node.add(conf, other)
    if gone == "netns":
        run("ip", "netns", "del", pod)
    elif gone == "ruleset":
        run("nft", "flush", "ruleset")
    if told == "prevResult of another MAC":         # as after a chained tuning
        result["interfaces"][2]["mac"] = OTHER_MAC
    elif told == "nonsense":
        result = {"cniVersion": "1.1.0", "interfaces": [{}, {"name": "x" * 40}, {"name": "eth0", "mac": "00"}]}
    elif told == "a MAC of 8 bytes":
        result["interfaces"][2]["mac"] = "02:00:00:00:00:00:00:01"
    for _ in range(2):
        node.delete(conf if told == "nothing" else {**conf, "prevResult": result}, pod, cid=cid_of(pod))
    left = 0 if gone == "ruleset" else 1
    assert counted() == {"guarded": left, "allowed": left, "bound": left, "bound4": left, "bound6": 2 * left}


def test_del_with_prev_result_dumps_no_set(node, pod, conf, monkeypatch):
    result = node.add(conf, pod)
    dump = wire.dump

    def dump_but_sets(sock, kind, *more):
        assert kind != nft.NFT_MSG_GETSETELEM, "the time of a dump grows with the number of pods"
        return dump(sock, kind, *more)

    with monkeypatch.context() as patch:
        patch.setattr(wire, "dump", dump_but_sets)
        node.delete({**conf, "prevResult": result}, pod)
    assert sum(counted().values()) == 0


def test_gc_deletes_the_elements_of_lost_attachments(node, pod_netns, conf):
    kept, lost = pod_netns(), pod_netns()
    port = node.add(conf, kept)["interfaces"][1]["name"]
    node.add(conf, lost)
    run("ip", "netns", "del", lost)
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": cid_of(kept), "ifname": "eth0"}]})
    assert counted() == {"guarded": 1, "allowed": 1, "bound": 1, "bound4": 1, "bound6": 2}
    assert elements("bound", "bridge") == [port]


@pytest.mark.parametrize("what", ["ruleset", "chain bridge fastcni addresses", "set bridge fastcni bound4"])
def test_next_pod_is_bound_again_after_a_flush_and_check_of_the_first_fails(node, pod_netns, conf, what):
    one, two, neighbour = pod_netns(), pod_netns(), pod_netns()
    result = node.add(conf, one)
    node.check(conf, one, result)
    run("nft", "flush", *what.split())
    mac = node.add(conf, two)["interfaces"][2]["mac"]
    node.add(node.conf(*DUAL, isGateway=True), neighbour)
    sent = {"forged": ipv4(mac, "10.22.0.9"), "own": ipv4(mac, "10.22.0.3")}
    assert passed(two, neighbour, sent) == {"own"}
    if what.startswith("chain"):
        node.check(conf, one, result)
    else:
        msg = node.check_refused(conf, one, result)
        assert f'port "{result["interfaces"][1]["name"]}" is not guarded' in msg


def test_ipspoofchk_without_ipam_is_refused(node, pod):
    before = node.left(pod)
    error = node.refused("ADD", node.conf(ipam=None, ipspoofchk=True), pod)
    assert (error["code"], error["msg"]) == (7, "cannot use ipspoofchk without IPAM")
    assert node.left(pod) == before
