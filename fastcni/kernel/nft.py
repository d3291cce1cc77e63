"""Encode and read messages of nftables over nfnetlink: transactions, tables and chains.

    b = nft.start(Batch())
    nft.add_table(b, NFPROTO_INET, "fastcni", "a comment")
    ...
    wire.exchange(sock, nft.stop(b))

kernel/nft_elements.py has the messages of sets and elements, kernel/nft_rules.py has the messages of rules. Names and
layouts: include/uapi/linux/netfilter/nf_tables.h. Comments have libnftnl's format, so that `nft list ruleset` shows
them.
"""

from __future__ import annotations

import sys
from errno import EAFNOSUPPORT, EOPNOTSUPP

from fastcni._netlink import attributes
from fastcni.kernel.uapi import NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni._netlink import Batch

ORDER = sys.byteorder
NFPROTO_UNSPEC, NFPROTO_INET, NFPROTO_IPV4, NFPROTO_NETDEV, NFPROTO_BRIDGE, NFPROTO_IPV6 = 0, 1, 2, 5, 7, 10
FAMILIES = {NFPROTO_INET: "inet", NFPROTO_IPV4: "ip", NFPROTO_NETDEV: "netdev", NFPROTO_BRIDGE: "bridge",
            NFPROTO_IPV6: "ip6"}        # the names that nft prints
NO_FAMILY = (EAFNOSUPPORT, EOPNOTSUPP)  # errnos for a family that the kernel does not support

NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END = 0x10, 0x11
NFNL_SUBSYS_NFTABLES, NFNL_BATCH_GENID = 10, 1
(NFT_MSG_NEWTABLE, NFT_MSG_GETTABLE, NFT_MSG_DELTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_GETCHAIN, NFT_MSG_DELCHAIN,
 NFT_MSG_NEWRULE, NFT_MSG_GETRULE, NFT_MSG_DELRULE, NFT_MSG_NEWSET, NFT_MSG_GETSET, NFT_MSG_DELSET,
 NFT_MSG_NEWSETELEM, NFT_MSG_GETSETELEM, NFT_MSG_DELSETELEM, NFT_MSG_NEWGEN, NFT_MSG_GETGEN) = range(
     NFNL_SUBSYS_NFTABLES << 8, (NFNL_SUBSYS_NFTABLES << 8) + 17)

NFTA_LIST_ELEM = 1
NFTA_TABLE_NAME, NFTA_TABLE_FLAGS, NFTA_TABLE_USERDATA, NFTA_TABLE_OWNER = 1, 2, 6, 7
NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_HOOK = 1, 3, 4
NFTA_CHAIN_POLICY, NFTA_CHAIN_USE, NFTA_CHAIN_TYPE = 5, 6, 7
NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY, NFTA_HOOK_DEV = 1, 2, 3
NFTA_DATA_VALUE, NFTA_DATA_VERDICT = 1, 2
NFTA_VERDICT_CODE, NFTA_VERDICT_CHAIN = 1, 2
NFTA_GEN_ID, NFTA_GEN_PROC_NAME = 1, 3

NFT_TABLE_F_DORMANT, NFT_TABLE_F_OWNER, NFT_TABLE_F_PERSIST = 1 << 0, 1 << 1, 1 << 2
NFT_JUMP, NFT_GOTO, NFT_RETURN = 0xFFFFFFFD, 0xFFFFFFFC, 0xFFFFFFFB
NF_DROP, NF_ACCEPT, NF_QUEUE = 0, 1, 3
IPS_DST_NAT = 1 << 5            # linux/netfilter/nf_conntrack_common.h

NF_INET_PRE_ROUTING, NF_INET_LOCAL_IN, NF_INET_FORWARD, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING = 0, 1, 2, 3, 4
NF_BR_PRE_ROUTING, NF_BR_FORWARD = 0, 2
NF_NETDEV_INGRESS = 0
NF_IP_PRI_RAW, NF_IP_PRI_NAT_DST, NF_IP_PRI_FILTER, NF_IP_PRI_NAT_SRC = -300, -100, 0, 100
NF_BR_PRI_NAT_DST_BRIDGED, NF_BR_PRI_FILTER_BRIDGED = -300, -200

COMMENT_MAX = 128               # libnftnl's NFTNL_UDATA_COMMENT_MAXLEN


# struct nfgenmsg   family:u8  version:u8  res_id:be16

def nfgenmsg(family: int, resource: int = 0) -> bytes:
    return b"%c\0%b" % (family, resource.to_bytes(2, "big"))


def read_family(payload: bytes) -> int:
    """Return the NFPROTO_* of any nfnetlink payload."""
    return payload[0]


