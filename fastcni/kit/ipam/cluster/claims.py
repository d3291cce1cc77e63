"""Claim blocks and single addresses (ip_claims.py) in the store, if this node's blocks have no address for a pod.

Calls to the store need the claim lock of the address space, so that concurrent ADDs that need a block claim only one.
During a call, the Space's own lock is free: DEL and ADDs that find a free address continue.

A crash between a claim in the store and its record in blocks.json is harmless: the next ADD repeats the claim, or
rejoin() finds the block in the store.
"""

from __future__ import annotations

import posix
from time import monotonic

from fastcni._system import unlock
from fastcni.clients.errors import Away, Busy
from fastcni.kernel import waiting
from fastcni.kit.call.files import open_lock
from fastcni.kit.ipam.cluster import allocate, hold, ip_claims, states
from fastcni.kit.ipam.cluster.contract import Block, Changed, Fenced, Node, Taken, log_restored, restored
from fastcni.kit.ipam.cluster.grid import cidr_text, in_turn, merged
from fastcni.kit.ipam.cluster.node_state import DIRECTORY, STICKY, MadeSpace, state_of
from fastcni.kit.ipam.cluster.stores import key_of, store_of, store_text
from fastcni.kit.ipam.store import boot_id
from fastcni.spec.errors import IO_FAILURE, TRY_AGAIN_LATER, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from fastcni.kit.call.request import Request
    from fastcni.kit.ipam.cluster.allocate import Attachment
    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.kit.ipam.cluster.contract import History, Store
    from fastcni.kit.ipam.cluster.grid import Range
    from fastcni.kit.ipam.cluster.node_state import Space, State

    Warn = Callable[[str], object]

MAX_TRIES = 64          # attempts to claim a block while other nodes claim it first; each attempt reads all blocks
FIRST_PAUSE_S = 0.2     # an ADD's first pause before it calls a busy store again
PATIENCE_S = 20.0       # how long one ADD calls a busy store; other ADDs wait at most waiting.LOCK_TIMEOUT_S
MAX_BLOCKS = 64         # limit of blocks that one ADD claims: it claims another block if other ADDs used up the first


class ClaimLock:
    """The lock for calls to the store about one address space, held inside `with`. Raises CniError 5 and 11."""

    __slots__ = ("fd", "path")

    def __init__(self, keys: Keys) -> None:
        self.path, self.fd = f"{keys.data_dir.rstrip('/')}/{keys.space}/{DIRECTORY}/claim.lock", -1

    def __enter__(self) -> None:
        try:
            self.fd = open_lock(self.path)
        except OSError as e:
            raise CniError(IO_FAILURE, f"open {self.path}: {e.strerror} (errno {e.errno})") from None
        if not waiting.lock(self.fd, waiting.LOCK_TIMEOUT_S):
            self.__exit__(None, None, None)
            raise CniError(TRY_AGAIN_LATER, f"lock {self.path}: not free within {waiting.LOCK_TIMEOUT_S:g} s",
                           "another request of this node waits for the store; is the store slow?")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        unlock(self.fd)
        posix.close(self.fd)


def provide(req: Request, attachment: Attachment) -> None:
    """Claim the addresses that allocate.give() did not find in this node's blocks. Raises CniError 11, with the reason,
    if the node cannot claim an address."""
    with ClaimLock(attachment.keys):
        store, patience, until = store_of(req.mode, attachment.keys.store), Patience(), 0.0
        try:
            while True:
                try:
                    with waiting.patient(until):
                        _provide_or_rejoin(req, attachment, store)
                    return
                except Busy:
                    if not patience.pause():
                        raise
                    until = patience.until
        except Away as e:
            raise away(req, attachment, e) from None
        except (Fenced, Changed) as e:
            raise CniError(TRY_AGAIN_LATER, f'node "{attachment.keys.node}" cannot write to the store: {e}',
                           "another node has declared this node dead, or "
                           "`fastcni ipam forget-node` has removed its record") from None


class Patience:
    """The pauses of an ADD between calls to a busy store: each about twice as long as the last, and random by ±50%."""

    __slots__ = ("seconds", "until")

    def __init__(self) -> None:
        self.seconds, self.until = FIRST_PAUSE_S, monotonic() + waiting.limit(PATIENCE_S)

    def pause(self) -> bool:
        """Wait for the next pause. Return False immediately if PATIENCE_S is over. Raises CallerGone."""
        if monotonic() >= self.until:
            return False
        waiting.readable(-1, self.seconds * (0.5 + int.from_bytes(posix.urandom(2), "big") / 65536), waiting.STORE)
        self.seconds *= 2
        return True


