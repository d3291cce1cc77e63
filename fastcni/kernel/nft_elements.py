"""Encode and read messages about nftables sets, maps and elements, and the bytes of keys and values.

    nft_elements.add_set(b, NFPROTO_INET, "fastcni", "hostports4", (TYPE_INET_PROTOCOL, TYPE_INET_SERVICE), set_id=1)
    nft_elements.add_elements(b, NFPROTO_INET, "fastcni", "hostports4", [(concat(protocol(6), service(80)), None)])

Names and layouts: include/uapi/linux/netfilter/nf_tables.h. TYPE_*: nft's numbers of data types (datatype.h).
"""

from __future__ import annotations

from fastcni._netlink import Batch, attribute_list, attributes, messages
from fastcni.kernel.nft import (
    NFT_GOTO,
    NFT_MSG_DELSET,
    NFT_MSG_DELSETELEM,
    NFT_MSG_GETSET,
    NFT_MSG_GETSETELEM,
    NFT_MSG_NEWSET,
    NFT_MSG_NEWSETELEM,
    NFTA_DATA_VALUE,
    NFTA_DATA_VERDICT,
    NFTA_LIST_ELEM,
    NFTA_VERDICT_CHAIN,
    NFTA_VERDICT_CODE,
    ORDER,
    as_text,
    chain_of_verdict,
    comment_data,
    nfgenmsg,
    read_comment,
)
from fastcni.kernel.uapi import IFNAMSIZ, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Value = bytes | str | int | None

NFTA_SET_TABLE, NFTA_SET_NAME, NFTA_SET_FLAGS, NFTA_SET_KEY_TYPE, NFTA_SET_KEY_LEN = 1, 2, 3, 4, 5
NFTA_SET_DATA_TYPE, NFTA_SET_DATA_LEN, NFTA_SET_DESC, NFTA_SET_ID, NFTA_SET_USERDATA = 6, 7, 9, 10, 13
NFTA_SET_DESC_SIZE, NFTA_SET_DESC_CONCAT, NFTA_SET_FIELD_LEN, NFTA_SET_TIMEOUT = 1, 2, 1, 11
NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_ELEMENTS = 1, 2, 3
NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_FLAGS, NFTA_SET_ELEM_USERDATA = 1, 2, 3, 6
NFTA_SET_ELEM_TIMEOUT, NFTA_SET_ELEM_EXPIRATION, NFTA_SET_ELEM_KEY_END = 4, 5, 10
NFT_SET_INTERVAL, NFT_SET_MAP, NFT_SET_TIMEOUT, NFT_SET_EVAL, NFT_SET_CONCAT = 0x4, 0x8, 0x10, 0x20, 0x80
NFT_SET_ELEM_INTERVAL_END = 0x1
NFT_DATA_VERDICT = 0xFFFFFF00
TYPE_IPADDR, TYPE_IP6ADDR, TYPE_ETHERADDR, TYPE_INET_PROTOCOL, TYPE_INET_SERVICE, TYPE_IFNAME = 7, 8, 9, 12, 13, 41
TYPE_ETHERTYPE, TYPE_IFINDEX = 10, 20
SIZES = {TYPE_IPADDR: 4, TYPE_IP6ADDR: 16, TYPE_ETHERADDR: 6, TYPE_ETHERTYPE: 2, TYPE_INET_PROTOCOL: 1,
         TYPE_INET_SERVICE: 2, TYPE_IFINDEX: 4, TYPE_IFNAME: IFNAMSIZ}
ADDRESS_TYPES = {4: TYPE_IPADDR, 16: TYPE_IP6ADDR}     # by length of an address
BITS_OF_A_TYPE = 6              # in the number of a concatenation, each type takes 6 bits


# Keys and values ----------------------------------------------------------------------------------

def ifname(name: str) -> bytes:
    """Return a link's name as a key of TYPE_IFNAME, or as a part of a concatenation."""
    return name.encode().ljust(IFNAMSIZ, b"\0")


def read_ifname(key: bytes) -> str:
    """Return the name of the link at the beginning of a key."""
    return key[:IFNAMSIZ].rstrip(b"\0").decode()


