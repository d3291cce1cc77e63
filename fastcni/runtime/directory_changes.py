"""Watch directories for changes by inotify(7)."""

from __future__ import annotations

import ctypes
import os
import struct

IN_ATTRIB, IN_CLOSE_WRITE = 0x4, 0x8                                    # linux/inotify.h
IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF, IN_IGNORED, IN_ONLYDIR = 0x400, 0x800, 0x8000, 0x1000000
CHANGES = (IN_ATTRIB | IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF
           | IN_MOVE_SELF | IN_ONLYDIR)
EVENT = struct.Struct("iIII")           # struct inotify_event: watch, mask, cookie, length of the name that follows
BUFFER_BYTES = 1 << 16


class DirectoryChanges:
    """An inotify descriptor that becomes readable when a file in a watched directory is changed, added or removed.

    Raises OSError: EMFILE if the user already has /proc/sys/fs/inotify/max_user_instances instances.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._only: dict[int, str] = {}         # {watch descriptor: the only name whose changes count}
        self.descriptor = self._checked(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def add(self, directory: str, only: str = "") -> None:
        """Watch a directory; a second call for the same directory changes nothing. The kernel ends the watch when the
        directory is deleted. only: the name of the only file in the directory that counts if it is added or removed;
        "": all changes count.

        Raises OSError: ENOENT, ENOTDIR, EACCES; ENOSPC if the user already has /proc/sys/fs/inotify/max_user_watches
        watches.
        """
        mask = CHANGES & ~IN_ATTRIB if only else CHANGES
        watch = self._checked(self._libc.inotify_add_watch(self.descriptor, os.fsencode(directory), mask), directory)
        if only:
            self._only[watch] = only

    def take(self) -> set[str]:
        """Return the names of the files that have changed since the last call. The name "" means that a watched
        directory itself has changed, or that the kernel has dropped changes. The descriptor then becomes readable at
        the next change."""
        names = set()
        try:
            while data := os.read(self.descriptor, BUFFER_BYTES):
                at = 0
                while at < len(data):
                    watch, mask, _, length = EVENT.unpack_from(data, at)
                    at += EVENT.size + length
                    name = os.fsdecode(data[at - length:at].rstrip(b"\0"))
                    if not name or name == self._only.get(watch, name):
                        names.add(name)
                    if mask & IN_IGNORED:           # the kernel has ended the watch
                        self._only.pop(watch, None)
        except BlockingIOError:
            return names
        return names

    def close(self) -> None:
        os.close(self.descriptor)

    def _checked(self, result: int, directory: str = "") -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), directory or "inotify")
        return result
