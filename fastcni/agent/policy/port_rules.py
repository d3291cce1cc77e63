"""Build the nftables rules for the ports of pods. The rules for packets that a port sends are those of
kit/firewall/port_sources.py, in the chain `addresses` of `bridge fastcni-policy` and in the chain `links` of `inet
fastcni-policy`. The chain `source` leads packets from veth pairs to `links`.

    chain source {
        type filter hook prerouting priority raw; policy accept;
        @nh,0,8 0x45 ip protocol != igmp iif . ip saddr @link-senders4 accept           (and ip6)
        meta iifkind veth goto links
    }

When the node has tunnels (tunnels.py), `addresses` and `source` begin with a rule that drops tunnel packets from pods.
A node without tunnels has no such rule, because the rule makes each UDP packet 3% slower:

    meta l4proto != tcp jump tunnels
    chain tunnels {
        meta l4proto @tunnel-protocols iifname @ports drop
        udp dport @tunnel-ports iifname @ports drop
    }

In `inet fastcni-policy`, the same rules use other sets, such as link-tunnel-ports. Only the first fragment of a packet
has the UDP port. The rules need not drop the other fragments, because no host reassembles a packet without its first
fragment.

For packets that a bridge forwards to a pod, `nft list table bridge fastcni-policy` prints

    chain arriving {
        type filter hook forward priority filter; policy accept;
        meta protocol ip oif . ip daddr @receivers4 accept                  (and ip6)
        oifname != @ports accept
        ip oifname . ether daddr . ip daddr @own4 accept                    (and ip6)
        ip oifname . ip daddr @more4 accept                                 (and ip6)
        arp accept
        ip6 hoplimit 255 icmpv6 type 133-136 accept         (neighbours; with the lengths of RFC 4861)
        icmpv6 type mld-listener-query accept
        udp sport 67 udp dport 68 oifname @dhcp accept
        oifname . meta protocol @types accept
        oifname @shut drop
        iifname @mute ip daddr 0.0.0.0-223.255.255.255 drop                 (and ip6 daddr 0::-feff:...)
    }

Broadcast and multicast addresses belong to no pod, so no policy allows them. The rules of `inet fastcni-policy` decide
by addresses, not by MACs. So if policies restrict a pod's ingress or the sender's egress, `arriving` lets the pod
receive only packets to its own addresses, also in known connections.

The first rules of `arriving`, `source` and `addresses` decide for nearly all packets. The kernel compares a link's
index in less time than its name, and a key with MAC and ethertype saves a rule for the ethertype:

    @nh,0,8 0x45 ip protocol != igmp iif . @ll,48,64 . ip saddr @senders4 accept            (MAC, ethertype; and ip6)

These sets only accept packets. If a port's link index is not in the sets, for example because its link was made again
or because a set is full, the other rules check the port's packets by name.

The kernel calls the rules of `inet fastcni-policy` for IPv4 and IPv6 only, and not for frames with two VLAN tags. In
this table, a new connection to the MAC of a restricted pod must have one of the pod's single addresses as destination:

    ether daddr @shut-macs ether daddr . ip daddr != @stations4 drop

Conntrack relates an ICMP error to a connection, whoever sends the error. In `inet fastcni-policy`, these chains decide
about ICMP errors:

    chain errors {                                                  (of both directions)
        meta l4proto != icmp meta l4proto != icmpv6 accept          (connections that helpers expect)
        iifname . ct original ip saddr @from4 accept                (from an end of the connection)
        iifname . ct reply ip saddr @from4 accept
        iifname @links return
        ether saddr . ct original ip saddr @stations4 accept        (of a bridge, whose ports hold the MAC)
        ether saddr . ct reply ip saddr @stations4 accept
    }
    chain errors-in {
        jump errors
        iifname @links return
        ether saddr @pod-macs return                                (another pod: what the policies say)
        update @errors4 { ip saddr limit rate 100/second burst 100 packets } accept
    }

A pod with a routed link (ptp) can choose its MAC, so the rules know the pod by its link's name. stations4 has the MAC
and the address of each pod of this node at a port of a bridge. Errors from routers pass, because path MTU discovery
needs them; their rate is limited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fastcni.agent.policy.ports import (
    BRIDGED,
    DHCP4,
    DHCP_PORTS,
    LINK_SENDERS,
    MACS,
    MUTE,
    POD_MACS,
    RECEIVERS,
    ROUTED,
    SENDERS,
    SHUT_MACS,
    STATIONS,
    TYPES,
    VERSIONS,
)
from fastcni.kernel import nft, nft_rules
from fastcni.kernel.nft_rules import (
    DADDRS,
    ETHER_DADDR,
    ETHER_SADDR,
    ETHER_SADDR_AND_TYPE,
    ICMPV6_MGM_QUERY,
    IP6_HOP_LIMIT,
    IPPROTO_ICMPV6,
    NFPROTOS,
    NFT_CMP_NEQ,
    NFT_META_IIF,
    NFT_META_IIFKIND,
    NFT_META_IIFNAME,
    NFT_META_L4PROTO,
    NFT_META_OIF,
    NFT_META_OIFNAME,
    NFT_META_PROTOCOL,
    NFT_PAYLOAD_NETWORK_HEADER,
    NFT_REG32_00,
    NFT_REG_2,
    SADDRS,
    accept,
    between,
    compare,
    drop,
    ether_type,
    go_to,
    icmpv6_type,
    jump,
    leave,
    mask,
    meta,
    oifname_and,
    payload,
)
from fastcni.kernel.uapi import ETH_P_IP, ETH_P_IPV6, IFNAMSIZ
from fastcni.kit.firewall import port_sources
from fastcni.kit.firewall.port_sources import (
    BEHIND_MAC,
    ETH_P_ARP,
    FROM_CLIENT,
    IP_PROTOCOL,
    IPPROTO_IGMP,
    IPPROTO_UDP,
    NEIGHBOURS,
    TH_PORTS,
    l4proto,
    length_is,
    of_set,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fastcni.agent.policy.ports import Names
    from fastcni.kernel.nft_rules import Expression

    Rule = tuple[Expression, ...]

ADDRESSES, ARRIVING, SOURCE, LINKS = "addresses", "arriving", "source", "links"
ON_LINK, ERRORS, ERRORS_IN, TUNNELS = "on-link", "errors", "errors-in", "tunnels"
IPPROTO_ICMP, IPPROTO_TCP = 1, 6
BEHIND_A_MAC = NFT_REG32_00 + 2         # the next register after a MAC in register 1
VETH = b"veth".ljust(IFNAMSIZ, b"\0")    # the link kind, as meta iifkind gives it
FIRST_BYTE = NFT_PAYLOAD_NETWORK_HEADER, 0, 1
BEGINS = {4: (payload(FIRST_BYTE), compare(b"\x45")),               # an IPv4 header without options; the lookup after
          16: (payload(FIRST_BYTE), mask(b"\xf0"), compare(b"\x60"))}      # BEGINS checks the ethertype
OTHERS = {4: (payload(IP_PROTOCOL), compare(bytes((IPPROTO_IGMP,)), NFT_CMP_NEQ)),
          16: l4proto(IPPROTO_ICMPV6, NFT_CMP_NEQ)}
PROTOCOLS = {4: ETH_P_IP, 16: ETH_P_IPV6}
BEFORE_GROUPS = {4: b"\xdf" + b"\xff" * 3, 16: b"\xfe" + b"\xff" * 15}       # the last address before multicast
LAST_HOP_LIMIT = b"\xff"                 # 255: the packet comes from the link
ROUTER_SOLICIT, ROUTER_ADVERT, NEIGHBOUR_SOLICIT, NEIGHBOUR_ADVERT, REDIRECT = (bytes((kind,)) for kind in (
    133, 134, 135, 136, 137))            # RFC 4861
TO_CLIENT = b"\0\x43\0\x44"             # DHCP's ports: 67 and 68
ERRORS_A_SECOND, ERRORS_BURST, ERRORS_TIMEOUT_MS = 100, 100, 60_000      # ICMP errors from one source address
ERROR_SETS, ERROR_SOURCES = {4: "errors4", 16: "errors6"}, 65_535  # {address length: set}; maximum of elements in a set


class BaseChain(NamedTuple):
    """A chain that the kernel calls at a hook: nftables family, name, hook number, priority."""

    family: int
    name: str
    hook: int
    priority: int


BASE_CHAINS = (
    BaseChain(nft.NFPROTO_BRIDGE, ADDRESSES, nft.NF_BR_PRE_ROUTING, nft.NF_BR_PRI_NAT_DST_BRIDGED + 2),
    BaseChain(nft.NFPROTO_BRIDGE, ARRIVING, nft.NF_BR_FORWARD, nft.NF_BR_PRI_FILTER_BRIDGED))
# Before conntrack. Packets of bridges pass this chain, too, so it exists only after the first pod with a routed link.
SOURCE_CHAIN = BaseChain(nft.NFPROTO_INET, SOURCE, nft.NF_INET_PRE_ROUTING, nft.NF_IP_PRI_RAW)
CHAINS = (*((nft.NFPROTO_BRIDGE, name) for name in (NEIGHBOURS, ON_LINK, TUNNELS)),
          *((nft.NFPROTO_INET, name) for name in (NEIGHBOURS, LINKS, ON_LINK, ERRORS, ERRORS_IN, TUNNELS)))


def sets_of(names: Names, macs: str, **more: str) -> port_sources.Sets:
    return port_sources.Sets(names.ports, macs, names.by_length(names.own), names.by_length(names.more),
                             checks_mac=bool(macs), routers=names.routers, **more)


# {family: (chain with the rules of port_sources.py, sets that these rules use)}
SOURCES = {nft.NFPROTO_BRIDGE: (ADDRESSES, sets_of(BRIDGED, MACS, dhcp=DHCP_PORTS, types=TYPES)),
           nft.NFPROTO_INET: (LINKS, sets_of(ROUTED, ""))}


def permanent_rules() -> Iterator[tuple[int, str, Rule]]:
    """Yield (family, chain, rule) for the module's chains that always exist: all except `source` and the rules for
    tunnels."""
    for rule in from_senders():
        yield nft.NFPROTO_BRIDGE, ADDRESSES, rule
    for family, (chain, sets) in SOURCES.items():
        for rule in port_sources.rules(sets):
            yield family, chain, rule
        for rule in port_sources.neighbour_rules(sets):
            yield family, NEIGHBOURS, rule
        for rule in on_link():
            yield family, ON_LINK, rule
    for rule in arriving():
        yield nft.NFPROTO_BRIDGE, ARRIVING, rule
    for chain, rules in ((ERRORS, errors()), (ERRORS_IN, errors_in())):
        for rule in rules:
            yield nft.NFPROTO_INET, chain, rule


def source_rules(tunnels: bool) -> Iterator[Rule]:
    """Yield the rules of SOURCE_CHAIN. tunnels: whether the node has tunnels."""
    if tunnels:
        yield to_tunnels()
    for length in VERSIONS:
        yield (*BEGINS[length], *OTHERS[length], meta(NFT_META_IIF), payload(SADDRS[length], NFT_REG32_00 + 1),
               of_set(LINK_SENDERS[length]), accept())
    yield meta(NFT_META_IIFKIND), compare(VETH), go_to(LINKS)


def tunnel_rules() -> Iterator[tuple[int, str, Rule]]:
    """Yield (family, chain, rule) for the rules that drop tunnel packets from pods. The rule of the chain ADDRESSES
    must become that chain's first rule."""
    for family, names in ((nft.NFPROTO_BRIDGE, BRIDGED), (nft.NFPROTO_INET, ROUTED)):
        for rule in tunnels(names):
            yield family, TUNNELS, rule
    yield nft.NFPROTO_BRIDGE, ADDRESSES, to_tunnels()


