"""Attach BPF filters to netlink sockets, so that unused notifications wake no thread (socket(7), SO_ATTACH_FILTER).

The filters are classic BPF, whose loads read numbers as big-endian. So on a little-endian machine a filter compares
with a number whose bytes are swapped. bpf_dbg would print the filter for links 3 and 9 as:

    ldh [4]                 nlmsg_type
    jeq RTM_NEWNETCONF, .conf
    jeq RTM_DELNETCONF, .conf
    ld [20]                 index of ifinfomsg and of ifaddrmsg
    jeq 3, .pass
    jeq 9, .pass
    ret 0
    .conf: ld [24]          NETCONFA_IFINDEX, which comes first
    jeq -1, .pass           the configuration of all links; the server reads no other
    ret 0
    .pass: ret -1
"""

from __future__ import annotations

import sys
from array import array

from fastcni.kernel import uapi
from fastcni.kernel.neighbours import PROTOCOL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Collection, Iterable

    Program = list[tuple[int, int, int, int]]       # code, jt, jf, k

LDB, LDH, LD, JEQ, RET = 0x30, 0x28, 0x20, 0x15, 0x06      # linux/bpf_common.h: BPF_LD|BPF_B|BPF_ABS and so on
LD_IMM, LDX_IMM, LDB_X, LD_X, TAX, JSET = 0x00, 0x01, 0x50, 0x40, 0x07, 0x45
# linux/filter.h: SKF_AD_OFF + SKF_AD_NLATTR searches from offset A for attribute X, and returns its offset, or 0. With
# SKF_AD_NLATTR_NEST, A is the offset of the attribute that contains X.
SKF_AD_NLATTR, SKF_AD_NLATTR_NEST = 0xFFFFF00C, 0xFFFFF010
TYPE, PORT, FAMILY, INDEX, NETCONF_INDEX = 4, 12, 16, 20, 24        # offsets in a notification
NEIGHBOUR_FLAGS, NEIGHBOUR_ATTRIBUTES, LINK_ATTRIBUTES = 26, 28, 32
ALL = 0xFFFFFFFF
MAX_LINKS = 64                                 # limit for links(), because a BPF jump has 8 bits


def links(indexes: Collection[int]) -> Program:
    """Return the filter that passes messages about these links, and about the configuration of all links."""
    conf = 5 + len(indexes)                     # lines of .conf and .pass; a jump counts from its next line
    end = conf + 3
    return [
        (LDH, 0, 0, TYPE),
        (JEQ, conf - 2, 0, swap16(uapi.RTM_NEWNETCONF)),
        (JEQ, conf - 3, 0, swap16(uapi.RTM_DELNETCONF)),
        (LD, 0, 0, INDEX),
        *((JEQ, end - at - 1, 0, swap32(index)) for at, index in enumerate(sorted(indexes), 4)),
        (RET, 0, 0, 0),
        (LD, 0, 0, NETCONF_INDEX),
        (JEQ, 1, 0, ALL),
        (RET, 0, 0, 0),
        (RET, 0, 0, ALL),
    ]


def link_kinds(kinds: Iterable[str]) -> Program:
    """Return the filter that passes messages about links of these kinds (IFLA_INFO_KIND), and of kinds whose names
    begin with the same four bytes."""
    starts = sorted({int.from_bytes(kind.encode()[:4].ljust(4, b"\0"), "big") for kind in kinds})
    return [
        (LDX_IMM, 0, 0, uapi.IFLA_LINKINFO),
        (LD_IMM, 0, 0, LINK_ATTRIBUTES),
        (LD, 0, 0, SKF_AD_NLATTR),
        (JEQ, len(starts) + 5, 0, 0),
        (LDX_IMM, 0, 0, uapi.IFLA_INFO_KIND),
        (LD, 0, 0, SKF_AD_NLATTR_NEST),
        (JEQ, len(starts) + 2, 0, 0),
        (TAX, 0, 0, 0),
        (LD_X, 0, 0, 4),
        *((JEQ, len(starts) - at, 0, start) for at, start in enumerate(starts)),
        (RET, 0, 0, 0),
        (RET, 0, 0, ALL),
    ]


def begins(text: bytes) -> Program:
    """Return the filter that passes messages which begin with `text`, 4 bytes."""
    return [
        (LD, 0, 0, 0),
        (JEQ, 0, 1, int.from_bytes(text, "big")),
        (RET, 0, 0, ALL),
        (RET, 0, 0, 0),
    ]


def deletions() -> Program:
    """Return the filter that passes answers to requests, and each RTM_DELLINK of a link itself. The filter drops the
    earlier RTM_DELLINK in which a bridge reports that a port has left."""
    return [
        (LDH, 0, 0, TYPE),
        (JEQ, 1, 0, swap16(uapi.RTM_DELLINK)),
        (JEQ, 2, 3, swap16(uapi.NLMSG_ERROR)),
        (LDB, 0, 0, FAMILY),
        (JEQ, 0, 1, uapi.AF_UNSPEC),
        (RET, 0, 0, ALL),
        (RET, 0, 0, 0),
    ]


def neighbours() -> Program:
    """Return the filter that passes each message about a sticky FDB entry. For neighbours with fastcni's protocol
    (kernel/neighbours.py), the filter passes RTM_DELNEIGH, and the RTM_NEWNEIGH of a program, which has the program's
    port. The filter drops the kernel's own RTM_NEWNEIGH, which have port 0: each minute they report a neighbour's new
    state.
    """
    return [
        (LDB, 0, 0, FAMILY),
        (JEQ, 11, 0, uapi.AF_BRIDGE),
        (LDH, 0, 0, TYPE),
        (JEQ, 2, 0, swap16(uapi.RTM_DELNEIGH)),
        (LD, 0, 0, PORT),
        (JEQ, 9, 0, 0),
        (LDX_IMM, 0, 0, uapi.NDA_PROTOCOL),
        (LD_IMM, 0, 0, NEIGHBOUR_ATTRIBUTES),
        (LD, 0, 0, SKF_AD_NLATTR),
        (JEQ, 5, 0, 0),
        (TAX, 0, 0, 0),
        (LDB_X, 0, 0, 4),
        (JEQ, 3, 2, PROTOCOL),
        (LDB, 0, 0, NEIGHBOUR_FLAGS),
        (JSET, 1, 0, uapi.NTF_STICKY),
        (RET, 0, 0, 0),
        (RET, 0, 0, ALL),
    ]


def attach(sock: socket, program: Program) -> None:
    """Attach a filter program to the socket, in place of an earlier program. Raises OSError.

    struct sock_filter   code:u16  jt:u8  jf:u8  k:u32
    struct sock_fprog    len:u16  (padding)  filter: pointer
    """
    code = array("B", b"".join(kind.to_bytes(2, sys.byteorder) + bytes((then, otherwise)) + k.to_bytes(4, sys.byteorder)
                               for kind, then, otherwise, k in program))
    address, _ = code.buffer_info()
    sock.setsockopt(uapi.SOL_SOCKET, uapi.SO_ATTACH_FILTER, len(program).to_bytes(8, sys.byteorder)
                    + address.to_bytes(8, sys.byteorder))


def swap16(value: int) -> int:
    return int.from_bytes(value.to_bytes(2, sys.byteorder), "big")


def swap32(value: int) -> int:
    return int.from_bytes(value.to_bytes(4, sys.byteorder), "big")
