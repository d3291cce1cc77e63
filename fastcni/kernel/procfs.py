"""Mount procfs for fast lookups of pods' sysctls.

A mount has one hash chain for the net/ipv6 directories of all namespaces that were looked up in the mount. With 1,000
pods, the first lookup in a new pod compares 1,000 entries. So the server mounts procfs without a path, looks up sysctls
in that mount, and replaces the mount after USES lookups.
"""

from __future__ import annotations

import os

from fastcni._system import mount_procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

USES = 256                      # lookups in one mount, enough for some 60 pods


class Mount:
    """A mount of procfs. fd: a descriptor of its root directory. The kernel unmounts the procfs when this object is
    deleted."""

    __slots__ = ("fd",)

    def __init__(self) -> None:
        """Raises OSError."""
        self.fd = mount_procfs()

    def __del__(self) -> None:
        if (fd := getattr(self, "fd", -1)) >= 0:        # fd is missing if mount_procfs() has failed
            os.close(fd)


class Mounts:
    """The current mount, which is replaced after USES lookups. later(fn) runs fn() in another thread, because
    unmounting takes milliseconds."""

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        """Raises OSError if this process may not mount, or if its /proc/sys is read-only: the administrator then does
        not allow this process to write sysctls."""
        if os.statvfs("/proc/sys").f_flag & os.ST_RDONLY:
            raise OSError("/proc/sys is mounted read-only")
        self.later, self.mount, self.uses = later, Mount(), 0

    def current(self) -> Mount:
        """Return the mount for one lookup. The caller must keep the object until the lookup ends."""
        self.uses = uses = self.uses + 1
        if uses == USES:                # the local variable `uses`, because other threads change self.uses
            self.later(self._renew)
        return self.mount

    def _renew(self) -> None:
        self.uses = 0
        try:
            self.mount = Mount()
        except OSError:
            return                      # the previous mount still works, more slowly