def to_tunnels() -> Rule:
    """Return the rule `meta l4proto != tcp jump tunnels`."""
    return *l4proto(IPPROTO_TCP, NFT_CMP_NEQ), jump(TUNNELS)


def tunnels(names: Names) -> Iterator[Rule]:
    """Yield the rules that drop tunnel packets from the ports of `names`. A node would take such a packet for one from
    another node, and would accept any source in the inner packet."""
    held = meta(NFT_META_IIFNAME), of_set(names.ports), drop()
    yield meta(NFT_META_L4PROTO), of_set(names.protocols), *held
    yield *l4proto(IPPROTO_UDP), payload(nft_rules.TH_DPORT), of_set(names.tunnels), *held


def from_senders() -> Iterator[Rule]:
    """Yield the rules that accept a packet whose port index, MAC and source address are in one element of SENDERS.
    Other packets go on to the rules of port_sources.py."""
    for length in VERSIONS:
        yield (*BEGINS[length], *OTHERS[length], meta(NFT_META_IIF), payload(ETHER_SADDR_AND_TYPE, NFT_REG32_00 + 1),
               payload(SADDRS[length], NFT_REG32_00 + 3), of_set(SENDERS[length]), accept())


def arriving() -> Iterator[Rule]:
    for length, protocol in PROTOCOLS.items():
        yield (*ether_type(protocol), meta(NFT_META_OIF), payload(DADDRS[length], NFT_REG32_00 + 1),
               of_set(RECEIVERS[length]), accept())
    yield meta(NFT_META_OIFNAME), of_set(BRIDGED.ports, inverted=True), accept()
    for length, protocol in PROTOCOLS.items():
        yield (*ether_type(protocol), *oifname_and(ETHER_DADDR), payload(DADDRS[length], BEHIND_MAC),
               of_set(BRIDGED.by_length(BRIDGED.own)[length]), accept())
        yield (*ether_type(protocol), *oifname_and(DADDRS[length]), of_set(BRIDGED.by_length(BRIDGED.more)[length]),
               accept())
    yield *ether_type(ETH_P_ARP), accept()
    yield *ether_type(ETH_P_IPV6), *to_neighbours()
    yield *ether_type(ETH_P_IPV6), *icmpv6_type(ICMPV6_MGM_QUERY), accept()
    yield (*ether_type(ETH_P_IP), *udp_ports(TO_CLIENT), meta(NFT_META_OIFNAME), of_set(DHCP_PORTS), accept())
    yield meta(NFT_META_OIFNAME), meta(NFT_META_PROTOCOL, NFT_REG_2), of_set(TYPES), accept()
    yield meta(NFT_META_OIFNAME), of_set(BRIDGED.shut), drop()
    for length, protocol in PROTOCOLS.items():
        yield (meta(NFT_META_IIFNAME), of_set(MUTE), *ether_type(protocol), payload(DADDRS[length]),
               between(bytes(length), BEFORE_GROUPS[length]), drop())


