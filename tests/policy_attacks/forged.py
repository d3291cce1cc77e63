"""Make the forged frames of each attack. Each function takes (attacker, victim, peer) and returns {title: [frame,
...]}.

Only the last frame of each list must not arrive. The frames before it prepare the attack. peer: the pod that may reach
the victim.
"""

import itertools
import struct

from policy_attacks.node import NODE, SUBNETS
from unit.agent.policy import frames
from unit.agent.policy.frames import MARK, arp, ethernet, ipv4, ipv6, link_local, neighbour, udp

ALL_NODES, GROUP6 = "ff02::1", "33:33:00:00:00:01"
GROUP4 = "01:00:5e:00:00:01"
TAGS = (frames.ETH_P_8021Q, frames.ETH_P_8021AD)
IPPROTO = {"IPIP": 4, "IPv6 in IPv4": 41, "GRE": 47, "ESP": 50, "AH": 51, "EtherIP": 97, "L2TP": 115, "unknown": 253}
FLAGS = {"none": 0, "FIN": 1, "RST": 4, "SYN FIN": 3, "SYN ACK": 0x12, "ACK": 0x10, "PSH ACK": 0x18, "XMAS": 0x29,
         "all": 0x3F}
OPTIONS = {"record route": bytes((7, 7, 4, 0, 0, 0, 0, 0)), "router alert": bytes((148, 4, 0, 0)),
           "timestamp": bytes((68, 8, 5, 0, 0, 0, 0, 0)), "no operation": bytes((1, 1, 1, 1))}
PADDING = bytes((0, 1, 4, 0, 0, 0, 0))
EXTENSIONS = {"hop by hop": (0, PADDING), "destination options": (60, PADDING),
              "routing, type 2 without segments": (43, bytes((0, 2, 0, 0, 0, 0, 0))),
              "atomic fragment": (44, bytes((0, 0, 0, 0, 0, 0, 7)))}


def plain(attacker, victim, peer):
    """Return datagrams without forged fields."""
    via = attacker.via(victim)
    return {"IPv4": [ipv4(attacker.mac, attacker.ip4, victim.ip4, udp(), via)],
            "IPv6": [ipv6(attacker.mac, attacker.ip6, victim.ip6, udp(), via)]}


def broadcast(attacker, victim, peer):
    subnet = SUBNETS[attacker.network][0].replace("0/24", "255")
    found = {}
    for to, source in itertools.product((subnet, "255.255.255.255", "224.0.0.1", "224.0.0.251", "239.1.2.3"),
                                        (attacker.ip4, "0.0.0.0")):
        for title, mac in (("all", frames.BROADCAST), ("the victim's MAC", victim.mac), ("a group's MAC", GROUP4)):
            found[f"{to} from {source} to {title}"] = [ipv4(attacker.mac, source, to, udp(), mac)]
    for to in (ALL_NODES, "ff02::fb", "ff05::2", "ff0e::1"):
        for title, mac in (("a group's MAC", GROUP6), ("the victim's MAC", victim.mac)):
            for source in (attacker.ip6, link_local(attacker.mac)):
                found[f"{to} from {source} to {title}"] = [ipv6(attacker.mac, source, to, udp(), mac)]
    return found


def forged_sources(attacker, victim, peer):
    via, (free4, free6) = attacker.via(victim), attacker.other(200)
    found = {}
    for title, four, six in (("the allowed peer", peer.ip4, peer.ip6), ("nobody", free4, free6),
                             ("a host outside", "8.8.8.8", "2001:db8:51::7"), ("the victim", victim.ip4, victim.ip6),
                             ("the node", NODE[0], NODE[1]), ("the gateway", *attacker.other(1)),
                             ("no address", "0.0.0.0", "::")):
        found[f"{title}, IPv4"] = [ipv4(attacker.mac, four, victim.ip4, udp(), via)]
        found[f"{title}, IPv6"] = [ipv6(attacker.mac, six, victim.ip6, udp(), via)]
    return found


