"""Build the nftables rules that enforce policies. `nft list table inet fastcni-policy` prints them as

    chain forward {
        type filter hook forward priority filter; policy accept;
        meta nfproto ipv4 ct state established accept
        ip6 hoplimit 255 icmpv6 jump on-link                        (neighbours, between ports of a bridge)
        ip6 daddr & ffc0:: @link6 drop
        ip6 saddr & ffc0:: @link6 jump reports
        ct state established accept
        jump egress
        jump ingress
    }
    chain egress {
        ct state related jump errors
        ip saddr . ip daddr @self4 accept                           (a pod, through a service, to itself)
        ip saddr . ip daddr . meta l4proto . th sport . th dport @cut4 update @cut4 { ... } drop
        ip saddr . ip daddr . meta l4proto @cut-any4 update @cut-any4 { ... } drop
        tcp flags & (fin | syn | rst | ack) != syn jump midstream
        icmp type echo-reply jump midstream                         (and icmpv6)
        udp sport 68 udp dport 67 ip saddr @dhcp4 return            (pods whose addresses come from DHCP)
        ip saddr vmap @out4
    }
    chain ingress {
        ct state related jump errors-in
        ip saddr . ip daddr @self4 accept
        udp sport 67 udp dport 68 ip daddr @dhcp4 accept
        oifname @shut-links oifname . ip daddr != @from4 drop       (of a link that is no port of a bridge)
        ether daddr @shut-macs ether daddr . ip daddr != @stations4 drop        (of a port)
        ip daddr vmap @in4
    }
    chain reports {                                                 (MLD reports and queries)
        icmpv6 type 130-132 ip6 hoplimit 1 ip6 daddr & ff00:: == ff00:: return
        icmpv6 type 143 ip6 hoplimit 1 ip6 daddr & ff00:: == ff00:: return
        drop
    }
    chain midstream {
        ip saddr . ip saddr @self4 drop
        ip daddr . ip daddr @self4 drop
    }
    chain all-in-... { jump in-...; jump in-...; drop }              (pods with the same policies share it)
    chain in-... { ip saddr @g4-... tcp dport 80 accept comment "shop/web ingress[0]" }
    chain all-out-... {
        meta mark set meta mark & 0xf7ffffff
        jump out-...
        meta mark & 0x08000000 != 0 goto allowed
        drop
    }
    chain out-... {
        ip daddr @g4-... tcp dport 80 meta mark set meta mark | 0x08000000 return comment "shop/web egress[0]"
    }
    chain allowed { meta mark set meta mark & 0xf7ffffff }

and the same rules for IPv6. If cluster policies apply to a pod, the pod's chain is one of

    chain all-in-... { jump admin-in-...; jump in-...; drop }
    chain all-in-... { jump admin-in-...; jump baseline-in-... }     (no NetworkPolicy selects the pod)
    chain admin-in-... {
        ip saddr @g4-... tcp dport 80 accept comment "allow-web ingress[0] (metrics)"
        ip saddr @g4-... return                                     (Pass: skip the rest of the tier)
        ip saddr @g4-... drop
    }

While cluster policies restrict packets from pods to their own node, the table also has

    chain to-node {
        type filter hook input priority filter; policy accept;
        ct state established accept
        ct status dnat th dport @forwarders accept                  (DNS queries, see names/redirect.py)
        ip6 hoplimit 255 icmpv6 jump on-link
        ip6 saddr & ffc0:: == fe80:: iifname @links jump reports
        ip6 saddr & ffc0:: == fe80:: ether saddr @pod-macs jump reports
        ct state related jump errors
        udp sport 68 udp dport 67 ip saddr @dhcp4 return
        ip saddr vmap @node4
    }
    chain from-node {
        type filter hook output priority filter; policy accept;
        ct state established accept
        ip saddr . ip daddr . meta l4proto . th sport . th dport @cut4 update @cut4 { ... } drop
        ip saddr . ip daddr . meta l4proto @cut-any4 update @cut-any4 { ... } drop
    }

port_rules.py has the chains that check packets from a pod's port, and the chains for ICMP errors. NetworkPolicies need
only the hook `forward`, because NetworkPolicies always allow traffic between a pod and its own node.

A packet that `egress` allows comes to `ingress`. nftables has no verdict that returns over two chains, so an egress
rule marks the packet (marks.py), and the pod's chain tests and clears the mark after each policy. The verdict
accept in two base chains would need no mark, but packets of known connections would pass both base chains: a datagram
takes 2 to 4% more. If each egress rule led to the ingress chains, older kernels would follow each of these paths in the
loop check below: with 500 policies, one ADD took 17 s on Linux 6.1 with an emulated processor.

For each element and rule that leads to a chain, the kernel checks all chains for loops when the transaction ends. With
500 policies this check takes nearly 1 ms. So an ADD waits only for elements that lead to `drop`, which take a tenth of
that time. After the ADD's answer, the agent replaces these elements by elements that lead to the chain (engine.py).
Maps from addresses to numbers and from numbers to chains are as fast, but nft 1.0.6 aborts when it lists such a rule.

Packets from and to link-local addresses (fe80::/10) go between ports of a bridge, never through a router. The agent
does not record which pod has such an address. So while a policy restricts a pod of the node, fe80:: is in link6, and
the rules drop these packets, also in known connections. MLD reports (RFC 3810) pass, because a bridge needs them to
know the members of multicast groups. Neighbour discovery (RFC 4861) passes only with hop limit 255, which a packet from
another link cannot have, because each router decrements the hop limit. Without this check, pods could send data to any
address in these ICMPv6 types.

After the agent has cut a connection, conntrack does not know its flow. Conntrack would take an answer for the first
packet of a new connection in the other direction, which the policies may allow. So the rules drop two kinds of packets
from and to isolated pods: a TCP packet outside known connections that begins no connection, and an echo reply without a
known request. In other protocols any packet may begin a connection. For these protocols, the sets cut4, cut6, cut-any4
and cut-any6 contain the cut connections (cut.py). The rules drop answers on these connections until no answer has come
for CUT_MS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.policy import marks, port_rules
from fastcni.agent.policy.http import expressions
from fastcni.agent.policy.objects import EGRESS, INGRESS
from fastcni.agent.policy.ports import POD_MACS, ROUTED
from fastcni.agent.policy.state import (
    ACCEPT,
    DROP,
    FORWARDERS,
    IN,
    LENGTHS,
    LINK,
    LINK_LOCAL,
    LINK_LOCAL_MASK,
    NODE_MAPS,
    OUT,
    PROXY,
    RETURN,
    TO_NODE,
    VERSIONS,
)
from fastcni.kernel import nft, nft_elements, nft_rules
from fastcni.kernel.nft_elements import ADDRESS_TYPES, TYPE_INET_PROTOCOL, TYPE_INET_SERVICE, service
from fastcni.kernel.nft_rules import (
    DADDRS,
    ETHER_SADDR,
    IPPROTO_ICMPV6,
    NFT_CMP_NEQ,
    NFT_META_IIFNAME,
    NFT_META_L4PROTO,
    NFT_REG32_00,
    SADDRS,
    TCP_FLAGS,
    TH_DPORT,
    TH_SPORT,
    accept,
    between,
    compare,
    drop,
    go_to,
    in_set,
    jump,
    leave,
    mask,
    meta,
    payload,
    update,
    verdict_of,
)
from fastcni.kit.firewall.port_sources import MULTICAST6, l4proto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastcni.agent.batches import NetlinkRequests
    from fastcni.agent.policy.state import Chain, Line, State
    from fastcni.kernel.nft_rules import Expression, Field

    Rule = tuple[Expression, ...]

FAMILY, TABLE = nft.NFPROTO_INET, "fastcni-policy"
GUARD, GUARD_CHAIN, GUARD_INPUT = "fastcni-policy-guard", "forward", "input"    # see add_guard()
COMMENT = "fastcni: network policies of pods"
FORWARD_CHAIN, EGRESS_CHAIN, INGRESS_CHAIN = "forward", "egress", "ingress"
ALLOWED, MIDSTREAM, REPORTS = "allowed", "midstream", "reports"
CHAINS = (EGRESS_CHAIN, INGRESS_CHAIN, ALLOWED, MIDSTREAM, REPORTS)             # the permanent chains without a hook
TO_NODE_CHAIN, FROM_NODE_CHAIN = "to-node", "from-node"
NODE_CHAINS = {TO_NODE_CHAIN: nft.NF_INET_LOCAL_IN, FROM_NODE_CHAIN: nft.NF_INET_LOCAL_OUT}     # {chain: hook}
VERDICTS = {DROP: drop, RETURN: leave}
CUT, CUT_ANY = "cut", "cut-any"         # prefixes of sets of dropped answers: with ports; without ports
CUT_MS = 120_000                # like net.netfilter.nf_conntrack_udp_timeout_stream: the lifetime of a UDP flow
SET_ID = 1                      # the ID of all sets, because the kernel finds sets by name
IPPROTO_TCP = 6
FIN_SYN_RST_ACK, SYN = b"\x17", b"\x02"
NEW = (1 << 3).to_bytes(4, nft.ORDER)   # NF_CT_STATE_BIT(IP_CT_NEW)
ECHO_REPLY, ECHO_REPLY6 = b"\0", b"\x81"          # linux/icmp.h, linux/icmpv6.h
MLD_QUERY, MLD_DONE, MLD2_REPORT, ONE_HOP = b"\x82", b"\x84", b"\x8f", b"\1"


def permanent_rules() -> Iterator[tuple[str, Rule]]:
    """Yield (chain, rule) for the chains that always exist."""
    from_link, to_link = map(link_local, (nft_rules.saddr, nft_rules.daddr))
    known = (*nft_rules.established(), accept())
    yield FORWARD_CHAIN, (*port_rules.of_family(4), *known)        # in IPv6 the link-local rules come first
    yield FORWARD_CHAIN, port_rules.to_neighbours()
    yield FORWARD_CHAIN, (*to_link, drop())
    yield FORWARD_CHAIN, (*from_link, jump(REPORTS))
    for kinds in ((MLD_QUERY, MLD_DONE), (MLD2_REPORT, MLD2_REPORT)):
        yield REPORTS, (*l4proto(IPPROTO_ICMPV6), payload(nft_rules.ICMPV6_TYPE), between(*kinds),
                        payload(nft_rules.IP6_HOP_LIMIT), compare(ONE_HOP), *nft_rules.daddr(16), mask(MULTICAST6),
                        compare(MULTICAST6), leave())
    yield REPORTS, (drop(),)
    yield FORWARD_CHAIN, known
    for chain, errors in ((EGRESS_CHAIN, port_rules.ERRORS), (INGRESS_CHAIN, port_rules.ERRORS_IN)):
        yield FORWARD_CHAIN, (jump(chain),)
        yield chain, (*nft_rules.related(), jump(errors))
        for length in LENGTHS:
            yield chain, (*pair(length, SADDRS[length], DADDRS[length]), accept())
    for length in LENGTHS:
        for prefix in (CUT, CUT_ANY):
            yield EGRESS_CHAIN, answers(length, prefix)
    yield EGRESS_CHAIN, (*l4proto(IPPROTO_TCP), payload(TCP_FLAGS), mask(FIN_SYN_RST_ACK), compare(SYN, NFT_CMP_NEQ),
                         jump(MIDSTREAM))
    for number, reply in ((port_rules.IPPROTO_ICMP, ECHO_REPLY), (IPPROTO_ICMPV6, ECHO_REPLY6)):
        yield EGRESS_CHAIN, (*l4proto(number), payload(nft_rules.ICMPV6_TYPE), compare(reply), jump(MIDSTREAM))
    yield EGRESS_CHAIN, port_rules.dhcp_requests()
    for rule in port_rules.ingress_rules():
        yield INGRESS_CHAIN, rule
    for length in LENGTHS:
        for field in (SADDRS[length], DADDRS[length]):
            yield MIDSTREAM, (*pair(length, field, field), drop())
        yield EGRESS_CHAIN, (*nft_rules.saddr(length), verdict_of(f"{OUT}{VERSIONS[length]}", SET_ID))
        yield INGRESS_CHAIN, (*nft_rules.daddr(length), verdict_of(f"{IN}{VERSIONS[length]}", SET_ID))
    yield ALLOWED, expressions.set_mark(marks.ALLOWED, False)


def link_local(address: Callable[[int], Rule]) -> Rule:
    """Return the condition `ip6 saddr & ffc0:: @link6`, or the same with daddr. address: nft_rules.saddr or .daddr."""
    return *address(16), mask(LINK_LOCAL_MASK), in_set(LINK, SET_ID)


def node_rules() -> Iterator[tuple[str, Rule]]:
    """Yield (chain, rule) for the chains at the hooks input and output.

    A pod may also send from its link-local address, which is in no map. Without rules on fe80::/10, the pod could make
    connections from that address that the policies deny.
    """
    known = (*nft_rules.established(), accept())
    from_link = (*nft_rules.saddr(16), mask(LINK_LOCAL_MASK), compare(LINK_LOCAL))
    yield TO_NODE_CHAIN, known
    yield TO_NODE_CHAIN, (*nft_rules.destination_translated(), payload(TH_DPORT), in_set(FORWARDERS, SET_ID), accept())
    yield TO_NODE_CHAIN, port_rules.to_neighbours()
    yield TO_NODE_CHAIN, (*from_link, meta(NFT_META_IIFNAME), in_set(ROUTED.ports, SET_ID), jump(REPORTS))
    yield TO_NODE_CHAIN, (*from_link, payload(ETHER_SADDR), in_set(POD_MACS, SET_ID), jump(REPORTS))
    yield TO_NODE_CHAIN, (*nft_rules.related(), jump(port_rules.ERRORS))
    yield TO_NODE_CHAIN, port_rules.dhcp_requests()
    yield FROM_NODE_CHAIN, known
    for length in LENGTHS:
        yield TO_NODE_CHAIN, (*nft_rules.saddr(length), verdict_of(f"{TO_NODE}{VERSIONS[length]}", SET_ID))
        for prefix in (CUT, CUT_ANY):
            yield FROM_NODE_CHAIN, answers(length, prefix)


def pair(length: int, first: Field, second: Field) -> Rule:
    """Return the condition `<first> . <second> @self4`, for length 16 with @self6."""
    return *ends(length, first, second), in_set(f"self{VERSIONS[length]}", SET_ID)


def ends(length: int, first: Field, second: Field) -> Rule:
    """Return the expressions that load <first> . <second> into registers, from register 1 on. The rule does not match
    packets of another family."""
    return *nft_rules.saddr(length)[:2], payload(first), payload(second, NFT_REG32_00 + length // 4)


def answers(length: int, prefix: str) -> Rule:
    """Return the rule `ip saddr . ip daddr . meta l4proto . th sport . th dport @cut4 update @cut4 { ... } drop`.
    prefix: CUT, or CUT_ANY without ports."""
    word, name = NFT_REG32_00 + length // 2, f"{prefix}{VERSIONS[length]}"
    ports = (payload(TH_SPORT, word + 1), payload(TH_DPORT, word + 2)) if prefix == CUT else ()
    return (*ends(length, SADDRS[length], DADDRS[length]), meta(NFT_META_L4PROTO, word), *ports, in_set(name, SET_ID),
            update(name, SET_ID), drop())


def cut_sets() -> dict[str, tuple[int, ...]]:
    """Return {name: types of a key's parts} of the sets of dropped answers."""
    return {f"{prefix}{VERSIONS[length]}": (ADDRESS_TYPES[length], ADDRESS_TYPES[length], TYPE_INET_PROTOCOL, *ports)
            for length in LENGTHS for prefix, ports in ((CUT, (TYPE_INET_SERVICE, TYPE_INET_SERVICE)), (CUT_ANY, ()))}


def rules_of(chain: Chain) -> Iterator[tuple[Rule, str]]:
    """Yield (rule, comment) for each rule of a chain: its jumps, its final drop, its lines."""
    if chain.jumps and chain.direction == EGRESS:
        yield expressions.set_mark(marks.ALLOWED, False), ""
    for name in chain.jumps:
        yield (jump(name),), ""
        if chain.direction == EGRESS:
            yield (*nft_rules.any_mark(marks.ALLOWED), go_to(ALLOWED)), ""
    if chain.jumps and chain.closed:
        yield (drop(),), ""
    for line in chain.lines:
        yield (*conditions(line, chain.direction), *verdict(line.verdict, chain.direction)), line.comment


def verdict(name: str, direction: str) -> Rule:
    """Return the end of a rule: expressions that set marks, and the verdict `name`. In the direction EGRESS, a rule
    that accepts a packet sets a mark and returns, so that the chain `ingress` decides next."""
    of_proxy = (marks.IN if direction == INGRESS else marks.OUT) if name == PROXY else 0
    if name not in (ACCEPT, PROXY):
        return (VERDICTS[name](),)
    if direction == EGRESS:
        return *expressions.set_mark(marks.ALLOWED | of_proxy), leave()
    return *(expressions.set_mark(of_proxy) if of_proxy else ()), accept()


def conditions(line: Line, direction: str) -> Rule:
    found: list[Expression] = []
    length = line.length
    if line.peer:
        found += nft_rules.saddr(length) if direction == INGRESS else nft_rules.daddr(length)
        found.append(in_set(line.peer, SET_ID))
    if line.domain:
        found += *ends(length, SADDRS[length], DADDRS[length]), in_set(line.domain, SET_ID)
    if line.protocol:
        found += l4proto(line.protocol)
    if line.first:
        found.append(payload(TH_DPORT))
        found.append(compare(service(line.first)) if line.first == line.last else
                     between(service(line.first), service(line.last)))
    if line.ports:
        found += payload(TH_DPORT), in_set(line.ports, SET_ID)
    if line.named:
        found += *nft_rules.daddr(length), payload(TH_DPORT, NFT_REG32_00 + length // 4), in_set(line.named, SET_ID)
    return tuple(found)


# The guard: a table that drops the first packets from and to restricted pods while the policies' table is replaced ----

def add_guard(requests: NetlinkRequests, state: State, flags: int) -> None:
    """Add the guard table: it drops packets of new connections from and to restricted pods. If a table of this name
    exists, replace the table."""
    replace_table(requests, FAMILY, GUARD, flags)
    guard(requests, state, GUARD_CHAIN, nft.NF_INET_FORWARD, "self", (nft_rules.saddr, nft_rules.daddr))
    if state.sets.keys() >= NODE_MAPS:          # policies restrict packets from pods to their own node
        guard(requests, state, GUARD_INPUT, nft.NF_INET_LOCAL_IN, TO_NODE, (nft_rules.saddr,))


def guard(requests: NetlinkRequests, state: State, chain: str, hook: int, prefix: str,
          addresses: Iterable[Callable[[int], Rule]]) -> None:
    """Add the base chain `chain` of the guard table, and sets with the addresses in the state's sets or maps `prefix`4
    and `prefix`6. For each of `addresses`, the chain has the rule `ct state new ip saddr @<set> drop` (or ip daddr)."""
    requests.add(nft.add_base_chain, FAMILY, GUARD, chain, kind="filter", hook=hook, priority=nft.NF_IP_PRI_FILTER)
    for length, version in VERSIONS.items():
        name = f"{prefix}{version}"
        requests.add(nft_elements.add_set, FAMILY, GUARD, name, (ADDRESS_TYPES[length],), set_id=SET_ID)
        requests.add_parts(nft_elements.add_elements, FAMILY, GUARD, name,
                           ((key[:length], None) for key in state.elements[name]))
        for address in addresses:
            requests.add(nft_rules.add_rule, FAMILY, GUARD, chain, nft_rules.ct(nft_rules.NFT_CT_STATE), mask(NEW),
                         compare(bytes(4), NFT_CMP_NEQ), *address(length), in_set(name, SET_ID), drop())


def replace_table(requests: NetlinkRequests, family: int, table: str, flags: int) -> None:
    """Add an empty table. If a table of this name exists, delete it first."""
    requests.add(nft.add_table, family, table, COMMENT, None)
    requests.add(nft.del_table, family, table)
    requests.add(nft.add_table, family, table, COMMENT, flags)
