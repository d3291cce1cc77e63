"""A pod's root sends packets of the node's tunnels. Their inner source address is another pod's. Needs root for the
real kernel."""

import struct

import pytest
from unit.agent.policy import frames
from unit.agent.policy.frames import MARK, ipv4, ipv6, udp
from unit.agent.policy.pods import ADDRESSES, NODE, ROUTED_NODE, TCP, UDP, mac_of_pod
from unit.agent.policy.test_ports import FROM_C, MAC_A, MAC_B, site, to  # noqa: F401

from fastcni.agent.policy import tunnels
from fastcni.agent.policy.evaluate import Connection
from fastcni.agent.policy.in_kernel import decisions
from fastcni.agent.policy.objects import EGRESS
from fastcni.kernel import rtnl, uapi
from fastcni.kit.links import find
from fastcni.spec.address import read_ip
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually

PORTS = {"10.0.0.254": 8472, "fd00::fe": 8473}          # {the node's address: the tunnel's port}


def make_tunnels(site):        # noqa: F811
    """Make a tunnel over IPv4 and a tunnel over IPv6, and wait until the agent has seen both."""
    for number, (address, port) in enumerate(PORTS.items(), 1):
        run("ip", "link", "add", f"tunnel{number}", "address", f"02:00:00:00:01:0{number}", "type", "vxlan", "id",
            f"{number}", "dstport", f"{port}", "local", address)
        run("ip", "link", "set", f"tunnel{number}", "up")
    assert eventually(lambda: len(site.it.compiler.state.elements["tunnel-ports"]) == len(PORTS))


def around(sender, to_mac, target, mark=MARK, **more):
    """Return a frame from pod `sender` with a VXLAN packet (RFC 7348) to `target`. The inner packet is a datagram from
    pod c to pod b."""
    make, number = (ipv6, 2) if ":" in target else (ipv4, 1)
    inner = ipv4("02:00:00:00:00:aa", ADDRESSES["c"][0], ADDRESSES["b"][0], udp(mark, destination=5000),
                 to=f"02:00:00:00:01:0{number}")
    packet = udp(struct.pack("!II", 0x08000000, number << 8) + inner, destination=list(PORTS.values())[number - 1])
    return make(mac_of_pod(sender), ADDRESSES[sender][number - 1], target, packet, to=to_mac, **more)