def start(batch: Batch, generation: int = 0) -> Batch:
    """Open a transaction. At stop() either all changes of the transaction take effect, or no change.

    generation: the value of read_generation(). The kernel rejects the transaction (ERESTART) if another transaction was
    committed since.
    """
    batch.begin(NFNL_MSG_BATCH_BEGIN, 0, nfgenmsg(0, NFNL_SUBSYS_NFTABLES))
    return batch.be32(NFNL_BATCH_GENID, generation) if generation else batch


def stop(batch: Batch) -> Batch:
    """Close the transaction that start() opened."""
    return batch.begin(NFNL_MSG_BATCH_END, 0, nfgenmsg(0, NFNL_SUBSYS_NFTABLES))


def comment_data(text: str) -> bytes:
    """Return a comment as libnftnl's user data: type:u8 (0) length:u8 text NUL.

    The text is cut to the length that nft accepts, never in the middle of a character.
    """
    data = text.encode()[:COMMENT_MAX - 1].decode("utf-8", "ignore").encode() + b"\0"
    return b"\0%c%b" % (len(data), data)


def read_comment(data: bytes) -> str:
    """Return the comment in user data, "" if the user data has no comment."""
    at = 0
    while at + 2 <= len(data):
        kind, length = data[at], data[at + 1]
        if kind == 0:
            return data[at + 2:at + 2 + length].rstrip(b"\0").decode("utf-8", "replace")
        at += 2 + length
    return ""


def as_text(name: bytes) -> str:
    """Decode a name that the kernel has sent with a closing NUL."""
    return name.rstrip(b"\0").decode("utf-8", "replace")


def add_table(batch: Batch, family: int, name: str, comment: str, flags: int | None = 0) -> Batch:
    """Add a table. An existing table stays unchanged, but is no longer dormant: the kernel calls its chains again.

    flags: None leaves the flags of an existing table as they are. With NFT_TABLE_F_OWNER the table belongs to the
    socket: the kernel rejects changes by other sockets with EPERM, and a flush of all tables by another socket keeps
    the table. With NFT_TABLE_F_PERSIST in addition, the table outlives the socket and then has no owner. The socket of
    the next add_table() with both flags becomes the table's owner. The kernel answers EOPNOTSUPP before Linux 6.9 and
    EINVAL before 5.12, and EOPNOTSUPP for a table that was made without these flags.
    """
    batch.begin(NFT_MSG_NEWTABLE, NLM_F_ACK | NLM_F_CREATE, nfgenmsg(family), f"add nftables table {name}")
    batch.text(NFTA_TABLE_NAME, name).raw(NFTA_TABLE_USERDATA, comment_data(comment))
    return batch if flags is None else batch.be32(NFTA_TABLE_FLAGS, flags)


def del_table(batch: Batch, family: int, name: str) -> Batch:
    """Delete a table with all its chains, rules and sets. The kernel answers ENOENT if the table does not exist."""
    return batch.begin(NFT_MSG_DELTABLE, NLM_F_ACK, nfgenmsg(family), f"delete nftables table {name}").text(
        NFTA_TABLE_NAME, name)


def get_table(batch: Batch, family: int, name: str) -> Batch:
    """Ask for one table. The kernel answers ENOENT if the table does not exist."""
    return batch.begin(NFT_MSG_GETTABLE, NLM_F_REQUEST, nfgenmsg(family), f"look up nftables table {name}").text(
        NFTA_TABLE_NAME, name)


def read_table(payload: bytes) -> tuple[int, int]:
    """Read an NFT_MSG_NEWTABLE payload: (NFT_TABLE_F_*, port of the socket to which the table belongs or 0)."""
    found = attributes(payload, 4)
    flags, owner = (int.from_bytes(found.get(kind, b""), "big") for kind in (NFTA_TABLE_FLAGS, NFTA_TABLE_OWNER))
    return flags, owner


def read_table_name(payload: bytes) -> tuple[int, str]:
    """Return (family, name) of the table in a notification about a table or an object in a table."""
    return read_family(payload), as_text(attributes(payload, 4).get(NFTA_TABLE_NAME, b""))


def disables_rules(kind: int, payload: bytes) -> bool:
    """Return whether a notification is about rules that the kernel no longer calls: a deleted rule, chain or table, or
    a dormant table."""
    return kind in (NFT_MSG_DELRULE, NFT_MSG_DELCHAIN, NFT_MSG_DELTABLE) or (
        kind == NFT_MSG_NEWTABLE and is_dormant(payload))


def is_dormant(payload: bytes) -> bool:
    """Return whether the table of an NFT_MSG_NEWTABLE payload is dormant: the kernel calls none of its chains."""
    return bool(read_table(payload)[0] & NFT_TABLE_F_DORMANT)


