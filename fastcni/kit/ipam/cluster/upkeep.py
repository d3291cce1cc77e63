"""Maintain one address space of this node for a server: claim blocks ahead, return idle blocks, answer other nodes.
The server and one-shot plugins of the node take the same locks, so they may run at the same time.

keys: Keys of any network that uses the address space, see conf.py; only room() and claim_ahead() use the network's
ranges. Functions with an argument `store` call the store, and raise Away. All functions raise CniError 5 and 11, like
node_state.Space.
"""

from __future__ import annotations

from fastcni.kit.ipam.cluster import allocate, claims, ip_claims
from fastcni.kit.ipam.cluster.claims import ClaimLock
from fastcni.kit.ipam.cluster.contract import ASKED, HELD, KEPT, REFUSED, Changed
from fastcni.kit.ipam.cluster.grid import to_int, to_packed
from fastcni.kit.ipam.cluster.node_state import MadeSpace, Space, kept_owner, more_lines, state_of
from fastcni.kit.ipam.cluster.released import boottime
from fastcni.spec import address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.kit.ipam.cluster.contract import IPClaim, Store
    from fastcni.kit.ipam.cluster.grid import Own, Range

    Warn = Callable[[str], object]
    Room = tuple[Range, int, int]           # see room_of()

MAX_IDLE = 2            # idle blocks of each address family that the node keeps
AHEAD = 4               # claim a block if less than a fourth of a range's addresses in this node's blocks is free


# -- blocks and free addresses ----------------------------------------------------------------------------

def empty_blocks(keys: Keys, warn: Warn) -> list[tuple[float, Own]]:
    """Return (for how many seconds the block has been empty, the block) of each block of this node without a held
    address. The list is sorted by these seconds, then by address."""
    with Space(keys, warn) as space:
        if space is None:
            return []
        found = [(empty_for(space, own), own) for own in space.state.blocks.values() if not held_in(space, own)]
        return sorted(found, key=lambda one: (one[0], one[1].first))


def held_in(space: Space, own: Own) -> int:
    found: int = space.index.count(to_packed(own.bits, own.first), to_packed(own.bits, own.last))
    return found


def empty_for(space: Space, own: Own) -> float:
    """Return the seconds since the release of an empty block's last address, or since its claim."""
    import time

    last = space.times.latest(own.at, own.size())
    return max(0.0, boottime() - last if last else time.time() - own.since)


def room_of(space: Space, range_: Range) -> Room:
    """Return (the range, how many of its addresses are in this node's blocks, how many of these addresses are free)."""
    spans = space.state.plan(range_).spans
    size = sum(to_int(last) - to_int(first) + 1 for first, last in spans)
    return range_, size, size - sum(space.index.count(*span) for span in spans)


def room(keys: Keys, warn: Warn) -> list[Room]:
    """Return room_of() for each range of `keys`; [] if the node has no directory of the address space."""
    with Space(keys, warn) as space:
        return [room_of(space, one) for one in keys.ranges] if space else []


