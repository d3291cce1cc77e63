"""Define the states of a node and of a block in a store, and their transitions.

TRANSITIONS has each arrow of the drawings: {(state, event, guard): (state, effect)}. A store rejects every other event.
Each event has a function. A store reads the record, calls the function, and writes the result, in one atomic step. If
an event changes nothing, the function returns the same object.

    UNKNOWN                       ALIVE                         LOST                          DEAD
    |------------ join ---------->|                             |                             |
    |                             | join                        |                             |
    |                             |<----------- join -----------|                             |
    |                             |<-------------------------- join --------------------------|
    |                             | heartbeat: same             |                             |
    |                             |<----- heartbeat: same ------|                             |
    |                             |---------- silence --------->|                             |
    |                             |                             |------- declare: same ------>|
    |                             |                             |                             | declare: same, raised
    |<---------------------------------------- forget ----------------------------------------|
    | forget                      |                             |                             |

Guards compare the epoch of the caller's Node with the epoch in the record. Same: both are equal. Raised: the record's
epoch is higher by one. Older: the record's epoch is higher by two or more. Newer: the caller's epoch is higher. Every
write of a node counts as heartbeat.

    FREE                          ACTIVE                        QUARANTINE                    SHARED
    |----------- claim ---------->|                             |                             |
    |                             | claim: own                  |                             |
    |                             | adopt: own, former, later   |                             |
    |                             |< adopt: own, former, later -|                             |
    |                             |------- expire: former ----->|                             |
    |<------ return: empty -------|                             |                             |
    |                             |----------------------- return: used --------------------->|
    |<--------------------- return: empty ----------------------|                             |
    |                             |                             |-------- return: used ------>|
    |----------------------------------------- share ---------------------------------------->|
    |                             |                             |                             | share
    |<------------------------------------ return: empty -------------------------------------|
    |                             |                             |                             | hold
    |                             | hold: own                   |                             |
    |                             | ask: other                  |                             |

Guards compare the block's owner with the Node that acts. Own: this node has the block, in its present epoch. Former,
later: this node has the block, in a lower or a higher epoch. Other: another node has the block. For return, the guard
says whether addresses of the block are claimed (used) or not (empty). After declare, expire is called for each block of
the dead node, which is the Node that acts; its epoch was raised.
"""

from __future__ import annotations