def fragments(frame):
    """Return the two fragments of an IPv4 frame. The first fragment has only the UDP header."""
    head, data = bytearray(frame[14:34]), frame[34:]
    found = []
    for at, part in ((0, data[:8]), (8, data[8:])):
        head[2:4] = (20 + len(part)).to_bytes(2, "big")
        head[6:8] = (at // 8 | (0x2000 if at == 0 else 0)).to_bytes(2, "big")
        head[10:12] = bytes(2)
        head[10:12] = frames.checksum(bytes(head))
        found.append(frame[:14] + bytes(head) + part)
    return found


def fragments6(frame):
    """Return the two fragments of an IPv6 frame: a fragment header follows the IP header."""
    head, data = frame[14:54], frame[54:]
    found = []
    for at, part in ((0, data[:8]), (8, data[8:])):
        behind = struct.pack("!BBHI", head[6], 0, at | (at == 0), 7) + part
        found.append(frame[:14] + head[:4] + len(behind).to_bytes(2, "big") + b"\x2c" + head[7:] + behind)
    return found


def to_the_node(site, sender):        # noqa: F811
    """Return {title: frame} of frames from a pod to the addresses of its node. The payloads end in marks like those of
    marked()."""
    gateway = site.gateway_mac(sender)
    targets = dict.fromkeys((*NODE, *(ROUTED_NODE if sender == "d" else ())))
    whole, whole6 = (around(sender, gateway, target, f"frame {f'whole{target[0]}':>10}".encode()) for target in NODE)
    (first, second), (first6, second6) = fragments(whole), fragments6(whole6)
    found = {f"to {target}": around(sender, gateway, target) for target in targets}
    found |= {"first": first, "IPv4 in fragments": second, "first6": first6, "IPv6 in fragments": second6}
    found["IPv6 with options"] = around(sender, gateway, NODE[1], b"frame    options",
                                        headers=[(60, bytes((0, 1, 4, 0, 0, 0, 0)))])
    return found


def test_a_pods_packet_of_a_tunnel_brings_no_packet_of_another_source_to_a_pod(site):        # noqa: F811
    """Once, all these packets arrived at pod b, although only the inner source may send to pod b."""
    make_tunnels(site)
    site.write(FROM_C)
    site.add("b", app="db")
    sent = {sender: to_the_node(site, sender) for sender in "ad"}
    for sender, each in sent.items():                    # no ADD has named the senders yet
        assert site.arrived(each, sender, "b", "c") == {title for title in each if "first" not in title}
    for name in "acd":
        site.add(name)
    for sender, each in sent.items():
        assert site.arrived(each, sender, "b", "c") == set()


def test_a_pods_packet_of_a_tunnel_does_not_leave_the_node(site):        # noqa: F811
    """The node masquerades the packet, so another node would accept it as this node's. Here the pods a, b and d stand
    for other nodes."""
    make_tunnels(site)
    for name in "acd":
        site.add(name)
    for sender, receiver in (("a", "d"), ("d", "a"), ("a", "b")):
        to_mac = MAC_B if receiver == "b" else site.gateway_mac(sender)
        sent = {f"{target} {tags}": around(sender, to_mac, target, tags=tags)
                for target in ADDRESSES[receiver] for tags in ([], *([[7]] if receiver == "b" else ()))}
        assert site.arrived(sent, sender, receiver, "c") == set()
        other = {target: to(target, ADDRESSES[sender], mac_of_pod(sender), to_mac) for target in ADDRESSES[receiver]}
        if receiver == "b":
            other["in a VLAN"] = ipv4(MAC_A, ADDRESSES["a"][0], "10.0.0.2", udp(destination=8471), to=MAC_B, tags=[7])
        assert site.arrived(other, sender, receiver, "c") == set(other)


@pytest.mark.parametrize("sender", "ad")
def test_a_tunnel_counts_as_long_as_it_is_up(site, sender):        # noqa: F811
    for name in (sender, "c"):
        site.add(name)
    to_mac = MAC_B if sender == "a" else site.gateway_mac(sender)

    def passes():
        sent = {"a packet": around(sender, to_mac, ADDRESSES["b"][0])}
        return bool(site.arrived(sent, sender, "b", "c"))

    assert passes()
    make_tunnels(site)
    assert eventually(lambda: not passes())
    run("ip", "link", "set", "tunnel1", "down")
    assert eventually(passes)


def test_the_command_follows_a_packet_of_a_tunnel(site):        # noqa: F811
    make_tunnels(site)
    for name in "abd":
        site.add(name)

    def decided(source, destination, protocol, port):
        connection = Connection(read_ip(ADDRESSES[source][0]), read_ip(ADDRESSES[destination][0]), protocol, port)
        return decisions.decide(decisions.read(), connection)[EGRESS]

    for source, destination, chain in (("a", "b", "addresses"), ("d", "a", "source")):
        assert eventually(lambda ends=(source, destination): not decided(*ends, UDP, 8472).allowed)
        assert decided(source, destination, UDP, 8472).text == \
            f"chain tunnels, to which chain {chain} leads, drops the packet"
        assert decided(source, destination, UDP, 8471).allowed
        assert decided(source, destination, TCP, 8472).allowed


def link(kind, attribute=0, value=b"", up=True):
    data = struct.pack("=HH", 4 + len(value), attribute) + value
    text = kind.encode() + b"\0"
    info = struct.pack("=HH", 4 + len(text), uapi.IFLA_INFO_KIND) + text + bytes(-len(text) % 4) \
        + struct.pack("=HH", 4 + len(data), uapi.IFLA_INFO_DATA) + data
    return rtnl.read_link(rtnl.ifinfomsg(7, uapi.IFF_UP if up else 0)
                          + struct.pack("=HH", 4 + len(info), uapi.IFLA_LINKINFO) + info)


@pytest.mark.parametrize("kind, attribute, port", [("vxlan", 15, 8472), ("geneve", 5, 6081), ("bareudp", 1, 6635)])
def test_the_ports_of_tunnels_over_udp_are_known(kind, attribute, port):
    """attribute: the number of IFLA_..._PORT in linux/if_link.h."""
    packed = port.to_bytes(2, "big")
    assert tunnels.elements([link(kind, attribute, packed)]) == {
        ("tunnel-ports", packed), ("link-tunnel-ports", packed)}
    assert tunnels.elements([link(kind, attribute, packed, up=False)]) == set()


@pytest.mark.parametrize("kind, protocols", [
    ("ipip", {4, 137}), ("sit", {4, 41, 137}), ("ip6tnl", {4, 41, 137}), ("gre", {47}), ("gretap", {47}),
    ("ip6gre", {47}), ("wireguard", set()), ("veth", set()), ("", set())])
def test_the_protocols_of_tunnels_over_ip_are_known(kind, protocols):
    assert tunnels.elements([link(kind)]) == {(name, bytes((number,))) for number in protocols
                                              for name in ("tunnel-protocols", "link-tunnel-protocols")}
    assert tunnels.elements([link(kind, up=False)]) == set()


@pytest.fixture
def link_ipip(monkeypatch):
    """Report a link of the kind ipip in the place of the kernel's links, so that the kernel need not support ipip."""
    monkeypatch.setattr(find, "all_links", lambda sock: [link("ipip")])


# link_ipip comes first, because the agent of `site` lists the links soon after its start
def test_packets_of_a_tunnel_over_ip_do_not_pass(link_ipip, site):         # noqa: F811
    assert eventually(lambda: site.it.compiler.state.elements["tunnel-protocols"])
    for name in "acd":
        site.add(name)
    for sender, to_mac in (("a", MAC_B), ("d", site.gateway_mac("d"))):
        ends = ADDRESSES[sender][0], ADDRESSES["b"][0]
        sent = {f"{number}": ipv4(mac_of_pod(sender), *ends, (number, MARK), to=to_mac) for number in (4, 5, 41, 137)}
        assert site.arrived(sent, sender, "b", "c") == {"5", "41"}


def test_the_node_is_asked_for_its_links_only_when_a_tunnel_changes(site, monkeypatch):        # noqa: F811
    """Once, the agent listed all links each second, in the thread that answers ADDs."""
    assert eventually(lambda: site.it.links_due == float("inf"))
    asked = []
    monkeypatch.setattr(find, "all_links", lambda sock, listed=find.all_links: asked.append(1) or listed(sock))
    run("ip", "link", "add", "other", "type", "veth", "peer", "name", "other-peer")
    run("ip", "link", "set", "other", "up")
    site.add("a")  # by its answer, the agent has handled the earlier notifications
    assert asked == []
    assert "jump tunnels" not in run("nft", "list", "ruleset")  # without a tunnel, UDP packets pass no tunnel rules
    make_tunnels(site)
    # only the table of the family bridge needs the rules
    assert asked and eventually(lambda: run("nft", "list", "ruleset").count("jump tunnels") == 1)
    site.add("d")  # the first pod with a separate link, so the other table needs the rules, too
    assert eventually(lambda: run("nft", "list", "ruleset").count("jump tunnels") == 2)
    run("ip", "link", "del", "tunnel1")
    assert eventually(lambda: len(site.it.compiler.state.elements["tunnel-ports"]) == 1)
