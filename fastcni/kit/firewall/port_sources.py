"""Build nftables rules that let a pod's port send only from the pod's own addresses. ipspoofchk and network policies
share these rules.

The number of rules does not depend on the number of pods: sets have the pods' ports and addresses. With the sets of
kit/firewall/spoofcheck/ip.py, nft prints the rules as

    chain addresses {
        ip protocol != igmp iifname . ip saddr @bound4 accept
        iifname != @bound accept
        ip protocol igmp @th,0,8 != 0x11 iifname . ip saddr @bound4 accept          (0x11: a query)
        ip protocol igmp drop
        arp @nh,368,8 0-255 drop                                                (it has data behind the padding)
        iifname . arp saddr ether != @allowed drop
        arp saddr ip 0.0.0.0 accept                                             (a probe, RFC 5227)
        iifname . arp saddr ip @bound4 accept
        icmpv6 jump neighbours
        iifname . ip6 saddr @bound6 accept
        ip6 saddr :: icmpv6 type nd-neighbor-solicit iifname . @th,64,128 @bound6 accept        (DAD)
        ip6 saddr :: icmpv6 type nd-router-solicit, mld-listener-report or mld2-listener-report accept
        drop
    }
    chain neighbours {
        icmpv6 type nd-router-advert, nd-redirect or mld-listener-query drop
        icmpv6 type 131-132 length == 32 hoplimit 1 ip6 daddr ff00::/8 meta pkttype broadcast-multicast return
        icmpv6 type 143 length 36-1016 hoplimit 1 ip6 daddr ff02::16 meta pkttype broadcast-multicast return
        icmpv6 type 131-132 or 143 drop
        icmpv6 type nd-router-solicit length != 8 length != 16 drop
        icmpv6 type nd-neighbor-solicit length != 24 length != 32 drop         (without and with an option)
        ... option != source-link-layer drop, iifname . its address != @allowed drop
        icmpv6 type nd-neighbor-advert iifname . @th,64,128 != @bound6 drop    (the address that it announces)
    }

The first rule decides for nearly all packets. Bridges read IGMP even in a later fragment, where nftables finds no type
(@th), so the rules drop IGMP fragments. A frame with two VLAN tags counts as neither IPv4 nor IPv6: the kernel removes
the outer tag, so the ethertype is the inner tag's.

RFC 4861 defines one option for solicitations and advertisements, the link-layer address, and allows further options.
RFC 7527 uses the nonce option (RFC 3971) for duplicate address detection. nftables cannot loop over options. So the
rules accept a message with at most one option, of a kind that belongs to the message's type, and without extension
header; RFC 6980 forbids fragments.

A report of multicast groups (RFC 2710 and 3810) begins with the router alert option, 8 bytes. The rules accept a report
only to a multicast group and in a broadcast or multicast frame: otherwise a pod could send data in a report to a single
other pod.
"""

from __future__ import annotations

from fastcni.kernel import nft_rules
from fastcni.kernel.nft_rules import (
    ARP_SADDR_ETHER,
    ARP_SADDR_IP,
    ETHER_SADDR,
    IP6_DADDR,
    IP6_LENGTH_AND_NEXT,
    IP6_SADDR,
    IP_SADDR,
    IPPROTO_ICMPV6,
    ND_TARGET,
    NFT_CMP_EQ,
    NFT_CMP_NEQ,
    NFT_META_IIFNAME,
    NFT_META_L4PROTO,
    NFT_META_PKTTYPE,
    NFT_META_PROTOCOL,
    NFT_PAYLOAD_NETWORK_HEADER,
    NFT_PAYLOAD_TRANSPORT_HEADER,
    NFT_REG32_00,
    NFT_REG_2,
    between,
    compare,
    ether_type,
    icmpv6_type,
    iifname_and,
    mask,
    meta,
    payload,
)
from fastcni.kernel.uapi import ETH_P_ARP, ETH_P_IP, ETH_P_IPV6

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fastcni.kernel.nft_rules import Expression, Field

    Rule = tuple[Expression, ...]

