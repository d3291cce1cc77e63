"""Enforce macspoofchk: drop frames from a pod's port whose source MAC is not the pod's.

All pods share one rule, and each pod has an element in each of two sets. `nft list table bridge fastcni` prints:

    set guarded { type ifname; elements = { "veth0a1b2c3d" comment "..." } }
    set allowed { type ifname . ether_addr; elements = { "veth0a1b2c3d" . 0a:58:0a:16:00:05 comment "..." } }
    chain prerouting {
        type filter hook prerouting priority dstnat; policy accept;
        iifname @guarded iifname . ether saddr != @allowed drop
    }

kit/firewall/spoofcheck/ip.py adds sets and rules for ipspoofchk.
"""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import nft, nft_elements, nft_rules, wire
from fastcni.kernel.nft_elements import TYPE_ETHERADDR, TYPE_IFNAME, concat, ifname
from fastcni.kit.call.conf import read_ethernet
from fastcni.kit.firewall import elements, rulesets
from fastcni.kit.firewall.table import BRIDGE_COMMENT as COMMENT
from fastcni.kit.firewall.table import BRIDGE_FAMILY as FAMILY
from fastcni.kit.firewall.table import TABLE
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.config import check_ifname
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from fastcni.kernel.rtnl import Link
    from fastcni.kit.call.pod import PodLink
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.firewall.elements import Item, Store

CHAIN, RULES = "prerouting", 1
GUARDED, ALLOWED = "guarded", "allowed"
GUARDED_ID, ALLOWED_ID = 1, 2
REFERENCE_TABLE, REFERENCE_CHAIN = "nat", "PREROUTING"


def add(req: Request, conf: object, link: PodLink, undo: Undo) -> None:
    """Guard the pod's port: drop frames with another source MAC than the pod's. Both Links of `link` must be up to
    date."""
    undo(delete, req, conf)
    store().add(req, items(link.host.name, link.inside.address))


def restore(req: Request, conf: object, previous: dict[str, Any]) -> None:
    """Add the missing elements and rules. Raises CniError 7 if prevResult does not name the port."""
    restore_items(req, store(), known(req, items))


def restore_items(req: Request, store: Store, items: Sequence[Item]) -> None:
    if not items:
        raise errors.bad_config("prevResult does not name the pod's port",
                                "prevResult.interfaces must be the bridge, the port and the pod's interface")
    store.restore(req, items)


def items(port: str, mac: bytes, ips: Sequence[bytes] = ()) -> list[Item]:
    """Return the elements of a pod's port. items() ignores `ips`, which kit/firewall/spoofcheck/ip.py uses."""
    key = ifname(port)
    return [(GUARDED, key, None), (ALLOWED, concat(key, mac), None)]


def delete(req: Request, conf: object, found: Sequence[bytes] = (), given: Sequence[bytes] = ()) -> None:
    store().delete(req, known(req, items))
    delete_reference_rules(req)


def known(req: Request, items: Callable[[str, bytes, list[bytes]], list[Item]]) -> Sequence[Item]:
    """Return the elements that ADD made according to prevResult, so that DEL need not read a complete set.

    Return () if prevResult does not name the port. In that case, or if a chained plugin has changed prevResult, DEL
    finds the elements by their mark.
    """
    previous = req.conf.raw("prevResult")
    try:
        _, host, inside = previous["interfaces"][:3]
        check_ifname(host["name"])
        ips = [addresses.read_cidr(ip["address"])[0] for ip in previous.get("ips") or ()]
        return items(host["name"], read_ethernet(inside["mac"]), ips)
    except (CniError, ValueError, KeyError, TypeError, AttributeError):
        return ()


def delete_reference_rules(req: Request) -> None:
    """Delete the reference plugin bridge's rules for this pod: a jump to a chain, that chain with its jump to a second
    chain, and the second chain."""
    mark, chains = f"macspoofchk-{req.container_id}-{req.ifname}", reference_chains(req)

    def with_chains(batch: Batch) -> None:
        for chain in chains:
            nft.del_chain(batch, FAMILY, REFERENCE_TABLE, chain)

    rulesets.delete_rules(req.mode, FAMILY, REFERENCE_TABLE, REFERENCE_CHAIN, lambda comment: comment == mark,
                          with_chains)


def reference_chains(req: Request) -> tuple[str, str]:
    name = f"cni-br-iface-{req.container_id}-{req.ifname}"
    return name, f"{name}-mac"


def check(req: Request, conf: object, link: PodLink) -> None:
    """For CHECK: raise CniError unless fastcni or the reference's bridge plugin guards the pod's port."""
    if store().missing(req, items(link.host.name, link.inside.address)) or not store().complete(req):
        chain = nft.get_chain(Batch(), FAMILY, REFERENCE_TABLE, reference_chains(req)[1],
                              "look up the reference's chain")
        if wire.look_up(req.mode.firewall, chain) is None:
            raise unguarded(link.host, "macspoofchk")


def unguarded(host: Link, key: str) -> CniError:
    from fastcni.kit.links import checks

    return checks.wrong(f'{key}: port "{host.name}" is not guarded', "was the nftables ruleset flushed?")


def gc(req: Request, conf: object) -> None:
    store().gc(req)


def stores() -> list[Store]:
    return [store()]


def store() -> Store:
    return elements.Store(FAMILY, TABLE, (GUARDED, ALLOWED), {CHAIN: RULES}, set_up)


def set_up(batch: Batch, items: Sequence[Item]) -> Batch:
    nft.add_table(batch, FAMILY, TABLE, COMMENT)
    nft.add_base_chain(batch, FAMILY, TABLE, CHAIN, kind="filter", hook=nft.NF_BR_PRE_ROUTING,
                       priority=nft.NF_BR_PRI_NAT_DST_BRIDGED)
    nft_rules.flush_chain(batch, FAMILY, TABLE, CHAIN)
    nft_elements.add_set(batch, FAMILY, TABLE, GUARDED, (TYPE_IFNAME,), set_id=GUARDED_ID)
    nft_elements.add_set(batch, FAMILY, TABLE, ALLOWED, (TYPE_IFNAME, TYPE_ETHERADDR), set_id=ALLOWED_ID)
    return nft_rules.add_rule(batch, FAMILY, TABLE, CHAIN,
                              nft_rules.meta(nft_rules.NFT_META_IIFNAME), nft_rules.in_set(GUARDED, GUARDED_ID),
                              *nft_rules.iifname_and(nft_rules.ETHER_SADDR),
                              nft_rules.in_set(ALLOWED, ALLOWED_ID, inverted=True), nft_rules.drop())
