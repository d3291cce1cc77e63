"""Redirect connections to the HTTP proxy by nftables rules, a routing rule and a route.

The rules exist while a pod has HTTP rules. `nft list table inet fastcni-policy` prints

    chain http-out-... { ip daddr @g4-... tcp dport 80 meta mark set meta mark | 0x09000000 return }
    chain proxy-egress {
        type filter hook prerouting priority dstnat + 10; policy accept;
        meta l4proto != tcp accept
        tcp flags & (syn | ack) != syn ct state established accept
        fib daddr type local accept                                 (the pod's own node)
        ip6 daddr & ffc0:: @link6 drop                              (no map has link-local addresses)
        ip6 saddr & ffc0:: @link6 drop
        jump egress
    }
    chain proxy-ingress { type filter hook prerouting priority dstnat + 11; ... }
    chain proxy-divert {
        type filter hook prerouting priority dstnat + 12; policy accept;
        tcp flags & (syn | ack) != syn meta mark & 0x03000000 != 0 socket transparent 1 drop        (see below)
        tcp flags & (syn | ack) != syn socket transparent 1 meta mark set meta mark | 0x04000000 accept
        ct state related socket transparent 1 meta mark set meta mark | 0x04000000 accept      (ICMP errors)
        tcp flags & (syn | ack) == syn meta mark & 0x03000000 == 0 socket transparent 1 tproxy ip to 127.0.0.1:...
        meta nfproto ipv4 ct status & dnat != 0 meta mark & 0x03000000 != 0 drop        (see below)
        meta mark & 0x03000000 == 0x01000000 tproxy ip to 127.0.0.1:... ct mark set ... meta mark set ... accept
        meta mark & 0x03000000 != 0 drop
    }
    chain proxy-forward {
        type filter hook forward priority filter + 2; policy accept;
        ct mark & 0x04000000 != 0 drop
        meta mark & 0x03000000 != 0 drop
    }
    chain proxy-out-egress {
        type filter hook output priority filter; policy accept;
        meta l4proto != tcp accept
        tcp flags & (syn | ack) != syn ct state established accept
        fib saddr type local accept                                 (packets of the node itself)
        ct mark set ct mark | 0x04000000
        ip6 daddr & ffc0:: @link6 drop
        ip6 saddr & ffc0:: @link6 drop
        jump egress
    }
    chain proxy-out-ingress { type filter hook output priority filter + 1; ... }

and `ip rule` and `ip route show table 4604750`

    from all fwmark 0x4000000/0x4000000 lookup 4604750
    local default dev lo

A proxied connection has two halves: from the client to the proxy, and from the proxy to the destination. Neither half
passes the hook `forward`. So the policies of both ends decide on the first packet before the proxy gets it. They decide
again when the proxy connects to the destination with the client's address. The chain proxy-forward drops packets that
should have gone to the proxy: if the proxy, the routing rule or the route is missing, the connection fails.

HAProxy checks all requests of a connection by the rules of one direction, egress or ingress: the direction whose rules
sent the first packet to the proxy. If the other end gets HTTP rules later, cut.py deletes the connection's flow, and
the first rule of proxy-divert drops the next packet. The second rule does not match first packets (SYN): `socket
transparent` would match a connection in TIME_WAIT, and the client would repeat the packet 10 ms later.

Linux does not forward a packet for which it finds a socket of the node, and an ended connection of the proxy keeps its
socket for a minute (TIME_WAIT). So Linux would drop the first packet of a new connection that has the same addresses
and ports, but need not go to the proxy. Therefore `tproxy` names a socket that is not transparent: the kernel then
removes the socket in TIME_WAIT, and forwards the packet instead of giving it to the named socket
(nf_tproxy_handle_time_wait4()). When the last HTTP rule is removed, the chain proxy-divert keeps only this `tproxy`
rule for LINGER_S.

A connection to a Service reaches HAProxy after destination NAT, so HAProxy checks requests by the pod's address. On
machines that start_haproxy.py does not support, HAProxy would use the address of the Service (SO_ORIGINAL_DST). On such
machines, the rules drop IPv4 connections that have destination NAT.

On a bridge with br_netfilter, packets of the bridge's ports lose the socket that tproxy assigns, and are dropped.
"""

from __future__ import annotations

