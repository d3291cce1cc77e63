"""The bridge's VLAN keys: vlan, vlanTrunk, preserveDefaultVlan."""

from fastcni.spec import errors
from fastcni.spec.errors import CniError

LAST = 4094


class Vlans:
    """vlan (0: untagged), trunk (sorted VIDs, or None without vlanTrunk), preserve; wanted says that any is set."""

    __slots__ = ("vlan", "trunk", "preserve")

    @property
    def wanted(self):
        return bool(self.vlan or self.trunk is not None)

    @property
    def words(self):
        return f"vlan {self.vlan}" if self.vlan else "vlanTrunk"


def bad(text):
    return CniError(errors.INVALID_CONFIG, text)


def read(conf):
    keys = Vlans()
    keys.vlan = conf.whole("vlan")
    keys.preserve = conf.flag("preserveDefaultVlan")
    if not 0 <= keys.vlan <= LAST:
        raise bad(f"invalid VLAN ID {keys.vlan} (must be between 0 and {LAST})")
    keys.trunk = None
    if conf.has("vlanTrunk"):
        keys.trunk = sorted({vid for item in conf.sections("vlanTrunk") for vid in read_trunk(item)})
    return keys


def read_trunk(item):
    """The VIDs of one entry of vlanTrunk: minID to maxID, and id."""
    found = set()
    if item.has("minID") != item.has("maxID"):
        missing = "maxID" if item.has("minID") else "minID"
        raise bad(f"minID and maxID should be configured simultaneously, {missing} is missing")
    for key, words in (("minID", "trunk minID"), ("maxID", "trunk maxID"), ("id", "trunk id")):
        if item.has(key) and not 1 <= item.whole(key) <= LAST:
            raise bad(f"incorrect {words} parameter: {item.whole(key)}")
    if item.has("minID"):
        if item.whole("minID") > item.whole("maxID"):
            raise bad(f"minID is greater than maxID in trunk parameter: {item.whole('minID')} > {item.whole('maxID')}")
        found.update(range(item.whole("minID"), item.whole("maxID") + 1))
    if item.has("id"):
        found.add(item.whole("id"))
    return found