def protocol(number: int) -> bytes:
    """Return IPPROTO_* as TYPE_INET_PROTOCOL."""
    return number.to_bytes(1, "big")


def service(port: int) -> bytes:
    """Return a port, or another number of two bytes, as TYPE_INET_SERVICE."""
    return port.to_bytes(2, "big")


def read_service(value: bytes) -> int:
    """Return the number that service() encodes."""
    return int.from_bytes(value, "big")


def concat(*parts: bytes) -> bytes:
    """Return the key or value of a concatenation: each part is padded to words of four bytes."""
    return b"".join([part.ljust(padded(len(part)), b"\0") for part in parts])


def split(key: bytes, *sizes: int) -> list[bytes]:
    """Return the parts of a concatenation, given their sizes in bytes: the reverse of concat()."""
    found, at = [], 0
    for size in sizes:
        found.append(key[at:at + size])
        at += padded(size)
    return found


def padded(size: int) -> int:
    return size + 3 & ~3


def concat_type(types: Sequence[int]) -> tuple[int, int]:
    """Return (number, size in bytes) of one type, or of the concatenation of several types."""
    if len(types) == 1:
        return types[0], SIZES[types[0]]
    number = 0
    for each in types:
        number = number << BITS_OF_A_TYPE | each
    return number, sum([padded(SIZES[each]) for each in types])


# Sets ---------------------------------------------------------------------------------------------

def add_set(batch: Batch, family: int, table: str, name: str, key: Sequence[int], *, set_id: int,
            values: Sequence[int] = (), verdicts: bool = False, intervals: bool = False,
            timed: bool = False, timeout_ms: int = 0, size: int = 0) -> Batch:
    """Add a set whose keys have the types `key`. With `values` (the types of values) or `verdicts` add a map. With
    `intervals`, add_intervals() adds the elements, or add_boxes() if the key is a concatenation. With `timed`,
    add_timed() adds the elements. With `timeout_ms`, rules add the elements, and the kernel deletes an element that no
    rule has updated for this time.

    set_id: the number by which rules of the same transaction refer to the set. size: for how many elements the kernel
    allocates a hash table; the kernel rejects further elements with ENFILE. 0: the table grows, which makes lookups
    slower. A set with `intervals` has no size. A set with `timeout_ms` and no size has up to 65,535 elements.
    """
    key_type, key_size = concat_type(key)
    boxes = intervals and len(key) > 1
    batch.begin(NFT_MSG_NEWSET, NLM_F_ACK | NLM_F_CREATE, nfgenmsg(family), f"add nftables set {table} {name}")
    batch.text(NFTA_SET_TABLE, table).text(NFTA_SET_NAME, name)
    batch.be32(NFTA_SET_FLAGS, (NFT_SET_MAP if values or verdicts else 0) | (NFT_SET_INTERVAL if intervals else 0)
               | (NFT_SET_CONCAT if boxes else 0) | (NFT_SET_TIMEOUT if timed or timeout_ms else 0)
               | (NFT_SET_EVAL if timeout_ms else 0))
    batch.be32(NFTA_SET_KEY_TYPE, key_type).be32(NFTA_SET_KEY_LEN, key_size)
    if timeout_ms:
        batch.be64(NFTA_SET_TIMEOUT, timeout_ms)
    if values or verdicts:
        data_type, data_size = concat_type(values) if values else (NFT_DATA_VERDICT, 0)
        batch.be32(NFTA_SET_DATA_TYPE, data_type).be32(NFTA_SET_DATA_LEN, data_size)
    if boxes:                           # the kernel compares the key field by field
        batch.nest(NFTA_SET_DESC).nest(NFTA_SET_DESC_CONCAT)
        for each in key:
            batch.nest(NFTA_LIST_ELEM).be32(NFTA_SET_FIELD_LEN, SIZES[each]).end()
        batch.end().end()
    elif size:
        batch.nest(NFTA_SET_DESC).be32(NFTA_SET_DESC_SIZE, size).end()
    if key_type == TYPE_IFNAME:         # libnftnl: KEYBYTEORDER host, so that nft prints the name
        batch.raw(NFTA_SET_USERDATA, b"\0\x04" + (1).to_bytes(4, ORDER))
    return batch.be32(NFTA_SET_ID, set_id)


