"""Write the nftables tables that select packets for the kernel's traces, which traces.py reads.

`nft list ruleset` prints the tables as follows; the number is the process ID:

    table inet fastcni-flows-4711 {
        flags owner
        set new4 { type ipv4_addr . ipv4_addr . inet_proto . inet_service; flags dynamic,timeout; timeout 10s; }
        set other4 { type ipv4_addr . ipv4_addr . inet_proto; flags dynamic,timeout; timeout 10s; }
        chain forward { type filter hook forward priority -400; policy accept; jump new }
        chain input {
            type filter hook input priority -400; policy accept;
            meta iifkind "bridge" jump new                          (and "veth": from pods to the node)
        }
        chain new {
            ct state established accept
            meta l4proto @with-ports update @new4 { ip saddr . ip daddr . meta l4proto . th dport
                limit rate 1/second burst 2 packets } goto report
            meta l4proto != @with-ports update @other4 { ip saddr . ip daddr . meta l4proto
                limit rate 1/second burst 2 packets } goto report   (and both of IPv6)
        }
        chain report { limit rate 100/second burst 100 packets meta nftrace set 1 accept }
    }

A second table, of the family bridge, has the same rules for the frames that a bridge forwards: the table above sees
these frames only with br_netfilter. These frames have no conntrack: instead of established connections, the table skips
TCP packets other than SYN. Its chain `asking` reports ARP requests and neighbour solicitations, from which isolation.py
finds drops between isolated ports.

The limit for each flow shares the limit of the chain `report` fairly: 10,000 allowed connections a second between two
pods do not hide a dropped connection between other pods or to another port. The socket that wrote the tables owns them.
So the kernel removes the tables when this process ends, also by SIGKILL, and no other program can remove them before.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastcni._netlink import Batch
from fastcni.kernel import nft, nft_elements, nft_rules, uapi, wire
from fastcni.kernel.nft_elements import (
    ADDRESS_TYPES,
    TYPE_IFNAME,
    TYPE_INET_PROTOCOL,
    TYPE_INET_SERVICE,
    protocol,
)
from fastcni.kernel.nft_rules import DADDRS, NFT_REG32_00, SADDRS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastcni.kernel.nft_rules import Expression

    Rule = tuple[Expression, ...]

PREFIX = "fastcni-flows-"       # the process ID follows
COMMENT = "fastcni: packets that `fastcni flows` reports"
FAMILIES = (nft.NFPROTO_INET, nft.NFPROTO_BRIDGE)
BEFORE = -400                   # the priority of the base chains: before the chains of other programs
NEW, REPORT, ASKING, ASKED = "new", "report", "asking", "asked"
WITH_PORTS, PORTS_ID = "with-ports", 1
SET_ID = 2                      # all other sets share this ID, because the kernel finds a set by its name
TIMEOUT_MS, MAX_KEYS = 10_000, 16_384           # the lifetime of an element; the most elements in a dynamic set
# Limits for each second: packets of one source, destination and port; all packets; requests for one MAC; all requests
PER_FLOW, PACKETS, PER_REQUEST, REQUESTS = 1, 100, 1, 50
BURST = 2                       # the burst of PER_FLOW, in packets
IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP = 6, 17, 132
VERSIONS = {4: 4, 16: 6}        # {length of an address in bytes: version of IP}
ETHER_TYPES = {4: uapi.ETH_P_IP, 16: uapi.ETH_P_IPV6}
FIN_SYN_RST_ACK, SYN = b"\x17", b"\x02"
ARP_OPERATION, ARP_REQUEST = (nft_rules.NFT_PAYLOAD_NETWORK_HEADER, 6, 2), b"\0\1"
ARP_TARGET = nft_rules.NFT_PAYLOAD_NETWORK_HEADER, 24, 4
POD_LINKS = (b"bridge", b"veth")


def name() -> str:
    """Return the name of this process's tables."""
    return f"{PREFIX}{os.getpid()}"


def write(sock: wire.Socket) -> None:
    """Write the tables, which exist as long as `sock`. If the kernel lacks the family bridge, write only the table of
    the family inet.

    Raises NetlinkError; errno is EINVAL before Linux 5.12, where a socket cannot own a table, and EPERM without root's
    rights.
    """
    for family in FAMILIES:
        batch = nft.start(Batch())
        nft.add_table(batch, family, name(), COMMENT, nft.NFT_TABLE_F_OWNER)
        add_sets(batch, family)
        for chain, hook in hooks(family):
            nft.add_base_chain(batch, family, name(), chain, kind="filter", hook=hook, priority=BEFORE)
        for chain in (NEW, REPORT, *([ASKED] if family == nft.NFPROTO_BRIDGE else [])):
            nft.add_chain(batch, family, name(), chain)
        for chain, rule in rules(family):
            nft_rules.add_rule(batch, family, name(), chain, *rule)
        _, refused = wire.attempt(sock, nft.stop(batch))
        if family != nft.NFPROTO_BRIDGE or not refused or refused[0].errno not in nft.NO_FAMILY:
            wire.raise_first(refused)


