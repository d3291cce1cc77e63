"""Enforce ipspoofchk: a pod's port may only send IPv4, ARP and IPv6 from the addresses that IPAM gave the pod.

kit/firewall/port_sources.py builds the rules. The table also has the rules of kit/firewall/spoofcheck/mac.py. `nft list
table bridge fastcni` prints:

    set bound { type ifname; elements = { "veth0a1b2c3d" comment "..." } }
    set bound4 { type ifname . ipv4_addr; elements = { "veth0a1b2c3d" . 10.22.0.5 comment "..." } }
    set bound6 { type ifname . ipv6_addr; elements = { "veth0a1b2c3d" . fd00:22::5 comment "...", (its fe80:: too) } }
    chain addresses {
        type filter hook prerouting priority dstnat + 1; policy accept;
        ...
    }
"""

from __future__ import annotations

from fastcni.kernel import nft, nft_elements, nft_rules
from fastcni.kernel.nft_elements import ADDRESS_TYPES, TYPE_IFNAME, concat, ifname
from fastcni.kit.firewall import elements, port_sources
from fastcni.kit.firewall.spoofcheck import mac as spoofcheck
from fastcni.kit.firewall.spoofcheck.mac import ALLOWED
from fastcni.kit.firewall.table import BRIDGE_FAMILY as FAMILY
from fastcni.kit.firewall.table import TABLE
from fastcni.spec import result as results
from fastcni.spec.address import link_local

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from fastcni._netlink import Batch
    from fastcni.kit.call.pod import PodLink
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.firewall.elements import Item, Store

CHAIN, PRIORITY, RULES = "addresses", nft.NF_BR_PRI_NAT_DST_BRIDGED + 1, 16
CHAINS = {CHAIN: RULES, port_sources.NEIGHBOURS: 19 + 1}        # references: a chain's rules, and the jump to it
BOUND, BOUND_OF = "bound", {4: "bound4", 16: "bound6"}          # keys: address length in bytes
BOUND_ID, BOUND_IDS = 3, {4: 4, 16: 5}
SETS = port_sources.Sets(BOUND, ALLOWED, BOUND_OF)


def add(req: Request, conf: object, link: PodLink, undo: Undo) -> None:
    """Bind the pod's port to the addresses of the result: drop packets with another source."""
    undo(delete, req, conf)
    store().add(req, items(link.host.name, link.inside.address, results.packed_ips(link.result)))


def restore(req: Request, conf: object, previous: dict[str, Any]) -> None:
    """Add the missing elements and rules. Raises CniError 7 if prevResult does not name the port."""
    spoofcheck.restore_items(req, store(), spoofcheck.known(req, items))


def items(port: str, mac: bytes, ips: Iterable[bytes]) -> list[Item]:
    """Return the elements of a pod's port, for the packed `ips` and for the link-local address that the kernel derives
    from the MAC."""
    key = ifname(port)
    return [(BOUND, key, None), *((BOUND_OF[len(packed)], concat(key, packed), None)
                                  for packed in dict.fromkeys((*ips, link_local(mac))))]


def delete(req: Request, conf: object, found: Sequence[bytes] = (), given: Sequence[bytes] = ()) -> None:
    store().delete(req, spoofcheck.known(req, items))


def check(req: Request, conf: object, link: PodLink) -> None:
    """For CHECK: raise CniError unless the pod's port is bound to the pod's addresses."""
    if store().missing(req, items(link.host.name, link.inside.address, results.packed_ips(link.result))):
        raise spoofcheck.unguarded(link.host, "ipspoofchk")


def gc(req: Request, conf: object) -> None:
    store().gc(req)


def stores() -> list[Store]:
    return [store()]


def store() -> Store:
    return elements.Store(FAMILY, TABLE, (BOUND, *BOUND_OF.values()), CHAINS, set_up)


def set_up(batch: Batch, items: Sequence[Item]) -> Batch:
    spoofcheck.set_up(batch, items)
    nft.add_base_chain(batch, FAMILY, TABLE, CHAIN, kind="filter", hook=nft.NF_BR_PRE_ROUTING, priority=PRIORITY)
    nft.add_chain(batch, FAMILY, TABLE, port_sources.NEIGHBOURS)
    for chain in CHAINS:
        nft_rules.flush_chain(batch, FAMILY, TABLE, chain)
    nft_elements.add_set(batch, FAMILY, TABLE, BOUND, (TYPE_IFNAME,), set_id=BOUND_ID)
    for length, name in BOUND_OF.items():
        nft_elements.add_set(batch, FAMILY, TABLE, name, (TYPE_IFNAME, ADDRESS_TYPES[length]),
                             set_id=BOUND_IDS[length])
    for rule in port_sources.rules(SETS):
        nft_rules.add_rule(batch, FAMILY, TABLE, CHAIN, *rule)
    for rule in port_sources.neighbour_rules(SETS):
        nft_rules.add_rule(batch, FAMILY, TABLE, port_sources.NEIGHBOURS, *rule)
    return batch
