"""Keys of nftables sets and values that rules compare with, as the kernel has them in its registers; comments."""

from __future__ import annotations

import sys

COMMENT_MAX = 128               # libnftnl's NFTNL_UDATA_COMMENT_MAXLEN


def host32(number: int) -> bytes:
    """A number of four bytes in the machine's order."""
    return number.to_bytes(4, sys.byteorder)


def be16(number: int) -> bytes:
    """A port or a count: two bytes in network order."""
    return number.to_bytes(2, "big")


def concat_key(*parts: bytes) -> bytes:
    """The key of a concatenation: each part is padded to a word."""
    return b"".join([part + bytes(-len(part) % 4) for part in parts])


def concat_type(*types: int) -> int:
    """nft's number for the type of a concatenation, of the TYPE_* of its parts; six bits each."""
    found = 0
    for each in types:
        found = found << 6 | each
    return found


def comment_data(text: str) -> bytes:
    """A comment as libnftnl's user data: type:u8 (0) length:u8 text NUL. Cut to what nft accepts, never in
    the middle of a character."""
    data = text.encode()[:COMMENT_MAX - 1].decode("utf-8", "ignore").encode() + b"\0"
    return b"\0%c%b" % (len(data), data)


def read_comment(data: bytes) -> str:
    """The comment in user data, "" if there is none."""
    at = 0
    while at + 2 <= len(data):
        kind, length = data[at], data[at + 1]
        if kind == 0:
            return data[at + 2:at + 2 + length].rstrip(b"\0").decode("utf-8", "replace")
        at += 2 + length
    return ""