def _provide_or_rejoin(req: Request, attachment: Attachment, store: Store) -> None:
    try:
        _provide(req, attachment, store)
    except (Fenced, Changed):
        rejoin(store, attachment.keys, req.warn)
        _provide(req, attachment, store)


def _provide(req: Request, attachment: Attachment, store: Store) -> None:
    state, joined = ready(store, attachment.keys, req.warn, attachment.keys.ranges)
    me, attachment.grid = node_of(state), state.grid
    if attachment.sticky or ip_claims.wanted(attachment):
        check_hold(store, attachment.keys, req.warn, joined, fully=True)
        joined = True                           # this ADD has asked the store
    if state.later:
        ip_claims.finish_later(store, attachment.keys, req.warn, attachment)
    if attachment.sticky:
        ip_claims.give_sticky(req, attachment, store, me)
    claimed: list[Block] = []
    for _ in range(MAX_BLOCKS):
        known = give_claimed(req, attachment, store, claimed)
        if not attachment.missing():
            break
        check_hold(store, attachment.keys, req.warn, joined)
        ip_claims.give(req, attachment, store, me)
        claimed, exhausted = claim_blocks(store, me, attachment.keys, attachment.missing_ranges(), known)
        if exhausted:
            ip_claims.give(req, attachment, store, me, exhausted)
    else:
        raise CniError(TRY_AGAIN_LATER, "other pods took all addresses of the blocks that this ADD claimed")
    if attachment.sticky:
        ip_claims.hold_sticky(req, attachment, store, me)
        with MadeSpace(attachment.keys, req.warn) as space:
            end(space, attachment)


def give_claimed(req: Request, attachment: Attachment, store: Store, claimed: Sequence[Block]) -> State:
    """Record claimed blocks, and give the attachment its missing addresses out of this node's blocks, both under one
    lock. Return the State."""
    now = store.history() if claimed else None
    with MadeSpace(attachment.keys, req.warn) as space:
        noted = note_in(space, claimed, now)
        for i in attachment.missing() if noted else ():
            allocate.give_one(space, attachment, i, STICKY if attachment.sticky else "")
        if not attachment.missing() and not attachment.sticky:
            end(space, attachment)
        state = space.state
    if not noted:
        refuse(store, attachment.keys, claimed, req.warn)
    return state


def end(space: Space, attachment: Attachment) -> None:
    """Record that the ADD has all its addresses."""
    ip_claims.all_given(space, attachment)
    allocate.note_pod(space, attachment)


def away(req: Request, attachment: Attachment, why: Away) -> CniError:
    """Return the error of an ADD that needs the store while the store is unavailable."""
    texts = []
    with MadeSpace(attachment.keys, req.warn) as space:
        for i in attachment.missing():
            plan = space.state.plan(attachment.keys.ranges[i])
            size = sum(last - first + 1 for first, last, _ in plan.parts)
            text = (f"{size} in this node's {len(plan.parts)} blocks, none of them free" if plan.parts
                    else "this node has no block of this range")
            texts.append(f"{attachment.keys.ranges[i]}: {text}")
    return CniError(TRY_AGAIN_LATER,
                    f"cannot claim addresses: the store {store_text(attachment.keys.store)} is unavailable: {why}",
                    "; ".join(texts))


# -- the node ---------------------------------------------------------------------------------------------

def ready(store: Store, keys: Keys, warn: Warn, ranges: Sequence[Range]) -> tuple[State, bool]:
    """Return (this node's State, whether the node had to join the store first). The State has the block sizes of the
    ranges' address families. Raises the exceptions of the store."""
    wanted: dict[str, int] = {}
    for one in ranges:
        wanted[one.family] = min(wanted.get(one.family, 128), one.wanted_prefix())
    state = state_of(keys, warn)
    joined = not state.node or state.boot != boot_id().decode() or state.store != key_of(keys.store)
    if joined:
        rejoin(store, keys, warn, wanted=wanted, new=not state.node)
        state = state_of(keys, warn)
    if not wanted.keys() <= state.grid.keys():
        grid = store.grid(keys.space, wanted)               # once per address space and family on this node
        with MadeSpace(keys, warn) as space:
            state = space.state.copy(grid=grid)
            space.save(state)
    return state, joined


def node_of(state: State) -> Node:
    return Node(state.node, state.epoch, state.boot)


