"""Mounts of procfs for the sysctls of pods.

A mount has one hash chain for the net/ipv6 of all namespaces that were looked up in it. With 1,000 pods, the first
lookup in a new pod compares 1,000 entries. So the server looks up sysctls in a mount of its own, which no path leads
to, and replaces the mount after USES lookups.
"""

from __future__ import annotations

import os

from fastcni._system import mount_procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

USES = 256                      # of some 60 pods


class Mount:
    """fd: of the root. The mount ends when nothing refers to this object."""

    __slots__ = ("fd",)

    def __init__(self) -> None:
        """Raises OSError."""
        self.fd = mount_procfs()

    def __del__(self) -> None:
        if (fd := getattr(self, "fd", -1)) >= 0:        # mount_procfs() may have failed
            os.close(fd)


class Mounts:
    """later(fn): runs fn() in another thread, because the end of a mount takes milliseconds."""

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        """Raises OSError if this process may not mount, or if its own /proc/sys is read-only: then an administrator
        does not want it to write sysctls."""
        if os.statvfs("/proc/sys").f_flag & os.ST_RDONLY:
            raise OSError("/proc/sys is mounted read-only")
        self.later, self.mount, self.uses = later, Mount(), 0

    def current(self) -> Mount:
        """Return the mount for one lookup. Keep the object until the lookup ends."""
        self.uses = uses = self.uses + 1
        if uses == USES:                # `uses` is this thread's: no other thread can make it skip the value
            self.later(self._renew)
        return self.mount

    def _renew(self) -> None:
        self.uses = 0
        try:
            self.mount = Mount()
        except OSError:
            return                      # the former mount works as well, more slowly
