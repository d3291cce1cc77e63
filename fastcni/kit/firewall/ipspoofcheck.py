"""ipspoofchk: what a pod's port sends is IPv4, ARP and IPv6 from the addresses that IPAM gave the pod, and nothing
else. A fixed number of rules beside those of kit/firewall/spoofcheck.py; `nft list table bridge fastcni` prints them as

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
        icmpv6 type nd-neighbor-advert iifname . @th,64,128 != @bound6 drop     (whose address it is said to be)
        iifname . ip6 saddr @bound6 accept
        ip6 saddr :: icmpv6 type nd-neighbor-solicit iifname . @th,64,128 @bound6 accept        (DAD)
        ip6 saddr :: icmpv6 type mld-listener-report accept
        ip6 saddr :: icmpv6 type mld2-listener-report accept
        drop
    }
"""

from fastcni.kernel import nft
from fastcni.kit.firewall import elements, spoofcheck
from fastcni.kit.firewall.spoofcheck import ALLOWED, IFNAMSIZ, ifname_key, port_and
from fastcni.kit.firewall.table import BRIDGE_FAMILY as FAMILY
from fastcni.kit.firewall.table import TABLE
from fastcni.spec import result as results

CHAIN, PRIORITY, RULES = "addresses", nft.NF_BR_PRI_NAT_DST_BRIDGED + 1, 12
BOUND, BOUND4, BOUND6 = "bound", "bound4", "bound6"
BOUND_ID, BOUND4_ID, BOUND6_ID = 3, 4, 5
ETH_P_IP, ETH_P_ARP, ETH_P_IPV6 = b"\x08\x00", b"\x08\x06", b"\x86\xdd"
IPPROTO_ICMPV6 = b"\x3a"
ROUTER_ADVERT, NEIGHBOR_SOLICIT, NEIGHBOR_ADVERT, MLD_REPORT, MLD2_REPORT = 134, 135, 136, 131, 143
NETWORK, TRANSPORT = nft.NFT_PAYLOAD_NETWORK_HEADER, nft.NFT_PAYLOAD_TRANSPORT_HEADER
UNSPECIFIED = bytes(16)


def add(req, host, inside, result, undo):
    """Bind the host end of a pod to the addresses of `result`."""
    undo(delete, req)
    store().add(req, items(host.name, inside.address, packed_ips(result)))


def restore(req):
    spoofcheck.restore_items(req, store(), spoofcheck.known(req, items))


def packed_ips(result):
    return [packed for packed, _ in results.ips_of(result)]


def items(port, mac, ips):
    """The elements of a pod's port: the packed `ips` and the link-local address that its kernel makes of the MAC."""
    key = ifname_key(port)
    return [(BOUND, key, None)] + [(BOUND4 if len(packed) == 4 else BOUND6, key + packed, None)
                                   for packed in dict.fromkeys((*ips, link_local(mac)))]


def link_local(mac):
    """fe80::/64 and the modified EUI-64 of a MAC (RFC 4291, appendix A)."""
    return b"\xfe\x80" + bytes(6) + bytes((mac[0] ^ 2,)) + mac[1:3] + b"\xff\xfe" + mac[3:]


def delete(req):
    store().delete(req, spoofcheck.known(req, items))


def check(req, host, inside, previous):
    """CHECK: the pod's port is bound to its addresses."""
    if store().missing(req, items(host.name, inside.address, packed_ips(previous))):
        raise spoofcheck.unguarded(host, "ipspoofchk")


def gc(req):
    store().gc(req)


def stores():
    return [store()]


def store():
    return elements.Store(FAMILY, TABLE, (BOUND, BOUND4, BOUND6), {CHAIN: RULES}, set_up)


def set_up(batch, _):
    spoofcheck.set_up(batch, _)
    nft.add_base_chain(batch, FAMILY, TABLE, CHAIN, kind="filter", hook=nft.NF_BR_PRE_ROUTING, priority=PRIORITY)
    nft.flush_chain(batch, FAMILY, TABLE, CHAIN)
    nft.add_set(batch, FAMILY, TABLE, BOUND, key_type=nft.TYPE_IFNAME, key_size=IFNAMSIZ, set_id=BOUND_ID,
                host_order=True)
    for name, set_id, key_type, size in ((BOUND4, BOUND4_ID, nft.TYPE_IPADDR, 4),
                                         (BOUND6, BOUND6_ID, nft.TYPE_IP6ADDR, 16)):
        nft.add_set(batch, FAMILY, TABLE, name, key_type=nft.TYPE_IFNAME << 6 | key_type, key_size=IFNAMSIZ + size,
                    set_id=set_id)
    for *conditions, code in rules():
        nft.add_rule(batch, FAMILY, TABLE, CHAIN, *conditions, nft.verdict(code))
    return batch


def rules():
    """The rules as printed above, each (expression, ..., verdict)."""
    own4, not_own6 = nft.in_set(BOUND4, BOUND4_ID), nft.in_set(BOUND6, BOUND6_ID, inverted=True)
    own6, not_own_mac = nft.in_set(BOUND6, BOUND6_ID), nft.in_set(ALLOWED, 2, inverted=True)
    nd_target, saddr6 = port_and(TRANSPORT, 8, 16), port_and(NETWORK, 8, 16)
    from_nobody = (*protocol(ETH_P_IPV6), nft.payload(NETWORK, 8, 16), nft.compare(UNSPECIFIED))
    yield nft.meta(nft.NFT_META_IIFNAME), nft.in_set(BOUND, BOUND_ID, inverted=True), nft.NF_ACCEPT
    yield *protocol(ETH_P_IP), *port_and(NETWORK, 12, 4), own4, nft.NF_ACCEPT
    yield *protocol(ETH_P_ARP), *port_and(NETWORK, 8, 6), not_own_mac, nft.NF_DROP
    yield *protocol(ETH_P_ARP), nft.payload(NETWORK, 14, 4), nft.compare(bytes(4)), nft.NF_ACCEPT
    yield *protocol(ETH_P_ARP), *port_and(NETWORK, 14, 4), own4, nft.NF_ACCEPT
    yield *icmpv6(ROUTER_ADVERT), nft.NF_DROP
    yield *icmpv6(NEIGHBOR_ADVERT), *nd_target, not_own6, nft.NF_DROP
    yield *protocol(ETH_P_IPV6), *saddr6, own6, nft.NF_ACCEPT
    yield *from_nobody, *icmpv6(NEIGHBOR_SOLICIT), *nd_target, own6, nft.NF_ACCEPT
    for report in (MLD_REPORT, MLD2_REPORT):
        yield *from_nobody, *icmpv6(report), nft.NF_ACCEPT
    yield (nft.NF_DROP,)


def protocol(ethertype):
    """meta protocol: behind a VLAN tag, where there is one"""
    return nft.meta(nft.NFT_META_PROTOCOL), nft.compare(ethertype)


def icmpv6(kind):
    return (*protocol(ETH_P_IPV6), nft.meta(nft.NFT_META_L4PROTO), nft.compare(IPPROTO_ICMPV6),
            nft.payload(TRANSPORT, 0, 1), nft.compare(bytes((kind,))))
