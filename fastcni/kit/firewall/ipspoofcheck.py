"""ipspoofchk: a pod's port sends IPv4, ARP and IPv6 from the addresses that IPAM gave the pod, and nothing else.

A fixed number of rules beside those of kit/firewall/spoofcheck.py. `nft list table bridge fastcni` prints them as

    set bound { type ifname; elements = { "veth0a1b2c3d" comment "..." } }
    set bound4 { type ifname . ipv4_addr; elements = { "veth0a1b2c3d" . 10.22.0.5 comment "..." } }
    set bound6 { type ifname . ipv6_addr; elements = { "veth0a1b2c3d" . fd00:22::5 comment "...", (its fe80:: too) } }
    chain addresses {
        type filter hook prerouting priority dstnat + 1; policy accept;
        iifname != @bound accept
        iifname . ip saddr @bound4 accept
        iifname . arp saddr ether != @allowed drop
        arp saddr ip 0.0.0.0 accept                                             (a probe, RFC 5227)
        iifname . arp saddr ip @bound4 accept
        icmpv6 type nd-router-advert drop
        icmpv6 type nd-neighbor-advert iifname . @th,64,128 != @bound6 drop     (the address it announces)
        iifname . ip6 saddr @bound6 accept
        ip6 saddr :: icmpv6 type nd-neighbor-solicit iifname . @th,64,128 @bound6 accept        (DAD)
        ip6 saddr :: icmpv6 type mld-listener-report accept
        ip6 saddr :: icmpv6 type mld2-listener-report accept
        drop
    }
"""

from __future__ import annotations

from fastcni.kernel import nft, nft_elements, nft_rules
from fastcni.kernel.nft_elements import ADDRESS_TYPES, TYPE_IFNAME, concat, ifname
from fastcni.kernel.nft_rules import ether_type, icmpv6_type, iifname_and
from fastcni.kernel.uapi import ETH_P_IP, ETH_P_IPV6
from fastcni.kit.firewall import elements, spoofcheck
from fastcni.kit.firewall.spoofcheck import ALLOWED, ALLOWED_ID
from fastcni.kit.firewall.table import BRIDGE_FAMILY as FAMILY
from fastcni.kit.firewall.table import TABLE
from fastcni.spec import result as results
from fastcni.spec.address import link_local

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from fastcni._netlink import Batch
    from fastcni.kernel.rtnl import Link
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.firewall.elements import Item, Store

CHAIN, PRIORITY, RULES = "addresses", nft.NF_BR_PRI_NAT_DST_BRIDGED + 1, 12
BOUND, BOUND_OF = "bound", {4: "bound4", 16: "bound6"}          # by length of an address
BOUND_ID, BOUND_IDS = 3, {4: 4, 16: 5}
ETH_P_ARP = 0x0806
UNSPECIFIED4, UNSPECIFIED6 = bytes(4), bytes(16)


def add(req: Request, host: Link, inside: Link, result: dict[str, Any], undo: Undo) -> None:
    """Bind the pod's port, `host`, to the addresses of `result`."""
    undo(delete, req)
    store().add(req, items(host.name, inside.address, packed_ips(result)))


def restore(req: Request) -> None:
    """Add again what is missing. prevResult names the port. Raises CniError 7 if it does not."""
    spoofcheck.restore_items(req, store(), spoofcheck.known(req, items))


def packed_ips(result: dict[str, Any]) -> list[bytes]:
    return [packed for packed, _ in results.ips_of(result)]


def items(port: str, mac: bytes, ips: Iterable[bytes]) -> list[Item]:
    """Return the elements of a pod's port: the packed `ips`, and the link-local address that its kernel makes of the
    MAC."""
    key = ifname(port)
    return [(BOUND, key, None), *((BOUND_OF[len(packed)], concat(key, packed), None)
                                  for packed in dict.fromkeys((*ips, link_local(mac))))]


def delete(req: Request) -> None:
    store().delete(req, spoofcheck.known(req, items))


def check(req: Request, host: Link, inside: Link, previous: dict[str, Any]) -> None:
    """CHECK: the pod's port is bound to its addresses. Raises CniError."""
    if store().missing(req, items(host.name, inside.address, packed_ips(previous))):
        raise spoofcheck.unguarded(host, "ipspoofchk")


def gc(req: Request) -> None:
    store().gc(req)


def stores() -> list[Store]:
    return [store()]


def store() -> Store:
    return elements.Store(FAMILY, TABLE, (BOUND, *BOUND_OF.values()), {CHAIN: RULES}, set_up)


def set_up(batch: Batch, items: Sequence[Item]) -> Batch:
    spoofcheck.set_up(batch, items)
    nft.add_base_chain(batch, FAMILY, TABLE, CHAIN, kind="filter", hook=nft.NF_BR_PRE_ROUTING, priority=PRIORITY)
    nft_rules.flush_chain(batch, FAMILY, TABLE, CHAIN)
    nft_elements.add_set(batch, FAMILY, TABLE, BOUND, (TYPE_IFNAME,), set_id=BOUND_ID)
    for length, name in BOUND_OF.items():
        nft_elements.add_set(batch, FAMILY, TABLE, name, (TYPE_IFNAME, ADDRESS_TYPES[length]),
                             set_id=BOUND_IDS[length])
    for rule in rules():
        nft_rules.add_rule(batch, FAMILY, TABLE, CHAIN, *rule)
    return batch


def rules() -> Iterator[tuple[Any, ...]]:
    """Yield the rules as printed above, as expressions."""
    accept, drop = nft_rules.accept(), nft_rules.drop()
    own4, own6 = (nft_rules.in_set(BOUND_OF[length], BOUND_IDS[length]) for length in (4, 16))
    not_own6 = nft_rules.in_set(BOUND_OF[16], BOUND_IDS[16], inverted=True)
    not_own_mac = nft_rules.in_set(ALLOWED, ALLOWED_ID, inverted=True)
    not_bound = nft_rules.in_set(BOUND, BOUND_ID, inverted=True)
    nd_target = iifname_and(nft_rules.ND_TARGET)
    ip, arp, ip6 = ether_type(ETH_P_IP), ether_type(ETH_P_ARP), ether_type(ETH_P_IPV6)
    unspecified = *ip6, nft_rules.payload(nft_rules.IP6_SADDR), nft_rules.compare(UNSPECIFIED6)
    probe = nft_rules.payload(nft_rules.ARP_SADDR_IP), nft_rules.compare(UNSPECIFIED4)
    yield nft_rules.meta(nft_rules.NFT_META_IIFNAME), not_bound, accept
    yield *ip, *iifname_and(nft_rules.IP_SADDR), own4, accept
    yield *arp, *iifname_and(nft_rules.ARP_SADDR_ETHER), not_own_mac, drop
    yield *arp, *probe, accept
    yield *arp, *iifname_and(nft_rules.ARP_SADDR_IP), own4, accept
    yield *ip6, *icmpv6_type(nft_rules.NDISC_ROUTER_ADVERTISEMENT), drop
    yield *ip6, *icmpv6_type(nft_rules.NDISC_NEIGHBOUR_ADVERTISEMENT), *nd_target, not_own6, drop
    yield *ip6, *iifname_and(nft_rules.IP6_SADDR), own6, accept
    yield *unspecified, *ip6, *icmpv6_type(nft_rules.NDISC_NEIGHBOUR_SOLICITATION), *nd_target, own6, accept
    for report in (nft_rules.ICMPV6_MGM_REPORT, nft_rules.ICMPV6_MLD2_REPORT):
        yield *unspecified, *ip6, *icmpv6_type(report), accept
    yield (drop,)
