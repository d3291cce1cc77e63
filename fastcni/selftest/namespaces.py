"""Make network namespaces that exist only as long as this process has a descriptor.

The namespaces have no file in /run/netns. So the kernel removes them with all their links, even if this process is
killed.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from fastcni._netlink import Batch
from fastcni.kernel import netns, rtnl, wire

CLONE_NEWNET = 0x40000000       # linux/sched.h
LOOPBACK = 1                    # index of lo in a new namespace

Answer = TypeVar("Answer")


def new() -> int:
    """Return a descriptor of a new network namespace whose lo is up. Raises the OSError of unshare(2)."""
    def work() -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET):
            error = ctypes.get_errno()
            raise OSError(error, f"make a network namespace: {os.strerror(error)}")
        sock = wire.open_socket()
        try:
            wire.exchange(sock, rtnl.set_link(Batch(), LOOPBACK, up=True))
        finally:
            sock.close()
        return netns.open_own()

    return in_thread(work)


def path_of(fd: int) -> str:
    """Return the path by which other processes open the namespace, for CNI_NETNS."""
    return f"/proc/{os.getpid()}/fd/{fd}"


def call(fd: int, function: Callable[[], Answer]) -> Answer:
    """Call a function inside of the namespace of a descriptor. A socket that the function opens stays in that
    namespace."""
    with netns.inside(fd):
        return function()


def in_thread(function: Callable[[], Answer]) -> Answer:
    """Call a function in a new thread, which ends with the function. Raises the function's exceptions."""
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(function())
        except BaseException as e:          # raised in the caller's thread
            errors.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]
