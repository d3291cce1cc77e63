"""Read, change and remove IPBlocks. The docstring of kubernetes.py explains the order of steps."""

from __future__ import annotations

from fastcni.clients.kubernetes import Api, Conflict, Missing
from fastcni.kit.ipam.cluster import states
from fastcni.kit.ipam.cluster.contract import Block
from fastcni.kit.ipam.cluster.stores.kubernetes_objects import (
    BASE,
    BLOCKS,
    CLAIMS,
    USES,
    block_name,
    selector,
    to_patch,
    to_record,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.ipam.cluster.contract import Node
    from fastcni.kit.ipam.cluster.stores.kubernetes_objects import Object


class BlockObjects:
    """The IPBlocks of an API server. Methods raise Conflict if an object has changed, Missing if it was deleted."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def list_of(self, plural: str, **fields: str) -> list[tuple[Any, Object]]:
        """Return (record, object) of each object of a kind whose fields equal `fields`; "" matches any value."""
        chosen = {key: value for key, value in fields.items() if value}
        found = [(to_record(plural, it), it) for it in self.api.list_all(f"{BASE}/{plural}", selector(chosen))]
        return [(record, it) for record, it in found
                if all(getattr(record, key) == value for key, value in chosen.items())]

    def get_block(self, space: str, cidr: str) -> Object | None:
        return self.api.get(f"{BASE}/{BLOCKS}/{block_name(space, cidr)}")

    def set_block(self, document: Object, **fields: Any) -> Object:
        """Write `fields` into an IPBlock, if it is still as read."""
        changed = dict.fromkeys(fields) | {key: value for key, value in fields.items() if value != ""}
        return self.api.patch(path_of(BLOCKS, document), to_patch(changed, version_of(document)))

    def set_draining(self, document: Object, draining: bool) -> Object:
        """Set or clear the mark of an IPBlock that is about to be removed, if the IPBlock is still as read."""
        changes = {"metadata": {"resourceVersion": version_of(document)}, "status": {"draining": draining or None}}
        return self.api.patch(f"{path_of(BLOCKS, document)}/status", changes)

    def keep(self, document: Object) -> Object:
        """Clear the mark that free() has set on an IPBlock, so that the block stays. Return the IPBlock."""
        return self.set_draining(document, False) if is_draining(document) else document

    def free(self, document: Object) -> bool:
        """Remove an IPBlock, if it is still as read, with its IPUse. If the block has claims, the IPBlock stays: a
        node's block becomes SHARED, and a SHARED block does not change. Return whether the block has changed."""
        block = to_record(BLOCKS, document)
        use = self.api.get(f"{BASE}/{USES}/{block_name(block.space, block.cidr)}")
        document = self.set_draining(document, True)
        after = states.give_back(block, bool(self.list_of(CLAIMS, space=block.space, block=block.cidr)))
        if after is block:
            self.set_draining(document, False)
            return False
        if after.state == states.FREE:
            self.remove(BLOCKS, document)
        else:
            self.keep(self.set_block(document, node=after.node, epoch=after.epoch, state=after.state))
        if use:
            try:
                self.remove(USES, use)
            except (Conflict, Missing):         # a new owner has written the block
                return True
        return True

    def expire(self, dead: Node) -> None:
        """Set a dead node's ACTIVE blocks of earlier epochs to QUARANTINE."""
        for block, document in self.list_of(BLOCKS, node=dead.name):
            now: Object | None = document
            while now and (after := states.expire(block, dead)) is not block:
                try:
                    self.set_block(now, state=after.state)
                    break
                except (Conflict, Missing):
                    now = self.get_block(block.space, block.cidr)
                    block = block_of(now, block.space, block.cidr)

    def remove(self, plural: str, document: Object) -> None:
        """Remove an object, if it has not changed since it was read."""
        self.api.delete(path_of(plural, document), document["metadata"]["uid"], version_of(document))


def block_of(document: Object | None, space: str, cidr: str) -> Block:
    """Return the block of an IPBlock, a FREE block if there is no IPBlock."""
    block: Block = to_record(BLOCKS, document) if document else states.free(space, cidr)
    return block


def path_of(plural: str, document: Object) -> str:
    return f"{BASE}/{plural}/{document['metadata']['name']}"


def version_of(document: Object) -> str:
    version: str = document["metadata"]["resourceVersion"]
    return version


def is_draining(document: Object) -> bool:
    return bool((document.get("status") or {}).get("draining"))
