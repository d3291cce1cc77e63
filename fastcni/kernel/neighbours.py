"""Add requests about neighbours of a link, and about forwarding entries (FDB) of a bridge or a vxlan link, to a Batch;
read replies into records.

Neighbours and FDB entries have the same messages, RTM_*NEIGH (rtnetlink(7), linux/neighbour.h):

    struct ndmsg   family:u8 pad:u8 pad:u16 | ifindex:s32 | state:u16 flags:u8 type:u8
"""

from __future__ import annotations

import sys

from fastcni._netlink import attributes, u32
from fastcni.kernel import uapi
from fastcni.kernel.rtnl import family_of
from fastcni.kernel.uapi import NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni._netlink import Batch

ORDER = sys.byteorder
REPLACE = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
PROTOCOL = 252                  # fastcni's originator: `ip neigh` shows "proto 252"; no other program uses it


def ndmsg(family: int, index: int = 0, state: int = 0, flags: int = 0) -> bytes:
    return b"%c\0\0\0%b%b%c\0" % (family, index.to_bytes(4, ORDER), state.to_bytes(2, ORDER), flags)


def new_neighbour(batch: Batch, index: int, packed: bytes, mac: bytes, *, what: str | None = None) -> Batch:
    """Add or replace the neighbour `packed` of a link, and mark it as externally learned.

    The kernel keeps such a neighbour, and updates its MAC from the neighbour's ARP or ND. The kernel does not update
    the MAC of a permanent neighbour.
    """
    batch.begin(uapi.RTM_NEWNEIGH, REPLACE, ndmsg(family_of(packed), index, uapi.NUD_REACHABLE, uapi.NTF_EXT_LEARNED),
                what)
    return batch.raw(uapi.NDA_DST, packed).raw(uapi.NDA_LLADDR, mac).u8(uapi.NDA_PROTOCOL, PROTOCOL)


def del_neighbour(batch: Batch, index: int, packed: bytes, *, what: str | None = None) -> Batch:
    batch.begin(uapi.RTM_DELNEIGH, NLM_F_ACK, ndmsg(family_of(packed), index), what)
    return batch.raw(uapi.NDA_DST, packed)


def get_neighbour(batch: Batch, index: int, packed: bytes, *, what: str | None = None) -> Batch:
    """Ask for one neighbour. The kernel answers ENOENT if the neighbour does not exist."""
    batch.begin(uapi.RTM_GETNEIGH, NLM_F_ACK, ndmsg(family_of(packed), index), what)
    return batch.raw(uapi.NDA_DST, packed)


def new_station(batch: Batch, port: int, mac: bytes, *, what: str | None = None) -> Batch:
    """Add or replace the FDB entry by which a bridge sends frames for `mac` to a port. The entry does not age, and
    frames from other ports do not move it. The kernel deletes the entry with the port."""
    batch.begin(uapi.RTM_NEWNEIGH, REPLACE, ndmsg(uapi.AF_BRIDGE, port, uapi.NUD_NOARP,
                                                  uapi.NTF_MASTER | uapi.NTF_STICKY), what)
    return batch.raw(uapi.NDA_LLADDR, mac)


def put_permanent(batch: Batch, index: int, packed: bytes, mac: bytes, *, what: str | None = None) -> Batch:
    """Add or replace a permanent neighbour of a link."""
    batch.begin(uapi.RTM_NEWNEIGH, REPLACE, ndmsg(family_of(packed), index, uapi.NUD_PERMANENT), what)
    return batch.raw(uapi.NDA_DST, packed).raw(uapi.NDA_LLADDR, mac)


def put_remote(batch: Batch, index: int, mac: bytes, packed: bytes, *, what: str | None = None) -> Batch:
    """Add or replace the FDB entry of a vxlan link that sends frames for `mac` to the node at `packed`."""
    batch.begin(uapi.RTM_NEWNEIGH, REPLACE, ndmsg(uapi.AF_BRIDGE, index, uapi.NUD_PERMANENT, uapi.NTF_SELF), what)
    return batch.raw(uapi.NDA_DST, packed).raw(uapi.NDA_LLADDR, mac)


def del_remote(batch: Batch, index: int, mac: bytes, packed: bytes, *, what: str | None = None) -> Batch:
    batch.begin(uapi.RTM_DELNEIGH, NLM_F_ACK, ndmsg(uapi.AF_BRIDGE, index, 0, uapi.NTF_SELF), what)
    return batch.raw(uapi.NDA_DST, packed).raw(uapi.NDA_LLADDR, mac)


def get_station(batch: Batch, bridge: int, mac: bytes, *, what: str | None = None) -> Batch:
    """Ask for the FDB entry of a MAC. The kernel answers ENOENT if the entry does not exist."""
    batch.begin(uapi.RTM_GETNEIGH, NLM_F_ACK, ndmsg(uapi.AF_BRIDGE), what)
    return batch.raw(uapi.NDA_LLADDR, mac).u32(uapi.NDA_MASTER, bridge)


class Neighbour:
    """The fields of an RTM_NEWNEIGH that fastcni uses: family, index (the link's; in an FDB entry the port's), state
    (NUD_*), flags (NTF_*), packed (in an FDB entry the remote node's address, b"" on a bridge), mac (b"" if the
    neighbour does not answer), protocol, master (in an FDB entry the index of the bridge)."""

    __slots__ = ("family", "index", "state", "flags", "packed", "mac", "protocol", "master")

    def __init__(self, payload: bytes) -> None:
        """Read an RTM_NEWNEIGH or RTM_DELNEIGH payload. Raises ValueError for a truncated message."""
        if len(payload) < 12:
            raise ValueError(f"ndmsg of {len(payload)} bytes")
        found = attributes(payload, 12)
        self.family, self.index, self.flags = payload[0], u32(payload[4:8]), payload[10]
        self.state = int.from_bytes(payload[8:10], ORDER)
        self.packed, self.mac = found.get(uapi.NDA_DST, b""), found.get(uapi.NDA_LLADDR, b"")
        self.protocol = int.from_bytes(found.get(uapi.NDA_PROTOCOL, b""), ORDER)
        self.master = u32(found.get(uapi.NDA_MASTER, b""))

    @property
    def static(self) -> bool:
        """Return whether this is a static FDB entry, as new_station() makes."""
        return self.state == uapi.NUD_NOARP and bool(self.flags & uapi.NTF_STICKY)

    @property
    def ours(self) -> bool:
        """Return whether this is a neighbour that new_neighbour() has made."""
        return self.protocol == PROTOCOL
