"""ingressPolicy by nftables: which bridges' pods are reached from where, in a fixed number of rules.

    table inet fastcni {
        set ingress-bridges { type ifname; elements = { "cni0", "cni1" } }
        set ingress-same { type ifname . ifname; elements = { "cni0" . "cni0" } }
        set ingress-isolated { type ifname . ifname; elements = { "cni1" . "cni1" } }
        chain ingress-policy {
            type filter hook forward priority filter; policy accept;
            iifname . oifname @ingress-isolated drop
            iifname @ingress-bridges oifname @ingress-bridges iifname . oifname != @ingress-same drop
        }
    }
    table bridge fastcni {
        set isolated { type ifname; elements = { "veth0a1b2c3d" comment "8e48...-0b65..., net: a, if: eth0, id: c" } }
        chain isolated {
            type filter hook forward priority filter; policy accept;
            iifname @isolated ether type ip drop                        (and ip6)
            oifname @isolated ether type ip drop                        (and ip6)
        }
    }

The second table is for what goes from port to port of a bridge and, without br_netfilter, is never seen by the first:
it knows the ports of isolated pods. A bridge's policy lasts as long as the bridge.
"""

from fastcni.kernel import nft, nft_keys
from fastcni.kit.firewall import elements
from fastcni.kit.firewall.spoofcheck import IFNAMSIZ, ifname_key
from fastcni.kit.firewall.table import BRIDGE_COMMENT, BRIDGE_FAMILY, COMMENT, FAMILY, TABLE
from fastcni.kit.links import find

BRIDGES, SAME, ISOLATED = "ingress-bridges", "ingress-same", "ingress-isolated"
CHAIN, RULES = "ingress-policy", 2
PORTS, PORTS_RULES = "isolated", 4                      # the set and the chain of the bridge family
ETHER_TYPES = b"\x08\x00", b"\x86\xdd"                  # IPv4, IPv6


def stores():
    return [store(), ports_store()]


def store():
    return elements.Store(FAMILY, TABLE, [BRIDGES, SAME, ISOLATED], {CHAIN: RULES}, set_up)


def ports_store():
    return elements.Store(BRIDGE_FAMILY, TABLE, [PORTS], {PORTS: PORTS_RULES}, set_up_ports)


def items(conf):
    """The elements of the conf's bridge."""
    key = ifname_key(conf.bridge)
    return [(BRIDGES, key, None), (ISOLATED if conf.isolated else SAME, key + key, None)]


def ports(conf):
    """Those of the pod's ports: what prevResult has on the host beside the bridge."""
    if not conf.isolated or not conf.previous:
        return []
    names = [it["name"] for it in conf.previous["interfaces"][1:] if not it.get("sandbox")]
    return [(PORTS, ifname_key(name), None) for name in dict.fromkeys(names)]


def add(req, conf):
    store().keep(req, items(conf))
    if conf.isolated:
        ports_store().add(req, ports(conf))


def restore(req, conf):
    store().keep(req, items(conf))
    if conf.isolated:
        ports_store().restore(req, ports(conf))


def delete(req, conf):
    """Delete what is the pod's own. Gone is fine."""
    if ports_store().used(req):
        ports_store().delete(req, ports(conf))


def missing(req, conf):
    """For CHECK: what is not there, in words, or "" where all is."""
    wanted = items(conf)
    there = store().whole(req) and len(store().present(req, wanted)) == len(wanted)
    if there and conf.isolated:
        there = ports_store().whole(req) and not ports_store().missing(req, ports(conf))
    return "" if there else f'ingressPolicy of bridge "{conf.bridge}" is not in force'


def gc(req):
    """Delete the policies of bridges that are no more, and what pods have that are not valid any more."""
    lost = [(name, key) for name, key, _ in store().every(req.mode.firewall)
            if not find.host_link(req.mode, bridge_of(key))]
    store().remove(req, lost)
    for name, key in lost:
        req.release(f"element of nftables {TABLE} {name}", f"bridge: {bridge_of(key)}")
    ports_store().gc(req)


def bridge_of(key):
    return key[:IFNAMSIZ].rstrip(b"\0").decode()


def set_up(batch, _):
    nft.add_table(batch, FAMILY, TABLE, COMMENT)
    sizes = {BRIDGES: 1, SAME: 2, ISOLATED: 2}
    for number, (name, parts) in enumerate(sizes.items(), 1):
        names = nft_keys.concat_type(*[nft.TYPE_IFNAME] * parts)
        nft.add_set(batch, FAMILY, TABLE, name, set_id=number, key_type=names, key_size=parts * IFNAMSIZ,
                    host_order=parts == 1)
    nft.add_base_chain(batch, FAMILY, TABLE, CHAIN, kind="filter", hook=nft.NF_INET_FORWARD,
                       priority=nft.NF_IP_PRI_FILTER)
    nft.flush_chain(batch, FAMILY, TABLE, CHAIN)
    into, out = nft.meta(nft.NFT_META_IIFNAME), nft.meta(nft.NFT_META_OIFNAME)
    pair, drop = (into, nft.meta(nft.NFT_META_OIFNAME, nft.NFT_REG_2)), nft.verdict(nft.NF_DROP)
    nft.add_rule(batch, FAMILY, TABLE, CHAIN, *pair, nft.in_set(ISOLATED, 3), drop)
    return nft.add_rule(batch, FAMILY, TABLE, CHAIN, into, nft.in_set(BRIDGES, 1), out, nft.in_set(BRIDGES, 1),
                        *pair, nft.in_set(SAME, 2, inverted=True), drop)


def set_up_ports(batch, _):
    family, table = BRIDGE_FAMILY, TABLE
    nft.add_table(batch, family, table, BRIDGE_COMMENT)
    nft.add_set(batch, family, table, PORTS, key_type=nft.TYPE_IFNAME, key_size=IFNAMSIZ, set_id=1, host_order=True)
    nft.add_base_chain(batch, family, table, PORTS, kind="filter", hook=nft.NF_BR_FORWARD,
                       priority=nft.NF_BR_PRI_FILTER_BRIDGED)
    nft.flush_chain(batch, family, table, PORTS)
    for end in (nft.NFT_META_IIFNAME, nft.NFT_META_OIFNAME):
        for ether_type in ETHER_TYPES:
            nft.add_rule(batch, family, table, PORTS, nft.meta(end), nft.in_set(PORTS, 1),
                         nft.meta(nft.NFT_META_PROTOCOL), nft.compare(ether_type), nft.verdict(nft.NF_DROP))
    return batch
