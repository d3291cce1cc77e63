"""Repair cluster-wide addresses for an operator: release an address, forget a node.

Each function raises an error if its change could give one address to two pods. The error says what to do instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastcni.kit.ipam.cluster.contract import ALIVE, ASKED, DEAD, KEPT, LOST, REFUSED, Changed, Node
from fastcni.node.attachments.attachment import ADDRESS_FILE, GONE, ORPHANED, RUNNING, UNKNOWN, Inventory
from fastcni.node.cluster.survey import USED, HeldBlock, Holder, Place, Survey
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.kit.ipam.cluster.contract import Store

ASK_S = 10.0                    # seconds; an ADD waits for less time for the answer to its claim in state ASKED


def refused(what: str, do: str) -> CniError:
    """Return the error of a repair that was rejected before it changed anything. what: the reason. do: the advice."""
    return CniError(errors.INVALID_ENVIRONMENT, what, do)


def life_of(holder: Holder, own_node: str, inventory: Inventory) -> tuple[str, str]:
    """Return (RUNNING, GONE or UNKNOWN, the reason as text) for the pod of a holder, by this node's files and
    kernel."""
    if holder.node != own_node:
        return UNKNOWN, f"the pod is on node {holder.node or 'unknown'}, and this is node {own_node}"
    found = [it for it in inventory.attachments if it.container_id == holder.container
             and it.ifname in ("", holder.ifname)]
    running = [it for it in found if it.state == RUNNING]
    if running:
        return RUNNING, running[0].why
    if there := next((it for it in inventory.unowned if holder.address in it.addresses), None):
        return RUNNING, f"{there.place} has the address"
    if any(it.state not in (GONE, ORPHANED) for it in found):
        return UNKNOWN, f"the files and links of node {own_node} do not show whether the pod runs"
    if not found and inventory.unseen:
        return UNKNOWN, inventory.unseen[0]
    return GONE, found[0].why if found else f"node {own_node} has no such container"


def release(store: Store, place: Place, own_node: str, inventory: Inventory, release_here: Callable[[Holder], bool],
            force: bool = False, now: float = 0.0) -> str:
    """Release an address. Return a sentence about the release.

    release_here(holder): removes the address from this node's own files; returns False if another pod now has the
    address. force: release the address also if the pod may exist. Raises CniError 4, with the owner and the next step,
    if the pod exists or may exist; CniError 11 if the holder has changed; Away.
    """
    holder = place.holder or holder_here(place, own_node, inventory)
    if holder is None:
        raise refused(f"no pod has {place.address}: it is {place.state}",
                      f"`fastcni ipam show {place.address}` shows its block")
    guard(place, holder, own_node, inventory, force, now or time.time())
    if holder.ip_claim is not None:
        done = store.release_ip_claim(holder.ip_claim)
    else:
        done = release_here(holder)
    if not done:
        raise CniError(errors.TRY_AGAIN_LATER, f"{holder.address} has changed since; nothing was released",
                       f"`fastcni ipam show {holder.address}` shows who has it now")
    if holder.ip_claim is not None and holder.node == own_node:
        release_here(holder)                # removes the address's file, if this node has one
    return f"released {holder.address} of {holder.owner}"


def holder_here(place: Place, own_node: str, inventory: Inventory) -> Holder | None:
    """Return the holder of an address in this node's own block by the node's files, which are newer than its
    report; None: the block is another node's, or no file has the address."""
    if place.held is None or place.held.block.node != own_node:
        return None
    return next((Holder(place.space, place.address, place.held.block.cidr, USED, own_node, it.container_id, it.ifname,
                        network=it.network, since=it.since)
                 for it in inventory.attachments for seen in it.sightings
                 if seen.kind == ADDRESS_FILE and place.address in seen.addresses), None)


def guard(place: Place, holder: Holder, own_node: str, inventory: Inventory, force: bool, now: float) -> None:
    """Raise CniError if the release could give the address of an existing pod to another pod."""
    what = f"{holder.address} belongs to {holder.owner} on node {holder.node or 'unknown'}"
    if holder.state == USED and holder.node != own_node:
        do = f"run this command on node {holder.node}: only that node gives addresses of block {holder.block}"
        if place.node and place.node.state in (LOST, DEAD):
            do += f"; if it will not come back: fastcni ipam forget-node {holder.node}"
        raise refused(what, do)
    if holder.state in (KEPT, REFUSED) or force:
        return
    if holder.state == ASKED:
        if now - holder.since < ASK_S:
            raise refused(f"{what}, whose ADD waits for it", "wait until that ADD has ended, or use --force")
        return
    state, why = life_of(holder, own_node, inventory)
    if state == RUNNING:
        raise refused(f"{what}, which runs ({why})", "delete the pod; --force releases the address all the same, "
                      "and another pod may get the address while this pod uses it")
    if state == UNKNOWN:
        raise refused(f"{what}, which may run: {why}", f"run this command on node {holder.node}" if holder.node
                      and holder.node != own_node else "run it as root on the node; if the pod is gone: --force")


@dataclass(frozen=True, slots=True)
class Forgetting:
    """The changes of forget(). blocks: the node's blocks, with the holders that lose their addresses. ip_claims: the
    node's claims in shared blocks and in blocks of other nodes. kept: sticky addresses, which stay reserved for their
    pods."""

    node: Node
    blocks: tuple[HeldBlock, ...]
    ip_claims: tuple[Holder, ...]
    kept: tuple[Holder, ...]

    @property
    def freed(self) -> list[Holder]:
        """Return the holders that lose their addresses."""
        return [it for held in self.blocks for it in held.holders if it.state not in (KEPT, REFUSED)] + list(
            self.ip_claims)


def plan_forget(found: Survey, name: str, now: float = 0.0) -> Forgetting:
    """Return the blocks and addresses that forget() will free. Raises CniError 4 if the node does not exist or is
    alive.
    """
    node = found.nodes.get(name)
    if node is None:
        raise refused(f"the store has no node {name}", f"its nodes: {', '.join(found.nodes) or 'none'}")
    if node.state == ALIVE:
        ago = f": its last heartbeat was {max(0, int((now or time.time()) - node.seen))} s ago" if node.seen else ""
        raise refused(f"node {name} is alive{ago}",
                      "stop its pods and its fastcni server first; a minute later it is lost, and can be forgotten")
    own = tuple(found.of_node(name))
    mine = {held.block.cidr for held in own}
    other = [it for held in found.blocks for it in held.holders if it.node == name and it.block not in mine
             and it.state not in (KEPT, REFUSED)]
    kept = [it for held in found.blocks for it in held.holders if it.node == name and it.state == KEPT]
    return Forgetting(node, own, tuple(other), tuple(kept))


def forget(store: Store, plan: Forgetting) -> None:
    """Declare the node dead if that is necessary, then remove the node and its blocks from the store. Raises CniError
    11 if the node has come back; Away."""
    try:
        node = plan.node if plan.node.state == DEAD else store.declare_dead(plan.node)
        store.forget(node)
    except Changed:
        raise CniError(errors.TRY_AGAIN_LATER, f"node {plan.node.name} has returned since; it was not forgotten",
                       "`fastcni ipam nodes` shows its state now") from None
