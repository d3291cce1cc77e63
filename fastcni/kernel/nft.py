"""nftables over nfnetlink: tables, chains, maps, rules and elements, all of a change in one transaction.

    b = nft.start(Batch())
    nft.add_table(b, NFPROTO_INET, "fastcni")
    ...
    wire.exchange(sock, nft.stop(b))

Names and layouts: include/uapi/linux/netfilter/nf_tables.h. Comments are stored as libnftnl stores them, so that
`nft list ruleset` shows them.
"""

from __future__ import annotations

import sys

from fastcni._netlink import attribute_list, attributes
from fastcni.kernel.nft_keys import comment_data, read_comment
from fastcni.kernel.uapi import NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from fastcni._netlink import Batch

    Value = bytes | str | None
    Elements = list[tuple[bytes, Value]]
    Expression = tuple[str, Callable[[Batch], Any]]
    Fill = Callable[[Batch], Any]

ORDER = sys.byteorder
NFPROTO_INET, NFPROTO_IPV4, NFPROTO_BRIDGE, NFPROTO_IPV6 = 1, 2, 7, 10

NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END = 0x10, 0x11
NFNL_SUBSYS_NFTABLES = 10
(NFT_MSG_NEWTABLE, NFT_MSG_GETTABLE, NFT_MSG_DELTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_GETCHAIN, NFT_MSG_DELCHAIN,
 NFT_MSG_NEWRULE, NFT_MSG_GETRULE, NFT_MSG_DELRULE, NFT_MSG_NEWSET, NFT_MSG_GETSET, NFT_MSG_DELSET,
 NFT_MSG_NEWSETELEM, NFT_MSG_GETSETELEM, NFT_MSG_DELSETELEM, NFT_MSG_NEWGEN, NFT_MSG_GETGEN) = range(
     NFNL_SUBSYS_NFTABLES << 8, (NFNL_SUBSYS_NFTABLES << 8) + 17)

NFTA_LIST_ELEM = 1
NFTA_TABLE_NAME, NFTA_TABLE_USERDATA = 1, 6
NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_HOOK = 1, 3, 4
NFTA_CHAIN_POLICY, NFTA_CHAIN_USE, NFTA_CHAIN_TYPE = 5, 6, 7
NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY = 1, 2
NFTA_RULE_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_HANDLE, NFTA_RULE_EXPRESSIONS, NFTA_RULE_USERDATA = 1, 2, 3, 4, 7
NFTA_EXPR_NAME, NFTA_EXPR_DATA = 1, 2
NFTA_MATCH_NAME, NFTA_MATCH_INFO = 1, 3         # linux/netfilter/nf_tables_compat.h
NFTA_SET_TABLE, NFTA_SET_NAME, NFTA_SET_FLAGS, NFTA_SET_KEY_TYPE, NFTA_SET_KEY_LEN = 1, 2, 3, 4, 5
NFTA_SET_DATA_TYPE, NFTA_SET_DATA_LEN, NFTA_SET_ID, NFTA_SET_USERDATA = 6, 7, 10, 13
NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_ELEMENTS = 1, 2, 3
NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_USERDATA = 1, 2, 6
NFTA_DATA_VALUE, NFTA_DATA_VERDICT = 1, 2
NFTA_VERDICT_CODE, NFTA_VERDICT_CHAIN = 1, 2
NFTA_IMMEDIATE_DATA = 2
NFTA_GEN_ID, NFTA_GEN_PROC_NAME = 1, 3

