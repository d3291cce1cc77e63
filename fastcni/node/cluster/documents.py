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


def holder(it: Holder) -> Document:
    return {"address": it.address, "space": it.space, "block": it.block, "state": it.state, "node": it.node or None,
            "containerID": it.container or None, "ifname": it.ifname or None, "pod": it.pod or None,
            "network": it.network or None, "since": moment(it.since), "reported": moment(it.written),
            "reason": it.reason or None}


def block(it: Block) -> Document:
    return {"cidr": it.cidr, "space": it.space, "state": it.state, "node": it.node or None, "epoch": it.epoch or None,
            "since": moment(it.since or 0.0)}


def held_block(it: HeldBlock) -> Document:
    return {**block(it.block), "size": it.size, "held": it.held if it.reported else None,
            "holders": [holder(each) for each in it.holders]}


def blocks(where: str, found: Survey, chosen: Sequence[HeldBlock]) -> Document:
    """Return the document of `fastcni ipam list`."""
    names = sorted({it.block.space for it in chosen})
    return {"store": where, "spaces": [
        {"space": name, "grid": dict(found.grids.get(name, {})),
         "blocks": [held_block(it) for it in chosen if it.block.space == name]} for name in names]}


def node(it: Node) -> Document:
    return {"name": it.name, "state": it.state, "epoch": it.epoch, "seen": moment(it.seen or 0.0),
            "address": it.address or None}


def node_view(it: NodeView) -> Document:
    return {**node(it.node), "blocks": it.blocks, "held": it.held if it.reported else None,
            "free": it.free if it.reported else None, "quarantine": it.quarantine}


def place(it: Place) -> Document:
    """Return the place of an address in an address space."""
    return {"space": it.space, "address": it.address, "state": it.state,
            "holder": holder(it.holder) if it.holder else None,
            "block": block(it.held.block) if it.held else None, "node": node(it.node) if it.node else None}


def forgetting(it: Forgetting, dry_run: bool) -> Document:
    """Return the document of `fastcni ipam forget-node`."""
    return {"dryRun": dry_run, "node": node(it.node), "blocks": [block(each.block) for each in it.blocks],
            "freed": [holder(each) for each in it.freed], "kept": [holder(each) for each in it.kept]}


def imported(it: Plan, lost: Sequence[str], dry_run: bool) -> Document:
    """Return the document of `fastcni ipam import-whereabouts`."""
    return {"dryRun": dry_run, "blocks": [{"space": space, "cidr": cidr} for space, cidr in it.blocks],
            "addresses": [{"space": single.space, "address": single.address, "pod": single.pod or None,
                           "containerID": single.container or None, "ifname": single.ifname or None,
                           "node": single.node or None} for single in it.singles],
            "known": it.known, "gone": [{"space": one.space, "address": str(one.address), "pod": one.pod}
                                        for one in it.gone],
            "released": [{"space": one.space, "address": one.address, "pod": one.pod} for one in it.ended],
            "conflicts": [*it.conflicts, *lost]}
