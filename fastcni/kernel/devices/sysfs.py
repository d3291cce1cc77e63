"""The devices of the machine, read from /sys (sysfs(5)).

A folder `net` lists only the links of the network namespace in which /sys was mounted.
"""

from __future__ import annotations

import posix

ROOT = "/sys/"


def exists(path: str) -> bool:
    return posix.access(ROOT + path, posix.F_OK)


def names(path: str) -> list[str]:
    """The names in a folder, sorted; [] if there is no such folder."""
    try:
        return sorted(posix.listdir(ROOT + path))
    except OSError:
        return []


def read(path: str) -> str:
    """The text of a file, white space trimmed; "" if there is no such file, or the device does not answer."""
    try:
        fd = posix.open(ROOT + path, posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            return posix.read(fd, 4096).decode("utf-8", "replace").strip()
        finally:
            posix.close(fd)
    except OSError:
        return ""


def target(path: str) -> str:
    """The name that a symbolic link leads to, for instance of a device's driver. Raises OSError."""
    return posix.readlink(ROOT + path).rpartition("/")[2]
