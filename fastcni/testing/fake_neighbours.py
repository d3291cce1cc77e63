"""Model neighbour entries and the FDBs of bridges for tests."""

from __future__ import annotations

import struct
from errno import ENOENT

from fastcni._netlink import attributes
from fastcni.kernel import uapi
from fastcni.kernel.uapi import NLM_F_DUMP
from fastcni.testing.fake_messages import Refused, Replies, attr, number, u32

MESSAGES = (uapi.RTM_NEWNEIGH, uapi.RTM_DELNEIGH, uapi.RTM_GETNEIGH)


class Neighbours:
    """The model of neighbours. entries: {(namespace, index of the link, packed address): (MAC, protocol)}. fdb:
    {(namespace, MAC): index of the bridge's port}.
    """

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int, bytes], tuple[bytes, int]] = {}
        self.fdb: dict[tuple[str, bytes], int] = {}

    def serve(self, where: str, kind: int, flags: int, payload: bytes) -> Replies:
        family, index, found = payload[0], number(payload[4:8]), attributes(payload, 12)
        mac, packed = found.get(uapi.NDA_LLADDR, b""), found.get(uapi.NDA_DST, b"")
        if family == uapi.AF_BRIDGE:
            return self.serve_fdb(where, kind, index, mac)
        if kind == uapi.RTM_NEWNEIGH:
            self.entries[where, index, packed] = mac, number(found.get(uapi.NDA_PROTOCOL, b""))
            return []
        if flags & NLM_F_DUMP == NLM_F_DUMP and kind == uapi.RTM_GETNEIGH:
            return [self.encoded(*key) for key in self.entries if len(key[2]) == (4 if family == uapi.AF_INET else 16)]
        if (where, index, packed) not in self.entries:
            raise Refused(ENOENT)
        if kind == uapi.RTM_GETNEIGH:
            return [self.encoded(where, index, packed)]
        del self.entries[where, index, packed]
        return []

    def serve_fdb(self, where: str, kind: int, index: int, mac: bytes) -> Replies:
        if kind == uapi.RTM_NEWNEIGH:
            self.fdb[where, mac] = index
            return []
        if (where, mac) not in self.fdb:
            raise Refused(ENOENT)
        head = struct.pack("=BxHiHBx", uapi.AF_BRIDGE, 0, self.fdb[where, mac], uapi.NUD_NOARP, uapi.NTF_STICKY)
        return [(uapi.RTM_NEWNEIGH, head + attr(uapi.NDA_LLADDR, mac))]

    def encoded(self, where: str, index: int, packed: bytes) -> tuple[int, bytes]:
        mac, protocol = self.entries[where, index, packed]
        family = uapi.AF_INET if len(packed) == 4 else uapi.AF_INET6
        head = struct.pack("=BxHiHBx", family, 0, index, uapi.NUD_REACHABLE, uapi.NTF_EXT_LEARNED)
        return uapi.RTM_NEWNEIGH, (head + attr(uapi.NDA_DST, packed) + attr(uapi.NDA_LLADDR, mac)
                                   + attr(uapi.NDA_PROTOCOL, u32(protocol)[:1]))

    def forget(self, where: str, index: int) -> None:
        """Delete the neighbours and FDB entries of the deleted link `index` in the namespace `where`."""
        self.entries = {key: value for key, value in self.entries.items() if key[:2] != (where, index)}
        self.fdb = {key: port for key, port in self.fdb.items() if (key[0], port) != (where, index)}
