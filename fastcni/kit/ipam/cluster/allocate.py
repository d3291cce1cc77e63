"""Give pods addresses of this node's own blocks, without a remote call. claims.py claims further blocks.

A pod gets the free address that was released longest ago. An address that is still cooling down is given only if the
node's blocks have no other free address. A function with an argument `space` must be called inside `with` of that
Space, which holds the lock.
"""

from __future__ import annotations

import posix

from fastcni.kit.ipam.address_files import owner_of, owner_text
from fastcni.kit.ipam.cluster.grid import to_int, to_packed
from fastcni.kit.ipam.cluster.node_state import KEPT_OWNER, MadeSpace, Space, more_lines
from fastcni.kit.ipam.cluster.released import HELD, boottime
from fastcni.kit.ipam.cluster.stores import same_store
from fastcni.spec import address
from fastcni.spec.errors import INTERNAL, INVALID_CONFIG, TRY_AGAIN_LATER, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kit.call.request import Request
    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.kit.ipam.cluster.contract import IPClaim
    from fastcni.kit.ipam.cluster.grid import Own, Plan, Range
    from fastcni.kit.ipam.cluster.requested import Requested

CONFIRM_S = 300.0       # if the store's last confirmation is older, an ADD asks the store again
TRY_S = 20.0            # seconds between two requests for a confirmation
MAX_RACES = 100         # attempts to take an address, while another program creates address files without the lock


class Attachment:
    """The attachment of an ADD, DEL or CHECK, and the addresses that an ADD has been given.

    keys, asked     see conf.py and requested.py
    container, ifname, netns, network, owner   the attachment's; owner: the first two lines of its address files
    grid            the prefix length of blocks, by family; set before this ADD claims addresses
    taken           for each range the packed address that the ADD has been given, or None
    fresh           the addresses of `taken` that were free before this ADD: the rollback releases them
    handed          [(packed, previous owner, that owner's lines)]: addresses that this ADD took over from another
                    sandbox of the pod; the rollback gives them back to that sandbox
    confirmed       whether this ADD has asked the store to confirm this node
    claimed         the IP claims that this ADD has made
    kept            [(before, after)]: the IP claims that this ADD took over
    """

    __slots__ = ("asked", "claimed", "confirmed", "container", "fresh", "grid", "handed", "ifname", "kept", "keys",
                 "netns", "network", "owner", "taken")
    asked: Requested

    def __init__(self, req: Request, keys: Keys) -> None:
        self.keys, self.network = keys, req.name
        self.container, self.ifname, self.netns = req.container_id, req.ifname, req.netns
        self.owner = owner_of(req.container_id, req.ifname)
        self.grid: dict[str, int] = {}
        self.taken: list[bytes | None] = []
        self.fresh: list[bytes] = []
        self.handed: list[tuple[bytes, bytes, bytes]] = []
        self.confirmed = False
        self.claimed: list[IPClaim] = []
        self.kept: list[tuple[IPClaim, IPClaim]] = []

    @property
    def sticky(self) -> bool:
        return self.keys.sticky and bool(self.asked.pod)

    def more(self, *marks: str) -> bytes:
        """Return the lines that follow the owner in the attachment's address files."""
        return more_lines(self.network, self.asked.pod, " ".join(mark for mark in marks if mark), self.netns)

    def missing(self) -> list[int]:
        return [i for i, packed in enumerate(self.taken) if packed is None]

    def missing_ranges(self) -> list[Range]:
        return [self.keys.ranges[i] for i in self.missing()]


def give(req: Request, attachment: Attachment) -> str:
    """Give addresses of this node's blocks. Return "" if the attachment has all addresses, else the step that
    ask_store() has to do next: "confirm" or "claim". Raises CniError: 11 for a requested address that another pod has,
    7 for a directory of another node."""
    if attachment.taken and None not in attachment.taken:
        return ""                       # claims.provide() has given the missing addresses
    with MadeSpace(attachment.keys, req.warn) as space:
        if not attachment.confirmed and unconfirmed(space):
            attachment.confirmed = True         # ask only once, even if the store is unavailable
            return "confirm"
        check_loss(space)
        if not attachment.taken:
            attachment.taken = [None] * len(attachment.keys.ranges)
            give_again(space, attachment)
        if not attachment.sticky:               # the store may have the pod's sticky address, given by any node
            for i in attachment.missing():
                give_one(space, attachment, i)
        if None in attachment.taken:
            return "claim"
        note_pod(space, attachment)
    return ""


