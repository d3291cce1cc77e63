"""Find the number of a generic netlink family (linux/genetlink.h) by its name. The number may differ after each boot.

    struct genlmsghdr   cmd:u8  version:u8  reserved:u16
"""

from __future__ import annotations

import sys

from fastcni._netlink import Batch, attributes
from fastcni.kernel import uapi, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.wire import Socket


def genlmsghdr(command: int) -> bytes:
    return bytes((command, 1, 0, 0))            # version 1


def family_id(sock: Socket, name: str) -> int:
    """Return the number of a family; 0 if the kernel has no family of that name."""
    batch = Batch().begin(uapi.GENL_ID_CTRL, uapi.NLM_F_ACK, genlmsghdr(uapi.CTRL_CMD_GETFAMILY),
                          f"look up the generic netlink family {name}").text(uapi.CTRL_ATTR_FAMILY_NAME, name)
    replies = wire.look_up(sock, batch)
    if not replies:
        return 0
    return int.from_bytes(attributes(replies[0][1], 4)[uapi.CTRL_ATTR_FAMILY_ID], sys.byteorder)
