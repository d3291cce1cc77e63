"""Claim single addresses in the store: addresses of tiny ranges, requested addresses in no block of this node, and
sticky addresses.

    in a shared block          claim_address(HELD), one call
    in another node's block    claim_address(ASKED); the other node's server takes the address and answers HELD or
                               REFUSED
    sticky, first time         an address as for any pod, then claim_address(HELD, sticky)
    sticky, pod comes again    the pod's attachment takes over the pod's KEPT IPClaim, whatever node claimed it

An attachment with an IPClaim also has an address file, marked "single" or "sticky", so that DEL finds the IPClaim.
State.later lists the IPClaims that the store still has to release or keep. Callers hold the claim lock. Every function
raises the exceptions of the store.
"""

from __future__ import annotations

import time

from fastcni.kernel import waiting
from fastcni.kit.ipam.address_files import is_attachment
from fastcni.kit.ipam.cluster import allocate, full
from fastcni.kit.ipam.cluster.contract import (
    ACTIVE,
    ASKED,
    HELD,
    KEPT,
    QUARANTINE,
    REFUSED,
    SHARED,
    Block,
    Changed,
    IPClaim,
    Node,
    Taken,
)
from fastcni.kit.ipam.cluster.grid import block_of, cidr_text, family_of, in_turn, read_block, to_packed
from fastcni.kit.ipam.cluster.node_state import IP_CLAIM, KEPT_OWNER, STICKY, MadeSpace, Space, kept_owner
from fastcni.spec import address
from fastcni.spec.errors import TRY_AGAIN_LATER, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.ipam.cluster.allocate import Attachment
    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.kit.ipam.cluster.contract import Store
    from fastcni.kit.ipam.cluster.grid import Range
    from fastcni.kit.ipam.cluster.node_state import State

ANSWER_S = 2.0          # how long ask() waits for another node's server
POLL_S = 0.05
SHARE_TRIES = 3         # attempts to claim an address in a block that no node has


def wanted(attachment: Attachment) -> bool:
    """Return whether the attachment lacks an address that needs no block of this node, see give()."""
    return any(attachment.asked.wanted[i] is not None or
               attachment.keys.ranges[i].is_tiny(attachment.grid[attachment.keys.ranges[i].family])
               for i in attachment.missing())


def give(req: Request, attachment: Attachment, store: Store, me: Node, exhausted: Range | None = None) -> None:
    """Claim the missing addresses that need no block of this node: requested addresses, and addresses of tiny ranges
    and of the range `exhausted`, which has no free block. Raises CniError 11."""
    for i in attachment.missing():
        one = attachment.keys.ranges[i]
        if attachment.asked.wanted[i] is not None:
            give_fixed(req, attachment, store, me, i)
        elif one is exhausted or one.is_tiny(attachment.grid[one.family]):
            give_shared(req, attachment, store, me, i)


def ip_claim_of(attachment: Attachment, packed: bytes, state: str = HELD) -> IPClaim:
    return IPClaim(space=attachment.keys.space, address=address.ip_text(packed),
                   block=block_of(packed, attachment.grid[family_of(len(packed) * 8)]), state=state,
                   container=attachment.container, ifname=attachment.ifname, pod=attachment.asked.pod,
                   network=attachment.network, since=time.time(), sticky=attachment.sticky)


def claim(store: Store, me: Node, ip_claim: IPClaim, share: bool = True) -> IPClaim:
    """Claim an address. share: if the store has no record of the block, make it SHARED. Raises Taken, whose `by` is the
    IPClaim or the Block that prevents the claim; Changed if the store does not know this node, or does not know the
    block and share is False."""
    for _ in range(SHARE_TRIES if share else 0):
        try:
            return store.claim_address(me, ip_claim)
        except Changed:
            try:
                store.share(ip_claim.space, ip_claim.block)
            except Taken:
                continue                # a node has claimed the block since
    return store.claim_address(me, ip_claim)


