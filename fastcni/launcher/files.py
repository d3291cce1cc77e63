"""Replace files together: write them beside the old ones under other names, then rename them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable


def replace(folder: str, names: Iterable[str], write: Callable[[str, str], None]) -> list[str]:
    """Have write(name, path) make each file at another path, then rename it to `name` in `folder`. Returns the paths.

    A name stands for the old file or for the new one, each complete, at any moment. If a step before the renames fails,
    all stay as they were. Raises OSError.
    """
    staged: dict[str, str] = {}
    token = secrets.token_hex(8)
    try:
        for name in names:
            temporary = os.path.join(folder, f".fastcni-{token}-{name}")    # the name of no CNI type and of no unit
            staged[os.path.join(folder, name)] = temporary
            write(name, temporary)
        for path, temporary in staged.items():
            os.rename(temporary, path)
        sync(folder)
        return list(staged)
    finally:
        for temporary in staged.values():
            try:
                os.unlink(temporary)
            except FileNotFoundError:
                pass                    # it was renamed


def write(path: str, data: bytes, mode: int) -> None:
    """Make a new file, with that mode whatever the umask. It is on disk when this returns: a plugin file that is empty
    after a power cut keeps the node from starting pods. Raises OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: str) -> None:
    """Wait until the renames in the folder are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
