"""Remove fastcni's tables, sets and shared rules from the firewall, if no pod has elements in them."""

from __future__ import annotations

import time
from errno import EBUSY, ENOENT

from fastcni._netlink import Batch
from fastcni.kernel import deletions, ipset, nft, nft_elements, wire
from fastcni.kit.call.mode import Mode
from fastcni.kit.firewall import iptables, rulesets
from fastcni.kit.firewall.forward import iptables_chain
from fastcni.kit.firewall.forward.iptables import NO_SET
from fastcni.kit.firewall.forward.nftables_policies import FROM, SETS, TO
from fastcni.kit.firewall.owners import Addresses
from fastcni.kit.firewall.table import LENGTHS, TABLE
from fastcni.node.attachments import tables
from fastcni.node.own import state

ERESTART = 85                   # include/linux/errno.h: another transaction was committed before this transaction
TRIES = 5
BUSY_TRIES, BUSY_PAUSE_S = 40, 0.05


def remove_all(mode: Mode) -> tuple[list[str], list[str]]:
    """Remove the tables, rules and sets that no pod uses. Return (texts of the removed objects, reasons why other
    objects stay). Raises NetlinkError, CniError."""
    if count := state.marked(mode):
        return [], [f"{count} elements of pods are in nftables"]
    removed = [*remove_ipsets(mode), *remove_from_policies(mode)]
    if administrators := list(state.chains_of_others(mode)):
        return removed, [f"nftables chain {chain} has an administrator's rules" for chain in administrators]
    return [*removed, *remove_tables(mode)], []


def remove_tables(mode: Mode) -> list[str]:
    """Delete fastcni's tables. Return their names; [] if ADDs keep adding elements.

    The transaction names the generation of nftables at which the tables had no elements of pods. So the kernel rejects
    the transaction if an ADD has changed nftables since.
    """
    for _ in range(TRIES):
        generation = deletions.generation(mode.firewall)
        families = state.own_tables(mode)
        if not families or state.marked(mode):
            return []
        batch = nft.start(Batch(), generation)
        for family in families:
            nft.del_table(batch, family, TABLE)
        if wire.succeeds(mode.firewall, nft.stop(batch), (ERESTART, ENOENT)):
            return [f"nftables table {nft.FAMILIES[family]} {TABLE}" for family in families]
    return []


def remove_from_policies(mode: Mode) -> list[str]:
    """Delete the rules and sets that fastcni has added to other programs' tables whose chains drop by policy, see
    kit/firewall/forward/nftables_policies.py. Return the removed sets as texts."""
    removed = []
    for store in tables.own_stores(mode.firewall):
        if not isinstance(store, Addresses) or store.table == TABLE:
            continue
        for chain, _ in rulesets.chains_of(mode.firewall, store.family, store.table, ""):
            rulesets.delete_rules(mode, store.family, store.table, chain, lambda comment: comment in (FROM, TO))
        batch = nft.start(Batch())
        for name in store.sets:
            nft_elements.del_set(batch, store.family, store.table, name)
        if wire.succeeds(mode.firewall, nft.stop(batch), (ENOENT, EBUSY)):      # EBUSY: an administrator's rule uses it
            removed.append(f"nftables sets {SETS}* in {nft.FAMILIES[store.family]} {store.table}")
    return removed


def remove_ipsets(mode: Mode) -> list[str]:
    """Delete the ipsets of pods, and the two rules that use each ipset. Return the removed ipsets as texts."""
    removed, req = [], state.request(mode)
    for length in LENGTHS:
        name = iptables_chain.set_of(length)
        _, refused = wire.attempt(mode.firewall, ipset.test(Batch(), name, bytes(length)))
        if refused and refused[0].errno != ipset.IPSET_ERR_EXIST:
            continue                        # ENOENT: no such set; other errors: this kernel has no ipset
        program, table = iptables.PROGRAMS[length], iptables_chain.TABLE
        lines = iptables.read_if_there(req, program, table)
        present = [rule for rule in iptables_chain.set_rules(length) if rule in lines]
        if present:
            iptables.remove(req, program, lines, present, table=table)
        if destroy(mode, name):
            removed.append(f"ipset {name}")
    return removed


def destroy(mode: Mode, name: str) -> bool:
    """Delete an ipset. Return False if the ipset does not exist, or if another program's rule uses it. Raises
    NetlinkError."""
    for _ in range(BUSY_TRIES):
        _, refused = wire.attempt(mode.firewall, ipset.destroy(Batch(), name))
        if not refused:
            return True
        if refused[0].errno in NO_SET:
            return False
        wire.raise_first(refused, (ipset.IPSET_ERR_BUSY,))
        time.sleep(BUSY_PAUSE_S)        # nf_tables frees deleted rules, and then their sets, some time later
    return False
