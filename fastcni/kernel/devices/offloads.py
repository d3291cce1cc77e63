"""Change the offloads of a link by generic netlink (linux/ethtool_netlink.h, Linux 5.6)."""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import genl, uapi, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.wire import Socket

FAMILY = "ethtool"
ETHTOOL_MSG_FEATURES_SET, ETHTOOL_A_FEATURES_HEADER, ETHTOOL_A_FEATURES_WANTED = 12, 1, 3
ETHTOOL_A_HEADER_DEV_INDEX, ETHTOOL_A_HEADER_FLAGS, ETHTOOL_FLAG_OMIT_REPLY = 1, 3, 2
ETHTOOL_A_BITSET_BITS, ETHTOOL_A_BITSET_BITS_BIT, ETHTOOL_A_BITSET_BIT_NAME = 3, 1, 2
CHECKSUM = "tx-checksum-ip-generic"     # NETIF_F_HW_CSUM in net/ethtool/common.c, which veths have


def complete_checksums(sock: Socket, index: int) -> bool:
    """Let the kernel compute the checksums of packets that a link sends, as `ethtool -K DEV tx-checksum-ip-generic off`
    does.

    sock: a NETLINK_GENERIC socket. Returns whether this kernel supports the change. Raises NetlinkError.
    """
    family = genl.family_id(sock, FAMILY)
    if not family:
        return False
    batch = Batch().begin(family, uapi.NLM_F_ACK, genl.genlmsghdr(ETHTOOL_MSG_FEATURES_SET), f"{CHECKSUM} off")
    batch.nest(ETHTOOL_A_FEATURES_HEADER).u32(ETHTOOL_A_HEADER_DEV_INDEX, index)
    batch.u32(ETHTOOL_A_HEADER_FLAGS, ETHTOOL_FLAG_OMIT_REPLY).end()
    batch.nest(ETHTOOL_A_FEATURES_WANTED).nest(ETHTOOL_A_BITSET_BITS).nest(ETHTOOL_A_BITSET_BITS_BIT)
    batch.text(ETHTOOL_A_BITSET_BIT_NAME, CHECKSUM)         # a bit without ETHTOOL_A_BITSET_BIT_VALUE is switched off
    wire.exchange(sock, batch.end().end().end())
    return True