def to_neighbours() -> Rule:
    """Return the rule `ip6 hoplimit 255 icmpv6 jump on-link`."""
    return *l4proto(IPPROTO_ICMPV6), payload(IP6_HOP_LIMIT), compare(LAST_HOP_LIMIT), jump(ON_LINK)


def on_link() -> Iterator[Rule]:
    """Yield the rules that accept neighbour discovery. Messages of routers may have options of any length; the rules of
    port_sources.py stop such messages from pods."""
    kind = payload(nft_rules.ICMPV6_TYPE)
    for size in (8, 16):
        yield kind, compare(ROUTER_SOLICIT), *length_is(size), accept()
    for size in (24, 32):
        yield kind, between(NEIGHBOUR_SOLICIT, NEIGHBOUR_ADVERT), *length_is(size), accept()
    for router in (ROUTER_ADVERT, REDIRECT):
        yield kind, compare(router), accept()


def errors() -> Iterator[Rule]:
    yield *l4proto(IPPROTO_ICMP, NFT_CMP_NEQ), compare(bytes((IPPROTO_ICMPV6,)), NFT_CMP_NEQ), accept()
    yield from from_ends(meta(NFT_META_IIFNAME), NFT_REG_2, ROUTED.by_length(ROUTED.own))
    yield meta(NFT_META_IIFNAME), of_set(ROUTED.ports), leave()
    yield from from_ends(payload(ETHER_SADDR), BEHIND_A_MAC, STATIONS)