NFT_SET_MAP = 0x8
NFT_DATA_VERDICT = 0xFFFFFF00
NFT_JUMP, NFT_GOTO, NFT_RETURN = 0xFFFFFFFD, 0xFFFFFFFC, 0xFFFFFFFB
NF_DROP, NF_ACCEPT = 0, 1
NFT_REG_VERDICT, NFT_REG_1, NFT_REG_2 = 0, 1, 2
NFT_REG32_00 = 8                # the first of the sixteen words that NFT_REG_1 to NFT_REG_4 are made of
NFT_META_PROTOCOL, NFT_META_IIF, NFT_META_IIFNAME, NFT_META_OIFNAME, NFT_META_NFPROTO = 1, 4, 6, 7, 15
NFT_META_L4PROTO = 16
NFT_PAYLOAD_LL_HEADER, NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER = 0, 1, 2
NFT_LOOKUP_F_INV = 1
NFT_CMP_EQ, NFT_CMP_NEQ = 0, 1
NFT_CT_STATE, NFT_CT_STATUS, IPS_DST_NAT = 0, 2, 1 << 5
NF_CT_STATE_ESTABLISHED, NF_CT_STATE_RELATED = 1 << 1, 1 << 2      # linux/netfilter/nf_conntrack_common.h
NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_DADDR = 3, 1 << 1
NFT_NAT_DNAT = 1

NF_INET_PRE_ROUTING, NF_INET_FORWARD, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING = 0, 2, 3, 4
NF_BR_PRE_ROUTING, NF_BR_FORWARD = 0, 2
NF_IP_PRI_RAW, NF_IP_PRI_NAT_DST, NF_IP_PRI_FILTER, NF_IP_PRI_NAT_SRC = -300, -100, 0, 100
NF_BR_PRI_NAT_DST_BRIDGED, NF_BR_PRI_FILTER_BRIDGED = -300, -200

# nft's own numbers for the types of keys (its datatype.h); a concatenation shifts by six bits a part.
TYPE_IPADDR, TYPE_IP6ADDR, TYPE_ETHERADDR, TYPE_INET_PROTOCOL, TYPE_INET_SERVICE, TYPE_IFNAME = 7, 8, 9, 12, 13, 41


# struct nfgenmsg   family:u8  version:u8  res_id:be16

def nfgenmsg(family: int, resource: int = 0) -> bytes:
    return b"%c\0%b" % (family, resource.to_bytes(2, "big"))


def read_family(payload: bytes) -> int:
    """The NFPROTO_* of any nfnetlink payload."""
    return payload[0]


def start(batch: Batch) -> Batch:
    """Open a transaction: it takes effect as a whole at stop(), or not at all."""
    return batch.begin(NFNL_MSG_BATCH_BEGIN, 0, nfgenmsg(0, NFNL_SUBSYS_NFTABLES))


def stop(batch: Batch) -> Batch:
    return batch.begin(NFNL_MSG_BATCH_END, 0, nfgenmsg(0, NFNL_SUBSYS_NFTABLES))


def add_table(batch: Batch, family: int, name: str, comment: str) -> Batch:
    batch.begin(NFT_MSG_NEWTABLE, NLM_F_ACK | NLM_F_CREATE, nfgenmsg(family), f"add nftables table {name}")
    return batch.text(NFTA_TABLE_NAME, name).raw(NFTA_TABLE_USERDATA, comment_data(comment))


def add_chain(batch: Batch, family: int, table: str, name: str, *, exclusive: bool = False) -> Batch:
    """A regular chain; exclusive: refused with EEXIST when it is there already."""
    flags = NLM_F_ACK | NLM_F_CREATE | (NLM_F_EXCL if exclusive else 0)
    batch.begin(NFT_MSG_NEWCHAIN, flags, nfgenmsg(family), f"add nftables chain {table} {name}")
    return batch.text(NFTA_CHAIN_TABLE, table).text(NFTA_CHAIN_NAME, name)


def add_base_chain(batch: Batch, family: int, table: str, name: str, *, kind: str, hook: int, priority: int) -> Batch:
    """A chain with a hook. `kind` is "filter", "nat" or "route"; `priority` may be negative."""
    add_chain(batch, family, table, name)
    batch.nest(NFTA_CHAIN_HOOK).be32(NFTA_HOOK_HOOKNUM, hook)
    batch.be32(NFTA_HOOK_PRIORITY, priority & 0xFFFFFFFF).end()
    return batch.text(NFTA_CHAIN_TYPE, kind)


