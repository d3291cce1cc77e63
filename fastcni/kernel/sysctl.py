"""Read and write sysctls below /proc/sys, in the calling thread's network namespace."""

from __future__ import annotations

import posix

from fastcni._system import read_file, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fastcni.kernel.procfs import Mounts

PROC, ROOT = "/proc/", "/proc/sys/"
mounts: Mounts | None = None    # if the server has set these mounts, sysctls are looked up in them, not below /proc


def path(name: str) -> str:
    """Return the file of a sysctl name. The separator is '.' or '/', whichever occurs first (sysctl(8)).

    If a dot occurs first, slashes stand for dots: net.ipv4.conf.eth0/100.forwarding is a sysctl of link eth0.100.
    Raises ValueError for a name that leads out of /proc/sys.
    """
    dot, slash = name.find("."), name.find("/")
    if dot >= 0 and (slash < 0 or dot < slash):
        name = name.translate({ord("."): "/", ord("/"): "."})
    if not name or ".." in name.split("/") or "\0" in name:
        raise ValueError(f"not a sysctl name: {name!r}")
    return ROOT + name.lstrip("/")


def exists(name: str) -> bool:
    if mounts is None:
        return posix.access(path(name), posix.F_OK)
    mount = mounts.current()
    return posix.access(path(name)[len(PROC):], posix.F_OK, dir_fd=mount.fd)


def read(name: str) -> str:
    """Return the value of a sysctl as text, white space trimmed. Raises OSError."""
    return _look_up(read_file, name, posix.O_RDONLY, 4096).decode("utf-8", "replace").strip()


def boot_id() -> str:
    """Return this boot's id, 36 characters (random(4)). Raises OSError."""
    return read("kernel/random/boot_id")


def write(name: str, value: str) -> None:
    """Write the value of a sysctl. Raises OSError."""
    _look_up(write_file, name, value.encode(), 0)


def _look_up(call: Callable[..., Any], name: str, *args: object) -> Any:
    """Return call(path of the sysctl's file, *args). With `mounts`, the path is relative, and the last argument is the
    descriptor of the current mount."""
    if mounts is None:
        return call(path(name), *args)
    mount = mounts.current()
    try:
        return call(path(name)[len(PROC):], *args, mount.fd)
    except OSError as e:
        if e.filename:
            e.filename = path(name)
        raise


def open_directory(name: str) -> int:
    """Open a directory of sysctls for read_at() and write_at(). The descriptor leads to the calling thread's namespace,
    even if a thread in another namespace uses it. Raises OSError."""
    return posix.open(path(name), posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)


def read_at(directory: int, name: str) -> str:
    """Return the value of the sysctl `name`, with slashes between its parts, below an open directory. Raises
    OSError."""
    return read_file(name, posix.O_RDONLY, 4096, directory).decode("utf-8", "replace").strip()


def write_at(directory: int, name: str, value: str) -> None:
    """Write the sysctl `name`, with slashes between its parts, below an open directory. Raises OSError."""
    write_file(name, value.encode(), 0, directory)


def ensure(name: str, value: str) -> None:
    """Write the value only if the sysctl has another value, because a write takes a lock that a read does not take.
    Raises OSError."""
    if read(name) != value:
        write(name, value)


def offer(name: str, value: str) -> bool:
    """Write a sysctl that this kernel may lack or not allow to change. Return whether the write succeeded. Use offer()
    for a new link, whose value is known to differ: reading it first would be a needless open()."""
    try:
        write(name, value)
    except OSError:
        return False            # this kernel has no IPv6, or /proc/sys is mounted read-only
    return True
