"""Small files that plugins read and keep. An error of the kernel is a CniError 5 with the path and its message.

A pipe, a device or a folder in the place of a file is an error, and open(2) does not wait for it.
"""

import posix

from fastcni._abandoned import check_request
from fastcni._system import read_file, write_file
from fastcni.spec import errors
from fastcni.spec.errors import CniError

LIMIT = 1 << 20                 # bytes of a file that is read
WRITE = posix.O_CREAT | posix.O_TRUNC | posix.O_NOFOLLOW


def read(path, limit=LIMIT, flags=0):
    """The content as bytes; None if there is no such file. flags: more flags of open(2)."""
    try:
        return read_file(path, posix.O_RDONLY | flags, limit, regular=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise trouble("read", path, e) from None


def write(path, content):
    """A file that only root reads, in a folder that only root opens."""
    try:
        try:
            write_file(path, content, WRITE, regular=True)
        except FileNotFoundError:
            make_folders(path.rpartition("/")[0], 0o700)
            write_file(path, content, WRITE, regular=True)
    except OSError as e:
        raise trouble("write", path, e) from None


def make_folders(path, mode, above=0o755):
    """Make a folder if it is missing, and its parents with the mode `above`, whatever the umask. Raises OSError."""
    try:
        try:
            posix.mkdir(path, mode)
        except FileNotFoundError:
            parent = path.rstrip("/").rpartition("/")[0]
            if not parent:
                raise
            make_folders(parent, above, above)
            posix.mkdir(path, mode)
    except FileExistsError:
        return


def remove(path):
    """Gone is fine."""
    check_request()
    try:
        posix.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as e:
        raise trouble("remove", path, e) from None


def names(folder):
    """What is in a folder; [] where there is none."""
    try:
        return posix.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as e:
        raise trouble("list", folder, e) from None


def trouble(verb, path, error):
    return CniError(errors.IO_FAILURE, f"{verb} {path}: {error.strerror} (errno {error.errno})")