NEIGHBOURS = "neighbours"       # name of the chain
BEHIND_MAC = NFT_REG32_00 + 6     # the register that follows a link's name (16 bytes) and a MAC (padded to 8 bytes)
SET_ID = 1                      # any number: the kernel finds the sets by name
IPPROTO_IGMP, IPPROTO_UDP = 2, 17
IP_PROTOCOL = NFT_PAYLOAD_NETWORK_HEADER, 9, 1
IGMP_TYPE, IGMP_QUERY = (NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1), b"\x11"     # IGMP_HOST_MEMBERSHIP_QUERY, linux/igmp.h
UNSPECIFIED4, UNSPECIFIED6 = bytes(4), bytes(16)
SOURCE_LINK, TARGET_LINK, NONCE = b"\x01\x01", b"\x02\x01", b"\x0e\x01"         # type, length in 8 bytes
FROM_CLIENT = b"\0\x44\0\x43"   # ports of a DHCP client's packet: from 68 to 67
TH_PORTS = NFT_PAYLOAD_TRANSPORT_HEADER, 0, 4
ALERTED = b"\0\x01"              # next header hop-by-hop options, and hop limit 1
IP6_LENGTH, IP6_NEXT_AND_HOPS = (NFT_PAYLOAD_NETWORK_HEADER, 4, 2), (NFT_PAYLOAD_NETWORK_HEADER, 6, 2)
# (minimum, maximum) length: a report of MLD has one group, a report of MLDv2 has 1 to 50 records of 20 bytes.
REPORT_BYTES, REPORT2_BYTES = (32, 32), (36, 1016)
MULTICAST6 = b"\xff" + bytes(15)                        # ff00::/8, and its mask
ALL_MLD2_ROUTERS = b"\xff\x02" + bytes(13) + b"\x16"     # ff02::16, RFC 3810
PACKET_BROADCAST, PACKET_MULTICAST = b"\1", b"\2"        # linux/if_packet.h: the frame's pkttype
BEHIND_PADDING = NFT_PAYLOAD_NETWORK_HEADER, 46, 1          # padding fills a frame to 60 bytes, with a header of 14


class Sets:
    """The names of the sets that the rules use. The sets' keys begin with the port's name.

    bound       the restricted ports
    macs        port . MAC of its pod; "" if the hook sees no Ethernet header (family inet)
    own         {length of an address: set of port . address}
    more        {length of an address: a second set with the same keys as `own`, or ""}
    checks_mac  whether the rules also check the frame's source MAC. If so, the keys of `own` are port . MAC . address
    routers     ports that may send router advertisements, redirects, MLD and IGMP queries; "": none may
    dhcp        ports that may ask for a lease; "": none may
    types       port . ethertype, for other ethertypes that the port may send; "": none
    """

    __slots__ = ("bound", "checks_mac", "dhcp", "macs", "more", "own", "routers", "types")

    def __init__(self, bound: str, macs: str, own: Mapping[int, str], more: Mapping[int, str] | None = None, *,
                 checks_mac: bool = False, routers: str = "", dhcp: str = "", types: str = "") -> None:
        self.bound, self.macs, self.own, self.more, self.checks_mac = bound, macs, own, more, checks_mac
        self.routers, self.dhcp, self.types = routers, dhcp, types

    def each(self, length: int, field: Field, inverted: bool = False) -> list[Rule]:
        """Return the lookups of port . address in the sets for addresses of this length: `own`, and `more` if it is
        set. field: where the packet has the address."""
        key = iifname_and(field)
        if self.checks_mac:
            key = meta(NFT_META_IIFNAME), payload(ETHER_SADDR, NFT_REG_2), payload(field, BEHIND_MAC)
        found: list[Rule] = [(*key, of_set(self.own[length], inverted))]
        if self.more:
            found.append((*iifname_and(field), of_set(self.more[length], inverted)))
        return found


