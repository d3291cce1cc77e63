"""Functions that all stores share: the rule for claims of an address, a join in several calls, the order of records."""

from __future__ import annotations

from fastcni.kit.ipam.cluster.contract import ASKED, HELD, KEPT, REFUSED, Joined, Taken
from fastcni.spec import address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.ipam.cluster.contract import IPClaim, Node, Store


def join_space(store: Store, node: str, boot_id: str, space: str, wanted: dict[str, int]) -> Joined:
    """Do Store.join_space() by calls of join(), grid(), blocks() and ip_claims()."""
    me = store.join(node, boot_id)
    return Joined(me, store.grid(space, wanted), store.blocks(space, node), store.ip_claims(space, node))


def claim_address(before: IPClaim | None, me: Node, ip_claim: IPClaim) -> tuple[IPClaim, bool]:
    """Return (the IPClaim after a claim, whether the store has to check the block by states.check_hold()). The first is
    `before` itself if the claim changes nothing. Raises Taken."""
    new: IPClaim = ip_claim.copy(node=me.name, epoch=me.epoch, reason="")
    if before is None or before.state == REFUSED:
        return new, True
    if not may_take_over(before, ip_claim):
        raise Taken(before)
    if before.state == ASKED:
        return (before, False) if ip_claim.state == ASKED else (new, True)
    new.state = HELD
    return (before, False) if before.state == HELD and ip_claim.state == ASKED else (new, False)


def may_take_over(before: IPClaim, ip_claim: IPClaim) -> bool:
    """Return whether a claim may replace the IPClaim `before`: `before` is of the same attachment, or kept for its
    pod."""
    if before.state == KEPT:
        return bool(before.pod) and before.pod == ip_claim.pod
    return (before.container, before.ifname) == (ip_claim.container, ip_claim.ifname)


def place(record: Any) -> tuple[str, int, bytes]:
    """Return the sort key of a record: space, then address."""
    text = record.cidr if hasattr(record, "cidr") else record.address
    packed = address.read_ip(text.partition("/")[0])
    return record.space, len(packed), packed
