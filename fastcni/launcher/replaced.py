"""Keep the files that fastcni's plugins replaced, in BIN/.fastcni-replaced, until `fastcni uninstall` restores them.

The kept file is a hard link to the replaced file, so its mode, times, owner and other names stay. Each step is one
rename(2) or link(2): a crash at any point leaves complete files, and a second run finishes the work.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator

from fastcni.kit.call.files import make_directories
from fastcni.launcher import files

DIRECTORY = ".fastcni-replaced"
TEMPORARY = re.compile(r"\.fastcni-[0-9a-f]{16}-.+")        # see files.replace()


def directory(bin_dir: str) -> str:
    return os.path.join(bin_dir, DIRECTORY)


def kept(bin_dir: str) -> list[str]:
    """Return the names of the kept files. Raises OSError."""
    try:
        return sorted(name for name in os.listdir(directory(bin_dir)) if not TEMPORARY.fullmatch(name))
    except FileNotFoundError:
        return []


@contextlib.contextmanager
def locked(bin_dir: str) -> Iterator[None]:
    """Wait for other commands that change this plugin directory, and remove the files of a killed command.
    Raises OSError."""
    handle = os.open(bin_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for where in (bin_dir, directory(bin_dir)):
            for name in os.listdir(where) if os.path.isdir(where) else ():
                if TEMPORARY.fullmatch(name):
                    os.unlink(os.path.join(where, name))
        yield
    finally:
        os.close(handle)


def keep(bin_dir: str, name: str) -> None:
    """Keep the file `name` of the plugin directory, which also stays there. A file that was kept before under this name
    is lost. Raises OSError."""
    make_directories(directory(bin_dir), 0o755)
    path, place = os.path.join(bin_dir, name), os.path.join(directory(bin_dir), name)
    temporary = os.path.join(directory(bin_dir), f".fastcni-{secrets.token_hex(8)}-{name}")
    try:
        link_or_copy(path, temporary)
        os.rename(temporary, place)
    finally:
        with contextlib.suppress(FileNotFoundError):        # rename(2) keeps both names if they are links to one file
            os.unlink(temporary)


def link_or_copy(path: str, new: str) -> None:
    """Give a file, or a symbolic link, the second name `new`. If the file system has no hard links, copy the file.
    Raises OSError."""
    if files.link(path, new):
        return
    shutil.copy2(path, new, follow_symlinks=False)
    found = os.lstat(path)
    os.chown(new, found.st_uid, found.st_gid, follow_symlinks=False)
    if not os.path.islink(new):
        os.chmod(new, found.st_mode & 0o7777)               # chown(2) clears set-user-ID
        files.sync(new)


def restore(bin_dir: str, name: str) -> None:
    """Move the kept file back into the plugin directory in one step. Raises OSError."""
    place = os.path.join(directory(bin_dir), name)
    os.rename(place, os.path.join(bin_dir, name))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(place)


def is_in_place(bin_dir: str, name: str) -> bool:
    """Return whether the kept file is still the file in the plugin directory, because an install stopped after keeping
    it."""
    try:
        one, other = (os.lstat(os.path.join(where, name)) for where in (bin_dir, directory(bin_dir)))
    except FileNotFoundError:
        return False
    return os.path.samestat(one, other) or (
        (one.st_size, one.st_mtime_ns, one.st_mode) == (other.st_size, other.st_mtime_ns, other.st_mode))


def forget(bin_dir: str, name: str) -> None:
    """Remove a kept file; a missing file is no error. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory(bin_dir), name))


def remove_directory(bin_dir: str) -> None:
    """Remove the directory of kept files if it exists and is empty. Raises OSError."""
    try:
        os.rmdir(directory(bin_dir))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise
