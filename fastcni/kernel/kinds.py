"""Encode and read attributes that only one kind of link has (linux/if_link.h): the modes of macvlan and ipvlan, the
VLAN of vlan, the owner of tap, the table of vrf."""

from __future__ import annotations

import sys

from fastcni._netlink import attributes
from fastcni.kernel import uapi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni._rtnetlink import Link

    Data = list[tuple[int, bytes]]

ORDER = sys.byteorder
MACVLAN_MODES = {"bridge": uapi.MACVLAN_MODE_BRIDGE, "private": uapi.MACVLAN_MODE_PRIVATE,
                 "vepa": uapi.MACVLAN_MODE_VEPA, "passthru": uapi.MACVLAN_MODE_PASSTHRU}
IPVLAN_MODES = {"l2": uapi.IPVLAN_MODE_L2, "l3": uapi.IPVLAN_MODE_L3, "l3s": uapi.IPVLAN_MODE_L3S}
TUN_TYPES = {"tun": uapi.IFF_TUN, "tap": uapi.IFF_TAP}


# These functions return IFLA_INFO_DATA for rtnl.new_link(): [(attribute, bytes)]

def macvlan(mode: str, queue: int = 0) -> Data:
    """Return the attributes of a macvlan. mode: one of MACVLAN_MODES. queue: how many broadcast frames may wait, 0: the
    kernel's default."""
    data = [(uapi.IFLA_MACVLAN_MODE, MACVLAN_MODES[mode].to_bytes(4, ORDER))]
    return data + [(uapi.IFLA_MACVLAN_BC_QUEUE_LEN, queue.to_bytes(4, ORDER))] if queue else data


def ipvlan(mode: str) -> Data:
    """Return the attributes of an ipvlan. mode: one of IPVLAN_MODES."""
    return [(uapi.IFLA_IPVLAN_MODE, IPVLAN_MODES[mode].to_bytes(2, ORDER))]


def vlan(vid: int) -> Data:
    """Return the attributes of a vlan link with 802.1Q, the kernel's default protocol."""
    return [(uapi.IFLA_VLAN_ID, vid.to_bytes(2, ORDER))]


def vrf(table: int) -> Data:
    return [(uapi.IFLA_VRF_TABLE, table.to_bytes(4, ORDER))]


# These functions read the same attributes from a Link

def macvlan_mode(link: Link) -> str:
    return name_of(MACVLAN_MODES, number(link, uapi.IFLA_MACVLAN_MODE))


def ipvlan_mode(link: Link) -> str:
    return name_of(IPVLAN_MODES, number(link, uapi.IFLA_IPVLAN_MODE))


def vlan_id(link: Link) -> int:
    return number(link, uapi.IFLA_VLAN_ID)


def tun(link: Link) -> dict[str, Any]:
    """Return {"type": "tun" or "tap", "multiQueue": bool, "owner": user id or None, "group": group id or None}."""
    found = attributes(link.data)
    owner, group = (int.from_bytes(found[each], ORDER) if each in found else None
                    for each in (uapi.IFLA_TUN_OWNER, uapi.IFLA_TUN_GROUP))
    return {"type": name_of(TUN_TYPES, number(link, uapi.IFLA_TUN_TYPE)), "owner": owner, "group": group,
            "multiQueue": bool(number(link, uapi.IFLA_TUN_MULTI_QUEUE))}


def vrf_table(link: Link) -> int:
    return number(link, uapi.IFLA_VRF_TABLE)


def number(link: Link, attribute: int) -> int:
    return int.from_bytes(attributes(link.data).get(attribute, b""), ORDER)


def name_of(modes: dict[str, int], wanted: int) -> str:
    return next((name for name, number in modes.items() if number == wanted), str(wanted))
