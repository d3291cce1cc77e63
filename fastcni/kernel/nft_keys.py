"""Keys of nftables sets, and values that rules compare with, as the kernel has them in its registers."""

from __future__ import annotations

import sys


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
