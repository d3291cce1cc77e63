"""Read, write and remove small files of plugins. A kernel error becomes CniError 5 with the path and the kernel's
message.

A pipe, a device or a directory at the file's path is an error; open(2) does not block on a pipe. The parameter
`details` is the details of the CniError.
"""

from __future__ import annotations

import posix

from fastcni._abandoned import check_request
from fastcni._system import open_regular, read_file, write_file
from fastcni.spec import errors
from fastcni.spec.errors import CniError

MAX_BYTES = 1 << 20             # most bytes that read() returns
WRITE = posix.O_CREAT | posix.O_TRUNC | posix.O_NOFOLLOW


def read(path: str, limit: int = MAX_BYTES, flags: int = 0) -> bytes | None:
    """Return at most `limit` bytes of the content; None if the file does not exist. flags: additional flags of
    open(2)."""
    try:
        return read_file(path, posix.O_RDONLY | flags, limit, regular=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise file_error("read", path, e) from None


def write(path: str, content: bytes, details: str = "") -> None:
    """Write a file with mode 0600. If its directory is missing, make the directory with mode 0700."""
    try:
        try:
            write_file(path, content, WRITE, regular=True)
        except FileNotFoundError:
            make_directories(path.rpartition("/")[0], 0o700)
            write_file(path, content, WRITE, regular=True)
    except OSError as e:
        raise file_error("write", path, e, details) from None


def open_lock(path: str) -> int:
    """Return a descriptor of a file to lock by flock(2). If the file is missing, make it with mode 0600, and its
    directory with mode 0700. Raises OSError."""
    flags = posix.O_RDONLY | posix.O_CREAT | posix.O_NOFOLLOW
    try:
        return open_regular(path, flags, 0o600)
    except FileNotFoundError:
        make_directories(path.rpartition("/")[0], 0o700)
        return open_regular(path, flags, 0o600)


def make_directories(path: str, mode: int, above: int = 0o755) -> None:
    """Make a directory with `mode` if it is missing, and its missing parents with mode `above`. Raises OSError."""
    try:
        try:
            posix.mkdir(path, mode)
        except FileNotFoundError:
            parent = path.rstrip("/").rpartition("/")[0]
            if not parent:
                raise
            make_directories(parent, above, above)
            posix.mkdir(path, mode)
    except FileExistsError:
        return


def remove(path: str, details: str = "") -> None:
    """Remove a file; success if it does not exist."""
    check_request()
    try:
        posix.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as e:
        raise file_error("remove", path, e, details) from None


def names(directory: str, details: str = "") -> list[str]:
    """Return the names in a directory; [] if the directory does not exist."""
    try:
        return posix.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as e:
        raise file_error("list", directory, e, details) from None


def file_error(verb: str, path: str, error: OSError, details: str = "") -> CniError:
    return CniError(errors.IO_FAILURE, f"{verb} {path}: {error.strerror} (errno {error.errno})", details)