def forged_macs(attacker, victim, peer):
    """Return frames with another pod's source MAC, and with the source address of the attacker or of the peer."""
    via = attacker.via(victim)
    return {f"{title} as {address}": [ipv4(mac, address, victim.ip4, udp(), via)]
            for title, mac in (("the peer", peer.mac), ("nobody", "02:00:00:00:00:99"))
            for address in (attacker.ip4, peer.ip4)}


def misdirected(attacker, victim, peer):
    """Return packets to the peer, which a jailed pod's policies allow, in frames to a MAC that is not the peer's."""
    return {f"{title} to {name}": [make(attacker.mac, own, to, udp(), mac)]
            for title, make, own, to in (("IPv4", ipv4, attacker.ip4, peer.ip4), ("IPv6", ipv6, attacker.ip6, peer.ip6))
            for name, mac in (("the victim's MAC", victim.mac), ("all", frames.BROADCAST), ("a group's MAC", GROUP4),
                              ("an unknown MAC", "02:00:00:00:00:99"))}


def reversed_flow(attacker, victim, peer):
    """Return a forged packet with the victim's source address, for which conntrack makes a flow, and the attacker's
    "answer" to this packet."""
    via = attacker.via(attacker) if attacker.bridged else attacker.gateway
    forward = attacker.via(victim)
    found = {}
    for number, mac in enumerate((attacker.mac, victim.mac)):
        port = 7000 + number
        found[f"UDP, IPv4, MAC {number}"] = [
            ipv4(mac, victim.ip4, attacker.ip4, udp(b"x", 80, port), via),
            ipv4(attacker.mac, attacker.ip4, victim.ip4, udp(source=port), forward)]
        found[f"UDP, IPv6, MAC {number}"] = [
            ipv6(mac, victim.ip6, attacker.ip6, udp(b"x", 80, port), via),
            ipv6(attacker.mac, attacker.ip6, victim.ip6, udp(source=port), forward)]
        found[f"TCP, simultaneous open, MAC {number}"] = [
            ipv4(mac, victim.ip4, attacker.ip4, tcp(victim.ip4, attacker.ip4, 2, 80, port, b""), via),
            ipv4(attacker.mac, attacker.ip4, victim.ip4, tcp(attacker.ip4, victim.ip4, 0x12, port, 80), forward)]
    return found


def stacked_tags(attacker, victim, peer):
    """Return a datagram in one to four tags of VLAN 0, in all mixes of 802.1Q and 802.1ad."""
    found = {}
    for count in (1, 2, 3, 4):
        for kinds in itertools.product(TAGS, repeat=count):
            tags = [(kind, 0) for kind in kinds]
            title = " ".join(f"{kind:x}" for kind in kinds)
            found[f"{title}, IPv4"] = [ipv4(attacker.mac, attacker.ip4, victim.ip4, udp(), victim.mac, tags=tags)]
            if count < 3:
                found[f"{title}, IPv6"] = [ipv6(attacker.mac, attacker.ip6, victim.ip6, udp(), victim.mac, tags=tags)]
    return found


def ethertypes(attacker, victim, peer):
    kinds = {"RARP": frames.ETH_P_RARP, "MPLS": frames.ETH_P_MPLS, "experimental": frames.ETH_P_EXPERIMENT,
             "LLDP": frames.ETH_P_LLDP, "PPPoE": 0x8864, "802.3 length": 46, "MACsec": 0x88E5}
    return {f"{title} to {name}": [ethernet(attacker.mac, to, kind)] for title, kind in kinds.items()
            for name, to in (("the victim", victim.mac), ("all", frames.BROADCAST))}


