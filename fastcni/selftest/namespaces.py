"""Make network namespaces that exist only as long as this process has a descriptor of them.

The namespaces have no file in /run/netns. So the kernel removes a namespace and all its links when this process ends,
even if it is killed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fastcni._netlink import Batch
from fastcni.kernel import netns, rtnl, wire

CLONE_NEWNET = 0x40000000       # linux/sched.h
LOOPBACK = 1                    # the interface index of lo in a new namespace

Answer = TypeVar("Answer")


def new() -> int:
    """Return a descriptor of a new network namespace whose lo is up. Raises the OSError of unshare(2)."""
    def work() -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET):
            error = ctypes.get_errno()
            raise OSError(error, f"make a network namespace: {os.strerror(error)}")
        with wire.open_socket() as sock:
            wire.exchange(sock, rtnl.set_link(Batch(), LOOPBACK, up=True))
        return netns.open_own()

    with ThreadPoolExecutor(1) as threads:      # the caller's thread stays in its namespace
        return threads.submit(work).result()


def path_of(fd: int) -> str:
    """Return the path of the namespace for CNI_NETNS, by which other processes can open it."""
    return f"/proc/{os.getpid()}/fd/{fd}"


def call(fd: int, function: Callable[[], Answer]) -> Answer:
    """Call `function` in the namespace `fd`, and return its result. A socket that `function` opens stays in that
    namespace."""
    with netns.inside(fd):
        return function()
