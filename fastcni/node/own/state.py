"""Find and remove the state of fastcni itself on a node, unless a pod needs it. The reference plugins would not remove
this state.

The state consists of fastcni's nftables tables, sets and elements, ipsets, and files (node/own/files.py). The reference
plugins themselves remove chains of iptables and address files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fastcni.kernel import nft
from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import Request
from fastcni.kit.firewall import backends, rulesets
from fastcni.kit.firewall.elements import Store, mark_of_comment
from fastcni.kit.firewall.forward import firewalld as forward_firewalld
from fastcni.kit.firewall.forward import iptables as forward_iptables
from fastcni.kit.firewall.portmap import nftables_rules
from fastcni.kit.firewall.table import BRIDGE_FAMILY, FAMILY, NETDEV_FAMILY, TABLE
from fastcni.node.attachments import tables
from fastcni.node.attachments.attachment import ADDRESS_FILE, CACHE, ELEMENT, GONE, ORPHANED, RUNNING, NodeAttachment
from fastcni.node.attachments.inventory import Places, look
from fastcni.node.attachments.merge import Facts, merge

FAMILIES = (FAMILY, BRIDGE_FAMILY, NETDEV_FAMILY)


@dataclass(frozen=True, slots=True)
class Holder:
    """An attachment that has elements in fastcni's sets. elements: the number of these elements. needed: whether a pod
    needs the elements, or may need them. why: the reason for `needed`."""

    attachment: NodeAttachment
    hashes: str
    elements: int
    needed: bool
    why: str

    def __str__(self) -> str:
        it = self.attachment
        return f"{it.container_id} {it.ifname} of network {it.network}: {self.why}"


@dataclass(frozen=True, slots=True)
class OwnState:
    """fastcni's state on the node. data_dirs: the dataDirs of host-local. known: all attachments of the node. unseen:
    texts about files that could not be read."""

    holders: list[Holder]
    data_dirs: list[str]
    known: tuple[NodeAttachment, ...]
    unseen: tuple[str, ...]

    @property
    def needed(self) -> list[Holder]:
        return [it for it in self.holders if it.needed]

    @property
    def dead(self) -> list[Holder]:
        return [it for it in self.holders if not it.needed]


def find(places: Places) -> OwnState:
    """Return the state in the calling thread's network namespace, without changing any of it."""
    seen = look(places)
    inventory = merge(seen.facts)
    owned = owned_addresses(inventory.attachments)
    holders = []
    for it in inventory.attachments:
        marks = [each.hashes for each in it.sightings if each.kind == ELEMENT and each.hashes]
        if marks:
            needed, why = is_needed(it, seen.facts, owned)
            holders.append(Holder(it, marks[0], len(marks), needed, why))
    return OwnState(holders, seen.data_dirs, inventory.attachments, inventory.unseen)


def owned_addresses(attachments: Collection[NodeAttachment]) -> dict[str, NodeAttachment]:
    """Return {address: the running attachment that has it in a cache or an address file}."""
    return {ip: it for it in attachments if it.state == RUNNING
            for each in it.sightings if each.kind in (CACHE, ADDRESS_FILE) for ip in each.addresses}


def is_needed(attachment: NodeAttachment, facts: Facts, owned: dict[str, NodeAttachment]) -> tuple[bool, str]:
    """Return (whether a pod still needs the attachment's elements, why).

    During an ADD, the pod already has the address, but no other record of the attachment exists yet: the elements are
    needed. If another attachment now has the address, the address belongs to that attachment's pod.
    """
    if attachment.state not in (GONE, ORPHANED):
        return True, attachment.why
    if attachment.state == ORPHANED:
        for inside in facts.interfaces:
            host = facts.links.get(inside.peer)
            leads = host and (host.kind != "veth" or host.peer == inside.index)
            for ip in set(attachment.addresses).intersection(inside.addresses):
                if leads and owned.get(ip, attachment) is attachment:
                    return True, f"{inside.namespace} has its address {ip}"
    return False, attachment.why


# Removing -----------------------------------------------------------------------------------------

def release(mode: Mode, hashes: Collection[str]) -> int:
    """Delete the elements of these attachments, and their entries in ipset and firewalld. Return the number of
    elements.

    A missing element is no error. Raises NetlinkError, CniError.
    """
    count = 0
    for store in tables.own_stores(mode.firewall):
        found = [each for each in store.read_all(mode.firewall) if mark_of_comment(each[2]) in hashes]
        if found:
            remove(request(mode), store, found)
            count += len(found)
    return count


def remove(req: Request, store: Store, found: list[tuple[str, bytes, str]]) -> None:
    """Delete elements of one store. Delete owner records after the addresses that they record."""
    ips = [key for _, key, _ in found]
    if store.sets == forward_iptables.records().sets:
        forward_iptables.remove(req, ips, found, [])
    elif store.sets == forward_firewalld.records().sets:
        forward_firewalld.remove(req, "trusted", ips, found)
    else:
        store.remove_from(req.mode.firewall, found)


def request(mode: Mode) -> Request:
    """Return a GC request without a network, which functions of the kit need as an argument."""
    return Request(mode, command="GC", env=os.environ)


def marked(mode: Mode) -> int:
    """Return how many elements of fastcni's sets belong to an attachment. Raises NetlinkError."""
    return sum(bool(comment) for store in tables.own_stores(mode.firewall)
               for _, _, comment in store.read_all(mode.firewall))


def own_tables(mode: Mode) -> list[int]:
    """Return the families in which fastcni's table exists. Raises NetlinkError."""
    return [family for family in FAMILIES if rulesets.has_table(mode, family, TABLE)]


def chains_of_others(mode: Mode) -> Iterator[str]:
    """Yield the names of chains in fastcni's tables that have an administrator's rules, for example CNI-ADMIN. Raises
    NetlinkError.
    """
    for family in own_tables(mode):
        stores = [store for store in backends.stores() if store.family == family]
        rules = {chain: number for store in stores for chain, number in store.chains.items()}
        rules |= dict.fromkeys(nftables_rules.HOOKS, 1)
        led_to = tuple(store.leads_to for store in stores if store.leads_to)
        for chain, references in rulesets.chains_of(mode.firewall, family, TABLE, ""):
            if references and not (rules.get(chain) or chain.startswith(led_to)):
                yield f"{nft.FAMILIES[family]} {TABLE} {chain}"
