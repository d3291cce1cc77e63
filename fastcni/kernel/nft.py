"""nftables over nfnetlink: tables, chains, maps, rules and elements, all of a change in one transaction.

    b = nft.start(Batch())
    nft.add_table(b, NFPROTO_INET, "fastcni")
    ...
    wire.exchange(sock, nft.stop(b))

Names and layouts: include/uapi/linux/netfilter/nf_tables.h. Comments are stored as libnftnl stores them, so that
`nft list ruleset` shows them.
"""

import sys

from fastcni._netlink import attribute_list, attributes
from fastcni.kernel.uapi import NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL

NFPROTO_INET, NFPROTO_IPV4, NFPROTO_BRIDGE, NFPROTO_IPV6 = 1, 2, 7, 10

NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END = 0x10, 0x11
NFNL_SUBSYS_NFTABLES = 10
(NFT_MSG_NEWTABLE, NFT_MSG_GETTABLE, NFT_MSG_DELTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_GETCHAIN, NFT_MSG_DELCHAIN,
 NFT_MSG_NEWRULE, NFT_MSG_GETRULE, NFT_MSG_DELRULE, NFT_MSG_NEWSET, NFT_MSG_GETSET, NFT_MSG_DELSET,
 NFT_MSG_NEWSETELEM, NFT_MSG_GETSETELEM, NFT_MSG_DELSETELEM, NFT_MSG_NEWGEN) = range(NFNL_SUBSYS_NFTABLES << 8,
                                                                   (NFNL_SUBSYS_NFTABLES << 8) + 16)

NFTA_LIST_ELEM = 1
NFTA_TABLE_NAME, NFTA_TABLE_USERDATA = 1, 6
NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_HOOK, NFTA_CHAIN_USE, NFTA_CHAIN_TYPE = 1, 3, 4, 6, 7
NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY = 1, 2
NFTA_RULE_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_HANDLE, NFTA_RULE_EXPRESSIONS, NFTA_RULE_USERDATA = 1, 2, 3, 4, 7
NFTA_EXPR_NAME, NFTA_EXPR_DATA = 1, 2
NFTA_SET_TABLE, NFTA_SET_NAME, NFTA_SET_FLAGS, NFTA_SET_KEY_TYPE, NFTA_SET_KEY_LEN = 1, 2, 3, 4, 5
NFTA_SET_DATA_TYPE, NFTA_SET_DATA_LEN, NFTA_SET_ID, NFTA_SET_USERDATA = 6, 7, 10, 13
NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_ELEMENTS = 1, 2, 3
NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_USERDATA = 1, 2, 6
NFTA_DATA_VALUE, NFTA_DATA_VERDICT = 1, 2
NFTA_VERDICT_CODE, NFTA_VERDICT_CHAIN = 1, 2

NFT_SET_MAP = 0x8
NFT_DATA_VERDICT = 0xFFFFFF00
NFT_GOTO, NFT_RETURN = 0xFFFFFFFC, 0xFFFFFFFB
NF_DROP = 0
NFT_REG_VERDICT, NFT_REG_1, NFT_REG_2 = 0, 1, 2
NFT_META_IIFNAME, NFT_META_NFPROTO = 6, 15
NFT_PAYLOAD_LL_HEADER, NFT_PAYLOAD_NETWORK_HEADER = 0, 1
NFT_LOOKUP_F_INV = 1
NFT_CMP_EQ, NFT_CMP_NEQ = 0, 1

NF_INET_POST_ROUTING = 4
NF_BR_PRE_ROUTING = 0
NF_IP_PRI_NAT_SRC = 100
NF_BR_PRI_NAT_DST_BRIDGED = -300

# nft's own numbers for the types of keys (its datatype.h); a concatenation shifts by six bits a part.
TYPE_IPADDR, TYPE_IP6ADDR, TYPE_ETHERADDR, TYPE_IFNAME = 7, 8, 9, 41
COMMENT_MAX = 128               # libnftnl's NFTNL_UDATA_COMMENT_MAXLEN


# struct nfgenmsg   family:u8  version:u8  res_id:be16