def poisoning(attacker, victim, peer):
    """Return ARP replies and neighbour advertisements that map the address of the peer or of the gateway to the
    attacker's MAC."""
    found = {}
    for title, (four, six) in (("the peer", (peer.ip4, peer.ip6)), ("the gateway", attacker.other(1))):
        for operation in (1, 2):
            for name, to in (("all", frames.BROADCAST), ("the victim", victim.mac)):
                found[f"ARP {operation} for {title} to {name}"] = [
                    arp(attacker.mac, attacker.mac, four, victim.ip4, operation=operation, to=to)]
        found[f"advertisement for {title}"] = [ipv6(
            attacker.mac, attacker.ip6, victim.ip6, neighbour(
                frames.NEIGHBOUR_ADVERT, six, [(frames.TARGET_LINK, frames.mac_bytes(attacker.mac))], flags=0x20000000),
            victim.mac, hop_limit=255)]
        found[f"solicitation from {title}"] = [ipv6(
            attacker.mac, six, victim.ip6, neighbour(
                frames.NEIGHBOUR_SOLICIT, victim.ip6, [(frames.SOURCE_LINK, frames.mac_bytes(attacker.mac))]),
            victim.mac, hop_limit=255)]
    return found


def poisoning_in_tags(attacker, victim, peer):
    """Return the frames of poisoning() in tags of VLAN 0, and frames of duplicate address detection for other pods'
    addresses."""
    found = {}
    for title, (each, *_) in poisoning(attacker, victim, peer).items():
        for name, tags in (("802.1Q", [0]), ("802.1ad", [(frames.ETH_P_8021AD, 0)]), ("two tags", [0, 0])):
            found[f"{title} in {name}"] = [each[:12] + b"".join(
                struct.pack("!HH", *(tag if isinstance(tag, tuple) else (frames.ETH_P_8021Q, tag))) for tag in tags)
                + each[12:]]
    for title, six in (("the victim", victim.ip6), ("the peer", peer.ip6), ("the gateway", attacker.other(1)[1])):
        found[f"duplicate address detection for {title}"] = [ipv6(
            attacker.mac, "::", ALL_NODES, neighbour(frames.NEIGHBOUR_SOLICIT, six), GROUP6, hop_limit=255)]
    return found


def source_routes(attacker, victim, peer):
    """Return packets to the victim with IPv4 source routes and IPv6 routing headers, through the peer and through the
    gateway."""
    via, (gateway4, gateway6) = attacker.via(victim), attacker.other(1)
    found = {}
    for (kind, option), (name, hop4, _) in itertools.product(
            (("loose", 131), ("strict", 137)), (("the peer", peer.ip4, peer.ip6), ("the gateway", gateway4, gateway6))):
        for title, to, hop in (("", hop4, victim.ip4), (", at its end", victim.ip4, hop4)):
            pointer = 8 if title else 4
            data = bytes((option, 7, pointer)) + frames.ip_bytes(hop) + bytes(1)
            found[f"{kind} by {name}{title}"] = [ipv4(attacker.mac, attacker.ip4, to, udp(), via, options=data)]
    for number, (name, _, hop6) in itertools.product(
            (0, 2, 3, 4), (("the peer", peer.ip4, peer.ip6), ("the gateway", gateway4, gateway6))):
        for title, left, to, hop in (("", 1, hop6, victim.ip6), (", at its end", 0, victim.ip6, hop6)):
            header = 43, bytes((2, number, left)) + bytes(4) + frames.ip_bytes(hop)
            found[f"routing header {number} by {name}{title}"] = [ipv6(
                attacker.mac, attacker.ip6, to, udp(), via, headers=[header])]
    return found


def routers(attacker, victim, peer):
    """Return router advertisements and redirects."""
    source, found = link_local(attacker.mac), {}
    for title, to, mac in (("all", ALL_NODES, GROUP6), ("the victim", victim.ip6, victim.mac)):
        for name, kind in (("advertisement", frames.ROUTER_ADVERT), ("redirect", frames.REDIRECT)):
            for header in ("", *EXTENSIONS):
                found[f"{name} to {title}{header and ' behind '}{header}"] = [ipv6(
                    attacker.mac, source, to, neighbour(kind, victim.ip6, behind=MARK), mac, hop_limit=255,
                    headers=[EXTENSIONS[header]] if header else ())]
    return found