def from_ends(sender: Expression, behind: int, sets: Mapping[int, str]) -> Iterator[Rule]:
    """Yield the rules `<sender> . ct original ip saddr @<set> accept`, and the same for reply and ip6. behind: the
    register after `sender`."""
    for length in VERSIONS:
        for direction in (nft_rules.IP_CT_DIR_ORIGINAL, nft_rules.IP_CT_DIR_REPLY):
            yield (*of_family(length), sender, nft_rules.ct_saddr(length, direction, behind), of_set(sets[length]),
                   accept())


def errors_in() -> Iterator[Rule]:
    yield (jump(ERRORS),)
    yield meta(NFT_META_IIFNAME), of_set(ROUTED.ports), leave()
    yield payload(ETHER_SADDR), of_set(POD_MACS), leave()
    for length, name in ERROR_SETS.items():
        yield (*nft_rules.saddr(length), nft_rules.update_limit(name, port_sources.SET_ID, ERRORS_A_SECOND,
                                                                ERRORS_BURST), accept())


def of_family(length: int) -> Rule:
    """Return the condition `meta nfproto ipv4` for length 4, `meta nfproto ipv6` for length 16."""
    return meta(nft_rules.NFT_META_NFPROTO), compare(bytes((NFPROTOS[length],)))


def udp_ports(both: bytes) -> Rule:
    """Return the condition `udp sport <...> udp dport <...>`. both: the two ports, 4 bytes."""
    return *l4proto(IPPROTO_UDP), payload(TH_PORTS), compare(both)


def dhcp_requests() -> Rule:
    """Return the rule that allows DHCP requests of pods; in the chain `egress`, this rule comes before the maps.
    ingress_rules() has the rule for the answers."""
    return *udp_ports(FROM_CLIENT), *nft_rules.saddr(4), of_set(DHCP4), leave()


def ingress_rules() -> Iterator[Rule]:
    """Yield the rules that come in the chain `ingress` before the maps: accept DHCP answers, and let a restricted pod
    receive only packets to its own addresses."""
    yield *udp_ports(TO_CLIENT), *nft_rules.daddr(4), of_set(DHCP4), accept()
    for length in VERSIONS:
        yield (*of_family(length), meta(NFT_META_OIFNAME), of_set(ROUTED.shut), payload(DADDRS[length], NFT_REG_2),
               of_set(ROUTED.by_length(ROUTED.own)[length], inverted=True), drop())
        yield (*of_family(length), payload(ETHER_DADDR), of_set(SHUT_MACS), payload(DADDRS[length], BEHIND_A_MAC),
               of_set(STATIONS[length], inverted=True), drop())
