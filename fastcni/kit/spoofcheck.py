"""macspoofchk: frames from a pod's port must carry the pod's MAC. One rule for all pods, an element in each of two
sets for one. As `nft list table bridge fastcni` prints it:

    set guarded { type ifname; elements = { "veth0a1b2c3d" comment "..." } }
    set allowed { type ifname . ether_addr; elements = { "veth0a1b2c3d" . 0a:58:0a:16:00:05 comment "..." } }
    chain prerouting {
        type filter hook prerouting priority dstnat; policy accept;
        iifname @guarded iifname . ether saddr != @allowed drop
    }
"""

from fastcni.kernel import nft
from fastcni.kit import elements

FAMILY, TABLE, CHAIN = nft.NFPROTO_BRIDGE, "fastcni", "prerouting"
GUARDED, ALLOWED = "guarded", "allowed"
REFERENCE_TABLE, REFERENCE_CHAIN = "nat", "PREROUTING"
IFNAMSIZ = 16


def add(req, host, inside, undo):
    """Guard the host end of a pod. Takes a name and a MAC, both as the kernel has them now."""
    port = host.name.encode().ljust(IFNAMSIZ, b"\0")
    undo(delete, req)
    store().add(req, [(GUARDED, port, None), (ALLOWED, port + inside.address + b"\0\0", None)])


def delete(req):
    store().delete(req, ())             # the port's name may be known no more: the mark finds it
    delete_reference_rules(req)


def delete_reference_rules(req):
    """What the reference's bridge made for this pod: a rule that jumps to a chain, which jumps to another."""
    name = f"{req.container_id}-{req.ifname}"
    chains = (f"cni-br-iface-{name}", f"cni-br-iface-{name}-mac")

    def with_chains(batch):
        for chain in chains:
            nft.del_chain(batch, FAMILY, REFERENCE_TABLE, chain)

    elements.delete_marked_rules(req.host, FAMILY, REFERENCE_TABLE, REFERENCE_CHAIN, f"macspoofchk-{name}",
                                 with_chains)


def gc(req):
    store().gc(req)


def store():
    return elements.Store(FAMILY, TABLE, (GUARDED, ALLOWED), CHAIN, 1, set_up)


def set_up(batch, items):
    nft.add_table(batch, FAMILY, TABLE, "fastcni: MACs of pods")
    nft.add_base_chain(batch, FAMILY, TABLE, CHAIN, kind="filter", hook=nft.NF_BR_PRE_ROUTING,
                       priority=nft.NF_BR_PRI_NAT_DST_BRIDGED)
    nft.flush_chain(batch, FAMILY, TABLE, CHAIN)
    nft.add_set(batch, FAMILY, TABLE, GUARDED, key_type=nft.TYPE_IFNAME, key_size=IFNAMSIZ, set_id=1, host_order=True)
    nft.add_set(batch, FAMILY, TABLE, ALLOWED, key_type=nft.TYPE_IFNAME << 6 | nft.TYPE_ETHERADDR,
                key_size=IFNAMSIZ + 8, set_id=2)
    nft.add_rule(batch, FAMILY, TABLE, CHAIN,
                 nft.meta(nft.NFT_META_IIFNAME), nft.in_set(GUARDED, 1),
                 nft.meta(nft.NFT_META_IIFNAME), nft.payload(nft.NFT_PAYLOAD_LL_HEADER, 6, 6, nft.NFT_REG_2),
                 nft.in_set(ALLOWED, 2, inverted=True), nft.verdict(nft.NF_DROP))
    return batch