def confirm(store: Store, keys: Keys, warn: Warn) -> None:
    """Send a heartbeat, and record the time at which the store confirmed this node. Join the store again if the node
    was declared dead or has rebooted, or if the store was restored or replaced. Raises Away."""
    with MadeSpace(keys, warn) as space:
        space.times.note_confirmed(False)
        state, other = space.state, allocate.other_store(space)
    if not state.node:
        return
    known = state.boot == boot_id().decode() and not other
    try:
        if state.boot == boot_id().decode():
            store.keep_alive(node_of(state))
    except (Fenced, Changed):
        rejoin(store, keys, warn)
        return
    now = store.history()
    suspect = (restored(state.history, now) or log_restored(state.history, store.log())
               or (known and lacks_blocks(store, keys, state)))
    if suspect or not known:
        rejoin(store, keys, warn, suspect)
        return
    with MadeSpace(keys, warn) as space:
        space.times.note_confirmed(True)
        if now[1] > space.state.history[1]:     # after a restore, the revision is lower
            space.save(space.state.copy(history=space.state.later_history(now)))
    if state.later:
        ip_claims.finish_later(store, keys, warn)


def lacks_blocks(store: Store, keys: Keys, state: State) -> bool:
    """Return whether the store lacks a block of this node, as after a restore. The revision does not always show a
    restore: it may have grown again."""
    return bool(state.blocks.keys() - {block.cidr for block in store.blocks(keys.space, keys.node)})


def confirm_once(req: Request, keys: Keys) -> None:
    """Call confirm() for an ADD. If the store is unavailable, the ADD continues with this node's blocks. Raises
    CniError 11 if the store is unavailable after a reboot, or if it is another store than before: then only the store
    knows whether the blocks are still this node's."""
    with ClaimLock(keys):
        with MadeSpace(keys, req.warn) as space:
            if not allocate.unconfirmed(space):
                return                  # while this ADD waited, another ADD asked the store
            known, other = space.times.confirmed(), allocate.other_store(space)
        try:
            confirm(store_of(req.mode, keys.store), keys, req.warn)
        except Away as e:
            if other or not known:
                since = ", which were claimed in another store" if other else " since the boot"
                raise CniError(TRY_AGAIN_LATER, f"the store {store_text(keys.store)} is unavailable: {e}",
                               f"it has not confirmed this node's blocks{since}: another node may have them") \
                    from None
            req.warn(f"the store {store_text(keys.store)} is unavailable, this node continues with its own blocks: {e}")


def rejoin(store: Store, keys: Keys, warn: Warn, suspect: bool = False, wanted: dict[str, int] | None = None,
           new: bool = False) -> Node:
    """Join the store, and compare the node's blocks in the store with the blocks in blocks.json.

    The node adopts its blocks of an earlier epoch, and claims again the blocks that a restored store has lost. The node
    gives no more addresses out of blocks that now belong to another node. If a restored store assigns a block to this
    node that blocks.json does not have, the node returns the block: another node may have claimed it after the backup,
    and has to claim it again.
    suspect: the caller has found that the store was restored, although its history() does not show that. wanted: block
    sizes by family, for which the store decides the address space's block sizes; None: {}. new: this node has no state
    of the address space yet. The caller holds the claim lock. Raises Away; Fenced or Changed if the store changes again
    during the call.
    """
    joined = store.join_space(keys.node, boot_id().decode(), keys.space, wanted or {}, new)
    me, there = joined.node, {block.cidr: block for block in joined.blocks}
    old = state_of(keys, warn)
    suspect = (suspect or joined.restored or restored(old.history, store.history())         # before this call's writes
               or log_restored(old.history, joined.log))
    if old.blocks and suspect:
        for cidr in there.keys() - old.blocks.keys() - set(old.lost):
            store.give_back(there.pop(cidr))
    mine: list[Block] = []
    lost: list[str] = []
    for cidr in sorted({*old.blocks, *there}):
        block = assert_block(store, me, keys.space, cidr, there.get(cidr))
        if block is None:
            lost.append(cidr)
        else:
            mine.append(block)
    again = ip_claims.claim_again(store, me, keys, warn, joined.grid) if suspect else []
    now = store.history()
    with MadeSpace(keys, warn) as space:
        state = space.state.copy(node=me.name, epoch=me.epoch, boot=me.boot_id, store=key_of(keys.store), history=now)
        if wanted and not wanted.keys() <= state.grid.keys():
            state.grid = joined.grid
        for block in mine:
            state.add_block(block.cidr, block.epoch, block.since)
        for cidr in lost:
            state.drop_block(cidr)
            warn(f"block {cidr} of space {keys.space} now belongs to another node: this node gives no more "
                 "addresses of the block")
        if suspect:
            state.hold = hold.begin(keys.store)
            warn(f"the store {store_text(keys.store)} was restored or replaced: this node claims no block for at least "
                 f"{hold.seconds_of(keys.store):g} s, while the nodes claim their own blocks again")
        state.later += [one for one in again if one not in state.later]
        ip_claims.note_ended(space, state, joined.ip_claims)
        space.save(state)
        space.times.note_confirmed(True)
    return me


