"""Make persistent TAP devices by ioctls on /dev/net/tun (linux/if_tun.h; networking/tuntap.rst)."""

from __future__ import annotations

import errno
import posix
import sys

from fastcni._abandoned import check_request
from fastcni.kernel.uapi import (
    IFF_MULTI_QUEUE,
    IFF_NO_PI,
    IFF_TAP,
    IFF_TUN_EXCL,
    IFNAMSIZ,
    TUNSETGROUP,
    TUNSETIFF,
    TUNSETOWNER,
    TUNSETPERSIST,
)

PATH = "/dev/net/tun"
NEXT_CONTEXT = "/proc/thread-self/attr/exec"    # the SELinux context of the thread's next execve(2), proc_pid_attr(5)

CHILD = """
import fcntl, posix
try:
    fd = posix.open({path!r}, posix.O_RDWR)
    for number, argument in {calls!r}:
        fcntl.ioctl(fd, number, argument)
except OSError as e:
    posix._exit(e.errno)
"""


class ContextRefused(OSError):
    """The kernel does not accept the SELinux context: SELinux is off, or its policy forbids the context."""


def open_device() -> int:
    """Open /dev/net/tun. The kernel puts a device that is made with this descriptor into the network namespace in which
    the descriptor was opened. Raises OSError."""
    return posix.open(PATH, posix.O_RDWR | posix.O_CLOEXEC)


def create_tap(name: str, *, multi_queue: bool = False, owner: int | None = None, group: int | None = None,
               context: str = "") -> None:
    """Make a persistent TAP device in the calling thread's network namespace. The device is down. Raises OSError, with
    EBUSY if a link has that name; ContextRefused.

    owner, group: ids of the user and the group that may open the device without CAP_NET_ADMIN; None: no such user or
    group. If both are None, any user may. Packet information and vnet_hdr are off, and a program that opens the device
    can switch them on. multi_queue cannot be changed later.

    context: the device's SELinux context. The kernel gives a device the context of the task that makes it
    (selinux_tun_dev_alloc_security), and uses neither attr/sockcreate nor attr/fscreate. A thread of this process
    cannot change to that context: attr/current works only in processes with one thread, and cannot be undone. So
    another process makes the device.
    """
    flags = IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL | (IFF_MULTI_QUEUE if multi_queue else 0)
    calls: list[tuple[int, int | bytes]] = [(TUNSETIFF, ifreq(name, flags))]
    calls += [(number, signed(wanted)) for number, wanted in ((TUNSETOWNER, owner), (TUNSETGROUP, group))
              if wanted is not None]
    # Last step: before this step, the kernel deletes the device when its descriptor is closed
    calls.append((TUNSETPERSIST, 1))
    if context:
        call_in_context(calls, context)
        return
    check_request()
    fd = open_device()
    try:
        for number, argument in calls:
            ioctl(fd, number, argument)
    finally:
        posix.close(fd)


# struct ifreq   name:char[16] | flags:s16 | the rest of a union of 24 bytes

def ifreq(name: str, flags: int) -> bytes:
    return name.encode().ljust(IFNAMSIZ, b"\0") + flags.to_bytes(2, sys.byteorder) + bytes(22)


def signed(number: int) -> int:
    """Return an id of 32 bits as the signed int that ioctl() takes."""
    return number - (number >> 31 << 32)


def ioctl(fd: int, number: int, argument: int | bytes) -> None:
    import fcntl  # imported here: in some Pythons fcntl is a separate file, and only ADD needs it

    fcntl.ioctl(fd, number, argument)


def call_in_context(calls: list[tuple[int, int | bytes]], context: str) -> None:
    """Make the ioctl calls in a process with that SELinux context. The process is a new Python, because SELinux
    policies let container runtimes change their context only by execve(2)."""
    from fastcni.kernel import process, waiting

    set_next_context(context.encode())
    try:
        done = process.run(sys.executable, {}, b"",
                           [sys.executable, "-I", "-S", "-c", CHILD.format(path=PATH, calls=calls)],
                           timeout=waiting.PROGRAM_TIMEOUT_S)
    finally:
        set_next_context(b"\n")             # a newline: no context
    if done.late:
        raise OSError(errno.ETIMEDOUT, posix.strerror(errno.ETIMEDOUT))
    if done.status:
        raise OSError(done.status, done.stderr.decode("utf-8", "replace").strip() or posix.strerror(done.status))


def set_next_context(context: bytes) -> None:
    try:
        fd = posix.open(NEXT_CONTEXT, posix.O_WRONLY | posix.O_CLOEXEC)
        try:
            posix.write(fd, context)
        finally:
            posix.close(fd)
    except OSError as e:
        raise ContextRefused(e.errno, e.strerror, NEXT_CONTEXT) from None