from errno import EAFNOSUPPORT, EEXIST, ENOENT, EOPNOTSUPP, ESRCH
from typing import TYPE_CHECKING

from fastcni._netlink import Batch
from fastcni.agent.policy import rules
from fastcni.agent.policy.http import expressions, start_haproxy
from fastcni.agent.policy.marks import EITHER, PROXIED
from fastcni.agent.policy.rules import FAMILY, TABLE
from fastcni.kernel import nft, nft_rules, routing, wire
from fastcni.kernel.nft_rules import NFT_CMP_NEQ, NFT_META_MARK, accept, compare, drop, mask, meta
from fastcni.kernel.uapi import AF_INET, AF_INET6
from fastcni.kit.firewall.port_sources import l4proto

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from fastcni.agent.batches import NetlinkRequests

    Rule = tuple[nft_rules.Expression, ...]
    Listeners = Mapping[int, tuple[tuple[bytes, int], ...]]     # {marks: (packed address, port) of the proxy's sockets}
                                                                # DIRECT has the sockets that are not transparent

ROUTE_TABLE = 0x46434E
DIRECT = 0                      # the mark of a first packet that need not go to the proxy
LINGER_S = 180.0                # FIN_WAIT_2 and TIME_WAIT take 60 s each; the rest is a reserve
EGRESS, INGRESS, DIVERT, FORWARD = "proxy-egress", "proxy-ingress", "proxy-divert", "proxy-forward"
OUT_EGRESS, OUT_INGRESS = "proxy-out-egress", "proxy-out-ingress"
BASE_CHAINS = {                 # (hook, priority)
    EGRESS: (nft.NF_INET_PRE_ROUTING, nft.NF_IP_PRI_NAT_DST + 10),
    INGRESS: (nft.NF_INET_PRE_ROUTING, nft.NF_IP_PRI_NAT_DST + 11),
    DIVERT: (nft.NF_INET_PRE_ROUTING, nft.NF_IP_PRI_NAT_DST + 12),
    FORWARD: (nft.NF_INET_FORWARD, nft.NF_IP_PRI_FILTER + 2),
    OUT_EGRESS: (nft.NF_INET_LOCAL_OUT, nft.NF_IP_PRI_FILTER),
    OUT_INGRESS: (nft.NF_INET_LOCAL_OUT, nft.NF_IP_PRI_FILTER + 1)}
JUDGED = {EGRESS: rules.EGRESS_CHAIN, INGRESS: rules.INGRESS_CHAIN, OUT_EGRESS: rules.EGRESS_CHAIN,
          OUT_INGRESS: rules.INGRESS_CHAIN}
SYN_ACK, SYN = b"\x12", b"\x02"
FLAGS = *l4proto(rules.IPPROTO_TCP), nft_rules.payload(nft_rules.TCP_FLAGS), mask(SYN_ACK)
FIRST, NO_SYN = (*FLAGS, compare(SYN)), (*FLAGS, compare(SYN, NFT_CMP_NEQ))
NOT_TCP = l4proto(rules.IPPROTO_TCP, NFT_CMP_NEQ)


def chain_rules(listeners: Listeners) -> Iterator[tuple[str, Rule]]:
    """Yield the rules of BASE_CHAINS as (chain, rule). listeners: the proxy's sockets; without them, the rules drop the
    packets that should go to the proxy."""
    # conntrack counts the first packet from a reused port as a packet of the previous, established connection. So these
    # conditions exclude first packets (NO_SYN).
    known = *NO_SYN, *nft_rules.established()
    for name, chain in JUDGED.items():
        yield name, (*NOT_TCP, accept())
        yield name, (*known, accept())
        if name in (OUT_EGRESS, OUT_INGRESS):
            yield name, (*nft_rules.from_local_address(), accept())
            yield name, expressions.set_ct_mark(PROXIED)
        else:
            yield name, (*nft_rules.to_local_address(), accept())
        for address in (nft_rules.daddr, nft_rules.saddr) if chain == rules.EGRESS_CHAIN else ():
            yield name, (*rules.link_local(address), drop())
        yield name, (rules.jump(chain),)
    for rule in divert_rules(listeners):
        yield DIVERT, rule
    yield FORWARD, (*nft_rules.any_ct_mark(PROXIED), drop())
    yield FORWARD, (*nft_rules.any_mark(EITHER), drop())


