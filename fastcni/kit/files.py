"""Small files that plugins read and keep. What the kernel refuses is a CniError 5 with the path and its words."""

import posix

from fastcni.spec import errors
from fastcni.spec.errors import CniError

LIMIT = 1 << 20                 # bytes of a file that is read
READ = posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK
WRITE = posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | posix.O_CLOEXEC | posix.O_NOFOLLOW


def read(path):
    """The content as bytes; None where there is no such file."""
    try:
        fd = posix.open(path, READ)
        try:
            return posix.read(fd, LIMIT)
        finally:
            posix.close(fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise trouble("read", path, e) from None


def write(path, content):
    """A file that only root reads, in a folder that only root opens."""
    try:
        fd = create(path)
        try:
            posix.write(fd, content)
        finally:
            posix.close(fd)
    except OSError as e:
        raise trouble("write", path, e) from None


def create(path):
    try:
        return posix.open(path, WRITE, 0o600)
    except FileNotFoundError:
        from os import makedirs  # once in the life of a node; os itself costs 0.9 ms

        makedirs(path.rpartition("/")[0], 0o700, exist_ok=True)
        return posix.open(path, WRITE, 0o600)


def remove(path):
    """Gone is fine."""
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
    return CniError(errors.IO_FAILURE, f"{verb} {path}: {posix.strerror(error.errno)} (errno {error.errno})")
