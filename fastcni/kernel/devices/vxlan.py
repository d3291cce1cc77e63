"""Encode and compare the attributes of vxlan links (ip-link(8), linux/if_link.h).

    IFLA_VXLAN_ID        the VNI, 24 bits
    IFLA_VXLAN_LINK      index of the link that carries the tunnel
    IFLA_VXLAN_LOCAL     or LOCAL6: the source address of the outer packets
    IFLA_VXLAN_PORT      UDP port, big-endian
    IFLA_VXLAN_LEARNING  whether the FDB learns from packets
    IFLA_VXLAN_GBP       a flag without a value: the group policy extension
"""

from __future__ import annotations

import sys

from fastcni._netlink import attributes
from fastcni.kernel import uapi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.rtnl import Link

ORDER = sys.byteorder
DEFAULT_PORT = 8472             # the kernel's default; IANA's port is 4789


def vxlan_data(vni: int, parent: int, local: bytes, port: int, learning: bool, gbp: bool) -> list[tuple[int, bytes]]:
    """Return the attributes of a vxlan link, for rtnl.new_link()."""
    flag = [(uapi.IFLA_VXLAN_GBP, b"")] if gbp else []
    return [(uapi.IFLA_VXLAN_ID, vni.to_bytes(4, ORDER)), (uapi.IFLA_VXLAN_LINK, parent.to_bytes(4, ORDER)),
            (uapi.IFLA_VXLAN_LOCAL if len(local) == 4 else uapi.IFLA_VXLAN_LOCAL6, local),
            (uapi.IFLA_VXLAN_LEARNING, bytes((learning,))), (uapi.IFLA_VXLAN_PORT, port.to_bytes(2, "big")), *flag]


def has_vxlan_data(link: Link, wanted: list[tuple[int, bytes]]) -> bool:
    """Return whether a link is a vxlan with these attributes."""
    found = attributes(link.data) if link.kind == "vxlan" else {}
    return (uapi.IFLA_VXLAN_GBP in found) == (uapi.IFLA_VXLAN_GBP in dict(wanted)) and \
        all(found.get(number) == value for number, value in wanted)