def divert_rules(listeners: Listeners) -> Iterator[Rule]:
    """Yield the rules of the chain DIVERT."""
    to_proxy = (*expressions.transparent(), *expressions.set_mark(PROXIED), accept())
    yield *NO_SYN, *nft_rules.any_mark(EITHER), *expressions.transparent(), drop()
    yield *NO_SYN, *to_proxy
    yield *nft_rules.related(), *to_proxy
    yield from reopening_rules(listeners)
    if not start_haproxy.supported():
        yield (*rules.port_rules.of_family(4), *nft_rules.destination_translated(), *nft_rules.any_mark(EITHER), drop())
    for marks, each in listeners.items():
        for packed, port in each if marks != DIRECT else ():
            yield (*rules.port_rules.of_family(len(packed)), meta(NFT_META_MARK), mask(word(EITHER)),
                   compare(word(marks)), *expressions.tproxy(packed, port), *expressions.set_ct_mark(PROXIED | marks),
                   *expressions.set_mark(PROXIED), accept())
    yield *nft_rules.any_mark(EITHER), drop()


def reopening_rules(listeners: Listeners) -> Iterator[Rule]:
    """Yield the rules for first packets that do not go to the proxy. If a TIME_WAIT socket of the proxy has the
    packet's addresses and ports, the kernel removes the socket."""
    for packed, port in listeners.get(DIRECT, ()):
        yield (*rules.port_rules.of_family(len(packed)), *FIRST, meta(NFT_META_MARK), mask(word(EITHER)),
               compare(word(DIRECT)), *expressions.transparent(), *expressions.tproxy(packed, port))


def word(number: int) -> bytes:
    return number.to_bytes(4, nft.ORDER)


def add_chains(requests: NetlinkRequests, listeners: Listeners) -> None:
    """Add BASE_CHAINS with their rules. The chain DIVERT may already exist."""
    for name in BASE_CHAINS:
        add_chain(requests, name)
    for name, rule in chain_rules(listeners):
        requests.add(nft_rules.add_rule, FAMILY, TABLE, name, *rule)


def add_chain(requests: NetlinkRequests, name: str) -> None:
    """Add the base chain `name` if it is missing, and delete its rules."""
    hook, priority = BASE_CHAINS[name]
    requests.add(nft.add_base_chain, FAMILY, TABLE, name, kind="filter", hook=hook, priority=priority)
    requests.add(nft_rules.flush_chain, FAMILY, TABLE, name)


def divert(requests: NetlinkRequests, replacement: Iterable[Rule]) -> None:
    """Replace the rules of the chain DIVERT. replacement: divert_rules(), or reopening_rules() after the last HTTP
    rule was removed."""
    add_chain(requests, DIVERT)
    for rule in replacement:
        requests.add(nft_rules.add_rule, FAMILY, TABLE, DIVERT, *rule)


def del_chains(requests: NetlinkRequests, names: Iterable[str] = tuple(BASE_CHAINS)) -> None:
    for write in (nft_rules.flush_chain, nft.del_chain):
        for name in names:
            requests.add(write, FAMILY, TABLE, name)


# -- routing -----------------------------------------------------------------------------------------------------------

def put_routes(families: Iterable[int]) -> None:
    """Add the routing rule and the route of each address family, if they are missing. Raises NetlinkError."""
    exchange(set(families), False, (EEXIST,))


def del_routes() -> None:
    """Delete the routing rules and the routes to the proxy. Raises NetlinkError."""
    exchange((AF_INET, AF_INET6), True, (ENOENT, ESRCH, EAFNOSUPPORT, EOPNOTSUPP))


def exchange(families: Iterable[int], delete: bool, harmless: Collection[int]) -> None:
    """Add or delete the routing rule and the route of each family. harmless: errno values that are ignored. Raises
    NetlinkError."""
    batch = Batch()
    for family in families:
        routing.mark_rule(batch, family, PROXIED, ROUTE_TABLE, delete=delete)
        routing.local_default(batch, family, ROUTE_TABLE, wire.index_of("lo"), delete=delete)
    with wire.open_socket() as sock:
        wire.exchange(sock, batch, harmless)