def nfgenmsg(family, resource=0):
    return b"%c\0%b" % (family, resource.to_bytes(2, "big"))


def start(batch):
    """Open a transaction: it takes effect as a whole at stop(), or not at all."""
    return batch.begin(NFNL_MSG_BATCH_BEGIN, 0, nfgenmsg(0, NFNL_SUBSYS_NFTABLES))


def stop(batch):
    return batch.begin(NFNL_MSG_BATCH_END, 0, nfgenmsg(0, NFNL_SUBSYS_NFTABLES))


def comment_data(text):
    """A comment as libnftnl's user data: type:u8 (0) length:u8 text NUL. Cut to what nft accepts, never in
    the middle of a character."""
    data = text.encode()[:COMMENT_MAX - 1].decode("utf-8", "ignore").encode() + b"\0"
    return b"\0%c%b" % (len(data), data)


def read_comment(data):
    """The comment in user data, "" if there is none."""
    at = 0
    while at + 2 <= len(data):
        kind, length = data[at], data[at + 1]
        if kind == 0:
            return data[at + 2:at + 2 + length].rstrip(b"\0").decode("utf-8", "replace")
        at += 2 + length
    return ""


def add_table(batch, family, name, comment):
    batch.begin(NFT_MSG_NEWTABLE, NLM_F_ACK | NLM_F_CREATE, nfgenmsg(family), f"add nftables table {name}")
    return batch.text(NFTA_TABLE_NAME, name).raw(NFTA_TABLE_USERDATA, comment_data(comment))


def add_chain(batch, family, table, name, *, exclusive=False):
    """A regular chain; exclusive: refused with EEXIST when it is there already."""
    flags = NLM_F_ACK | NLM_F_CREATE | (NLM_F_EXCL if exclusive else 0)
    batch.begin(NFT_MSG_NEWCHAIN, flags, nfgenmsg(family), f"add nftables chain {table} {name}")
    return batch.text(NFTA_CHAIN_TABLE, table).text(NFTA_CHAIN_NAME, name)


def add_base_chain(batch, family, table, name, *, kind, hook, priority):
    """A chain with a hook. `kind` is "filter", "nat" or "route"; `priority` may be negative."""
    add_chain(batch, family, table, name)
    batch.nest(NFTA_CHAIN_HOOK).be32(NFTA_HOOK_HOOKNUM, hook)
    batch.be32(NFTA_HOOK_PRIORITY, priority & 0xFFFFFFFF).end()
    return batch.text(NFTA_CHAIN_TYPE, kind)


def del_chain(batch, family, table, name):
    batch.begin(NFT_MSG_DELCHAIN, NLM_F_ACK, nfgenmsg(family), f"delete nftables chain {table} {name}")
    return batch.text(NFTA_CHAIN_TABLE, table).text(NFTA_CHAIN_NAME, name)


def add_set(batch, family, table, name, *, key_type, key_size, set_id, verdicts=False, host_order=False):
    """A set of keys of nft's `key_type`, or with `verdicts` a map from them to verdicts. `host_order` tells nft how
    to print a key that is not in network byte order."""
    batch.begin(NFT_MSG_NEWSET, NLM_F_ACK | NLM_F_CREATE, nfgenmsg(family), f"add nftables set {table} {name}")
    batch.text(NFTA_SET_TABLE, table).text(NFTA_SET_NAME, name).be32(NFTA_SET_FLAGS, NFT_SET_MAP if verdicts else 0)
    batch.be32(NFTA_SET_KEY_TYPE, key_type).be32(NFTA_SET_KEY_LEN, key_size)
    if verdicts:
        batch.be32(NFTA_SET_DATA_TYPE, NFT_DATA_VERDICT).be32(NFTA_SET_DATA_LEN, 0)
    if host_order:
        batch.raw(NFTA_SET_USERDATA, b"\0\x04" + (1).to_bytes(4, sys.byteorder))    # libnftnl: KEYBYTEORDER host
    return batch.be32(NFTA_SET_ID, set_id)