def take(req: Request, attachment: Attachment, i: int, ip_claim: IPClaim, store: Store, shared: bool = True) -> bool:
    """Make the address file of an IPClaim that this attachment has claimed. If another attachment has the address file,
    release the IPClaim and return False. shared: whether the block is SHARED, not another node's."""
    packed = address.read_ip(ip_claim.address)
    attachment.claimed.append(ip_claim)
    with MadeSpace(attachment.keys, req.warn) as space:
        space.files.more = attachment.more(IP_CLAIM, STICKY if attachment.sticky else "", SHARED if shared else "")
        kept = kept_owner(attachment.asked.pod, attachment.ifname)
        if space._has_owner(packed, kept):
            space.hand_over(packed, kept, attachment.owner, space.files.more)
        elif not space.take(packed, attachment.owner):
            holder = allocate.holder_text(space, packed)
            req.warn(f"{ip_claim.address}: the store gives it to this pod, but {holder}")
            attachment.claimed.remove(ip_claim)
            store.release_ip_claim(ip_claim)
            return False
        attachment.fresh.append(packed)
        attachment.taken[i] = packed
    return True


def claim_again(store: Store, me: Node, keys: Keys, warn: Callable[[str], object],
                grid: dict[str, int]) -> list[dict[str, str]]:
    """Make the IP claims of this node's pods again, because a restored store may lack them. Return the entries of
    State.later for IPClaims whose block the store lacks until the block's node has claimed the block."""
    with MadeSpace(keys, warn) as space:
        found = [one for name in space.files.names() if (one := own_ip_claim(space, name, grid))]
    return [later_of(ip_claim.address, ip_claim.container, ip_claim.ifname, HELD) for ip_claim, shared in found
            if not regain(store, me, ip_claim, shared, warn)]


def own_ip_claim(space: Space, name: str, grid: dict[str, int]) -> tuple[IPClaim, bool] | None:
    """Return (the IPClaim of the address `name`, whether its block is SHARED). None if no pod of this node has the
    address, or if the address has no IPClaim."""
    owner, (network, pod, marks) = space.files.read_owner(name) or b"", space.files.note(name)
    if (IP_CLAIM not in marks and STICKY not in marks) or not is_attachment(owner):
        return None
    container, _, ifname = owner.decode("utf-8", "replace").partition("\r\n")
    packed = address.read_ip(name)
    block = block_of(packed, grid[family_of(len(packed) * 8)])
    return IPClaim(space=space.keys.space, address=name, block=block, state=HELD, container=container, ifname=ifname,
                   pod=pod, network=network, since=time.time(), sticky=STICKY in marks), SHARED in marks


def regain(store: Store, me: Node, ip_claim: IPClaim, shared: bool, warn: Callable[[str], object]) -> bool:
    """Make an IP claim again, or ask the node that has its block, whose server answers later. Warn if another pod has
    the address now. shared: whether the block is SHARED. Return False if the store lacks the block."""
    try:
        claim(store, me, ip_claim, share=shared)
    except Taken as e:
        if isinstance(e.by, Block) and e.by.state == ACTIVE and e.by.node != me.name and ip_claim.state == HELD:
            return regain(store, me, ip_claim.copy(state=ASKED), False, warn)
        if isinstance(e.by, IPClaim) and e.by.node == me.name:      # of a pod from before the backup
            store.change_ip_claim(e.by, container=ip_claim.container, ifname=ip_claim.ifname, pod=ip_claim.pod,
                                  network=ip_claim.network, since=ip_claim.since, sticky=ip_claim.sticky,
                                  state=HELD, epoch=me.epoch)
        else:
            warn(f"{ip_claim.address} has two pods since the store was restored: container {ip_claim.container} of "
                 f"this node, and {claim_text(e.by)}")
    except Changed:
        return False
    return True


# -- fixed addresses --------------------------------------------------------------------------------------