def l4proto(number: int, op: int = NFT_CMP_EQ) -> Rule:
    """Return the condition `meta l4proto <number>`; with op NFT_CMP_NEQ, `meta l4proto != <number>`."""
    return meta(NFT_META_L4PROTO), compare(bytes((number,)), op)


def of_set(name: str, inverted: bool = False) -> Expression:
    return nft_rules.in_set(name, SET_ID, inverted)


def rules(sets: Sets) -> Iterator[Rule]:
    """Yield the rules of a base chain of the hook prerouting."""
    accept, drop = nft_rules.accept(), nft_rules.drop()
    ip, ip6 = ether_type(ETH_P_IP), ether_type(ETH_P_IPV6)
    other_than_icmpv6 = l4proto(IPPROTO_ICMPV6, NFT_CMP_NEQ)
    own4, *more4 = sets.each(4, IP_SADDR)
    own6, *_ = sets.each(16, IP6_SADDR)
    igmp = *ip, payload(IP_PROTOCOL), compare(bytes((IPPROTO_IGMP,)))
    yield *ip, payload(IP_PROTOCOL), compare(bytes((IPPROTO_IGMP,)), NFT_CMP_NEQ), *own4, accept
    yield *ip6, *other_than_icmpv6, *own6, accept
    yield meta(NFT_META_IIFNAME), of_set(sets.bound, inverted=True), accept
    if sets.checks_mac:
        yield *iifname_and(ETHER_SADDR), of_set(sets.macs, inverted=True), drop
    for known in sets.each(4, IP_SADDR):
        yield *igmp, payload(IGMP_TYPE), compare(IGMP_QUERY, NFT_CMP_NEQ), *known, accept
        if sets.routers:
            yield *igmp, meta(NFT_META_IIFNAME), of_set(sets.routers), *known, accept
    yield *igmp, drop
    for more in more4:
        yield *ip, *more, accept
    if sets.macs:
        yield from _arp(sets)
    yield *ip6, *l4proto(IPPROTO_ICMPV6), nft_rules.jump(NEIGHBOURS)
    for known in sets.each(16, IP6_SADDR):
        yield *ip6, *known, accept
    yield from _unspecified(sets)
    if sets.types:
        yield meta(NFT_META_IIFNAME), meta(NFT_META_PROTOCOL, NFT_REG_2), of_set(sets.types), accept
    yield (drop,)


def _arp(sets: Sets) -> Iterator[Rule]:
    arp, accept = ether_type(ETH_P_ARP), nft_rules.accept()
    yield *arp, payload(BEHIND_PADDING), between(b"\0", b"\xff"), nft_rules.drop()
    yield *arp, *iifname_and(ARP_SADDR_ETHER), of_set(sets.macs, inverted=True), nft_rules.drop()
    yield *arp, payload(ARP_SADDR_IP), compare(UNSPECIFIED4), accept
    for known in sets.each(4, ARP_SADDR_IP):
        yield *arp, *known, accept


def _unspecified(sets: Sets) -> Iterator[Rule]:
    """Yield the rules for packets without source address (::, 0.0.0.0), which a pod sends before it has an address."""
    accept = nft_rules.accept()
    begin = *ether_type(ETH_P_IPV6), payload(IP6_SADDR), compare(UNSPECIFIED6)
    for known in sets.each(16, ND_TARGET):
        yield *begin, *icmpv6_type(nft_rules.NDISC_NEIGHBOUR_SOLICITATION), *known, accept
    for kind in (nft_rules.NDISC_ROUTER_SOLICITATION, nft_rules.ICMPV6_MGM_REPORT, nft_rules.ICMPV6_MLD2_REPORT):
        yield *begin, *icmpv6_type(kind), accept
    if sets.dhcp:
        yield (*ether_type(ETH_P_IP), payload(IP_SADDR), compare(UNSPECIFIED4), *l4proto(IPPROTO_UDP),
               payload(TH_PORTS), compare(FROM_CLIENT), meta(NFT_META_IIFNAME), of_set(sets.dhcp), accept)


