"""A kernel that refuses one request: the n-th of all netlink messages, sysctls, files, sockets, setns,
and ioctls of tun.

A refused netlink message is really refused: its type is changed to one that the kernel does not know, so that its
neighbours in the same batch are served, and its answer is turned into EPERM.
"""

import os
import posix
import struct
from errno import EMFILE, ENOSPC, EPERM

from fastcni import _ipam_bitmap
from fastcni.kernel import netns, sysctl, tun, wire
from fastcni.kit import files, store, tuning_backup

UNKNOWN_TYPE = {0: 0x7E, 1: 0x017E, 10: 0x0A7E}        # by subsystem: rtnetlink, ctnetlink and nf_tables have none such
FILE_CALLS = {"open": EMFILE, "write": ENOSPC, "pwrite": ENOSPC, "unlink": EPERM, "mkdir": EPERM, "listdir": EMFILE,
              "symlink": EPERM}


class Refusal:
    """Counts requests and refuses number `at` (from 1). `reached` tells whether there was one, `what` which."""

    def __init__(self, monkeypatch, at):
        self.at, self.count, self.what = at, 0, ""
        self.home = os.stat("/proc/thread-self/ns/net").st_ino
        self._attempt, self._setns = wire.attempt, netns.setns
        monkeypatch.setattr(wire, "attempt", self.attempt)
        monkeypatch.setattr(wire, "socket", self._guard(wire.socket, EMFILE, "socket"))
        monkeypatch.setattr(netns, "setns", self.setns)
        for name in ("read", "write"):
            monkeypatch.setattr(sysctl, name, self._guard(getattr(sysctl, name), EPERM, f"sysctl {name}"))
        for name, errno in (("open_device", EMFILE), ("ioctl", EPERM)):
            monkeypatch.setattr(tun, name, self._guard(getattr(tun, name), errno, f"tun {name}"))
        for module in (files, store, tuning_backup):
            monkeypatch.setattr(module, "posix", _Files(self))
        monkeypatch.setattr(store, "_ipam_bitmap", _Locks(self))

    @property
    def reached(self):
        return bool(self.what)

    def refuses(self, what):
        """Is it this one's turn?"""
        self.count += 1
        if self.count == self.at:
            self.what = what
        return self.count == self.at

    def _guard(self, function, errno, what):
        def guarded(*args, **more):
            if self.refuses(f"{what} {args}"):
                raise OSError(errno, os.strerror(errno))
            return function(*args, **more)
        return guarded

    def setns(self, fd):
        """Only the way in: one that has no way back must end, see netns.Lost."""
        if os.fstat(fd).st_ino != self.home and self.refuses("setns"):
            raise PermissionError(EPERM, os.strerror(EPERM))
        return self._setns(fd)

    def attempt(self, sock, batch):
        altered = _Altered(self, batch)
        replies, refused = self._attempt(sock, altered)
        for error in refused:
            if altered.refused and error.what == altered.refused:
                error.errno, error.strerror, error.kernel_text = EPERM, os.strerror(EPERM), ""
        if altered.refused:
            assert refused, f"{altered.refused}: the altered message was taken"
        return replies, refused


class _Altered:
    """A Batch with perhaps one message that the kernel does not know."""

    def __init__(self, refusal, batch):
        self.refusal, self.batch, self.refused = refusal, batch, None
        self.asked, self.first = batch.asked, batch.first

    def finish(self):
        data, at = bytearray(self.batch.finish()), 0
        while at < len(data):
            length, kind, _, sequence = struct.unpack_from("=IHHI", data, at)
            if sequence in self.asked and self.refusal.refuses(self.asked[sequence]):
                struct.pack_into("=H", data, at + 4, UNKNOWN_TYPE[kind >> 8])
                self.refused = self.asked[sequence]
            at += (length + 3) & ~3
        return bytes(data)

    def clear(self):
        self.asked = dict(self.asked)
        self.batch.clear()


class _Files:
    """The posix module as kit/files.py, kit/store.py and kit/tuning_backup.py see it."""

    def __init__(self, refusal):
        for name, errno in FILE_CALLS.items():
            setattr(self, name, refusal._guard(getattr(posix, name), errno, name))

    def __getattr__(self, name):
        return getattr(posix, name)


class _Locks:
    def __init__(self, refusal):
        self.lock = refusal._guard(_ipam_bitmap.lock, EPERM, "lock")

    def __getattr__(self, name):
        return getattr(_ipam_bitmap, name)