from fastcni.kit.ipam.cluster.contract import (
    ACTIVE,
    ALIVE,
    ASKED,
    DEAD,
    LOST,
    QUARANTINE,
    SHARED,
    Block,
    Changed,
    Fenced,
    Node,
    Taken,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from fastcni.kit.ipam.cluster.contract import IPClaim

    R = TypeVar("R", Node, Block)

UNKNOWN = "unknown"             # the store has no record of the node
FREE = "free"                   # the store has no record of the block

JOIN, HEARTBEAT, SILENCE, DECLARE, FORGET = "join", "heartbeat", "silence", "declare", "forget"
SAME, RAISED, OLDER, NEWER = "same", "raised", "older", "newer"

CLAIM, ADOPT, SHARE, EXPIRE, RETURN, HOLD, ASK = "claim", "adopt", "share", "expire", "return", "hold", "ask"
OWN, FORMER, LATER, OTHER = "own", "former", "later", "other"
EMPTY, USED = "empty", "used"

ANY = ""                        # no guard: the state alone decides, or no node has the block

# Effects: the fields that an event changes besides the state. A store writes a record only if a field has changed, and
# removes the record if the state is UNKNOWN or FREE
NOTHING = ""
EPOCH = "epoch"                 # the node's epoch grows by one
NODE = "node"                   # the acting node has the block, in its epoch
NO_NODE = "no node"             # no node has the block, and the block has no Use

TRANSITIONS = {                 # {(state, event, guard): (state, effect)}
    (UNKNOWN, JOIN, ANY): (ALIVE, EPOCH),
    (ALIVE, JOIN, ANY): (ALIVE, NOTHING),
    (LOST, JOIN, ANY): (ALIVE, NOTHING),
    (DEAD, JOIN, ANY): (ALIVE, NOTHING),
    (ALIVE, HEARTBEAT, SAME): (ALIVE, NOTHING),
    (LOST, HEARTBEAT, SAME): (ALIVE, NOTHING),
    (ALIVE, SILENCE, ANY): (LOST, NOTHING),
    (LOST, DECLARE, SAME): (DEAD, EPOCH),
    (DEAD, DECLARE, SAME): (DEAD, NOTHING),
    (DEAD, DECLARE, RAISED): (DEAD, NOTHING),               # an earlier call has raised the epoch
    (DEAD, FORGET, ANY): (UNKNOWN, NOTHING),
    (UNKNOWN, FORGET, ANY): (UNKNOWN, NOTHING),

    (FREE, CLAIM, ANY): (ACTIVE, NODE),
    (ACTIVE, CLAIM, OWN): (ACTIVE, NOTHING),
    (ACTIVE, ADOPT, OWN): (ACTIVE, NOTHING),
    (ACTIVE, ADOPT, FORMER): (ACTIVE, NODE),
    (ACTIVE, ADOPT, LATER): (ACTIVE, NODE),                 # the node's record was deleted, and the node joined again
    (QUARANTINE, ADOPT, OWN): (ACTIVE, NODE),
    (QUARANTINE, ADOPT, FORMER): (ACTIVE, NODE),
    (QUARANTINE, ADOPT, LATER): (ACTIVE, NODE),
    (ACTIVE, EXPIRE, FORMER): (QUARANTINE, NOTHING),
    (ACTIVE, RETURN, EMPTY): (FREE, NOTHING),
    (ACTIVE, RETURN, USED): (SHARED, NO_NODE),
    (QUARANTINE, RETURN, EMPTY): (FREE, NOTHING),           # the node is forgotten
    (QUARANTINE, RETURN, USED): (SHARED, NO_NODE),
    (FREE, SHARE, ANY): (SHARED, NOTHING),
    (SHARED, SHARE, ANY): (SHARED, NOTHING),
    (SHARED, RETURN, EMPTY): (FREE, NOTHING),
    (SHARED, HOLD, ANY): (SHARED, NOTHING),
    (ACTIVE, HOLD, OWN): (ACTIVE, NOTHING),
    (ACTIVE, ASK, OTHER): (ACTIVE, NOTHING),
}


def after(record: R, event: str, guard: str = ANY, node: Node | None = None) -> R | None:
    """Return the record after an event caused by `node`. Return `record` itself if nothing changes, None if TRANSITIONS
    does not allow the event."""
    state, effect = TRANSITIONS.get((record.state, event, guard), ("", ""))
    if not state:
        return None
    fields: dict[str, Any] = {"state": state}
    if effect == EPOCH:
        fields["epoch"] = record.epoch + 1
    elif effect == NODE and node:
        fields |= {"node": node.name, "epoch": node.epoch}
    elif effect == NO_NODE:
        fields |= {"node": "", "epoch": 0}
    new: R = record.copy(**fields)
    return record if new == record else new


def change(record: R, event: str, error: Exception, guard: str = ANY, node: Node | None = None) -> R:
    """Return the record after the event, see after(). Raises `error` if TRANSITIONS does not allow the event."""
    if (new := after(record, event, guard, node)) is None:
        raise error
    return new


# -- nodes: `found` is the record in the store, UNKNOWN if the store has no record ------------------------------------

def unknown(name: str) -> Node:
    return Node(name, 0, "", "", UNKNOWN, 0)


def age(found: Node, node: Node) -> str:
    """Return the guard that compares the epochs of a caller's Node and of the record: SAME, RAISED, OLDER or NEWER."""
    grown = found.epoch - node.epoch
    return SAME if not grown else NEWER if grown < 0 else RAISED if grown == 1 else OLDER


def join(found: Node, boot_id: str, address: str, seen: float) -> Node:
    """Return the record of a node after it has joined."""
    new = after(found, JOIN)
    assert new
    return new.copy(boot_id=boot_id, address=address, seen=seen)


def heartbeat(found: Node, me: Node) -> Node:
    """Return the record of a node after a heartbeat. Raises refusal() if the node may not write."""
    return change(found, HEARTBEAT, refusal(found, me), age(found, me))


def refusal(found: Node, me: Node) -> Fenced | Changed:
    """Return why a node may not write: Fenced if the node was declared dead; Changed if the node was forgotten, or if
    the store has lost its present epoch."""
    if found.state == DEAD or found.epoch > me.epoch:
        return Fenced(found)
    return Changed(f"node {me.name} with epoch {me.epoch} is not in the store")


def silence(found: Node) -> Node:
    """Return the record of a node whose heartbeats have stopped for node_ttl: an ALIVE node is now LOST."""
    return after(found, SILENCE) or found


def declare_dead(found: Node, node: Node) -> Node:
    """Return the record of a node after it was declared dead. Raises Changed if the node is alive, was forgotten, or
    has another epoch than `node`."""
    return change(found, DECLARE, Changed(f"node {node.name} has changed"), age(found, node))


def forget(found: Node) -> Node:
    """Return the record of a node after it was forgotten. Raises Changed if the node is not dead."""
    return change(found, FORGET, Changed(f"node {found.name} is not dead any more"))


# -- blocks: `block` is the record in the store, FREE if the store has no record ---------------------------------------

def free(space: str, cidr: str, now: float = 0.0) -> Block:
    """Return a block that no node has claimed. now: the unix time of the claim that follows."""
    return Block(space, cidr, "", 0, FREE, now)


def whose(block: Block, node: Node) -> str:
    """Return the guard that compares a block's owner with a node: OWN, FORMER, LATER, OTHER, or ANY if no node has the
    block."""
    if block.node != node.name:
        return OTHER if block.node else ANY
    return OWN if block.epoch == node.epoch else FORMER if block.epoch < node.epoch else LATER


def claim(block: Block, me: Node) -> Block:
    """Return the block after its claim by `me`. Raises Taken if the block is not free."""
    return change(block, CLAIM, Taken(block), whose(block, me), me)


def adopt(block: Block, me: Node) -> Block:
    """Return the node's block of another epoch as its block of the present epoch. Raises Changed."""
    return change(block, ADOPT, Changed(f"block {block.cidr} is not of node {me.name} any more"), whose(block, me), me)


def share(block: Block) -> Block:
    """Return the block as SHARED. Raises Taken if a node has the block."""
    return change(block, SHARE, Taken(block))


def expire(block: Block, dead: Node) -> Block:
    """Return the block after its node was declared dead: in quarantine, or `block` itself if the node claimed it in the
    present epoch."""
    return after(block, EXPIRE, whose(block, dead)) or block


def give_back(block: Block, used: bool) -> Block:
    """Return the block after its return: FREE, SHARED, or `block` itself if the block stays. used: whether addresses in
    the block are claimed."""
    return after(block, RETURN, USED if used else EMPTY) or block


def check_hold(block: Block, me: Node, ip_claim: IPClaim) -> None:
    """Check that a node may claim an address in a block. Raises Changed if the block is FREE, Taken if the wanted state
    of the address does not fit the block."""
    error = Changed(f"block {block.cidr} does not exist") if block.state == FREE else Taken(block)
    change(block, ASK if ip_claim.state == ASKED else HOLD, error, whose(block, me))