def give_fixed(req: Request, attachment: Attachment, store: Store, me: Node, i: int) -> None:
    """Claim the requested address of range `i`, which is in no block of this node. Raises CniError 11."""
    packed = attachment.asked.wanted[i]
    assert packed is not None
    ip_claim = ip_claim_of(attachment, packed)
    intend(req, attachment, ip_claim.address)
    try:
        got, shared = claim(store, me, ip_claim), True
    except Taken as e:
        if isinstance(e.by, IPClaim) or e.by.state != ACTIVE:
            raise allocate.unavailable(ip_claim.address, claim_text(e.by)) from None
        got, shared = ask(store, me, ip_claim, e.by), False
    if not take(req, attachment, i, got, store, shared):
        raise allocate.unavailable(ip_claim.address, "another pod has the address file on this node")


def ask(store: Store, me: Node, ip_claim: IPClaim, block: Block) -> IPClaim:
    """Ask the node that owns `block` for the address of `ip_claim`, and wait for the answer. Raises CniError 11."""
    ip_claim.state = ASKED
    try:
        got = store.claim_address(me, ip_claim)
    except Taken as e:
        raise allocate.unavailable(ip_claim.address, claim_text(e.by)) from None
    answer: IPClaim | None = got
    deadline = time.monotonic() + ANSWER_S
    while answer is not None and answer.state == ASKED and time.monotonic() < deadline:
        waiting.readable(-1, POLL_S, waiting.LOCK)
        answer = store.ip_claim(ip_claim.space, ip_claim.address)
    if answer is not None and answer.state == HELD:
        return answer
    if answer is not None:
        store.release_ip_claim(answer)
    if answer is not None and answer.state == REFUSED:
        raise allocate.unavailable(ip_claim.address, answer.reason or f'node "{block.node}" refuses this address')
    raise allocate.unavailable(ip_claim.address, f'asked node "{block.node}", which has the block {block.cidr}; '
                      "its server does not answer", f"is `fastcni serve` running on {block.node}?")


def claim_text(ip_claim: Any) -> str:
    """Return text about the IPClaim or Block that prevents a claim: 'pod ns/p (container c1 eth0) on node "a" has it
    since 2026-01-01 12:00:00 UTC'."""
    if isinstance(ip_claim, Block) and ip_claim.state == QUARANTINE:
        return f"its block {ip_claim.cidr} is in quarantine, node {ip_claim.node} is dead"
    if isinstance(ip_claim, Block):
        return f'its block {ip_claim.cidr} is of node "{ip_claim.node}" ({ip_claim.state})'
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ip_claim.since or 0))
    who = f"container {ip_claim.container} {ip_claim.ifname}"
    if ip_claim.state == KEPT:
        return f'it is kept for pod {ip_claim.pod}, which had it on node "{ip_claim.node}" since {when}'
    if ip_claim.pod:
        who = f"pod {ip_claim.pod} ({who})"
    return f'{who} on node "{ip_claim.node}" has it since {when}'


# -- any address of a shared block -------------------------------------------------------------------------

def give_shared(req: Request, attachment: Attachment, store: Store, me: Node, i: int) -> None:
    """Claim any free address of range `i` in a SHARED block. The blocks of a tiny range become SHARED. Raises CniError
    11 if no address is free."""
    one = attachment.keys.ranges[i]
    prefix = attachment.grid[one.family]
    tiny = one.is_tiny(prefix)
    if tiny:
        first, last = one.blocks(prefix)
        cidrs = [cidr_text(one.bits, n << one.bits - prefix, prefix) for n in range(first, last + 1)]
    else:
        cidrs = [block.cidr for block in store.blocks(attachment.keys.space) if block.state == SHARED]
    taken: set[bytes] | None = None
    for cidr in cidrs:
        spans = list(one.inside(*read_block(cidr)[1:])) if read_block(cidr)[0] == one.bits else []
        # Each pod begins at another address, so that a released address is not given again immediately.
        for number in in_turn(spans, f"{attachment.container} {attachment.ifname}"):
            packed = to_packed(one.bits, number)
            if (taken is not None and packed in taken) or is_held(req, attachment, packed):
                continue
            intend(req, attachment, address.ip_text(packed))
            try:
                if take(req, attachment, i, claim(store, me, ip_claim_of(attachment, packed), share=tiny), store):
                    return
            except Taken as e:
                if isinstance(e.by, Block):
                    break               # a node owns the block
            if taken is None:
                taken = {address.read_ip(other.address) for other in store.ip_claims(attachment.keys.space)}
    raise full.error(store, attachment.keys, one)