def behind_arp(attacker, victim, peer):
    """Return ARP frames with data after the padding. An ARP packet has 28 bytes; padding fills it up to 46 bytes."""
    request = arp(attacker.mac, attacker.mac, attacker.ip4, victim.ip4, operation=1)
    reply = arp(attacker.mac, attacker.mac, attacker.ip4, victim.ip4, to=victim.mac)
    return {f"{title}, {count} bytes": [frame[:42] + bytes(count - len(MARK)) + MARK]
            for title, frame in (("request", request), ("reply", reply)) for count in (64, 500)}


def dhcp(attacker, victim, peer):
    found = {}
    for title, ports in (("client to server", (68, 67)), ("server to client", (67, 68))):
        for source in ("0.0.0.0", attacker.ip4):
            for name, to in (("all", frames.BROADCAST), ("the victim's MAC", victim.mac)):
                found[f"{title} from {source} to {name}"] = [
                    ipv4(attacker.mac, source, "255.255.255.255", udp(MARK, *ports), to)]
    for title, ports in (("client to server", (546, 547)), ("server to client", (547, 546))):
        found[f"{title}, IPv6"] = [ipv6(attacker.mac, link_local(attacker.mac), "ff02::1:2", udp(MARK, *ports),
                                        "33:33:00:01:00:02")]
    return found


def reports(attacker, victim, peer):
    """Return MLD (RFC 3810) and IGMP messages with data after the groups."""
    found = {}
    for title, kind in (("report", frames.MLD_REPORT), ("version 2 report", frames.MLD2_REPORT),
                        ("query", frames.MLD_QUERY)):
        protocol, data = frames.report(kind, MARK)
        for name, to, mac in (("routers", "ff02::16", "33:33:00:00:00:16"), ("the victim", victim.ip6, victim.mac)):
            for source in (link_local(attacker.mac), attacker.ip6):
                found[f"{title} to {name} from {source}"] = [ipv6(
                    attacker.mac, source, to, (protocol, data), mac, hop_limit=1, headers=[frames.ROUTER_ALERT])]
    found["IGMP"] = [ipv4(attacker.mac, attacker.ip4, "224.0.0.22", (2, bytes((0x22, 0, 0, 0, 0, 0, 0, 0)) + MARK),
                          "01:00:5e:00:00:16")]
    return found


def behind_neighbour_discovery(attacker, victim, peer):
    """Return neighbour solicitations and advertisements with data after the message or in its options."""
    found = {}
    for name, kind in (("solicitation", frames.NEIGHBOUR_SOLICIT), ("advertisement", frames.NEIGHBOUR_ADVERT)):
        target = victim.ip6 if kind == frames.NEIGHBOUR_SOLICIT else attacker.ip6
        for title, more in (("16 bytes", MARK), ("100 bytes", bytes(84) + MARK),
                            ("an option of 24 bytes", bytes((200, 3)) + bytes(6) + MARK)):
            found[f"{title} behind a {name}"] = [ipv6(attacker.mac, attacker.ip6, victim.ip6,
                                                      neighbour(kind, target, behind=more), victim.mac, hop_limit=255)]
    return found


def options(attacker, victim, peer):
    via = attacker.via(victim)
    return {title: [ipv4(attacker.mac, attacker.ip4, victim.ip4, udp(), via, options=data)]
            for title, data in OPTIONS.items()}


def extension_headers(attacker, victim, peer):
    via = attacker.via(victim)
    chains = {title: [header] for title, header in EXTENSIONS.items()}
    chains["three of them"] = [EXTENSIONS[each] for each in ("hop by hop", *["destination options"] * 2)]
    chains["options before a fragment"] = [EXTENSIONS["destination options"], EXTENSIONS["atomic fragment"]]
    return {title: [ipv6(attacker.mac, attacker.ip6, victim.ip6, (253, MARK), via, headers=headers)]
            for title, headers in chains.items()}