def del_set(batch: Batch, family: int, table: str, name: str) -> Batch:
    """Delete a set or map with its elements. The kernel answers EBUSY if a rule uses the set."""
    batch.begin(NFT_MSG_DELSET, NLM_F_ACK, nfgenmsg(family), f"delete nftables set {table} {name}")
    return batch.text(NFTA_SET_TABLE, table).text(NFTA_SET_NAME, name)


def get_set(batch: Batch, family: int, table: str, name: str) -> Batch:
    """Ask for one set or map, without its elements. The kernel answers ENOENT if the set does not exist."""
    batch.begin(NFT_MSG_GETSET, NLM_F_REQUEST, nfgenmsg(family), f"look up nftables set {table} {name}")
    return batch.text(NFTA_SET_TABLE, table).text(NFTA_SET_NAME, name)


# Elements -----------------------------------------------------------------------------------------

def _begin(batch: Batch, kind: int, flags: int, family: int, table: str, name: str, verb: str) -> Batch:
    """Begin a message about elements of a set, and its list of elements."""
    batch.begin(kind, flags, nfgenmsg(family), f"{verb} nftables set {table} {name}")
    batch.text(NFTA_SET_ELEM_LIST_TABLE, table).text(NFTA_SET_ELEM_LIST_SET, name)
    return batch.nest(NFTA_SET_ELEM_LIST_ELEMENTS)


