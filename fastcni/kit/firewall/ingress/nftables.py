"""Enforce ingressPolicy by nftables. A fixed number of rules decides which bridges may send to which bridges.

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
            iifname @isolated meta protocol != arp drop
            oifname @isolated meta protocol != arp drop
        }
    }

The second table filters frames between ports of a bridge, which the first table sees only with br_netfilter. The set
`isolated` has the ports of isolated pods. The rules drop everything but ARP: rules for IPv4 and IPv6 would miss frames
with two VLAN tags, whose ethertype is that of the inner tag. A bridge's policy lasts as long as the bridge.
"""

from __future__ import annotations

from fastcni.kernel import nft, nft_elements, nft_rules
from fastcni.kernel.nft_elements import TYPE_IFNAME, concat, ifname, read_ifname
from fastcni.kernel.uapi import ETH_P_ARP
from fastcni.kit.firewall import elements
from fastcni.kit.firewall.table import BRIDGE_COMMENT, BRIDGE_FAMILY, COMMENT, FAMILY, TABLE
from fastcni.kit.links import find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastcni._netlink import Batch
    from fastcni.kit.call.request import Request
    from fastcni.kit.firewall.elements import Item, Store
    from fastcni.kit.firewall.forward.keys import Conf

BRIDGES, SAME, ISOLATED = "ingress-bridges", "ingress-same", "ingress-isolated"
SET_IDS = {BRIDGES: 1, SAME: 2, ISOLATED: 3}
CHAIN, RULES = "ingress-policy", 2
PORTS, PORTS_RULES, PORTS_ID = "isolated", 2, 1         # PORTS: the set and the chain of the bridge family


def stores() -> list[Store]:
    return [store(), ports_store()]


def store() -> Store:
    return elements.Store(FAMILY, TABLE, [BRIDGES, SAME, ISOLATED], {CHAIN: RULES}, set_up)


def ports_store() -> Store:
    return elements.Store(BRIDGE_FAMILY, TABLE, [PORTS], {PORTS: PORTS_RULES}, set_up_ports)


def items(conf: Conf) -> list[Item]:
    """Return the elements of the bridge in `conf`."""
    key = ifname(conf.bridge)
    return [(BRIDGES, key, None), (ISOLATED if conf.isolated else SAME, concat(key, key), None)]


def ports(conf: Conf) -> list[Item]:
    """Return the elements of the pod's ports."""
    return [(PORTS, ifname(name), None) for name in conf.ports] if conf.isolated else []


def add(req: Request, conf: Conf) -> None:
    """Enforce the policy of the bridge in `conf`. Raises NetlinkError."""
    store().add_shared(req, items(conf))
    if conf.isolated:
        ports_store().add(req, ports(conf))


def restore(req: Request, conf: Conf) -> None:
    """Add the missing elements and rules."""
    store().add_shared(req, items(conf))
    if conf.isolated:
        ports_store().restore(req, ports(conf))


def delete(req: Request, conf: Conf) -> None:
    """Delete the pod's ports from the set of isolated ports. A missing element is no error."""
    if ports_store().used(req):
        ports_store().delete(req, ports(conf))


def missing(req: Request, conf: Conf) -> str:
    """For CHECK: return the first missing rule or element as text, or ""."""
    wanted = items(conf)
    present = store().complete(req) and len(store().present(req, wanted)) == len(wanted)
    if present and conf.isolated:
        present = ports_store().complete(req) and not ports_store().missing(req, ports(conf))
    return "" if present else f'ingressPolicy of bridge "{conf.bridge}" is not in force'


def gc(req: Request) -> None:
    """Delete the policies of bridges that no longer exist, and the ports of attachments that are no longer valid."""
    stale = [(name, key) for name, key, _ in store().read_all(req.mode.firewall)
             if not find.host_link(req.mode, read_ifname(key))]
    store().remove(req, stale)
    for name, key in stale:
        req.release(f"element of nftables {TABLE} {name}", f"bridge: {read_ifname(key)}")
    ports_store().gc(req)


def set_up(batch: Batch, items: Sequence[Item]) -> Batch:
    nft.add_table(batch, FAMILY, TABLE, COMMENT)
    for name, set_id in SET_IDS.items():
        key = (TYPE_IFNAME,) if name == BRIDGES else (TYPE_IFNAME, TYPE_IFNAME)
        nft_elements.add_set(batch, FAMILY, TABLE, name, key, set_id=set_id)
    nft.add_base_chain(batch, FAMILY, TABLE, CHAIN, kind="filter", hook=nft.NF_INET_FORWARD,
                       priority=nft.NF_IP_PRI_FILTER)
    nft_rules.flush_chain(batch, FAMILY, TABLE, CHAIN)
    pair, drop = nft_rules.iifname_and_oifname(), nft_rules.drop()
    nft_rules.add_rule(batch, FAMILY, TABLE, CHAIN, *pair, nft_rules.in_set(ISOLATED, SET_IDS[ISOLATED]), drop)
    among = nft_rules.in_set(BRIDGES, SET_IDS[BRIDGES])
    return nft_rules.add_rule(batch, FAMILY, TABLE, CHAIN, nft_rules.meta(nft_rules.NFT_META_IIFNAME), among,
                              nft_rules.meta(nft_rules.NFT_META_OIFNAME), among,
                              *pair, nft_rules.in_set(SAME, SET_IDS[SAME], inverted=True), drop)


def set_up_ports(batch: Batch, items: Sequence[Item]) -> Batch:
    family, table = BRIDGE_FAMILY, TABLE
    nft.add_table(batch, family, table, BRIDGE_COMMENT)
    nft_elements.add_set(batch, family, table, PORTS, (TYPE_IFNAME,), set_id=PORTS_ID)
    nft.add_base_chain(batch, family, table, PORTS, kind="filter", hook=nft.NF_BR_FORWARD,
                       priority=nft.NF_BR_PRI_FILTER_BRIDGED)
    nft_rules.flush_chain(batch, family, table, PORTS)
    for end in (nft_rules.NFT_META_IIFNAME, nft_rules.NFT_META_OIFNAME):
        nft_rules.add_rule(batch, family, table, PORTS, nft_rules.meta(end), nft_rules.in_set(PORTS, PORTS_ID),
                           *nft_rules.ether_type(ETH_P_ARP, nft_rules.NFT_CMP_NEQ), nft_rules.drop())
    return batch