def hooks(family: int) -> Iterator[tuple[str, int]]:
    """Yield (name, hook) of the base chains in the table of a family."""
    if family == nft.NFPROTO_BRIDGE:
        yield from (("forward", nft.NF_BR_FORWARD), (ASKING, nft.NF_BR_PRE_ROUTING))
    else:
        yield from (("forward", nft.NF_INET_FORWARD), ("input", nft.NF_INET_LOCAL_IN))


def add_sets(batch: Batch, family: int) -> None:
    nft_elements.add_set(batch, family, name(), WITH_PORTS, (TYPE_INET_PROTOCOL,), set_id=PORTS_ID)
    nft_elements.add_elements(batch, family, name(), WITH_PORTS,
                              [(protocol(number), None) for number in (IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP)])
    for length, kind in ADDRESS_TYPES.items():
        version, ends = VERSIONS[length], (kind, kind, TYPE_INET_PROTOCOL)
        sets = {f"new{version}": (*ends, TYPE_INET_SERVICE), f"other{version}": ends}
        if family == nft.NFPROTO_BRIDGE:
            sets[f"asked{version}"] = TYPE_IFNAME, kind
        for set_name, types in sets.items():
            nft_elements.add_set(batch, family, name(), set_name, types, set_id=SET_ID, size=MAX_KEYS,
                                 timeout_ms=TIMEOUT_MS)


def rules(family: int) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of a family's table as (chain, rule)."""
    bridge = family == nft.NFPROTO_BRIDGE
    yield "forward", (nft_rules.jump(NEW),)
    if bridge:
        yield from asking()
        yield NEW, (*is_protocol(IPPROTO_TCP), nft_rules.payload(nft_rules.TCP_FLAGS), nft_rules.mask(FIN_SYN_RST_ACK),
                    nft_rules.compare(SYN, nft_rules.NFT_CMP_NEQ), nft_rules.accept())
    else:
        for kind in POD_LINKS:
            yield "input", (nft_rules.meta(nft_rules.NFT_META_IIFKIND),
                            nft_rules.compare(kind.ljust(uapi.IFNAMSIZ, b"\0")), nft_rules.jump(NEW))
        yield NEW, (*nft_rules.established(), nft_rules.accept())
    for length in ADDRESS_TYPES:
        of_family = nft_rules.ether_type(ETHER_TYPES[length]) if bridge else nft_rules.saddr(length)[:2]
        for ports in (True, False):
            yield NEW, (*of_family, *limited(length, ports), nft_rules.go_to(REPORT))
    yield REPORT, (nft_rules.limit(PACKETS, PACKETS), *nft_rules.set_nftrace(True), nft_rules.accept())


def is_protocol(number: int) -> Rule:
    return nft_rules.meta(nft_rules.NFT_META_L4PROTO), nft_rules.compare(protocol(number))


def limited(length: int, ports: bool) -> Rule:
    """Return the rule `update @new4 { ip saddr . ip daddr . meta l4proto . th dport limit ... }`, without its verdict.

    length: the bytes of an address, 4 or 16. ports: whether the rule is for protocols with ports; if False, the set is
    @other4, without th dport.
    """
    second = NFT_REG32_00 + length // 4
    behind = second + length // 4
    return (nft_rules.meta(nft_rules.NFT_META_L4PROTO),
            nft_rules.in_set(WITH_PORTS, PORTS_ID, inverted=not ports),
            nft_rules.payload(SADDRS[length]), nft_rules.payload(DADDRS[length], second),
            nft_rules.meta(nft_rules.NFT_META_L4PROTO, behind),
            *([nft_rules.payload(nft_rules.TH_DPORT, behind + 1)] if ports else []),
            nft_rules.update_limit(f"{'new' if ports else 'other'}{VERSIONS[length]}", SET_ID, PER_FLOW, BURST))


def asking() -> Iterator[tuple[str, Rule]]:
    """Yield the rules of the chains ASKING and ASKED as (chain, rule). For IPv4 the first rule is

    arp operation request update @asked4 { iifname . arp daddr ip limit ... } jump asked
    """
    questions = {4: (*nft_rules.ether_type(uapi.ETH_P_ARP), nft_rules.payload(ARP_OPERATION),
                     nft_rules.compare(ARP_REQUEST)),
                 16: (*nft_rules.ether_type(uapi.ETH_P_IPV6),
                      *nft_rules.icmpv6_type(nft_rules.NDISC_NEIGHBOUR_SOLICITATION))}
    for length, question in questions.items():
        target = nft_rules.iifname_and(ARP_TARGET if length == 4 else nft_rules.ND_TARGET)
        asked = nft_rules.update_limit(f"asked{VERSIONS[length]}", SET_ID, PER_REQUEST, PER_REQUEST)
        yield ASKING, (*question, *target, asked, nft_rules.jump(ASKED))
    yield ASKED, (nft_rules.limit(REQUESTS, REQUESTS), *nft_rules.set_nftrace(True))
    yield ASKED, nft_rules.set_nftrace(False)           # later chains must not report the same packet again