def del_chain(batch: Batch, family: int, table: str, name: str) -> Batch:
    batch.begin(NFT_MSG_DELCHAIN, NLM_F_ACK, nfgenmsg(family), f"delete nftables chain {table} {name}")
    return batch.text(NFTA_CHAIN_TABLE, table).text(NFTA_CHAIN_NAME, name)


def add_set(batch: Batch, family: int, table: str, name: str, *, key_type: int, key_size: int, set_id: int,
            verdicts: bool = False, values: tuple[int, int] | None = None, host_order: bool = False) -> Batch:
    """A set of keys of nft's `key_type`, or a map from them: with `verdicts` to verdicts, with `values`, (nft's type,
    size), to such. `host_order` tells nft how to print a key that is not in network byte order."""
    data = (NFT_DATA_VERDICT, 0) if verdicts else values
    batch.begin(NFT_MSG_NEWSET, NLM_F_ACK | NLM_F_CREATE, nfgenmsg(family), f"add nftables set {table} {name}")
    batch.text(NFTA_SET_TABLE, table).text(NFTA_SET_NAME, name).be32(NFTA_SET_FLAGS, NFT_SET_MAP if data else 0)
    batch.be32(NFTA_SET_KEY_TYPE, key_type).be32(NFTA_SET_KEY_LEN, key_size)
    if data:
        batch.be32(NFTA_SET_DATA_TYPE, data[0]).be32(NFTA_SET_DATA_LEN, data[1])
    if host_order:
        batch.raw(NFTA_SET_USERDATA, b"\0\x04" + (1).to_bytes(4, ORDER))    # libnftnl: KEYBYTEORDER host
    return batch.be32(NFTA_SET_ID, set_id)


def _elements(batch, kind, flags, family, table, name, elements, verb, comment=None):
    """NFTA_SET_ELEM_LIST_ELEMENTS
        NFTA_LIST_ELEM                  for each (key, value)
            NFTA_SET_ELEM_KEY: NFTA_DATA_VALUE key
            NFTA_SET_ELEM_DATA: NFTA_DATA_VALUE value
                or for a value that is text: NFTA_DATA_VERDICT: NFTA_VERDICT_CODE goto, NFTA_VERDICT_CHAIN value
            NFTA_SET_ELEM_USERDATA comment
    """
    data = comment_data(comment) if comment else b""
    batch.begin(kind, flags, nfgenmsg(family), f"{verb} nftables set {table} {name}: "
                + " ".join([key.hex() for key, _ in elements[:8]]))
    batch.text(NFTA_SET_ELEM_LIST_TABLE, table).text(NFTA_SET_ELEM_LIST_SET, name)
    batch.nest(NFTA_SET_ELEM_LIST_ELEMENTS)
    for key, value in elements:
        batch.nest(NFTA_LIST_ELEM).nest(NFTA_SET_ELEM_KEY).raw(NFTA_DATA_VALUE, key).end()
        if isinstance(value, bytes):
            batch.nest(NFTA_SET_ELEM_DATA).raw(NFTA_DATA_VALUE, value).end()
        elif value:
            batch.nest(NFTA_SET_ELEM_DATA).nest(NFTA_DATA_VERDICT).be32(NFTA_VERDICT_CODE, NFT_GOTO)
            batch.text(NFTA_VERDICT_CHAIN, value).end().end()
        if data:
            batch.raw(NFTA_SET_ELEM_USERDATA, data)
        batch.end()
    return batch.end()


def add_elements(batch: Batch, family: int, table: str, name: str, elements: Elements, comment: str | None = None, *,
                 exclusive: bool = True) -> Batch:
    """Elements of a set, or of a map: [(key, value)], a value being bytes, or the chain to go to as text, or None in a
    set. Exclusive: EEXIST when a key is there already."""
    flags = NLM_F_ACK | NLM_F_CREATE | (NLM_F_EXCL if exclusive else 0)
    return _elements(batch, NFT_MSG_NEWSETELEM, flags, family, table, name, elements, "add to", comment)


