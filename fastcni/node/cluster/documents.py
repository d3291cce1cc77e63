"""Build the `--json` output of `fastcni ipam`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastcni.kit.ipam.cluster.contract import Block, Node
from fastcni.node.attachments.documents import moment
from fastcni.node.cluster.import_whereabouts import Plan
from fastcni.node.cluster.repair import Forgetting
from fastcni.node.cluster.survey import HeldBlock, Holder, NodeView, Place, Survey

Document = dict[str, Any]


def holder(holder: Holder) -> Document:
    return {"address": holder.address, "space": holder.space, "block": holder.block, "state": holder.state,
            "node": holder.node or None,
            "containerID": holder.container or None, "ifname": holder.ifname or None, "pod": holder.pod or None,
            "network": holder.network or None, "since": moment(holder.since), "reported": moment(holder.written),
            "reason": holder.reason or None}


def block(block: Block) -> Document:
    return {"cidr": block.cidr, "space": block.space, "state": block.state, "node": block.node or None,
            "epoch": block.epoch or None,
            "since": moment(block.since or 0.0)}


def held_block(held: HeldBlock) -> Document:
    return {**block(held.block), "size": held.size, "held": held.held if held.reported else None,
            "holders": [holder(each) for each in held.holders]}


def blocks(where: str, found: Survey, chosen: Sequence[HeldBlock]) -> Document:
    """Return the document of `fastcni ipam list`."""
    names = sorted({it.block.space for it in chosen})
    return {"store": where, "spaces": [
        {"space": name, "grid": dict(found.grids.get(name, {})),
         "blocks": [held_block(it) for it in chosen if it.block.space == name]} for name in names]}


def node(node: Node) -> Document:
    return {"name": node.name, "state": node.state, "epoch": node.epoch, "seen": moment(node.seen or 0.0),
            "address": node.address or None}


def node_view(view: NodeView) -> Document:
    return {**node(view.node), "blocks": view.blocks, "held": view.held if view.reported else None,
            "free": view.free if view.reported else None, "quarantine": view.quarantine}


def place(place: Place) -> Document:
    """Return the document of an address's place in an address space."""
    return {"space": place.space, "address": place.address, "state": place.state,
            "holder": holder(place.holder) if place.holder else None,
            "block": block(place.held.block) if place.held else None, "node": node(place.node) if place.node else None}


def forgetting(forgetting: Forgetting, dry_run: bool) -> Document:
    """Return the document of `fastcni ipam forget-node`."""
    return {"dryRun": dry_run, "node": node(forgetting.node),
            "blocks": [block(each.block) for each in forgetting.blocks],
            "freed": [holder(each) for each in forgetting.freed], "kept": [holder(each) for each in forgetting.kept]}


def imported(plan: Plan, lost: Sequence[str], dry_run: bool) -> Document:
    """Return the document of `fastcni ipam import-whereabouts`."""
    return {"dryRun": dry_run, "blocks": [{"space": space, "cidr": cidr} for space, cidr in plan.blocks],
            "addresses": [{"space": ip_claim.space, "address": ip_claim.address, "pod": ip_claim.pod or None,
                           "containerID": ip_claim.container or None, "ifname": ip_claim.ifname or None,
                           "node": ip_claim.node or None} for ip_claim in plan.ip_claims],
            "known": plan.known, "gone": [{"space": one.space, "address": str(one.address), "pod": one.pod}
                                        for one in plan.gone],
            "released": [{"space": one.space, "address": one.address, "pod": one.pod} for one in plan.ended],
            "conflicts": [*plan.conflicts, *lost]}
