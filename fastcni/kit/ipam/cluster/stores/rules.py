"""Rules about Blocks and Singles that several stores apply, joining by parts, and the order of records."""

from __future__ import annotations

from fastcni.kit.ipam.cluster.contract import ACTIVE, ASKED, KEPT, SHARED, Changed, Joined, Taken
from fastcni.spec import address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.ipam.cluster.contract import Block, Node, Single, Store


def join_space(store: Store, node: str, boot_id: str, space: str, wanted: dict[str, int]) -> Joined:
    """Store.join_space() by the methods of its parts."""
    me = store.join(node, boot_id)
    return Joined(me, store.grid(space, wanted), store.blocks(space, node), store.singles(space, node))


def is_own(block: Block, me: Node) -> bool:
    return (block.node, block.epoch, block.state) == (me.name, me.epoch, ACTIVE)


def may_take_over(before: Single, single: Single) -> bool:
    """Return whether a claim may replace the Single `before`: it is the attachment's own, or is kept for its pod."""
    if before.state == KEPT:
        return bool(before.pod) and before.pod == single.pod
    return (before.container, before.ifname) == (single.container, single.ifname)


def check_block(block: Block | None, me: Node, single: Single) -> None:
    """Raise Changed if the block does not exist, Taken if the state that is wanted does not fit it."""
    if block is None:
        raise Changed(f"block {single.block} does not exist")
    own = is_own(block, me)
    if not (block.state == ACTIVE and not own if single.state == ASKED else own or block.state == SHARED):
        raise Taken(block)


def place(record: Any) -> tuple[str, int, bytes]:
    """The order of records: by space and address."""
    text = record.cidr if hasattr(record, "cidr") else record.address
    packed = address.read_ip(text.partition("/")[0])
    return record.space, len(packed), packed