def add_element(batch: Batch, family: int, table: str, name: str, key: bytes, comment: str | None,
                value: Value = None) -> Batch:
    return add_elements(batch, family, table, name, [(key, value)], comment)


def del_elements(batch: Batch, family: int, table: str, name: str, keys: Iterable[bytes]) -> Batch:
    """ENOENT when one of the keys is not there."""
    return _elements(batch, NFT_MSG_DELSETELEM, NLM_F_ACK, family, table, name, [(key, None) for key in keys],
                     "delete from")


def del_element(batch: Batch, family: int, table: str, name: str, key: bytes) -> Batch:
    return del_elements(batch, family, table, name, [key])


def get_element(batch: Batch, family: int, table: str, name: str, key: bytes) -> Batch:
    """Ask for one element; outside a transaction. ENOENT when it (or the table) is not there."""
    return _elements(batch, NFT_MSG_GETSETELEM, NLM_F_ACK, family, table, name, [(key, None)], "look up in")


def read_elements(payload: bytes) -> list[tuple[bytes, str]]:
    """An NFT_MSG_NEWSETELEM payload as [(key, comment)]."""
    found = attributes(payload, 4)
    elements = []
    for _, item in attribute_list(found.get(NFTA_SET_ELEM_LIST_ELEMENTS, b"")):
        fields = attributes(item)
        elements.append((key_of(fields), read_comment(fields.get(NFTA_SET_ELEM_USERDATA, b""))))
    return elements


def told_elements(payload: bytes) -> dict[bytes, bytes]:
    """An NFT_MSG_NEWSETELEM or NFT_MSG_DELSETELEM payload as {key: element}, the bytes of all that the kernel tells."""
    return {key_of(attributes(element)): element for _, element in
            attribute_list(attributes(payload, 4).get(NFTA_SET_ELEM_LIST_ELEMENTS, b""))}


def key_of(fields: dict[int, bytes]) -> bytes:
    return attributes(fields.get(NFTA_SET_ELEM_KEY, b"")).get(NFTA_DATA_VALUE, b"")


def told_comment(element: bytes) -> str:
    return read_comment(attributes(element).get(NFTA_SET_ELEM_USERDATA, b""))


def told_chains(elements: Iterable[bytes]) -> set[str]:
    """The chains that elements of a map go to."""
    values = {attributes(element).get(NFTA_SET_ELEM_DATA, b"") for element in elements}
    return {chain for value in values if (chain := chain_of_verdict(value))}


def chain_of_verdict(data: bytes) -> str:
    """Where NFTA_DATA_VERDICT leads, "" where there is none."""
    verdict = attributes(data).get(NFTA_DATA_VERDICT, b"")
    return as_text(attributes(verdict).get(NFTA_VERDICT_CHAIN, b""))


def as_text(name: bytes) -> str:
    return name.rstrip(b"\0").decode("utf-8", "replace")


def put_elements(batch: Batch, family: int, table: str, name: str, elements: Iterable[bytes]) -> Batch:
    """Elements as told_elements() has them. One that is there already is fine; EBUSY where it has another value."""
    batch.begin(NFT_MSG_NEWSETELEM, NLM_F_ACK | NLM_F_CREATE, nfgenmsg(family), f"put back into {table} {name}")
    batch.text(NFTA_SET_ELEM_LIST_TABLE, table).text(NFTA_SET_ELEM_LIST_SET, name)
    batch.nest(NFTA_SET_ELEM_LIST_ELEMENTS)
    for element in elements:
        batch.nest(NFTA_LIST_ELEM).header(element).end()
    return batch.end()