def is_held(req: Request, attachment: Attachment, packed: bytes) -> bool:
    with Space(attachment.keys, req.warn) as space:
        return space is not None and bool(space.index.is_held(packed))


# -- sticky addresses -------------------------------------------------------------------------------------

def give_sticky(req: Request, attachment: Attachment, store: Store, me: Node) -> None:
    """Give a pod its sticky addresses of earlier sandboxes. Raises CniError 11 if a sandbox on another node still holds
    one of them."""
    known = [one for one in store.ip_claims(attachment.keys.space, pod=attachment.asked.pod)
             if one.ifname == attachment.ifname and one.state in (HELD, KEPT)]
    for i in attachment.missing():
        one = attachment.keys.ranges[i]
        for ip_claim in known:
            packed = address.read_ip(ip_claim.address)
            if not one.contains(packed) or attachment.asked.wanted[i] not in (None, packed):
                continue
            if ip_claim.state == HELD and ip_claim.node != me.name:
                raise CniError(TRY_AGAIN_LATER, f"sticky address of pod {attachment.asked.pod}: {claim_text(ip_claim)}",
                               "this node can claim the address after DEL of the pod on that node, or after "
                               "`fastcni ipam forget-node`")
            known.remove(ip_claim)
            intend(req, attachment, ip_claim.address, KEPT)
            if ip_claim.state == KEPT:
                got = store.claim_address(me, ip_claim_of(attachment, packed))
            else:
                got = store.change_ip_claim(ip_claim, container=attachment.container, network=attachment.network,
                                            since=time.time(), sticky=True, epoch=me.epoch)
            attachment.kept.append((ip_claim, got))
            take_sticky(req, attachment, i, packed, ip_claim)
            break


def take_sticky(req: Request, attachment: Attachment, i: int, packed: bytes, before: IPClaim) -> None:
    """Make this attachment the owner of a sticky address's file. Until now, the pod's previous sandbox owns the file,
    or the file does not exist on this node. before: the IPClaim before this attachment took it over."""
    with MadeSpace(attachment.keys, req.warn) as space:
        own = space.state.own_block(packed) is not None
        more = attachment.more("" if own else IP_CLAIM, STICKY)
        for owner in (kept_owner(attachment.asked.pod, attachment.ifname),
                      f"{before.container}\r\n{before.ifname}".encode()):
            if owner != attachment.owner and space._has_owner(packed, owner):
                space.hand_over(packed, owner, attachment.owner, more)
                break
        else:
            if not space._has_owner(packed, attachment.owner):
                allocate.take_fixed(space, attachment, packed, "" if own else IP_CLAIM, STICKY)
        attachment.fresh.append(packed)
        attachment.taken[i] = packed


def hold_sticky(req: Request, attachment: Attachment, store: Store, me: Node) -> None:
    """Make an IP claim for each sticky address that came out of this node's blocks. Raises CniError 11 if another pod
    has an IP claim of the address."""
    known = {ip_claim.address for ip_claim in attachment.claimed} | {after.address for _, after in attachment.kept}
    for packed in attachment.taken:
        if packed is None or address.ip_text(packed) in known:
            continue
        try:
            attachment.claimed.append(store.claim_address(me, ip_claim_of(attachment, packed)))
        except Taken as e:
            raise allocate.unavailable(address.ip_text(packed), claim_text(e.by)) from None


# -- IP claims without a pod ----------------------------------------------------------------------------------

def intend(req: Request, attachment: Attachment, name: str, to: str = "") -> None:
    """Add an address to State.later before claiming it, so that the store releases (or keeps) it if this ADD does not
    finish. When the ADD has all addresses, all_given() removes the entry."""
    with MadeSpace(attachment.keys, req.warn) as space:
        note_later(space, [later_of(name, attachment.container, attachment.ifname, to)])


def later_of(name: str, container: str, ifname: str, to: str) -> dict[str, str]:
    return {"address": name, "container": container, "ifname": ifname, "to": to}


