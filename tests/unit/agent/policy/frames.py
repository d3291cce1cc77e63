"""Make frames by hand: forged frames, as a pod's root can send them, and the frames that a pod's kernel sends.

    frame = ipv4(mac, "10.0.0.9", "10.0.0.2", udp(b"x"), to=victim_mac)
    arrived({"another source": frame}, sender, receiver)        # titles of frames that the receiver's link receives
    delivered({...}, sender, receiver, port=80)                 # titles of frames that a UDP socket receives

Each frame's payload must end in MARK, which arrived() and delivered() replace, so that they recognize each frame.
"""

import contextlib
import socket
import struct
import time

from fastcni.testing.namespaces import Inside

ETH_P_ALL, ETH_P_IP, ETH_P_ARP, ETH_P_8021Q, ETH_P_IPV6, ETH_P_8021AD = 3, 0x0800, 0x0806, 0x8100, 0x86DD, 0x88A8
ETH_P_RARP, ETH_P_MPLS, ETH_P_EXPERIMENT, ETH_P_LLDP = 0x8035, 0x8847, 0x88B5, 0x88CC
HOP_BY_HOP, ICMP, IGMP, TCP, UDP, ICMPV6 = 0, 1, 2, 6, 17, 58
IGMP_QUERY, IGMP_REPORT, IGMP3_REPORT, IGMP_LEAVE = 0x11, 0x16, 0x22, 0x17      # linux/igmp.h
MLD_QUERY, MLD_REPORT, MLD_DONE, MLD2_REPORT, ECHO6 = 130, 131, 132, 143, 128
ROUTER_SOLICIT, ROUTER_ADVERT, NEIGHBOUR_SOLICIT, NEIGHBOUR_ADVERT, REDIRECT = 133, 134, 135, 136, 137
SOURCE_LINK, TARGET_LINK, NONCE = 1, 2, 14              # options of neighbour discovery, RFC 4861 and 3971
CHECKSUMS = {UDP: 6, ICMPV6: 2}                         # offset of the checksum in the header, in bytes
BROADCAST, LLDP = "ff:ff:ff:ff:ff:ff", "01:80:c2:00:00:0e"
MARK = b"mark of a frame "      # 16 bytes
PACKET_OUTGOING = 4
ARRIVES_S, GRACE_S = 10, 0.15


def mac_bytes(text):
    return bytes.fromhex(text.replace(":", ""))


def ip_bytes(text):
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def link_local(mac):
    """Return the link-local address that the kernel makes of a MAC, as text."""
    raw = mac_bytes(mac)
    return socket.inet_ntop(socket.AF_INET6, b"\xfe\x80" + bytes(6) + bytes((raw[0] ^ 2,)) + raw[1:3] + b"\xff\xfe"
                            + raw[3:])


def mac_of(netns, link="eth0"):
    """Return the MAC of a link, as text."""
    with Inside(netns), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as it:
        it.bind((link, 0))
        return it.getsockname()[4].hex(":")


# -- layers, from the inside ------------------------------------------------------------------------------------------

def udp(data=MARK, source=5353, destination=80):
    """Return a UDP packet. The checksum is missing over IPv4; ipv6() computes it."""
    return UDP, struct.pack("!4H", source, destination, 8 + len(data), 0) + data


def ipv4(mac, source, destination, packet, to=BROADCAST, options=b"", **more):
    """Return a frame with an IPv4 packet. packet: (protocol, its bytes)."""
    protocol, data = packet
    words = 5 + len(options) // 4
    header = struct.pack("!BBHHHBBH4s4s", 0x40 + words, 0, words * 4 + len(data), 1, 0, 64, protocol, 0,
                         ip_bytes(source), ip_bytes(destination)) + options
    return ethernet(mac, to, ETH_P_IP, header[:10] + checksum(header) + header[12:] + data, **more)