def unconfirmed(space: Space) -> bool:
    """Return whether this node has to ask the store now whether its epoch and blocks are unchanged. Raises CniError
    7."""
    state, keys = space.state, space.keys
    if state.node and state.node != keys.node:
        raise CniError(INVALID_CONFIG, f'{space.files.path} is the state of node "{state.node}", and this node is '
                       f'"{keys.node}"', "was it renamed? ipam.node_name can give it its old name")
    if not state.node:
        return False                    # this node has no block to confirm
    if other_store(space):
        return True                     # in that other store, these blocks may be another node's
    now, confirmed = boottime(), space.times.confirmed()
    if not confirmed:
        return True                     # while this node was down, its blocks may have gone to other nodes
    if now - confirmed < CONFIRM_S:
        return False
    tried = space.times.tried()
    return not tried or now - tried >= TRY_S


def other_store(space: Space) -> bool:
    """Return whether the configuration names another store than the store in which this node has claimed its blocks."""
    return space.state.store != space.keys.store_key and not same_store(space.state.store, space.keys.store)


def check_loss(space: Space) -> None:
    """Raise CniError 11 if this node has not reached the store for serve_after_loss seconds, after which it must not
    give addresses."""
    limit = space.keys.serve_after_loss
    if limit and space.state.node and boottime() - space.times.confirmed() > limit:
        raise CniError(TRY_AGAIN_LATER, f"the store has not confirmed this node for more than {limit} s",
                       "ipam.serve_after_loss is the limit; is the store reachable?")


# -- addresses that the pod already has --------------------------------------------------------------------

def give_again(space: Space, attachment: Attachment) -> None:
    """Give the attachment the addresses that it has from an earlier ADD, or that another sandbox of the same pod
    has."""
    held = space.addresses_of(attachment.owner)
    if not held and attachment.asked.pod:
        held = take_from_sandbox(space, attachment)
    if not held:
        return
    for i, one in enumerate(attachment.keys.ranges):
        wanted = attachment.asked.wanted[i]
        packed = next((p for p in held if one.contains(p) and one.has(to_int(p))), None)
        if packed is None:
            continue
        if wanted not in (None, packed):
            raise CniError(INTERNAL, f"{address.ip_text(packed)} has been allocated to {attachment.container}, and "
                           f"{address.ip_text(wanted)} is requested now")
        held.remove(packed)
        attachment.taken[i] = packed
        if not attachment.handed:
            note_netns(space, attachment, packed)


def note_netns(space: Space, attachment: Attachment, packed: bytes) -> None:
    """Record the network namespace of a repeated ADD, which may differ from the first ADD's. The server checks the
    recorded namespace to learn whether the pod exists."""
    name = address.ip_text(packed)
    if attachment.netns and space.files.netns(name) != attachment.netns:
        network, pod, marks = space.files.note(name)
        space.hand_over(packed, attachment.owner, attachment.owner, more_lines(network, pod, marks, attachment.netns))


def take_from_sandbox(space: Space, attachment: Attachment) -> list[bytes]:
    """Take over the addresses of the pod's previous sandbox: same pod, network and interface name, another container.
    Addresses outside of this node's blocks stay with that sandbox. If the pod requests addresses, take over only these.
    Return the addresses, packed."""
    found = []
    wanted = [packed for packed in attachment.asked.wanted if packed is not None]
    for packed in space.addresses_of_pod(attachment.asked.pod, attachment.ifname):
        if space.state.own_block(packed) is None or (wanted and packed not in wanted):
            continue
        name = address.ip_text(packed)
        owner = space.files.read_owner(name) or b""
        network, pod, marks = space.files.note(name)
        container, _, ifname = owner.decode("utf-8", "replace").partition("\r\n")
        if (network, pod, ifname) == (attachment.network, attachment.asked.pod, attachment.ifname) and not marks and \
                not container.startswith(KEPT_OWNER):
            attachment.handed.append((packed, owner, more_lines(network, pod, marks)))
            space.hand_over(packed, owner, attachment.owner, attachment.more())
            found.append(packed)
    return found


def note_pod(space: Space, attachment: Attachment) -> None:
    if attachment.asked.pod and (attachment.fresh or attachment.handed):
        space.note_pod(attachment.asked.pod, attachment.ifname, [packed for packed in attachment.taken if packed])


