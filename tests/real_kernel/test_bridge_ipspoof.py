"""bridge with ipspoofchk: frames of a pod pass only if they are from the pod's addresses."""

import socket
import struct

import pytest
from real_kernel.node import Inside, cid_of, elements, rules, run, set_sysctl, source_seen

from fastcni.kernel import nft, wire
from fastcni.kit.firewall import ipspoofcheck

DUAL = ("10.22.0.0/24", "fd00:22::/64")
OTHER_MAC = "02:00:00:00:00:99"
SETS = ("guarded", "allowed", "bound", "bound4", "bound6")
ETH_P_ALL, ETH_P_RARP, ETH_P_EXPERIMENT, ETH_P_8021Q = 3, 0x8035, 0x88B5, 0x8100
UDP, ICMPV6, HOP_BY_HOP = 17, 58, 0
ROUTER_ADVERT, NEIGHBOR_SOLICIT, NEIGHBOR_ADVERT, MLD_REPORT, MLD2_REPORT, ECHO = 134, 135, 136, 131, 143, 128


@pytest.fixture
def conf(node):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return node.conf(*DUAL, isGateway=True, ipspoofchk=True)


# -- frames by hand ---------------------------------------------------------------------------------------

def mac_bytes(text):
    return bytes.fromhex(text.replace(":", ""))


def ip_bytes(text):
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def ethernet(source, kind, payload, tags=()):
    between = b"".join(struct.pack("!HH", ETH_P_8021Q, vid) for vid in tags)
    return b"\xff" * 6 + mac_bytes(source) + between + struct.pack("!H", kind) + payload


def ipv4(mac, source, **more):
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 60, 0, 0, 64, UDP, 0, ip_bytes(source), b"\xff" * 4)
    total = sum(struct.unpack("!10H", header))
    header = header[:10] + struct.pack("!H", 0xFFFF - total % 0xFFFF) + header[12:]     # br_netfilter verifies it
    return ethernet(mac, 0x0800, header + bytes(40), **more)


def ipv6(mac, source, protocol=UDP, payload=bytes(32), **more):
    header = struct.pack("!IHBB16s16s", 6 << 28, len(payload), protocol, 255, ip_bytes(source), ip_bytes("ff02::1"))
    return ethernet(mac, 0x86DD, header + payload, **more)


def icmpv6(mac, source, kind, target="::", hop_by_hop=False):
    """hop_by_hop: with the router alert option in front, as in MLD."""
    message = struct.pack("!BBHI16s", kind, 0, 0, 0, ip_bytes(target)) + bytes(16)
    alert = struct.pack("!BBBBHH", ICMPV6, 0, 5, 2, 0, 0x0100) if hop_by_hop else b""
    return ipv6(mac, source, HOP_BY_HOP if hop_by_hop else ICMPV6, alert + message)


def arp(mac, sender_mac, sender_ip, kind=0x0806):
    fields = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 2, mac_bytes(sender_mac), ip_bytes(sender_ip),
                         b"\xff" * 6, ip_bytes("10.22.0.9"))
    return ethernet(mac, kind, fields + bytes(18))


def link_local(mac):
    raw = mac_bytes(mac)
    return socket.inet_ntop(socket.AF_INET6, b"\xfe\x80" + bytes(6) + bytes([raw[0] ^ 2]) + raw[1:3] + b"\xff\xfe"
                            + raw[3:])


def passed(sender, receiver, frames):
    """Send all of {title: frame} from the sender's eth0; return those that the receiver's eth0 receives.

    The last frame always passes, so the test need not wait for dropped ones. Each ends in 16 unique bytes.
    """
    marks = {title: f"frame {i:10}".encode() for i, title in enumerate(frames)}
    with Inside(receiver):
        listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        listener.bind(("eth0", ETH_P_ALL))
    with Inside(sender):
        speaker = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        speaker.bind(("eth0", 0))
    seen, last = set(), next(reversed(marks))
    with listener, speaker:
        for title, frame in frames.items():
            speaker.send(frame[:-16] + marks[title])
        listener.settimeout(2)
        while last not in seen:
            seen |= titles_of(listener.recv(2000), marks)
        listener.settimeout(0.05)
        try:
            while True:
                seen |= titles_of(listener.recv(2000), marks)
        except TimeoutError:
            return seen