def add_chain(batch: Batch, family: int, table: str, name: str) -> Batch:
    """Add a regular chain. An existing chain stays unchanged."""
    batch.begin(NFT_MSG_NEWCHAIN, NLM_F_ACK | NLM_F_CREATE, nfgenmsg(family), f"add nftables chain {table} {name}")
    return batch.text(NFTA_CHAIN_TABLE, table).text(NFTA_CHAIN_NAME, name)


def add_base_chain(batch: Batch, family: int, table: str, name: str, *, kind: str, hook: int, priority: int,
                   device: str = "") -> Batch:
    """Add a chain with a hook. `kind` is "filter", "nat" or "route"; `priority` may be negative; `device`: the link's
    name, only in the family netdev."""
    add_chain(batch, family, table, name)
    batch.nest(NFTA_CHAIN_HOOK).be32(NFTA_HOOK_HOOKNUM, hook)
    batch.be32(NFTA_HOOK_PRIORITY, priority & 0xFFFFFFFF)
    if device:
        batch.text(NFTA_HOOK_DEV, device)
    batch.end()
    return batch.text(NFTA_CHAIN_TYPE, kind)


def del_chain(batch: Batch, family: int, table: str, name: str) -> Batch:
    """Delete a chain. The kernel answers EBUSY if the chain has rules, or if a rule or element jumps to the chain."""
    batch.begin(NFT_MSG_DELCHAIN, NLM_F_ACK, nfgenmsg(family), f"delete nftables chain {table} {name}")
    return batch.text(NFTA_CHAIN_TABLE, table).text(NFTA_CHAIN_NAME, name)


def get_chain(batch: Batch, family: int, table: str, name: str, what: str) -> Batch:
    """Ask for one chain. what: the text for a kernel error. The kernel answers ENOENT if the chain does not exist."""
    batch.begin(NFT_MSG_GETCHAIN, NLM_F_REQUEST, nfgenmsg(family), what)
    return batch.text(NFTA_CHAIN_TABLE, table).text(NFTA_CHAIN_NAME, name)


def read_chain(payload: bytes) -> tuple[str, str, int]:
    """Read an NFT_MSG_NEWCHAIN payload: (table, name, references). references: the number of the chain's rules, plus
    the number of jumps to the chain."""
    found = attributes(payload, 4)
    table, name = (as_text(found.get(kind, b"")) for kind in (NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME))
    return table, name, int.from_bytes(found.get(NFTA_CHAIN_USE, b""), "big")


def read_base_chain(payload: bytes) -> tuple[int, str, str, str, int, int] | None:
    """Read an NFT_MSG_NEWCHAIN payload: (family, table, name, kind, hook, policy); None for a chain without a hook."""
    found = attributes(payload, 4)
    if NFTA_CHAIN_HOOK not in found:
        return None
    table, name, kind = (as_text(found.get(number, b""))
                         for number in (NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_TYPE))
    hook, policy = (int.from_bytes(data, "big") for data in (
        attributes(found[NFTA_CHAIN_HOOK]).get(NFTA_HOOK_HOOKNUM, b""), found.get(NFTA_CHAIN_POLICY, b"\1")))
    return read_family(payload), table, name, kind, hook, policy


def chain_of_verdict(data: bytes) -> str:
    """Return the target chain of a jump or goto in NFTA_DATA_VERDICT, "" for another verdict."""
    verdict = attributes(data).get(NFTA_DATA_VERDICT, b"")
    return as_text(attributes(verdict).get(NFTA_VERDICT_CHAIN, b""))


def is_drop(data: bytes) -> bool:
    """Return whether NFTA_DATA_VERDICT has the verdict drop."""
    code = attributes(attributes(data).get(NFTA_DATA_VERDICT, b"")).get(NFTA_VERDICT_CODE)
    return code == NF_DROP.to_bytes(4, "big")


def get_generation(batch: Batch) -> Batch:
    """Ask for the generation: the number of transactions that this namespace has had."""
    return batch.begin(NFT_MSG_GETGEN, NLM_F_REQUEST, nfgenmsg(0), "ask for nftables' generation")


def read_generation(payload: bytes) -> tuple[int, str]:
    """Read an NFT_MSG_NEWGEN payload: (generation, name of a thread). In a notification, the thread has made the
    transaction. In the answer to get_generation(), the thread has sent the request."""
    found = attributes(payload, 4)
    return int.from_bytes(found.get(NFTA_GEN_ID, b""), "big"), as_text(found.get(NFTA_GEN_PROC_NAME, b""))
