"""Read an entry of bridge's vlanTrunk or ovs's trunk: {"minID": 1, "maxID": 10} or {"id": 42}."""

from __future__ import annotations

from fastcni.kit.call.conf import MAX_VID
from fastcni.spec import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.spec.config import Section


def read_trunk(item: Section, low: int = 1) -> set[int]:
    """Return the VLAN ids of an entry: minID to maxID, and id. low: the lowest valid VLAN id. Raises CniError 7."""
    found: set[int] = set()
    if item.has("minID") != item.has("maxID"):
        missing = "maxID" if item.has("minID") else "minID"
        raise errors.bad_config(f"minID and maxID should be configured simultaneously, {missing} is missing")
    for key, name in (("minID", "trunk minID"), ("maxID", "trunk maxID"), ("id", "trunk id")):
        if item.has(key) and not low <= item.integer(key) <= MAX_VID:
            raise errors.bad_config(f"incorrect {name} parameter: {item.integer(key)}")
    if item.has("minID"):
        first, last = item.integer("minID"), item.integer("maxID")
        if first > last:
            raise errors.bad_config(f"minID is greater than maxID in trunk parameter: {first} > {last}")
        found.update(range(first, last + 1))
    if item.has("id"):
        found.add(item.integer("id"))
    if not found:
        raise errors.bad_config('an entry of a trunk has neither "id" nor "minID" and "maxID"')
    return found
