"""Replace several files together: write the new files next to the old files under other names, then rename the new
files."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress

NO_LINK = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


def replace(directory: str, names: Iterable[str], write: Callable[[str, str], None]) -> list[str]:
    """Call write(name, path) to make each file at a temporary path, then rename the files to their names in
    `directory`. Return the paths.

    At any time each name belongs to a complete file, the old or the new file. If a step before the renames fails, all
    files stay unchanged. Raises OSError.
    """
    staged: dict[str, str] = {}
    token = secrets.token_hex(8)
    try:
        for name in names:
            temporary = os.path.join(directory, f".fastcni-{token}-{name}")    # no CNI type and no unit has such a name
            staged[os.path.join(directory, name)] = temporary
            write(name, temporary)
        for path, temporary in staged.items():
            os.rename(temporary, path)
        sync(directory)
        return list(staged)
    finally:
        for temporary in staged.values():
            with suppress(FileNotFoundError):           # the usual case: the file was renamed
                os.unlink(temporary)


def write(path: str, data: bytes, mode: int) -> None:
    """Make a new file with `mode`, independent of the umask, and sync it to disk: a plugin file that is empty after a
    power cut would keep the node from starting pods. Raises OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)
        file.flush()
        os.fsync(file.fileno())


def link(path: str, new: str) -> bool:
    """Give a file, or a symbolic link, the second name `new`. Return False if the file system has no hard links. Raises
    OSError."""
    try:
        os.link(path, new, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_LINK:
            raise
        return False
    return True


def sync(path: str) -> None:
    """Wait until a file, or the renames in a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
