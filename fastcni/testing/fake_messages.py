"""Encode and decode netlink attributes for the models of a node, and define Refused, the kernel's error."""

from __future__ import annotations

import struct
import sys

Replies = list[tuple[int, bytes]]       # (message type, payload)
HOST, POD = "host", "pod"


class Refused(Exception):
    def __init__(self, errno: int) -> None:
        self.errno = errno


def attr(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def u32(value: int) -> bytes:
    return value.to_bytes(4, sys.byteorder)


def number(data: bytes) -> int:
    return int.from_bytes(data, sys.byteorder)


def text(data: bytes) -> str:
    return data.rstrip(b"\0").decode()