def read_value(payload: bytes) -> bytes:
    """What the map of an NFT_MSG_NEWSETELEM payload has for the key, if it is about one; b"" if it has nothing."""
    (_, item), *_ = attribute_list(attributes(payload, 4)[NFTA_SET_ELEM_LIST_ELEMENTS])
    return attributes(attributes(item).get(NFTA_SET_ELEM_DATA, b"")).get(NFTA_DATA_VALUE, b"")


def read_number(payload: bytes) -> int:
    """The same as a number in network order."""
    return int.from_bytes(read_value(payload), "big")


def set_of_elements(payload: bytes) -> str:
    """The name of the set that an NFT_MSG_NEWSETELEM payload is about."""
    return attributes(payload, 4).get(NFTA_SET_ELEM_LIST_SET, b"").rstrip(b"\0").decode("utf-8", "replace")


def elements_of(table: str, name: str) -> Fill:
    """A function that adds the filter for wire.dump(): only the elements of this set."""
    return lambda batch: batch.text(NFTA_SET_ELEM_LIST_TABLE, table).text(NFTA_SET_ELEM_LIST_SET, name)


def rules_of(table: str, chain: str = "") -> Fill:
    """The same: only the rules of a chain, or of all chains of a table."""
    def fill(batch):
        batch.text(NFTA_RULE_TABLE, table)
        return batch.text(NFTA_RULE_CHAIN, chain) if chain else batch

    return fill


def read_rule(payload: bytes) -> tuple[int, str]:
    """An NFT_MSG_NEWRULE payload as (handle, comment). Raises ValueError for a message cut short."""
    found = attributes(payload, 4)
    if NFTA_RULE_HANDLE not in found:
        raise ValueError("nftables rule without a handle")
    return int.from_bytes(found[NFTA_RULE_HANDLE], "big"), read_comment(found.get(NFTA_RULE_USERDATA, b""))


def read_jump(payload: bytes) -> tuple[bytes, str, str]:
    """An NFT_MSG_NEWRULE or NFT_MSG_DELRULE payload as (handle, chain, chain that it leads to or "")."""
    found = attributes(payload, 4)
    verdicts = [fields.get(NFTA_IMMEDIATE_DATA, b"") for fields in expressions(payload, b"immediate\0")]
    target = chain_of_verdict(verdicts[-1]) if verdicts else ""
    return found.get(NFTA_RULE_HANDLE, b""), as_text(found.get(NFTA_RULE_CHAIN, b"")), target


def read_match(payload: bytes, name: str) -> bytes:
    """What an NFT_MSG_NEWRULE payload has for the match of iptables of this name, as that lays it out; b"" without."""
    wanted = name.encode() + b"\0"
    return next((fields.get(NFTA_MATCH_INFO, b"") for fields in expressions(payload, b"match\0")
                 if fields.get(NFTA_MATCH_NAME) == wanted), b"")


def expressions(payload: bytes, name: bytes) -> list[dict[int, bytes]]:
    """The attributes of each expression of that name in a message about a rule."""
    each = [attributes(it) for _, it in attribute_list(attributes(payload, 4).get(NFTA_RULE_EXPRESSIONS, b""))]
    return [attributes(it.get(NFTA_EXPR_DATA, b"")) for it in each if it.get(NFTA_EXPR_NAME) == name]


def get_generation(batch: Batch) -> Batch:
    """Ask for the number of transactions until now."""
    return batch.begin(NFT_MSG_GETGEN, NLM_F_ACK, nfgenmsg(0), "ask for nftables' generation")


def read_generation(payload: bytes) -> tuple[int, str]:
    """An NFT_MSG_NEWGEN payload as (generation, name of the thread whose transaction it was, or that asked)."""
    found = attributes(payload, 4)
    return int.from_bytes(found.get(NFTA_GEN_ID, b""), "big"), as_text(found.get(NFTA_GEN_PROC_NAME, b""))