def fragments(attacker, victim, peer):
    """Return a datagram in two fragments, also with overlapping fragments, and a single later fragment."""
    via, whole = attacker.via(victim), udp(bytes(32) + MARK)[1]
    found = {}
    for title, parts in (("two", [(0, whole[:24], True), (24, whole[24:], False)]),
                         ("the first of 8 bytes", [(0, whole[:8], True), (8, whole[8:], False)]),
                         ("overlapping", [(0, whole[:24], True), (8, whole[8:], False)])):
        found[f"{title}, IPv4"] = [fragment4(attacker, victim, via, *part, number=len(found)) for part in parts]
        found[f"{title}, IPv6"] = [fragment6(attacker, victim, via, *part, number=len(found)) for part in parts]
    found["only the last, IPv4"] = [fragment4(attacker, victim, via, 24, whole[24:], False, 99)]
    return found


def fragment4(attacker, victim, via, offset, data, more, number):
    frame = ipv4(attacker.mac, attacker.ip4, victim.ip4, (frames.UDP, data), via)
    header = bytearray(frame[14:34])
    struct.pack_into("!HHH", header, 4, 1000 + number, 0x2000 * more | offset // 8, header[8] << 8 | header[9])
    header[10:12] = b"\0\0"
    header[10:12] = frames.checksum(bytes(header))
    return frame[:14] + bytes(header) + frame[34:]


def fragment6(attacker, victim, via, offset, data, more, number):
    body = bytes((frames.UDP, 0)) + struct.pack("!HI", offset | more, 1000 + number) + data
    return ipv6(attacker.mac, attacker.ip6, victim.ip6, (44, body), via)


def tunnels(attacker, victim, peer):
    via, inner = attacker.via(victim), ipv4(attacker.mac, peer.ip4, victim.ip4, udp())[14:]
    found = {f"{title}, IPv4": [ipv4(attacker.mac, attacker.ip4, victim.ip4, (number, inner), via)]
             for title, number in IPPROTO.items()}
    return found | {f"{title}, IPv6": [ipv6(attacker.mac, attacker.ip6, victim.ip6, (number, inner), via)]
                    for title, number in IPPROTO.items()}


def odd_flags(attacker, victim, peer):
    via = attacker.via(victim)
    return {f"{title}, port {port}": [ipv4(attacker.mac, attacker.ip4, victim.ip4, tcp(
        attacker.ip4, victim.ip4, flags, 7777, port), via)] for title, flags in FLAGS.items() for port in (80, 81)}


def tcp(source, destination, flags, source_port, port, data=MARK):
    """Return (6, TCP segment). 6 is the IP protocol number of TCP."""
    segment = struct.pack("!HHIIBBHHH", source_port, port, 1, 1, 5 << 4, flags, 64000, 0, 0) + data
    return frames.TCP, with_checksum(frames.ip_bytes(source) + frames.ip_bytes(destination), frames.TCP, segment)


def with_checksum(ends, protocol, data):
    """Return the bytes of a TCP, UDP or ICMPv6 packet with its checksum. ends: (source address, destination
    address)."""
    at = {frames.TCP: 16, frames.UDP: 6, frames.ICMPV6: 2}[protocol]
    data = data[:at] + bytes(2) + data[at + 2:]
    pseudo = ends + (struct.pack("!HH", protocol, len(data)) if len(ends) == 8 else
                     struct.pack("!IHBB", len(data), 0, 0, protocol))
    return data[:at] + frames.checksum(pseudo + data) + data[at + 2:]


def numbered(frame, number):
    """Return the frame with `number` in place of MARK, and with the matching checksum."""
    if not frame.endswith(MARK):
        return frame
    frame = frame[:-len(MARK)] + f"frame {number:10}".encode()
    at = 12
    while frame[at:at + 2] in (b"\x81\0", b"\x88\xa8"):
        at += 4
    kind, at = frame[at:at + 2], at + 2
    if kind == b"\x08\0" and frame[at + 9] == frames.TCP:
        return frame[:at + 20] + with_checksum(frame[at + 12:at + 20], frames.TCP, frame[at + 20:])
    if kind == b"\x86\xdd" and frame[at + 6] in (frames.TCP, frames.UDP, frames.ICMPV6):
        return frame[:at + 40] + with_checksum(frame[at + 8:at + 40], frame[at + 6], frame[at + 40:])
    return frame