def _element(batch, kind, flags, family, table, name, key, verb, chain=None, comment=None):
    """NFTA_SET_ELEM_LIST_ELEMENTS
        NFTA_LIST_ELEM
            NFTA_SET_ELEM_KEY: NFTA_DATA_VALUE key
            NFTA_SET_ELEM_DATA: NFTA_DATA_VERDICT: NFTA_VERDICT_CODE goto, NFTA_VERDICT_CHAIN chain
            NFTA_SET_ELEM_USERDATA comment
    """
    batch.begin(kind, flags, nfgenmsg(family), f"{verb} nftables set {table} {name}: {key.hex()}")
    batch.text(NFTA_SET_ELEM_LIST_TABLE, table).text(NFTA_SET_ELEM_LIST_SET, name)
    batch.nest(NFTA_SET_ELEM_LIST_ELEMENTS).nest(NFTA_LIST_ELEM)
    batch.nest(NFTA_SET_ELEM_KEY).raw(NFTA_DATA_VALUE, key).end()
    if chain:
        batch.nest(NFTA_SET_ELEM_DATA).nest(NFTA_DATA_VERDICT).be32(NFTA_VERDICT_CODE, NFT_GOTO)
        batch.text(NFTA_VERDICT_CHAIN, chain).end().end()
    if comment:
        batch.raw(NFTA_SET_ELEM_USERDATA, comment_data(comment))
    return batch.end().end()


def add_element(batch, family, table, name, key, comment, chain=None):
    """An element of a set, or of a map: key : goto chain. EEXIST when the key is there already."""
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    return _element(batch, NFT_MSG_NEWSETELEM, flags, family, table, name, key, "add to", chain, comment)


def del_element(batch, family, table, name, key):
    return _element(batch, NFT_MSG_DELSETELEM, NLM_F_ACK, family, table, name, key, "delete from")


def get_element(batch, family, table, name, key):
    """Ask for one element; outside a transaction. ENOENT when it (or the table) is not there."""
    return _element(batch, NFT_MSG_GETSETELEM, NLM_F_ACK, family, table, name, key, "look up in")


def read_elements(payload):
    """An NFT_MSG_NEWSETELEM payload as [(key, comment)]."""
    found = attributes(payload, 4)
    elements = []
    for _, item in attribute_list(found.get(NFTA_SET_ELEM_LIST_ELEMENTS, b"")):
        fields = attributes(item)
        key = attributes(fields.get(NFTA_SET_ELEM_KEY, b"")).get(NFTA_DATA_VALUE, b"")
        elements.append((key, read_comment(fields.get(NFTA_SET_ELEM_USERDATA, b""))))
    return elements


def elements_of(table, name):
    """What wire.dump() needs to list the elements of a set: a function that adds the filter."""
    return lambda batch: batch.text(NFTA_SET_ELEM_LIST_TABLE, table).text(NFTA_SET_ELEM_LIST_SET, name)


def rules_of(table, chain):
    """What wire.dump() needs to list the rules of a chain."""
    return lambda batch: batch.text(NFTA_RULE_TABLE, table).text(NFTA_RULE_CHAIN, chain)


def read_rule(payload):
    """An NFT_MSG_NEWRULE payload as (handle, comment). Raises ValueError for a message cut short."""
    found = attributes(payload, 4)
    if NFTA_RULE_HANDLE not in found:
        raise ValueError("nftables rule without a handle")
    return int.from_bytes(found[NFTA_RULE_HANDLE], "big"), read_comment(found.get(NFTA_RULE_USERDATA, b""))


def get_table(batch, family, name):
    """Ask for one table. ENOENT when it is not there."""
    return batch.begin(NFT_MSG_GETTABLE, NLM_F_ACK, nfgenmsg(family), f"look up nftables table {name}").text(
        NFTA_TABLE_NAME, name)


def get_chain(batch, family, table, name, what):
    """Ask for one chain. ENOENT when it is not there."""
    batch.begin(NFT_MSG_GETCHAIN, NLM_F_ACK, nfgenmsg(family), what)
    return batch.text(NFTA_CHAIN_TABLE, table).text(NFTA_CHAIN_NAME, name)