def get_table(batch: Batch, family: int, name: str) -> Batch:
    """Ask for one table. ENOENT when it is not there."""
    return batch.begin(NFT_MSG_GETTABLE, NLM_F_ACK, nfgenmsg(family), f"look up nftables table {name}").text(
        NFTA_TABLE_NAME, name)


def get_set(batch: Batch, family: int, table: str, name: str) -> Batch:
    """Ask for one set or map, without its elements. ENOENT when it is not there."""
    batch.begin(NFT_MSG_GETSET, NLM_F_ACK, nfgenmsg(family), f"look up nftables set {table} {name}")
    return batch.text(NFTA_SET_TABLE, table).text(NFTA_SET_NAME, name)


def get_chain(batch: Batch, family: int, table: str, name: str, what: str) -> Batch:
    """Ask for one chain. ENOENT when it is not there."""
    batch.begin(NFT_MSG_GETCHAIN, NLM_F_ACK, nfgenmsg(family), what)
    return batch.text(NFTA_CHAIN_TABLE, table).text(NFTA_CHAIN_NAME, name)


def read_chain(payload: bytes) -> tuple[str, str, int]:
    """An NFT_MSG_NEWCHAIN payload as (table, name, references): rules in it and jumps to it, together."""
    found = attributes(payload, 4)
    table, name = (as_text(found.get(kind, b"")) for kind in (NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME))
    return table, name, int.from_bytes(found.get(NFTA_CHAIN_USE, b""), "big")


def read_base_chain(payload: bytes) -> tuple[int, str, str, str, int, int] | None:
    """An NFT_MSG_NEWCHAIN payload as (family, table, name, kind, hook, policy); None for a chain without a hook."""
    found = attributes(payload, 4)
    if NFTA_CHAIN_HOOK not in found:
        return None
    table, name, kind = (as_text(found.get(number, b""))
                         for number in (NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_TYPE))
    hook, policy = (int.from_bytes(data, "big") for data in (
        attributes(found[NFTA_CHAIN_HOOK]).get(NFTA_HOOK_HOOKNUM, b""), found.get(NFTA_CHAIN_POLICY, b"\1")))
    return payload[0], table, name, kind, hook, policy


def flush_chain(batch: Batch, family: int, table: str, chain: str) -> Batch:
    """Delete every rule of a chain."""
    batch.begin(NFT_MSG_DELRULE, NLM_F_ACK, nfgenmsg(family), f"flush nftables chain {table} {chain}")
    return batch.text(NFTA_RULE_TABLE, table).text(NFTA_RULE_CHAIN, chain)


def del_rule(batch: Batch, family: int, table: str, chain: str, handle: int) -> Batch:
    flush_chain(batch, family, table, chain)
    return batch.be64(NFTA_RULE_HANDLE, handle)


def add_rule(batch: Batch, family: int, table: str, chain: str, *expressions: Any, comment: str = "") -> Batch:
    """Append a rule. An expression is (name, function that writes its NFTA_EXPR_DATA)."""
    batch.begin(NFT_MSG_NEWRULE, NLM_F_ACK | NLM_F_CREATE | NLM_F_APPEND, nfgenmsg(family),
                f"add nftables rule to {table} {chain}")
    batch.text(NFTA_RULE_TABLE, table).text(NFTA_RULE_CHAIN, chain).nest(NFTA_RULE_EXPRESSIONS)
    for name, write in expressions:
        batch.nest(NFTA_LIST_ELEM).text(NFTA_EXPR_NAME, name).nest(NFTA_EXPR_DATA)
        write(batch)
        batch.end().end()
    batch.end()
    return batch.raw(NFTA_RULE_USERDATA, comment_data(comment)) if comment else batch


# Expressions, each with its attribute numbers in the order of nf_tables.h.

def meta(key: int, register: int = NFT_REG_1) -> Expression:
    """NFTA_META_DREG 1, NFTA_META_KEY 2"""
    return "meta", lambda b: b.be32(1, register).be32(2, key)


