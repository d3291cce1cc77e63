"""Detect that a file has changed, without reading it."""

from __future__ import annotations

import os

Stamp = tuple[int, ...]


def stamp(path: str) -> Stamp:
    """Return a value that changes if the file is written, replaced or gets other permissions; () if stat(2) fails.

    The last number is the time of the last change, st_ctime_ns. Two changes within one tick of the file system's clock
    may have the same time.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):           # ValueError: a NUL in the path
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
