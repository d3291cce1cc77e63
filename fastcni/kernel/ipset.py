"""Change and test ipsets over nfnetlink: sets of addresses that iptables rules match (-m set --match-set NAME src).

Each message takes effect separately: unlike nftables, ipset has no transactions and no notifications. A kernel without
ipset answers EINVAL. Names and layouts: include/uapi/linux/netfilter/ipset/ip_set.h.
"""

from __future__ import annotations

from fastcni.kernel.nft import NFPROTO_IPV4, NFPROTO_IPV6, nfgenmsg
from fastcni.kernel.uapi import NLM_F_ACK, NLM_F_EXCL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni._netlink import Batch

NFNL_SUBSYS_IPSET, NFNL_SUBSYS_NFT_COMPAT = 6, 11
IPSET_CMD_CREATE, IPSET_CMD_DESTROY, IPSET_CMD_ADD, IPSET_CMD_DEL, IPSET_CMD_TEST = (
    NFNL_SUBSYS_IPSET << 8 | it for it in (2, 3, 9, 10, 11))
NFNL_MSG_COMPAT_GET = NFNL_SUBSYS_NFT_COMPAT << 8

IPSET_PROTOCOL_MIN = 6          # this module needs protocol version 6; Linux 4.20 has version 7
(IPSET_ATTR_PROTOCOL, IPSET_ATTR_SETNAME, IPSET_ATTR_TYPENAME, IPSET_ATTR_REVISION, IPSET_ATTR_FAMILY,
 IPSET_ATTR_FLAGS, IPSET_ATTR_DATA) = range(1, 8)
IPSET_ATTR_IP, IPSET_ATTR_MAXELEM = 1, 19               # attributes in IPSET_ATTR_DATA
IPSET_ATTR_IPADDR_IPV4, IPSET_ATTR_IPADDR_IPV6 = 1, 2
NLA_F_NET_BYTEORDER = 1 << 14
# ipset's error numbers, in this order: the set type does not accept the address; the set type is unknown; a rule uses
# the set; the address is not a member.
IPSET_ERR_PROTOCOL, IPSET_ERR_FIND_TYPE, IPSET_ERR_BUSY, IPSET_ERR_EXIST = 4097, 4098, 4100, 4103
NFTA_COMPAT_NAME, NFTA_COMPAT_REV, NFTA_COMPAT_TYPE = 1, 2, 3
IPSET_INV_MATCH, IPSET_DIM_ONE_SRC = 1 << 0, 1 << 1

# {bytes of an address: (NFPROTO_*, IPSET_ATTR_IPADDR_*)}
FAMILIES = {4: (NFPROTO_IPV4, IPSET_ATTR_IPADDR_IPV4), 16: (NFPROTO_IPV6, IPSET_ATTR_IPADDR_IPV6)}


def _begin(batch: Batch, command: int, flags: int, name: str, what: str) -> Batch:
    batch.begin(command, NLM_F_ACK | flags, nfgenmsg(NFPROTO_IPV4), what)
    return batch.u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL_MIN).text(IPSET_ATTR_SETNAME, name)


def create(batch: Batch, name: str, length: int, max_members: int) -> Batch:
    """Create a set (hash:ip) of up to `max_members` addresses of `length` bytes.

    An existing set of this type stays unchanged. The kernel answers EEXIST if the set has another type.
    """
    family, _ = FAMILIES[length]
    _begin(batch, IPSET_CMD_CREATE, 0, name, f"create ipset {name}").text(IPSET_ATTR_TYPENAME, "hash:ip")
    batch.u8(IPSET_ATTR_REVISION, 0).u8(IPSET_ATTR_FAMILY, family)
    return batch.nest(IPSET_ATTR_DATA).be32(IPSET_ATTR_MAXELEM | NLA_F_NET_BYTEORDER, max_members).end()


def destroy(batch: Batch, name: str) -> Batch:
    """Delete a set with its members. The kernel answers ENOENT if the set does not exist, IPSET_ERR_BUSY if a rule uses
    the set."""
    return _begin(batch, IPSET_CMD_DESTROY, 0, name, f"delete ipset {name}")


def _member(batch: Batch, command: int, flags: int, name: str, packed: bytes, verb: str) -> Batch:
    """Add a request about one member. IPSET_ATTR_DATA: IPSET_ATTR_IP: IPSET_ATTR_IPADDR_IPV4 or _IPV6 packed"""
    _begin(batch, command, flags, name, f"{verb} ipset {name}: {packed.hex()}")
    batch.nest(IPSET_ATTR_DATA).nest(IPSET_ATTR_IP)
    return batch.raw(FAMILIES[len(packed)][1] | NLA_F_NET_BYTEORDER, packed).end().end()


def add(batch: Batch, name: str, packed: bytes) -> Batch:
    """Add a member. An existing member is no error. The kernel answers ENOENT if the set does not exist."""
    return _member(batch, IPSET_CMD_ADD, 0, name, packed, "add to")


def delete(batch: Batch, name: str, packed: bytes) -> Batch:
    """Delete a member. A missing member is no error. The kernel answers ENOENT if the set does not exist."""
    return _member(batch, IPSET_CMD_DEL, 0, name, packed, "delete from")


def test(batch: Batch, name: str, packed: bytes) -> Batch:
    """Ask whether an address is a member. The kernel answers IPSET_ERR_EXIST if the address is no member, ENOENT if the
    set does not exist."""
    return _member(batch, IPSET_CMD_TEST, NLM_F_EXCL, name, packed, "look up in")


# struct xt_set_info   index:u16  dim:u8  flags:u8

def read_match_flags(info: bytes) -> int | None:
    """Return the flags IPSET_INV_MATCH and IPSET_DIM_ONE_SRC of an iptables rule's match "set", struct xt_set_info;
    None if the struct is too short."""
    return info[3] & (IPSET_INV_MATCH | IPSET_DIM_ONE_SRC) if len(info) > 3 else None


def get_match(batch: Batch, length: int) -> Batch:
    """Ask whether iptables rules can match sets. The kernel answers ENOENT if it has no module xt_set, EINVAL if it has
    no module nft_compat."""
    batch.begin(NFNL_MSG_COMPAT_GET, NLM_F_ACK, nfgenmsg(FAMILIES[length][0]), "look up the iptables match set")
    return batch.text(NFTA_COMPAT_NAME, "set").be32(NFTA_COMPAT_REV, 1).be32(NFTA_COMPAT_TYPE, 0)