def _elements(batch: Batch, kind: int, flags: int, family: int, table: str, name: str,
              elements: Sequence[tuple[bytes, Value]], verb: str, comment: str | None = None) -> Batch:
    """NFTA_SET_ELEM_LIST_ELEMENTS
        NFTA_LIST_ELEM                  for each (key, value)
            NFTA_SET_ELEM_KEY: NFTA_DATA_VALUE key
            NFTA_SET_ELEM_DATA: NFTA_DATA_VALUE value
                or for a value that is text: NFTA_DATA_VERDICT: NFTA_VERDICT_CODE goto, NFTA_VERDICT_CHAIN value
                or for a number: NFTA_DATA_VERDICT: NFTA_VERDICT_CODE value
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
        elif isinstance(value, int):
            batch.nest(NFTA_SET_ELEM_DATA).nest(NFTA_DATA_VERDICT).be32(NFTA_VERDICT_CODE, value).end().end()
        elif value:
            batch.nest(NFTA_SET_ELEM_DATA).nest(NFTA_DATA_VERDICT).be32(NFTA_VERDICT_CODE, NFT_GOTO)
            batch.text(NFTA_VERDICT_CHAIN, value).end().end()
        if data:
            batch.raw(NFTA_SET_ELEM_USERDATA, data)
        batch.end()
    return batch.end()


def add_elements(batch: Batch, family: int, table: str, name: str,
                 elements: Sequence[tuple[bytes, Value]], comment: str | None = None, *,
                 exclusive: bool = True) -> Batch:
    """Add elements to a set or map: [(key, value)]. A value is bytes, the chain to go to as text, the code of another
    verdict (NF_DROP), or None in a set.

    With `exclusive` the kernel answers EEXIST if one of the keys exists.
    """
    flags = NLM_F_ACK | NLM_F_CREATE | (NLM_F_EXCL if exclusive else 0)
    return _elements(batch, NFT_MSG_NEWSETELEM, flags, family, table, name, elements, "add to", comment)


def add_timed(batch: Batch, family: int, table: str, name: str, elements: Iterable[tuple[bytes, int]]) -> Batch:
    """Add elements with a timeout, [(key, milliseconds)], to a set made with `timed`. Before Linux 6.12, an existing
    element keeps its timeout."""
    _begin(batch, NFT_MSG_NEWSETELEM, NLM_F_ACK | NLM_F_CREATE, family, table, name, "add to")
    for key, timeout_ms in elements:
        batch.nest(NFTA_LIST_ELEM).nest(NFTA_SET_ELEM_KEY).raw(NFTA_DATA_VALUE, key).end()
        batch.be64(NFTA_SET_ELEM_TIMEOUT, timeout_ms).end()
    return batch.end()


def read_timed(payload: bytes) -> list[tuple[bytes, int]]:
    """Read an NFT_MSG_NEWSETELEM payload: [(key, milliseconds until the element ends)]."""
    fields = [attributes(item) for _, item in
              attribute_list(attributes(payload, 4).get(NFTA_SET_ELEM_LIST_ELEMENTS, b""))]
    return [(_key_of(each), int.from_bytes(each.get(NFTA_SET_ELEM_EXPIRATION, b""), "big")) for each in fields]


def element_template(family: int, table: str, name: str, size: int, value: Value = None) -> tuple[bytes, bytes]:
    """Return the bytes before and after the key in the message that adds one element with a key of `size` bytes. All
    keys of a set have the same size, so add_from_template() can add many elements without encoding each message."""
    key = bytes(range(255, 255 - size, -1))             # these bytes occur nowhere else in the message
    batch = _elements(Batch(), NFT_MSG_NEWSETELEM, 0, family, table, name, [(key, value)], "")
    before, _, behind = messages(batch.finish())[0][4].partition(key)
    return before, behind


def add_from_template(batch: Batch, message: bytes, *, exclusive: bool, acknowledged: bool) -> Batch:
    """Add a request for one element. message: the parts of element_template() with the key between them. acknowledged:
    whether the request asks for an ACK. If one request of a transaction asks for an ACK, the kernel also reports the
    errors of all other requests."""
    return batch.begin(NFT_MSG_NEWSETELEM, NLM_F_CREATE | NLM_F_EXCL * exclusive | NLM_F_ACK * acknowledged, message,
                       "add nftables elements")


def add_intervals(batch: Batch, family: int, table: str, name: str, ranges: Iterable[tuple[bytes, bytes]]) -> Batch:
    """Add ranges [(first, last)] that do not touch, in any order, to a set with intervals. For each range the set has
    two elements: the first key, and the key after the last key with NFT_SET_ELEM_INTERVAL_END."""
    _begin(batch, NFT_MSG_NEWSETELEM, NLM_F_ACK | NLM_F_CREATE, family, table, name, "add intervals to")
    for first, last in ranges:
        batch.nest(NFTA_LIST_ELEM).nest(NFTA_SET_ELEM_KEY).raw(NFTA_DATA_VALUE, first).end().end()
        if last.count(255) < len(last):         # otherwise no key follows `last`
            behind = (int.from_bytes(last, "big") + 1).to_bytes(len(last), "big")
            batch.nest(NFTA_LIST_ELEM).nest(NFTA_SET_ELEM_KEY).raw(NFTA_DATA_VALUE, behind).end()
            batch.be32(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END).end()
    return batch.end()


def add_boxes(batch: Batch, family: int, table: str, name: str, ranges: Iterable[tuple[bytes, bytes]], *,
              delete: bool = False) -> Batch:
    """Add ranges [(first, last)] of concatenations to a set with intervals, or delete the ranges. A key is in a range
    if each field is between the fields of `first` and `last`."""
    kind, flags = (NFT_MSG_DELSETELEM, NLM_F_ACK) if delete else (NFT_MSG_NEWSETELEM, NLM_F_ACK | NLM_F_CREATE)
    _begin(batch, kind, flags, family, table, name, "delete from" if delete else "add to")
    for first, last in ranges:
        batch.nest(NFTA_LIST_ELEM).nest(NFTA_SET_ELEM_KEY).raw(NFTA_DATA_VALUE, first).end()
        batch.nest(NFTA_SET_ELEM_KEY_END).raw(NFTA_DATA_VALUE, last).end().end()
    return batch.end()


def add_element(batch: Batch, family: int, table: str, name: str, key: bytes, comment: str,
                value: Value = None) -> Batch:
    return add_elements(batch, family, table, name, [(key, value)], comment)


def del_elements(batch: Batch, family: int, table: str, name: str, keys: Iterable[bytes]) -> Batch:
    """Delete elements. The kernel answers ENOENT if one of the keys does not exist."""
    return _elements(batch, NFT_MSG_DELSETELEM, NLM_F_ACK, family, table, name, [(key, None) for key in keys],
                     "delete from")


def flush_set(batch: Batch, family: int, table: str, name: str) -> Batch:
    """Delete all elements of a set or map."""
    batch.begin(NFT_MSG_DELSETELEM, NLM_F_ACK, nfgenmsg(family), f"flush nftables set {table} {name}")
    return batch.text(NFTA_SET_ELEM_LIST_TABLE, table).text(NFTA_SET_ELEM_LIST_SET, name)


def del_element(batch: Batch, family: int, table: str, name: str, key: bytes) -> Batch:
    return del_elements(batch, family, table, name, [key])


def get_element(batch: Batch, family: int, table: str, name: str, key: bytes) -> Batch:
    """Ask for one element, outside of a transaction. The kernel answers ENOENT if the element or the table does not
    exist."""
    return _elements(batch, NFT_MSG_GETSETELEM, NLM_F_REQUEST, family, table, name, [(key, None)], "look up in")


def elements_of(table: str, name: str) -> Callable[[Batch], Batch]:
    """Return the argument `fill` with which wire.dump() lists the elements of one set."""
    return lambda batch: batch.text(NFTA_SET_ELEM_LIST_TABLE, table).text(NFTA_SET_ELEM_LIST_SET, name)


def read_elements(payload: bytes) -> list[tuple[bytes, str]]:
    """Read an NFT_MSG_NEWSETELEM payload: [(key, comment)]."""
    found = attributes(payload, 4)
    elements = []
    for _, item in attribute_list(found.get(NFTA_SET_ELEM_LIST_ELEMENTS, b"")):
        fields = attributes(item)
        elements.append((_key_of(fields), read_comment(fields.get(NFTA_SET_ELEM_USERDATA, b""))))
    return elements


def read_value(payload: bytes) -> bytes:
    """Read the value of the only element in an NFT_MSG_NEWSETELEM payload; b"" if the element has no value."""
    (_, item), *_ = attribute_list(attributes(payload, 4)[NFTA_SET_ELEM_LIST_ELEMENTS])
    return attributes(attributes(item).get(NFTA_SET_ELEM_DATA, b"")).get(NFTA_DATA_VALUE, b"")


def read_set_name(payload: bytes) -> str:
    """Read the name of the set in an NFT_MSG_NEWSETELEM payload."""
    return as_text(attributes(payload, 4).get(NFTA_SET_ELEM_LIST_SET, b""))


# Raw elements: attributes from the kernel that fastcni sends back unchanged -----------------------

def read_raw_elements(payload: bytes) -> dict[bytes, bytes]:
    """Read an NFT_MSG_NEWSETELEM or NFT_MSG_DELSETELEM payload: {key: all attributes of the element}."""
    return {_key_of(attributes(element)): element for _, element in
            attribute_list(attributes(payload, 4).get(NFTA_SET_ELEM_LIST_ELEMENTS, b""))}


def raw_comment(element: bytes) -> str:
    """Return the comment of a raw element."""
    return read_comment(attributes(element).get(NFTA_SET_ELEM_USERDATA, b""))


def raw_chains(elements: Iterable[bytes]) -> set[str]:
    """Return the chains to which the raw elements of a verdict map jump."""
    values = {attributes(element).get(NFTA_SET_ELEM_DATA, b"") for element in elements}
    return {chain for value in values if (chain := chain_of_verdict(value))}


def add_raw_elements(batch: Batch, family: int, table: str, name: str, elements: Iterable[bytes]) -> Batch:
    """Add raw elements. An existing element with the same value is no error. With another value the kernel answers
    EBUSY."""
    _begin(batch, NFT_MSG_NEWSETELEM, NLM_F_ACK | NLM_F_CREATE, family, table, name, "restore elements of")
    for element in elements:
        batch.nest(NFTA_LIST_ELEM).header(element).end()
    return batch.end()


def _key_of(fields: dict[int, bytes]) -> bytes:
    return attributes(fields.get(NFTA_SET_ELEM_KEY, b"")).get(NFTA_DATA_VALUE, b"")