def assert_block(store: Store, me: Node, space: str, cidr: str, block: Block | None) -> Block | None:
    """Adopt or claim the block again. Return it as this node's, or None if another node has it."""
    try:
        if block is None:
            return store.claim(me, [(space, cidr)])[0]
        return block if states.adopt(block, me) is block else store.adopt(me, block)
    except (Taken, Changed):
        return None


def held(store: Store, keys: Keys, warn: Warn, fully: bool = False) -> str:
    """Return why this node may not claim a block now, or "". If the store was restored since this node last asked the
    store, begin the pause of hold.py. fully: also compare the revision. A claim of a block needs no `fully`, because
    note_blocks() compares the revision later. Raises Away."""
    history = state_of(keys, warn).history
    if log_restored(history, store.log()) or (fully and restored(history, store.history())):
        rejoin(store, keys, warn, suspect=True)
    return hold.reason(store, keys, warn)


def check_hold(store: Store, keys: Keys, warn: Warn, joined: bool = False, fully: bool = False) -> None:
    """Raise CniError 11 while this node may claim no block, see held(). joined: the node has just joined the store, and
    would have noticed a restore. Raises Away."""
    if why := hold.reason(store, keys, warn) if joined else held(store, keys, warn, fully):
        raise CniError(TRY_AGAIN_LATER, f"no block can be claimed {why}", "each node claims its own blocks again "
                       "first, so that no address is given twice")


# -- blocks -----------------------------------------------------------------------------------------------

def claim_blocks(store: Store, me: Node, keys: Keys, ranges: Sequence[Range],
                 state: State) -> tuple[list[Block], Range | None]:
    """Claim a block for each range, either all blocks or no block. Return (blocks, None), or ([], a range that has no
    free block). Raises CniError 11 and the exceptions of the store."""
    known: set[str] = set(state.blocks)
    if not ranges:
        return [], None
    for attempt in range(MAX_TRIES):
        wanted = []
        for one in ranges:
            cidr = next(candidates(one, state.grid[one.family], f"{keys.node} {attempt}", known), "")
            if not cidr:
                return [], one
            if (keys.space, cidr) not in wanted:
                wanted.append((keys.space, cidr))
        try:
            return store.claim(me, wanted), None
        except Taken as e:
            mine = isinstance(e.by, Block) and assert_block(store, me, keys.space, e.by.cidr, e.by)
            if mine:
                return [mine], None
            known = {*state.blocks, *(block.cidr for block in store.blocks(keys.space))}
    raise CniError(TRY_AGAIN_LATER, f"other nodes took {MAX_TRIES} blocks of "
                   f"{', '.join(map(str, ranges))} before this node", "many nodes claim blocks now; try again")


def note_blocks(store: Store, keys: Keys, blocks: Sequence[Block], warn: Warn) -> None:
    """Write claimed blocks into blocks.json. If the store was restored, give the blocks back and raise CniError 11."""
    now = store.history()
    with MadeSpace(keys, warn) as space:
        noted = note_in(space, blocks, now)
    if not noted:
        refuse(store, keys, blocks, warn)


def note_in(space: Space, blocks: Sequence[Block], now: History | None) -> bool:
    """Write claimed blocks into blocks.json. Return False, and write nothing, if the store was restored. now: the
    store's history(); None: no block was claimed."""
    if not blocks or now is None:
        return True
    if restored(space.state.history, now):
        return False
    new = space.state.copy(history=space.state.later_history(now))
    for block in blocks:
        new.add_block(block.cidr, block.epoch, block.since)
    space.save(new)
    return True


def refuse(store: Store, keys: Keys, blocks: Sequence[Block], warn: Warn) -> None:
    """Give back blocks that this node has just claimed in a restored store, because another node may have had them
    before. Raises CniError 11."""
    for block in blocks:
        store.give_back(block)
    rejoin(store, keys, warn, suspect=True)
    check_hold(store, keys, warn)


def candidates(range_: Range, prefix: int, seed: str, known: set[str]) -> Iterator[str]:
    """Yield the cidrs of a range's blocks that are not in `known`. Each node (`seed`) begins at another block, so that
    nodes rarely try to claim the same block."""
    shift = range_.bits - prefix
    blocks = merged((first >> shift, last >> shift) for first, last in range_.spans)
    for number in in_turn(blocks, seed):
        cidr = cidr_text(range_.bits, number << shift, prefix)
        if cidr not in known:
            yield cidr