def note_later(space: Space, entries: Iterable[dict[str, str]]) -> None:
    """Add `entries` to State.later, without duplicates."""
    later = space.state.later
    if new := [one for one in entries if one not in later]:
        space.save(space.state.copy(later=later + new))


def all_given(space: Space, attachment: Attachment) -> None:
    """Remove the entries that intend() added for this attachment."""
    later = [one for one in space.state.later
             if (one["container"], one["ifname"]) != (attachment.container, attachment.ifname)]
    if later != space.state.later:
        space.save(space.state.copy(later=later))


def take_back(req: Request, attachment: Attachment, store: Store) -> None:
    """Roll back an ADD, whose address files are already removed. Restore the IPClaims that the ADD took over. Add the
    IP claims that the ADD made to State.later, for finish_later()."""
    with MadeSpace(attachment.keys, req.warn) as space:
        note_later(space,
                   [later_of(one.address, attachment.container, attachment.ifname, "") for one in attachment.claimed])
    for before, after in attachment.kept:
        try:
            store.change_ip_claim(after, **{name: getattr(before, name) for name in (
                "state", "container", "network", "since", "node", "epoch")})
        except Changed:
            continue                    # another attachment has the IPClaim now


def finish_later(store: Store, keys: Keys, warn: Callable[[str], object], but: Attachment | None = None) -> None:
    """Release or keep the IPClaims of State.later, which belong to deleted pods and failed ADDs, or claim them again.
    but: the attachment of the running ADD, whose IPClaims stay; None: no ADD runs."""
    with Space(keys, warn) as space:
        if space is None or not space.state.later:
            return
        later = [one for one in space.state.later
                 if but is None or (one["container"], one["ifname"]) != (but.container, but.ifname)]
    done = [one for one in later if finish_one(store, keys, warn, one)]
    with Space(keys, warn) as space:
        if space is not None and done:
            space.save(space.state.copy(later=[one for one in space.state.later if one not in done]))


def finish_one(store: Store, keys: Keys, warn: Callable[[str], object], left: dict[str, str]) -> bool:
    """Release or keep the IPClaim of `left`, an entry of State.later, or claim it again. Return False if the IPClaim
    changed during the call, or if the store lacks its block: the caller tries again later."""
    if left["to"] == HELD:
        with MadeSpace(keys, warn) as space:
            own, state = own_ip_claim(space, left["address"], space.state.grid), space.state
        return own is None or regain(store, Node(state.node, state.epoch, state.boot), *own, warn)
    ip_claim = store.ip_claim(keys.space, left["address"])
    if ip_claim is None:
        with Space(keys, warn) as space:
            if space is not None:
                forget_kept(space, left["address"])
        return True
    if (ip_claim.container, ip_claim.ifname) != (left["container"], left["ifname"]):
        return True                     # another pod has the address, on this or another node
    if not left["to"]:
        return store.release_ip_claim(ip_claim)
    try:
        if ip_claim.state != KEPT:
            store.change_ip_claim(ip_claim, state=KEPT)
    except Changed:
        return False
    return True


def forget_kept(space: Space, name: str) -> bool:
    """Free an address that this node reserves for an IPClaim that no longer exists. Return whether the address was
    reserved."""
    owner = space.files.read_owner(name) or b""
    if not owner.startswith(KEPT_OWNER.encode()):
        return False
    space.drop_file(address.read_ip(name), owner)
    return True


def note_ended(space: Space, state: State, held: Iterable[IPClaim]) -> None:
    """Add to State.later the IPClaims of this node whose pods no longer exist, as after a reboot. Their addresses have
    no file with the IPClaim's owner."""
    known = {(one["address"], one["container"]) for one in state.later}
    for ip_claim in held:
        owner = f"{ip_claim.container}\r\n{ip_claim.ifname}".encode()
        if ip_claim.state == HELD and (ip_claim.address, ip_claim.container) not in known and \
                not space._has_owner(address.read_ip(ip_claim.address), owner):
            state.later.append(later_of(ip_claim.address, ip_claim.container, ip_claim.ifname,
                                        KEPT if ip_claim.sticky else ""))

