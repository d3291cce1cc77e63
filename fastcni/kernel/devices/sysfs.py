"""Read the devices of the machine from /sys (sysfs(5)).

A directory `net` lists only the links of the network namespace in which /sys was mounted.
"""

from __future__ import annotations

import posix

from fastcni._system import read_file

ROOT = "/sys/"


def exists(path: str) -> bool:
    return posix.access(ROOT + path, posix.F_OK)


def names(path: str) -> list[str]:
    """Return the names in a directory, sorted; [] if the directory does not exist."""
    try:
        return sorted(posix.listdir(ROOT + path))
    except OSError:
        return []


def read(path: str) -> str:
    """Return the text of a file, white space trimmed; "" if the file does not exist, or the device does not answer."""
    try:
        return read_file(ROOT + path, posix.O_RDONLY, 4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def target(path: str) -> str:
    """Return the name of the file that a symbolic link points to, for example the name of a device's driver. Raises
    OSError."""
    return posix.readlink(ROOT + path).rpartition("/")[2]