def compare(value: bytes, op: int = NFT_CMP_EQ) -> Expression:
    """NFTA_CMP_SREG 1, NFTA_CMP_OP 2, NFTA_CMP_DATA 3"""
    return "cmp", lambda b: b.be32(1, NFT_REG_1).be32(2, op).nest(3).raw(NFTA_DATA_VALUE, value).end()


def payload(base: int, offset: int, length: int, register: int = NFT_REG_1) -> Expression:
    """NFTA_PAYLOAD_DREG 1, _BASE 2, _OFFSET 3, _LEN 4"""
    return "payload", lambda b: b.be32(1, register).be32(2, base).be32(3, offset).be32(4, length)


def mask(bits: bytes) -> Expression:
    """NFTA_BITWISE_SREG 1, _DREG 2, _LEN 3, _MASK 4, _XOR 5"""
    return "bitwise", lambda b: (b.be32(1, NFT_REG_1).be32(2, NFT_REG_1).be32(3, len(bits))
                                 .nest(4).raw(NFTA_DATA_VALUE, bits).end()
                                 .nest(5).raw(NFTA_DATA_VALUE, bytes(len(bits))).end())


def verdict_of(map_name: str, set_id: int) -> Expression:
    """Look register 1 up in a verdict map. NFTA_LOOKUP_SET 1, _SREG 2, _DREG 3, _SET_ID 4"""
    return "lookup", lambda b: b.text(1, map_name).be32(2, NFT_REG_1).be32(3, NFT_REG_VERDICT).be32(4, set_id)


def in_set(set_name: str, set_id: int, inverted: bool = False) -> Expression:
    """Go on if register 1 is, or with `inverted` is not, in a set. NFTA_LOOKUP_SET 1, _SREG 2, _SET_ID 4, _FLAGS 5"""
    return "lookup", lambda b: (b.text(1, set_name).be32(2, NFT_REG_1).be32(4, set_id)
                                .be32(5, NFT_LOOKUP_F_INV if inverted else 0))


def value_of(map_name: str, set_id: int) -> Expression:
    """Look register 1 up in a map of values, which come into register 1 and those behind it."""
    return "lookup", lambda b: b.text(1, map_name).be32(2, NFT_REG_1).be32(3, NFT_REG_1).be32(4, set_id)


def verdict(code: int, chain: str | None = None) -> Expression:
    """NFTA_IMMEDIATE_DREG 1, _DATA 2; `chain` is where a jump goes"""
    def write(b):
        b.be32(1, NFT_REG_VERDICT).nest(2).nest(NFTA_DATA_VERDICT).be32(NFTA_VERDICT_CODE, code)
        (b.text(NFTA_VERDICT_CHAIN, chain) if chain else b).end().end()
    return "immediate", write


def ct(key: int) -> Expression:
    """Of the packet's connection, as conntrack knows it. NFTA_CT_DREG 1, _KEY 2"""
    return "ct", lambda b: b.be32(1, NFT_REG_1).be32(2, key)


def fib_daddr_type() -> Expression:
    """The kind of route (RTN_*) that the destination address has. NFTA_FIB_DREG 1, _RESULT 2, _FLAGS 3"""
    return "fib", lambda b: b.be32(1, NFT_REG_1).be32(2, NFT_FIB_RESULT_ADDRTYPE).be32(3, NFTA_FIB_F_DADDR)


def dnat(family: int, length: int) -> Expression:
    """To the address in register 1, `length` bytes, and the port in the word behind it.
    NFTA_NAT_TYPE 1, _FAMILY 2, _REG_ADDR_MIN 3, _ADDR_MAX 4, _PROTO_MIN 5, _PROTO_MAX 6"""
    port = NFT_REG32_00 + length // 4
    return "nat", lambda b: (b.be32(1, NFT_NAT_DNAT).be32(2, family).be32(3, NFT_REG_1).be32(4, NFT_REG_1)
                             .be32(5, port).be32(6, port))


def masquerade() -> Expression:
    return "masq", lambda b: b
