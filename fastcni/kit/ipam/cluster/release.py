"""Do DEL, GC, CHECK, STATUS and the rollback of ADD for cluster-wide addresses."""

from __future__ import annotations

from fastcni.clients.errors import Away
from fastcni.kit.ipam.address_files import owner_of
from fastcni.kit.ipam.cluster import allocate
from fastcni.kit.ipam.cluster.grid import to_int
from fastcni.kit.ipam.cluster.node_state import Space
from fastcni.spec import address
from fastcni.spec.errors import (
    LIMITED_CONNECTIVITY,
    PLUGIN_NOT_AVAILABLE,
    TRY_AGAIN_LATER,
    CniError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kit.call.request import Request
    from fastcni.kit.ipam.cluster.allocate import Attachment


def ask_store(req: Request, attachment: Attachment, what: str) -> None:
    """Do the step `what` that allocate.give() has returned: "confirm" this node in the store, or "claim" addresses."""
    from fastcni.kit.ipam.cluster import claims  # imported here, because few requests ask the store

    if what == "confirm":
        claims.confirm_once(req, attachment.keys)
    else:
        claims.provide(req, attachment)


def take_back(req: Request, attachment: Attachment) -> None:
    """Roll back an ADD: release its addresses and its IPClaims."""
    allocate.take_back(req, attachment)
    if attachment.confirmed or attachment.missing() or attachment.claimed or attachment.kept:
        from fastcni.kit.ipam.cluster import ip_claims, stores

        try:
            ip_claims.take_back(req, attachment, stores.store_of(req.mode, attachment.keys.store))
        except Away as e:
            req.warn(f"sticky addresses are released in the store later: {e}")
        finish(req, attachment)


def release_attachment(req: Request, attachment: Attachment) -> None:
    """DEL: release the attachment's addresses. Raises CniError 5 if an unreadable address file may belong to the
    attachment."""
    with Space(attachment.keys, req.warn) as space:
        if space is None:
            return
        released, pods = [], set()
        for packed in space.index.addresses_of(attachment.owner):
            if space.release(packed, attachment.owner):
                released.append(packed)
                pods.add(space.files.note(address.ip_text(packed))[1])
        for pod in pods - {""}:
            if set(space.addresses_of_pod(pod, attachment.ifname)) <= set(released):
                space.forget_pod(pod, attachment.ifname)
        if not released:
            space.check_all_read()
        later = bool(space.state.later)
    req.mode.note_space(attachment.keys, released)
    if later:
        finish(req, attachment)


def finish(req: Request, attachment: Attachment) -> None:
    """Release or keep the IPClaims of State.later in the store. If that fails, they stay in State.later."""
    from fastcni.kit.ipam.cluster import claims, ip_claims, stores

    try:
        with claims.ClaimLock(attachment.keys):
            ip_claims.finish_later(stores.store_of(req.mode, attachment.keys.store), attachment.keys, req.warn)
    except (Away, CniError) as e:
        req.warn(f"single addresses are released in the store later: {e}")


def missing(req: Request, attachment: Attachment) -> list[str]:
    """CHECK: return the ranges in which the attachment has no address, as text. Raises CniError 5."""
    with Space(attachment.keys, req.warn, release_former=False) as space:
        if space is None:
            return [str(one) for one in attachment.keys.ranges]
        held = space.addresses_of(attachment.owner)
        found = []
        for one in attachment.keys.ranges:
            packed = next((p for p in held if one.contains(p)), None)
            if packed is None:
                found.append(str(one))
            else:
                held.remove(packed)
        if found:
            space.check_all_read()
        return found


def collect(req: Request, attachment: Attachment) -> None:
    """GC: release the addresses of this network that belong to no valid attachment, and remove half-written address
    files."""
    from fastcni.kit.ipam import allocation  # imported here, because other requests do not need it

    valid = {owner_of(*pair) for pair in req.valid_attachments}
    with Space(attachment.keys, req.warn) as space:
        if space is None:
            return
        files = space.files
        gone = allocation.collect(req, space, lambda packed, owner: owner not in valid and files.note(
            address.ip_text(packed))[0] in ("", req.name))
        later = bool(space.state.later)
    req.mode.note_space(attachment.keys, gone)
    if later:
        finish(req, attachment)


def report(req: Request, attachment: Attachment) -> None:
    """STATUS: raise CniError 50 if this node can give no address, 51 if the store is unavailable but this node still
    has free addresses. Changes nothing on this node."""
    from fastcni.kit.ipam.cluster import stores

    try:
        with Space(attachment.keys, req.warn, release_former=False) as space:
            left = [space is not None and has_free(space, one) for one in attachment.keys.ranges]
    except CniError as e:
        if e.code != TRY_AGAIN_LATER:
            raise CniError(PLUGIN_NOT_AVAILABLE, e.msg, e.details) from None
        req.warn(e.msg)
        return
    store = stores.store_of(req.mode, attachment.keys.store)
    try:
        store.nodes()
    except Away as e:
        text = f"the store {stores.store_text(attachment.keys.store)} is unavailable: {e}"
        if left and all(left):
            raise CniError(LIMITED_CONNECTIVITY, text, "this node's blocks still have free addresses") from None
        raise CniError(PLUGIN_NOT_AVAILABLE, text, "a range has no free address in this node's blocks") from None
    except ImportError as e:
        raise CniError(PLUGIN_NOT_AVAILABLE,
                       f"the store {stores.store_text(attachment.keys.store)} needs a package: {e}",
                       "pip install fastcni[cluster]") from None
    for i, free in enumerate(left):
        if not free:
            check_room(req, attachment, i)


def has_free(space: Space, range_: allocate.Range) -> bool:
    return any(space.index.next_free(*span) is not None for span in space.state.plan(range_).spans)


def check_room(req: Request, attachment: Attachment, i: int) -> None:
    """Raise CniError 50 if range `i` has no free block in the store. The caller knows that this node has no free
    address of the range."""
    from fastcni.kit.ipam.cluster import claims, full, stores

    store, one = stores.store_of(req.mode, attachment.keys.store), attachment.keys.ranges[i]
    prefix = store.grid(attachment.keys.space, {}).get(one.family, one.wanted_prefix())
    if one.is_tiny(prefix):
        held = sum(one.has(to_int(packed)) for ip_claim in store.ip_claims(attachment.keys.space)
                   if len(packed := address.read_ip(ip_claim.address)) * 8 == one.bits)
        room = held < one.size()
    else:
        known = {block.cidr for block in store.blocks(attachment.keys.space)}
        room = next(claims.candidates(one, prefix, attachment.keys.node, known), None) is not None
    if not room:
        e = full.error(store, attachment.keys, one)
        raise CniError(PLUGIN_NOT_AVAILABLE, e.msg, e.details)