def read_chain(payload):
    """An NFT_MSG_NEWCHAIN payload as (table, name, references): rules in it and jumps to it, together."""
    found = attributes(payload, 4)
    table, name = (found.get(kind, b"").rstrip(b"\0").decode("utf-8", "replace")
                   for kind in (NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME))
    return table, name, int.from_bytes(found.get(NFTA_CHAIN_USE, b""), "big")


def flush_chain(batch, family, table, chain):
    """Delete every rule of a chain."""
    batch.begin(NFT_MSG_DELRULE, NLM_F_ACK, nfgenmsg(family), f"flush nftables chain {table} {chain}")
    return batch.text(NFTA_RULE_TABLE, table).text(NFTA_RULE_CHAIN, chain)


def del_rule(batch, family, table, chain, handle):
    flush_chain(batch, family, table, chain)
    return batch.be64(NFTA_RULE_HANDLE, handle)


def add_rule(batch, family, table, chain, *expressions):
    """Append a rule. An expression is (name, function that writes its NFTA_EXPR_DATA)."""
    batch.begin(NFT_MSG_NEWRULE, NLM_F_ACK | NLM_F_CREATE | NLM_F_APPEND, nfgenmsg(family),
                f"add nftables rule to {table} {chain}")
    batch.text(NFTA_RULE_TABLE, table).text(NFTA_RULE_CHAIN, chain).nest(NFTA_RULE_EXPRESSIONS)
    for name, write in expressions:
        batch.nest(NFTA_LIST_ELEM).text(NFTA_EXPR_NAME, name).nest(NFTA_EXPR_DATA)
        write(batch)
        batch.end().end()
    return batch.end()


# Expressions, each with its attribute numbers in the order of nf_tables.h.

def meta(key, register=NFT_REG_1):
    """NFTA_META_DREG 1, NFTA_META_KEY 2"""
    return "meta", lambda b: b.be32(1, register).be32(2, key)


def compare(value, op=NFT_CMP_EQ):
    """NFTA_CMP_SREG 1, NFTA_CMP_OP 2, NFTA_CMP_DATA 3"""
    return "cmp", lambda b: b.be32(1, NFT_REG_1).be32(2, op).nest(3).raw(NFTA_DATA_VALUE, value).end()


def payload(base, offset, length, register=NFT_REG_1):
    """NFTA_PAYLOAD_DREG 1, _BASE 2, _OFFSET 3, _LEN 4"""
    return "payload", lambda b: b.be32(1, register).be32(2, base).be32(3, offset).be32(4, length)


def mask(bits):
    """NFTA_BITWISE_SREG 1, _DREG 2, _LEN 3, _MASK 4, _XOR 5"""
    return "bitwise", lambda b: (b.be32(1, NFT_REG_1).be32(2, NFT_REG_1).be32(3, len(bits))
                                 .nest(4).raw(NFTA_DATA_VALUE, bits).end()
                                 .nest(5).raw(NFTA_DATA_VALUE, bytes(len(bits))).end())


def verdict_of(map_name, set_id):
    """Look register 1 up in a verdict map. NFTA_LOOKUP_SET 1, _SREG 2, _DREG 3, _SET_ID 4"""
    return "lookup", lambda b: b.text(1, map_name).be32(2, NFT_REG_1).be32(3, NFT_REG_VERDICT).be32(4, set_id)


def in_set(set_name, set_id, inverted=False):
    """Go on if register 1 is, or with `inverted` is not, in a set. NFTA_LOOKUP_SET 1, _SREG 2, _SET_ID 4, _FLAGS 5"""
    return "lookup", lambda b: (b.text(1, set_name).be32(2, NFT_REG_1).be32(4, set_id)
                                .be32(5, NFT_LOOKUP_F_INV if inverted else 0))


def verdict(code):
    """NFTA_IMMEDIATE_DREG 1, _DATA 2"""
    return "immediate", lambda b: (b.be32(1, NFT_REG_VERDICT).nest(2).nest(NFTA_DATA_VERDICT)
                                   .be32(NFTA_VERDICT_CODE, code).end().end())


def masquerade():
    return "masq", lambda b: b