def titles_of(frame, marks):
    return {title for title, mark in marks.items() if frame.endswith(mark)}


def own_frames(mac):
    return {
        "IPv4": ipv4(mac, "10.22.0.2"),
        "IPv4 in a VLAN": ipv4(mac, "10.22.0.2", tags=[7]),
        "ARP": arp(mac, mac, "10.22.0.2"),
        "ARP probe": arp(mac, mac, "0.0.0.0"),
        "IPv6": ipv6(mac, "fd00:22::2"),
        "IPv6 in a VLAN": ipv6(mac, "fd00:22::2", tags=[7]),
        "IPv6, link-local": ipv6(mac, link_local(mac)),
        "ICMPv6 echo": icmpv6(mac, "fd00:22::2", ECHO),
        "solicitation of a neighbour": icmpv6(mac, "fd00:22::2", NEIGHBOR_SOLICIT, "fd00:22::3"),
        "advertisement of its address": icmpv6(mac, "fd00:22::2", NEIGHBOR_ADVERT, "fd00:22::2"),
        "advertisement of its link-local": icmpv6(mac, link_local(mac), NEIGHBOR_ADVERT, link_local(mac)),
        "duplicate address detection": icmpv6(mac, "::", NEIGHBOR_SOLICIT, "fd00:22::2"),
        "the same, link-local": icmpv6(mac, "::", NEIGHBOR_SOLICIT, link_local(mac)),
        "MLD report": icmpv6(mac, link_local(mac), MLD2_REPORT, hop_by_hop=True),
        "MLD report from ::": icmpv6(mac, "::", MLD2_REPORT, hop_by_hop=True),
        "MLDv1 report from ::": icmpv6(mac, "::", MLD_REPORT, hop_by_hop=True),
        "the last one": ipv4(mac, "10.22.0.2"),
    }


def forged_frames(mac):
    """All but the first have the pod's MAC, so macspoofchk alone lets them pass."""
    return {
        "another MAC": ipv4(OTHER_MAC, "10.22.0.2"),
        "a neighbour's IPv4": ipv4(mac, "10.22.0.3"),
        "a neighbour's IPv4 in a VLAN": ipv4(mac, "10.22.0.3", tags=[7]),
        "its IPv4 in a VLAN in a VLAN": ipv4(mac, "10.22.0.2", tags=[7, 8]),
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
        "echo from ::": icmpv6(mac, "::", ECHO),
        "advertisement for a neighbour": icmpv6(mac, "fd00:22::2", NEIGHBOR_ADVERT, "fd00:22::3"),
        "the same behind a header": icmpv6(mac, "fd00:22::2", NEIGHBOR_ADVERT, "fd00:22::3", hop_by_hop=True),
        "advertisement from a neighbour": icmpv6(mac, "fd00:22::3", NEIGHBOR_ADVERT, "fd00:22::2"),
        "a neighbour's duplicate address detection": icmpv6(mac, "::", NEIGHBOR_SOLICIT, "fd00:22::3"),
        "router advertisement": icmpv6(mac, link_local(mac), ROUTER_ADVERT),
        "the same behind a header ": icmpv6(mac, link_local(mac), ROUTER_ADVERT, hop_by_hop=True),
        "another protocol": ethernet(mac, ETH_P_EXPERIMENT, bytes(50)),
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
    frames = {**forged_frames(mac), **own_frames(mac)}
    assert passed(pod, neighbour, frames) == set(frames) - {"another MAC"}


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
    frames = {source: ipv4(mac, source) for source in ("10.22.0.3", "10.22.0.5", "10.22.0.2")}
    assert passed(pod, neighbour, frames) == {"10.22.0.5", "10.22.0.2"}


def test_source_checks_use_the_requested_mac(node, pod_netns, conf):
    pod, neighbour = pod_netns(), pod_netns()
    node.add({**conf, "runtimeConfig": {"mac": OTHER_MAC}}, pod)
    node.add(node.conf(*DUAL, isGateway=True), neighbour)
    own = own_frames(OTHER_MAC)
    assert passed(pod, neighbour, own) == set(own)


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
    frames = {"forged": ipv4(mac, "10.22.0.9"), "own": ipv4(mac, "10.22.0.3")}
    assert passed(two, neighbour, frames) == {"own"}
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
