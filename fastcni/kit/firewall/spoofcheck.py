"""macspoofchk: frames from a pod's port must carry the pod's MAC. One rule for all pods, an element in each of two
sets for one. As `nft list table bridge fastcni` prints it:

    set guarded { type ifname; elements = { "veth0a1b2c3d" comment "..." } }
    set allowed { type ifname . ether_addr; elements = { "veth0a1b2c3d" . 0a:58:0a:16:00:05 comment "..." } }
    chain prerouting {
        type filter hook prerouting priority dstnat; policy accept;
        iifname @guarded iifname . ether saddr != @allowed drop
    }

kit/firewall/ipspoofcheck.py adds to it for ipspoofchk.
"""

from fastcni._netlink import Batch
from fastcni.kernel import nft, wire
from fastcni.kernel.uapi import IFNAMSIZ
from fastcni.kit.call.conf import read_ethernet
from fastcni.kit.firewall import elements
from fastcni.kit.firewall.table import BRIDGE_COMMENT as COMMENT
from fastcni.kit.firewall.table import BRIDGE_FAMILY as FAMILY
from fastcni.kit.firewall.table import TABLE
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.config import check_ifname
from fastcni.spec.errors import CniError

CHAIN = "prerouting"
GUARDED, ALLOWED = "guarded", "allowed"
REFERENCE_TABLE, REFERENCE_CHAIN = "nat", "PREROUTING"


def add(req, host, inside, result, undo):
    """Guard the host end of a pod. Takes a name and a MAC, both as the kernel has them now."""
    undo(delete, req)
    store().add(req, items(host.name, inside.address))


def restore(req):
    """Add what is missing of what ADD did, as prevResult tells of it."""
    restore_items(req, store(), known(req, items))


def restore_items(req, store, items):
    if not items:
        raise CniError(errors.INVALID_CONFIG, "prevResult does not tell of the pod's port",
                       "interfaces are to be the bridge, the port and the pod's")
    store.restore(req, items)


def items(port, mac, _=()):
    """The elements of a pod's port."""
    key = ifname_key(port)
    return [(GUARDED, key, None), (ALLOWED, key + mac + b"\0\0", None)]


def ifname_key(name):
    return name.encode().ljust(IFNAMSIZ, b"\0")


def delete(req):
    store().delete(req, known(req, items))
    delete_reference_rules(req)


def known(req, items):
    """The items of the pod as prevResult tells of it: with these DEL takes no longer for many pods than for one.
    () where it does not tell; then, and where a chained plugin has changed it, the mark finds them."""
    previous = req.conf.raw("prevResult")
    try:
        _, host, inside = previous["interfaces"][:3]
        check_ifname(host["name"])
        ips = [addresses.read_cidr(ip["address"])[0] for ip in previous.get("ips") or ()]
        return items(host["name"], read_ethernet(inside["mac"]), ips)
    except (CniError, ValueError, KeyError, TypeError, AttributeError):
        return ()


def delete_reference_rules(req):
    """What the reference's bridge made for this pod: a rule that jumps to a chain, which jumps to another."""
    mark, chains = f"macspoofchk-{req.container_id}-{req.ifname}", reference_chains(req)

    def with_chains(batch):
        for chain in chains:
            nft.del_chain(batch, FAMILY, REFERENCE_TABLE, chain)

    elements.delete_rules(req.mode, FAMILY, REFERENCE_TABLE, REFERENCE_CHAIN, lambda comment: comment == mark,
                          with_chains)


def reference_chains(req):
    name = f"cni-br-iface-{req.container_id}-{req.ifname}"
    return name, f"{name}-mac"


def check(req, host, inside, previous):
    """CHECK: the pod's port is guarded, by us or by the reference's bridge."""
    if store().missing(req, items(host.name, inside.address)):
        chain = nft.get_chain(Batch(), FAMILY, REFERENCE_TABLE, reference_chains(req)[1],
                              "look up the reference's chain")
        if wire.look_up(req.mode.firewall, chain) is None:
            raise unguarded(host, "macspoofchk")


def unguarded(host, key):
    from fastcni.kit.call import checks

    return checks.wrong(f'{key}: port "{host.name}" is not guarded', "was the nftables ruleset flushed?")


def gc(req):
    store().gc(req)


def stores():
    return [store()]


def store():
    return elements.Store(FAMILY, TABLE, (GUARDED, ALLOWED), {CHAIN: 1}, set_up)


def set_up(batch, _):
    nft.add_table(batch, FAMILY, TABLE, COMMENT)
    nft.add_base_chain(batch, FAMILY, TABLE, CHAIN, kind="filter", hook=nft.NF_BR_PRE_ROUTING,
                       priority=nft.NF_BR_PRI_NAT_DST_BRIDGED)
    nft.flush_chain(batch, FAMILY, TABLE, CHAIN)
    nft.add_set(batch, FAMILY, TABLE, GUARDED, key_type=nft.TYPE_IFNAME, key_size=IFNAMSIZ, set_id=1, host_order=True)
    nft.add_set(batch, FAMILY, TABLE, ALLOWED, key_type=nft.TYPE_IFNAME << 6 | nft.TYPE_ETHERADDR,
                key_size=IFNAMSIZ + 8, set_id=2)
    nft.add_rule(batch, FAMILY, TABLE, CHAIN,
                 nft.meta(nft.NFT_META_IIFNAME), nft.in_set(GUARDED, 1),
                 *port_and(nft.NFT_PAYLOAD_LL_HEADER, 6, 6), nft.in_set(ALLOWED, 2, inverted=True),
                 nft.verdict(nft.NF_DROP))
    return batch


def port_and(base, offset, length):
    """iifname . <bytes of the packet>, in registers 1 and 2"""
    return nft.meta(nft.NFT_META_IIFNAME), nft.payload(base, offset, length, nft.NFT_REG_2)