def neighbour_rules(sets: Sets) -> Iterator[Rule]:
    """Yield the rules of the chain NEIGHBOURS, which drop invalid ICMPv6. A valid packet returns from the chain without
    a verdict."""
    drop = nft_rules.drop()
    unless = (meta(NFT_META_IIFNAME), of_set(sets.routers, inverted=True)) if sets.routers else ()
    for kind in (nft_rules.NDISC_ROUTER_ADVERTISEMENT, nft_rules.NDISC_REDIRECT, nft_rules.ICMPV6_MGM_QUERY):
        yield *_type(kind), *unless, drop
    yield from _reports(sets)
    soliciting = _type(nft_rules.NDISC_NEIGHBOUR_SOLICITATION)
    announcing = _type(nft_rules.NDISC_NEIGHBOUR_ADVERTISEMENT)
    for begin, size, option in ((_type(nft_rules.NDISC_ROUTER_SOLICITATION), 8, SOURCE_LINK),
                                ((*soliciting, *_from_unspecified(NFT_CMP_EQ)), 24, NONCE),
                                ((*soliciting, *_from_unspecified(NFT_CMP_NEQ)), 24, SOURCE_LINK),
                                (announcing, 24, TARGET_LINK)):
        yield *begin, *length_is_not(size, size + 8), drop
        with_option = *begin, *length_is(size + 8)
        yield *with_option, payload((NFT_PAYLOAD_TRANSPORT_HEADER, size, 2)), compare(option, NFT_CMP_NEQ), drop
        if sets.macs and option != NONCE:
            yield (*with_option, *iifname_and((NFT_PAYLOAD_TRANSPORT_HEADER, size + 2, 6)),
                   of_set(sets.macs, inverted=True), drop)
    yield *announcing, *[step for other in sets.each(16, ND_TARGET, inverted=True) for step in other], drop


def _reports(sets: Sets) -> Iterator[Rule]:
    """Yield the rules for reports of multicast groups. A later rule checks the source address."""
    kind = payload(nft_rules.ICMPV6_TYPE)
    first = kind, between(bytes((nft_rules.ICMPV6_MGM_REPORT,)), bytes((nft_rules.ICMPV6_MGM_REDUCTION,)))
    second = _type(nft_rules.ICMPV6_MLD2_REPORT)
    to_many = (meta(NFT_META_PKTTYPE), between(PACKET_BROADCAST, PACKET_MULTICAST)) if sets.macs else ()
    for begin, sizes, to in ((first, REPORT_BYTES, (mask(MULTICAST6), compare(MULTICAST6))),
                             (second, REPORT2_BYTES, (compare(ALL_MLD2_ROUTERS),))):
        least, most = (size.to_bytes(2, "big") for size in sizes)
        yield (*begin, payload(IP6_NEXT_AND_HOPS), compare(ALERTED), payload(IP6_LENGTH), between(least, most),
               payload(IP6_DADDR), *to, *to_many, nft_rules.leave())
        yield *begin, nft_rules.drop()


def _type(kind: int) -> Rule:
    return payload(nft_rules.ICMPV6_TYPE), compare(bytes((kind,)))


def _from_unspecified(op: int) -> Rule:
    return payload(IP6_SADDR), compare(UNSPECIFIED6, op)


def length_is(size: int) -> Rule:
    """Return the rule part `ip6 length <size> ip6 nexthdr ipv6-icmp`."""
    return payload(IP6_LENGTH_AND_NEXT), compare(size.to_bytes(2, "big") + bytes((IPPROTO_ICMPV6,)))


def length_is_not(*sizes: int) -> Rule:
    """Return the rule part that matches a packet whose length is not in `sizes`, or that has an extension header."""
    return payload(IP6_LENGTH_AND_NEXT), *[compare(size.to_bytes(2, "big") + bytes((IPPROTO_ICMPV6,)), NFT_CMP_NEQ)
                                           for size in sizes]
