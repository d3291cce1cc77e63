"""A directory with an index, and functions that make addresses for it."""

import os
import struct

from fastcni._ipam_bitmap import Index

BOOT = b"0f8b1c2d-1111-4222-8333-444455556666"
FILE = ".fastcni.index"
# magic, layout, unused, capacities, counts, device and inode, mtime, ctime, boot ID
HEADER = struct.Struct("=8sIIQQQQQQqqqq36s")


def v4(n):
    return (0x0A000000 + n).to_bytes(4, "big")


def v6(n):
    return (0xFD00_0009 << 96 | n).to_bytes(16, "big")


class Directory:
    def __init__(self, path):
        self.path = path
        self.fd = os.open(path, os.O_RDONLY)

    def open(self, boot=BOOT):
        return Index(self.fd, boot)

    def file(self):
        return os.path.join(self.path, FILE)

    def filled(self, count):
        """Make an index with `count` addresses. Sign and close it."""
        index = self.open()
        for n in range(count):
            assert index.hold(v4(n), b"owner %d" % n)
        assert index.sign()
        index.close()
