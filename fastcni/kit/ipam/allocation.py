"""Allocate addresses of range sets in a Store, and release them. All functions but assign_requested() need an open
Store, which holds the lock."""

from __future__ import annotations

from fastcni.kit.ipam.address_files import is_attachment, owner_text
from fastcni.kit.ipam.ranges import find_range, search_order, set_text
from fastcni.spec import address
from fastcni.spec.errors import INTERNAL, INVALID_CONFIG, TRY_AGAIN_LATER, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fastcni.kit.call.request import Request
    from fastcni.kit.ipam.ranges import RangeSet
    from fastcni.kit.ipam.store import Store


def assign_requested(range_sets: Sequence[RangeSet], requested: Iterable[bytes]) -> list[bytes | None]:
    """Return for each set its requested address, packed, or None. Raises CniError 7 for a gateway, for an address in no
    set, and for a second address in the same set."""
    left = list(requested)
    if not left:
        return [None] * len(range_sets)
    wanted = []
    for i, range_set in enumerate(range_sets):
        packed = next((p for p in left if find_range(range_set, p)), None)
        wanted.append(packed)
        if packed is None:
            continue
        left.remove(packed)
        if any(packed == one.gateway for one in range_set if one.contains(packed)):
            raise CniError(INVALID_CONFIG, f"failed to allocate for range {i}: "
                           f"requested ip {address.ip_text(packed)} is subnet's gateway")
    if left:
        texts = " ".join(address.ip_text(packed) for packed in left)
        ranges = "; ".join(set_text(range_set) for range_set in range_sets)
        raise CniError(INVALID_CONFIG, f"failed to allocate all requested IPs: {texts}",
                       f"each of the sets {ranges} gives one address")
    return wanted


def allocate(store: Store, number: int, range_set: RangeSet, wanted: bytes | None, owner: bytes) -> bytes:
    """Allocate an address of set `number` to `owner`: `wanted`, or the next free address. Return the packed address.
    Raises CniError 11 if no address is free, 999 if the owner already has an address of the set."""
    try:
        return _allocate(store, number, range_set, wanted, owner)
    except CniError as e:
        raise CniError(e.code, f"failed to allocate for range {number}: {e.msg}", e.details) from None


def _allocate(store: Store, number: int, range_set: RangeSet, wanted: bytes | None, owner: bytes) -> bytes:
    for held in store.addresses_of(owner):
        if find_range(range_set, held):
            container_id = owner.partition(b"\r\n")[0].decode()
            raise CniError(INTERNAL, f"{address.ip_text(held)} has been allocated to {container_id}, "
                           "duplicate allocation is not allowed")
    if wanted is None:
        packed = _take_next(store, number, range_set, owner)
        if packed is None and store.recheck():
            packed = _take_next(store, number, range_set, owner)
        if packed is None:
            raise CniError(TRY_AGAIN_LATER, f"no IP addresses available in range set: {set_text(range_set)}",
                           usage(store, range_set))
        wanted = packed
    elif not store.take(wanted, owner):
        raise CniError(TRY_AGAIN_LATER, f"requested IP address {address.ip_text(wanted)} is not available in "
                       f"range set {set_text(range_set)}")
    store.files.write_cursor(number, wanted)
    return wanted


def _take_next(store: Store, number: int, range_set: RangeSet, owner: bytes) -> bytes | None:
    for first, last, gateway in search_order(range_set, store.files.read_cursor(number)):
        while (packed := store.index.next_free(first, last, gateway)) is not None:
            if store.take(packed, owner):
                return packed
            # Another program has given the address to another pod. take() has recorded this owner in the index.
    return None


def release_all(store: Store, owner: bytes) -> list[tuple[bytes, bytes]]:
    """Release all addresses of `owner`, see release_each()."""
    return release_each(store, [(packed, owner) for packed in store.index.addresses_of(owner)])


def release_each(store: Store, held: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Release the addresses of (packed, owner) pairs; after an error, go on with the next pair. Return the pairs that
    were held. At the end, raises one CniError with the text of all errors."""
    released, failures = [], []
    for packed, owner in held:
        try:
            if store.release(packed, owner):
                released.append((packed, owner))
        except CniError as e:
            failures.append(e)
    if failures:
        raise CniError(failures[0].code, ";".join(e.msg for e in failures), failures[0].details)
    return released


def collect(req: Request, store: Store, is_stale: Callable[[bytes, bytes], bool]) -> list[bytes]:
    """For GC: remove torn files, and release the addresses for which is_stale(packed, owner) is true. Report to `req`
    each released address, also those of the previous boot. Return the released addresses, packed. Reads every file.
    Raises CniError 5 at the end if a file cannot be read."""
    for packed, owner in store.released:
        req.release(f"address {address.ip_text(packed)}", owner_text(owner))
    held, torn = store.read_all()
    store.release_torn(torn)
    stale = [(packed, owner) for packed, owner in held if is_attachment(owner) and is_stale(packed, owner)]
    released = release_each(store, stale)
    for packed, owner in released:
        req.release(f"address {address.ip_text(packed)}", owner_text(owner))
    store.check_all_read()
    return [packed for packed, _ in released]


def is_full(store: Store, range_set: RangeSet) -> bool:
    """Return whether the set has no free address, even after store.recheck()."""
    return not _has_free(store, range_set) and not (store.recheck() and _has_free(store, range_set))


def _has_free(store: Store, range_set: RangeSet) -> bool:
    return any(store.index.next_free(r.start, r.end, r.gateway) is not None for r in range_set)


def usage(store: Store, range_set: RangeSet) -> str:
    """Return how full a set is, as text: '10.1.0.0/29 of network "net", 5 of 5 addresses in use'."""
    used = sum(store.index.count(r.start, r.end) - (r.contains(r.gateway) and store.index.is_held(r.gateway))
               for r in range_set)
    size = sum(r.size() for r in range_set)
    subnets = ",".join(dict.fromkeys(r.network() for r in range_set))
    return f'{subnets} of network "{store.network}", {used} of {size} addresses in use'