def spare(size: int, free: int) -> int:
    """Return how many free addresses of a range the node can give before it claims the range's next block. Below 0:
    claim the block now."""
    return free - -(-size // AHEAD)


# -- blocks -----------------------------------------------------------------------------------------------

def claim_ahead(store: Store, keys: Keys, warn: Warn) -> list[str]:
    """Claim a block for each range of `keys` in which this node's blocks have too few free addresses, see spare().
    Return the cidrs of new blocks. Claim nothing during the pause after a restore (State.hold), or for a range without
    a free block."""
    if not short_of(keys, warn):
        return []
    with ClaimLock(keys):
        ranges = short_of(keys, warn)           # another request may have claimed a block since the first check
        before = set(state_of(keys, warn).blocks)
        if ranges and not claims.held(store, keys, warn):
            me = claims.node_of(claims.ready(store, keys, warn, ranges)[0])
            for one in ranges:                  # one range after the other, so that a full range stops no other
                claimed, _ = claims.claim_blocks(store, me, keys, [one], state_of(keys, warn))
                claims.note_blocks(store, keys, claimed, warn)
        return sorted(set(state_of(keys, warn).blocks) - before)


def short_of(keys: Keys, warn: Warn) -> list[Range]:
    return [one for one, size, free in room(keys, warn) if spare(size, free) < 0]


def give_back_idle(store: Store, keys: Keys, warn: Warn, idle_s: float, spare: int = MAX_IDLE) -> list[str]:
    """Give back blocks that have been empty for idle_s, but keep `spare` empty blocks of each family. Return the
    cidrs of the returned blocks."""
    with ClaimLock(keys):
        empty, gone = empty_blocks(keys, warn), []
        for bits in (32, 128):
            idle = [(seconds, own) for seconds, own in empty if own.bits == bits][spare:]
            gone += [own.cidr for seconds, own in idle if seconds >= idle_s]
        return [cidr for cidr in gone if give_back(store, keys, warn, cidr)]


def give_back(store: Store, keys: Keys, warn: Warn, cidr: str) -> bool:
    """Return an empty block to the store. The node stops giving the block's addresses before the call, and does not
    resume if the call fails, because only the answer may be lost. If the store still has the block as this node's,
    rejoin() finds it. Needs the claim lock. Return whether this node has given the block back."""
    there = {block.cidr: block for block in store.blocks(keys.space, keys.node)}
    with MadeSpace(keys, warn) as space:
        own = space.state.blocks.get(cidr)
        if own is None or held_in(space, own):
            return False
        new = space.state.copy()
        del new.blocks[cidr]
        space.save(new)
    done = cidr not in there or store.give_back(there[cidr])
    if not done:
        claims.rejoin(store, keys, warn)
    return done


def finish_later(store: Store, keys: Keys, warn: Warn) -> None:
    """Release or keep the IPClaims of State.later in the store."""
    with ClaimLock(keys):
        ip_claims.finish_later(store, keys, warn)


# -- IP claims of other nodes' pods ----------------------------------------------------------------

def answer_asked(store: Store, keys: Keys, warn: Warn, ip_claim: IPClaim) -> IPClaim | None:
    """Answer another node that asks for an address in a block of this node. Set the IPClaim's state to HELD if the
    address was free, else to REFUSED with the holder as reason. Return the IPClaim. None: the claim asks for no address
    of this node, or the other node has withdrawn the claim."""
    if ip_claim.state != ASKED:
        return None
    packed = address.read_ip(ip_claim.address)
    owner = kept_owner(ip_claim.pod, ip_claim.ifname)
    with MadeSpace(keys, warn) as space:
        if space.state.own_block(packed) is None:
            return None
        space.files.more = more_lines(ip_claim.network, ip_claim.pod)
        taken = space._has_owner(packed, owner) or space.take(packed, owner)
        reason = "" if taken else allocate.holder_text(space, packed)
    try:
        return store.change_ip_claim(ip_claim, state=HELD if taken else REFUSED, reason=reason)
    except Changed:                     # withdrawn, or already answered: the same request can come twice
        now = store.ip_claim(ip_claim.space, ip_claim.address)
        if (now is None or now.state not in (HELD, KEPT)) and is_complete(store, keys, warn):
            forget_ip_claim(keys, warn, ip_claim)
        return None


def is_complete(store: Store, keys: Keys, warn: Warn) -> bool:
    """Return whether the store has all IP claims. After a restore of the store, claims may be missing until the nodes
    of their pods have made them again."""
    with ClaimLock(keys):
        return not claims.held(store, keys, warn, fully=True)


def forget_ip_claim(keys: Keys, warn: Warn, ip_claim: IPClaim) -> bool:
    """Free the address that this node reserves for a deleted IPClaim. Return whether the address was reserved."""
    with Space(keys, warn) as space:
        if space is None:
            return False
        owner = kept_owner(ip_claim.pod, ip_claim.ifname)
        packed = address.read_ip(ip_claim.address)
        return space._has_owner(packed, owner) and ip_claims.forget_kept(space, ip_claim.address)