def as_fragment(frame, offset=8):
    """Return an IPv4 frame as a fragment. offset: in bytes. Bridges read IGMP even in a fragment."""
    header = frame[14:20] + struct.pack("!H", offset // 8) + frame[22:24] + bytes(2) + frame[26:34]
    return frame[:14] + header[:10] + checksum(header) + header[12:] + frame[34:]


def ipv6(mac, source, destination, packet, to=BROADCAST, hop_limit=64, headers=(), **more):
    """Return a frame with an IPv6 packet. headers: extension headers [(number, bytes after the number of the next
    header)]. The function computes a UDP checksum."""
    protocol, data = packet
    ends = ip_bytes(source) + ip_bytes(destination)
    if protocol in CHECKSUMS:
        data = summed(ends, protocol, data)
    for number, behind in reversed(headers):
        protocol, data = number, bytes((protocol,)) + behind + data
    header = struct.pack("!IHBB", 6 << 28, len(data), protocol, hop_limit) + ends
    return ethernet(mac, to, ETH_P_IPV6, header + data, **more)


def neighbour(kind, target="::", options=(), behind=b"", flags=0):
    """Return a message of neighbour discovery: (58, its bytes). options: [(type, bytes)], behind: the bytes after the
    options."""
    data = struct.pack("!BBHI", kind, 0, 0, flags)
    if kind != ROUTER_SOLICIT:
        data += ip_bytes(target)
    if kind == REDIRECT:
        data += ip_bytes("fd00::99")
    for number, value in options:
        data += struct.pack("!BB", number, (len(value) + 9) // 8) + value
    return ICMPV6, data + behind


def too_big(packet, mtu=1280):
    """Return the ICMP error that a packet needs fragmentation: (1 or 58, its bytes). packet: begins with its IP
    header."""
    if packet[0] >> 4 == 6:
        return ICMPV6, struct.pack("!BBHI", 2, 0, 0, mtu) + packet[:48]
    data = struct.pack("!BBHHH", 3, 4, 0, 0, mtu) + packet[:28]
    return ICMP, data[:2] + checksum(data) + data[4:]


def report(kind=MLD2_REPORT, behind=b""):
    """Return a report of one multicast group: (58, its bytes). Send it with the header ROUTER_ALERT and the hop limit
    1.

    Without `behind`, the group's address is MARK.
    """
    data = struct.pack("!BBHI", kind, 0, 0, kind == MLD2_REPORT)
    if kind == MLD2_REPORT:
        data += struct.pack("!BBH", 4, 0, 0)            # a record, RFC 3810: CHANGE_TO_EXCLUDE_MODE, no sources
    return ICMPV6, data + (ip_bytes("ff02::1:ff00:1") + behind if behind else MARK)


def igmp(kind):
    """Return a message about multicast groups: (2, its bytes). Send it with the options ROUTER_ALERT4."""
    return IGMP, struct.pack("!BBH4s", kind, 0, 0, ip_bytes("239.1.1.1")) + MARK


ECHO = ICMPV6, bytes((ECHO6, 0, 0, 0, 0, 0, 0, 0)) + MARK
ROUTER_ALERT = HOP_BY_HOP, struct.pack("!BBBHBB", 0, 5, 2, 0, 1, 0)
ROUTER_ALERT4 = b"\x94\x04\0\0"


def arp(mac, sender_mac, sender_ip, target_ip="10.0.0.9", kind=ETH_P_ARP, operation=2, to=BROADCAST, **more):
    fields = struct.pack("!HHBBH6s4s6s4s", 1, ETH_P_IP, 6, 4, operation, mac_bytes(sender_mac), ip_bytes(sender_ip),
                         b"\xff" * 6, ip_bytes(target_ip))
    return ethernet(mac, to, kind, fields + bytes(2) + MARK, **more)


def ethernet(mac, to, kind, payload=bytes(30) + MARK, tags=()):
    """Return a frame. tags: VLAN tags, [VID or (ethertype, VID)], the outer tag first."""
    between = b"".join(struct.pack("!HH", *(tag if isinstance(tag, tuple) else (ETH_P_8021Q, tag))) for tag in tags)
    return mac_bytes(to) + mac_bytes(mac) + between + struct.pack("!H", kind) + payload


def checksum(data):
    """Return the Internet checksum (RFC 1071) of a packet whose checksum field is 0."""
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", 0xFFFF - total or 0xFFFF)


# -- frames that a port lets pass or drops ----------------------------------------------------------------------------

class Pod:
    """Frames of a pod, real and forged. other: a neighbour's addresses (IPv4, IPv6). gateway: the gateway's IPv4
    address."""

    def __init__(self, mac, own, other, gateway, other_mac="02:00:00:00:00:99"):
        self.mac, (self.own4, self.own6), (self.other4, self.other6), self.gateway = mac, own, other, gateway
        self.other_mac, self.local = other_mac, link_local(mac)

    def ipv4(self, source, mac="", **more):
        return ipv4(mac or self.mac, source, "255.255.255.255", udp(), **more)

    def ipv6(self, source, packet=None, **more):
        return ipv6(self.mac, source, "ff02::1", packet or udp(), hop_limit=255, **more)

    def igmp(self, kind, options=b"", **more):
        return ipv4(self.mac, self.own4, "224.0.0.1", igmp(kind), options=options, **more)

    def report(self, source, kind=MLD2_REPORT, behind=b"", target="ff02::16", hop_limit=1, **more):
        return ipv6(self.mac, source, target, report(kind, behind), hop_limit=hop_limit, headers=[ROUTER_ALERT], **more)

    def arp(self, sender_mac, sender_ip, **more):
        return arp(self.mac, sender_mac, sender_ip, **more)

    def own(self):
        """Return {title: frame} of the frames that a pod's kernel sends."""
        return {
            "IPv4": self.ipv4(self.own4),
            "IPv4 in a VLAN": self.ipv4(self.own4, tags=[7]),
            "IGMP report": self.igmp(IGMP_REPORT),
            "IGMP leave": self.igmp(IGMP_LEAVE),
            "IGMPv3 report": self.igmp(IGMP3_REPORT, ROUTER_ALERT4),
            "ARP": self.arp(self.mac, self.own4),
            "ARP probe": self.arp(self.mac, "0.0.0.0"),
            "IPv6": self.ipv6(self.own6),
            "IPv6 in a VLAN": self.ipv6(self.own6, tags=[7]),
            "IPv6, link-local": self.ipv6(self.local),
            "ICMPv6 echo": self.ipv6(self.own6, ECHO),
            "solicitation of a neighbour": self.ipv6(self.own6, solicits(self.other6, self.mac)),
            "the same without its MAC": self.ipv6(self.own6, solicits(self.other6)),
            "solicitation of a router": self.ipv6(self.local, neighbour(
                ROUTER_SOLICIT, options=[(SOURCE_LINK, mac_bytes(self.mac))])),
            "the same from ::": self.ipv6("::", neighbour(ROUTER_SOLICIT)),
            "advertisement of its address": self.ipv6(self.own6, announces(self.own6, self.mac)),
            "the same without its MAC ": self.ipv6(self.own6, announces(self.own6)),
            "advertisement of its link-local": self.ipv6(self.local, announces(self.local, self.mac)),
            "duplicate address detection": self.ipv6("::", neighbour(NEIGHBOUR_SOLICIT, self.own6,
                                                                     [(NONCE, b"random")])),
            "the same, link-local": self.ipv6("::", neighbour(NEIGHBOUR_SOLICIT, self.local)),
            **self.reports(),
        }

    def reports(self):
        return {
            "MLD report": self.report(self.local),
            "MLD report of 50 groups": self.report(self.local, behind=bytes(49 * 20 - 16) + MARK),
            "MLD report from ::": self.report("::"),
            "MLDv1 report": self.report(self.local, MLD_REPORT, target="ff02::1:ff00:1"),
            "MLDv1 report from ::": self.report("::", MLD_REPORT, target="ff02::1:ff00:1"),
            "MLDv1 done": self.report(self.local, MLD_DONE, target="ff02::2"),
        }

    def forged_reports(self):
        found = {}
        for title, source in (("", self.local), (", from ::", "::")):
            found |= {
                f"MLD report of 51 groups{title}": self.report(source, behind=bytes(50 * 20 - 16) + MARK),
                f"MLDv1 report with 16 bytes behind{title}": self.report(source, MLD_REPORT, behind=MARK),
                f"MLDv1 done with 1000 bytes behind{title}": self.report(source, MLD_DONE, behind=bytes(984) + MARK),
                f"MLD report with hop limit 255{title}": self.report(source, hop_limit=255),
                f"MLDv1 report with hop limit 255{title}": self.report(source, MLD_REPORT, hop_limit=255),
                f"MLD report without an alert{title}": self.ipv6(source, report()),
                f"MLD report to another group{title}": self.report(source, target="ff0e::1234"),
                f"MLD report to a neighbour{title}": self.report(source, target=self.other6),
                f"MLDv1 report to a neighbour{title}": self.report(source, MLD_REPORT, target=self.other6),
                f"MLD report to one MAC{title}": self.report(source, to="02:00:00:00:00:77"),
                f"MLDv1 report to one MAC{title}": self.report(source, MLD_REPORT, to="02:00:00:00:00:77")}
        return found

    def forged(self):
        """Return {title: frame} of forged frames. Each frame except "another MAC" has the pod's own source MAC."""
        double = [7, 8], [0, 0], [(ETH_P_8021AD, 0), 0], [0, 0, 0], [0, (ETH_P_8021AD, 0), 0, 0]
        return {
            "another MAC": self.ipv4(self.own4, mac=self.other_mac),
            "a neighbour's IPv4": self.ipv4(self.other4),
            "a neighbour's IPv4 in a VLAN": self.ipv4(self.other4, tags=[7]),
            **{f"its IPv4 in VLANs {tags}": self.ipv4(self.own4, tags=tags) for tags in double},
            **{f"its IPv6 in VLANs {tags}": self.ipv6(self.own6, tags=tags) for tags in double},
            "the gateway's IPv4": self.ipv4(self.gateway),
            "an IPv4 of nobody": self.ipv4("8.8.8.8"),
            "0.0.0.0": self.ipv4("0.0.0.0"),
            "IGMP query": self.igmp(IGMP_QUERY),
            "IGMP query with an option": self.igmp(IGMP_QUERY, ROUTER_ALERT4),
            "IGMP query with a fragment's offset": as_fragment(self.igmp(IGMP_QUERY)),
            "IGMP query in a VLAN": self.igmp(IGMP_QUERY, tags=[7]),
            "ARP for a neighbour": self.arp(self.mac, self.other4),
            "ARP with another MAC": self.arp(self.other_mac, self.own4),
            "ARP probe with another MAC": self.arp(self.other_mac, "0.0.0.0"),
            "bytes behind ARP": self.arp(self.mac, self.own4)[:-16] + bytes(1) + MARK,
            "RARP": self.arp(self.mac, self.own4, kind=ETH_P_RARP),
            "a neighbour's IPv6": self.ipv6(self.other6),
            "a neighbour's IPv6 in a VLAN": self.ipv6(self.other6, tags=[7]),
            "an IPv6 of nobody": self.ipv6("2001:db8::9"),
            "another link-local": self.ipv6(link_local(self.other_mac)),
            "::": self.ipv6("::"),
            "echo from ::": self.ipv6("::", ECHO),
            "another protocol": ethernet(self.mac, BROADCAST, ETH_P_EXPERIMENT),
            "MPLS": ethernet(self.mac, BROADCAST, ETH_P_MPLS),
            **self.forged_neighbours(),
            **self.forged_reports(),
        }

    def forged_neighbours(self):
        alert = {"headers": [ROUTER_ALERT]}
        return {
            "solicitation with another MAC": self.ipv6(self.own6, solicits(self.other6, self.other_mac)),
            "bytes behind a solicitation": self.ipv6(self.own6, solicits(self.other6, self.mac, behind=MARK)),
            "bytes in the place of its option": self.ipv6(self.own6, solicits(self.other6, behind=b"8 bytes!")),
            "three bytes behind it": self.ipv6(self.own6, solicits(self.other6, behind=b"3by")),
            "another option": self.ipv6(self.own6, neighbour(NEIGHBOUR_SOLICIT, self.other6, [(99, b"6bytes")])),
            "bytes behind a solicitation of a router": self.ipv6(self.local, neighbour(ROUTER_SOLICIT, behind=MARK)),
            "bytes behind duplicate address detection": self.ipv6("::", neighbour(NEIGHBOUR_SOLICIT, self.own6,
                                                                                  behind=MARK)),
            "advertisement for a neighbour": self.ipv6(self.own6, announces(self.other6, self.mac)),
            "advertisement with another MAC": self.ipv6(self.own6, announces(self.own6, self.other_mac)),
            "bytes behind an advertisement": self.ipv6(self.own6, announces(self.own6, self.mac, behind=MARK)),
            "advertisement behind a header": self.ipv6(self.own6, announces(self.own6, self.mac), **alert),
            "advertisement from a neighbour": self.ipv6(self.other6, announces(self.own6, self.mac)),
            "a neighbour's duplicate address detection": self.ipv6("::", neighbour(NEIGHBOUR_SOLICIT, self.other6)),
            "router advertisement": self.ipv6(self.local, neighbour(ROUTER_ADVERT)),
            "the same behind a header": self.ipv6(self.local, neighbour(ROUTER_ADVERT), **alert),
            "redirect": self.ipv6(self.local, neighbour(REDIRECT, self.other6)),
            "MLD query": self.ipv6(self.local, report(MLD_QUERY), **alert),
        }


def solicits(target, mac="", **more):
    return neighbour(NEIGHBOUR_SOLICIT, target, [(SOURCE_LINK, mac_bytes(mac))] if mac else (), **more)


def announces(target, mac="", **more):
    return neighbour(NEIGHBOUR_ADVERT, target, [(TARGET_LINK, mac_bytes(mac))] if mac else (), **more)


# -- send and receive -------------------------------------------------------------------------------------------------

def send(netns, *frames, link="eth0"):
    with Inside(netns), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as it:
        it.bind((link, 0))
        for frame in frames:
            it.send(frame)


def send_all(wanted, sender, last_from):
    """Send {title: frame}. If last_from is a namespace, send the frame with the title "" from there."""
    send(sender, *(frame for title, frame in wanted.items() if title))
    send(last_from or sender, wanted[""])


def arrived(frames, sender, receiver, last, last_from="", link="eth0"):
    """Return the titles of the frames that the receiver's link receives. frames: {title: frame}. last: a frame that
    always arrives; `last_from`, or else the sender, sends this frame after all others.

    The function recognizes a frame by its last 16 bytes. For a frame without MARK it compares all bytes.
    """
    wanted = marked({**frames, "": last})
    with Inside(receiver):
        listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        listener.bind((link, ETH_P_ALL))
    with listener:
        send_all(wanted, sender, last_from)
        return received(listener, lambda data: {title for title, frame in wanted.items() if same(data, frame)})


def delivered(frames, sender, receiver, last, last_from="", port=80):
    """Return the titles of the frames that a UDP socket of the receiver gets. frames: {title: frame with UDP and MARK}.
    last: as for arrived()."""
    wanted = marked({**frames, "": last})
    with Inside(receiver):
        listener = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    with listener:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("::", port))
        send_all(wanted, sender, last_from)
        return received(listener, lambda data: {title for title, frame in wanted.items() if frame.endswith(data[-16:])})


def marked(frames):
    """Return {title: frame}, with another number in place of each MARK. The function computes new checksums of UDP over
    IPv6."""
    found = {}
    for number, (title, frame) in enumerate(frames.items()):
        mark = f"frame {number:10}".encode()
        found[title] = frame[:-16] + mark if frame.endswith(MARK) else frame
        at = 14 + 4 * (frame[12:14] in (b"\x81\0", b"\x88\xa8"))
        if frame.endswith(MARK) and frame[at - 2:at] == b"\x86\xdd" and frame[at + 6] in CHECKSUMS:
            found[title] = found[title][:at + 40] + summed(frame[at + 8:at + 40], frame[at + 6], found[title][at + 40:])
    return found


def summed(ends, protocol, data):
    """Return the bytes of UDP or ICMPv6 with their checksum. ends: both IPv6 addresses."""
    at = CHECKSUMS[protocol]
    data = data[:at] + bytes(2) + data[at + 2:]
    return data[:at] + checksum(ends + struct.pack("!IHBB", len(data), 0, 0, protocol) + data) + data[at + 2:]


def same(data, frame):
    """Return whether a received frame is the frame that was sent. The kernel has removed the outer VLAN tag."""
    return data[-16:] == frame[-16:] if frame[-16:-10] == b"frame " else data[14:] == frame[14:]


def received(listener, titles_of):
    """Return the titles of the packets that arrive. Stop GRACE_S after the packet with the title ""."""
    until, found = time.monotonic() + ARRIVES_S, set()
    while (left := until - time.monotonic()) > 0:
        listener.settimeout(left)
        with contextlib.suppress(TimeoutError):
            data, source = listener.recvfrom(4096)
            new = titles_of(data) if len(source) < 3 or source[2] != PACKET_OUTGOING else set()
            if "" in new - found:
                until = time.monotonic() + GRACE_S
            found |= new
    assert "" in found, "the last frame has not arrived"
    return found - {""}