# -- giving -----------------------------------------------------------------------------------------------

def give_one(space: Space, attachment: Attachment, i: int, mark: str = "") -> None:
    """Give an address of range `i` out of this node's blocks: the requested address, or the next free one if any.
    Raises CniError 11 if another pod has the requested address."""
    one, wanted = attachment.keys.ranges[i], attachment.asked.wanted[i]
    if wanted is not None:
        if space.state.own_block(wanted) is None:
            return
        take_fixed(space, attachment, wanted, mark)
        packed: bytes | None = wanted
    else:
        space.files.more = attachment.more(mark)
        packed = take_next(space, one, attachment.owner)
    if packed is not None:
        attachment.fresh.append(packed)
        attachment.taken[i] = packed


def take_fixed(space: Space, attachment: Attachment, packed: bytes, *marks: str) -> None:
    """Take the address `packed` for the attachment. If another pod has it, raises CniError 11, which names that pod."""
    space.files.more = attachment.more(*marks)
    if not space.take(packed, attachment.owner):
        raise unavailable(address.ip_text(packed), holder_text(space, packed))
    if own := space.state.own_block(packed):
        space.times.give(own.place(packed))


def unavailable(name: str, why: str, details: str = "delete that pod, or request another address") -> CniError:
    return CniError(TRY_AGAIN_LATER, f"requested IP address {name} is not available: {why}", details)


def holder_text(space: Space, packed: bytes) -> str:
    """Return who has an address of this node: 'pod ns/name (container c1, eth0) on node "a" has it since 2026-01-01
    ...'."""
    import time

    name = address.ip_text(packed)
    owner = space.files.read_owner(name) or b""
    _, pod, _ = space.files.note(name)
    try:
        since = posix.stat(name, dir_fd=space.files.fd).st_mtime
    except OSError:
        since = time.time()
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(since))
    who = f"pod {pod} (container {owner_text(owner)})" if pod else f"container {owner_text(owner)}"
    if owner.startswith(KEPT_OWNER.encode()):
        who = f"an address kept for pod {pod or owner_text(owner)}"
    return f'{who} on node "{space.keys.node}" has it since {when}'


def take_next(space: Space, range_: Range, owner: bytes) -> bytes | None:
    """Take the next free address of a range in this node's blocks. Return it packed, or None if no address is free."""
    for _ in range(MAX_RACES):
        if (found := next_address(space, range_)) is None:
            return None
        packed, place = found
        space.times.give(place)
        if space.take(packed, owner):
            return packed               # if take() fails, the index now shows the address's owner
    return None


def next_address(space: Space, range_: Range) -> tuple[bytes, int] | None:
    """Return a free address of a range in this node's blocks, packed, and its place in the table of released addresses.
    None: no address is free."""
    plan = space.state.plan(range_)
    for first, last in plan.spans:
        packed: bytes | None = space.index.next_free(first, last)
        if packed is not None:
            own = space.state.own_block(packed)
            assert own is not None      # a Plan contains only this node's blocks
            return oldest(space, plan, own) or (packed, own.place(packed))
    return None


def oldest(space: Space, plan: Plan, own: Own) -> tuple[bytes, int] | None:
    """Return the free address that was released longest ago, and its place in the table of released addresses.

    The search begins in the block `own`, and ends with the first block that has a free address whose cool-down is over.
    None: the table records all these addresses as held by pods.
    """
    least, found, warm = HELD, None, boottime() - space.keys.cool_down
    start = plan.starts[own.at]
    for first, last, place in plan.parts[start:]:
        times = space.times.read(place, last - first + 1)
        if (older := space.index.oldest_free(to_packed(own.bits, first), times, least)) is not None:
            least, i = older
            found = to_packed(own.bits, first + i), place + i
        if least <= warm:
            break
    return found


# -- taking back ------------------------------------------------------------------------------------------

def take_back(req: Request, attachment: Attachment) -> None:
    """Roll back an ADD: release the addresses in `fresh`, and give the addresses in `handed` back to the other
    sandbox."""
    if not attachment.fresh and not attachment.handed:
        return
    with Space(attachment.keys, req.warn) as space:
        if space is None:
            return
        for packed in attachment.fresh:
            if space._has_owner(packed, attachment.owner):
                space.drop_file(packed, attachment.owner)
        for packed, owner, more in attachment.handed:
            if space._has_owner(packed, attachment.owner):
                space.hand_over(packed, attachment.owner, owner, more)

