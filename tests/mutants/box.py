"""Run a function in a child process with separate network, mount and pid namespaces. The child leaves nothing behind.

The child is process 1 of its pid namespace. So when the child ends or its time is over, the kernel kills all processes
that it started. The child's /tmp and /run are empty.
"""

import ctypes
import os
import select
import signal
import subprocess

CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x20000000, 0x40000000       # linux/sched.h
LIBC = ctypes.CDLL(None, use_errno=True)


def boxed(function, seconds):
    """Run function() in a child. Return the status that function() returned, an int, or None if it took longer than
    `seconds`. Needs root."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call(LIBC.unshare, CLONE_NEWPID)           # applies to children, not to this process
        child = os.fork()
        if child == 0:
            _run(function)
        _call(LIBC.setns, own, CLONE_NEWPID)
    finally:
        os.close(own)
    watched = os.pidfd_open(child)
    try:
        ended = bool(select.select([watched], [], [], seconds)[0])
    finally:
        os.close(watched)
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status) if ended else None


def _run(function):
    """In the child: make the namespaces, call the function, and exit with its status."""
    status = 70                                     # EX_SOFTWARE
    try:
        os.setsid()
        _call(LIBC.unshare, CLONE_NEWNS | CLONE_NEWNET)
        for command in ("mount --make-rprivate /", "mount -t proc proc /proc", "mount -t tmpfs tmpfs /tmp",
                        "mount -t tmpfs tmpfs /run", "ip link set lo up"):
            subprocess.run(command.split(), check=True)
        status = function()
    finally:
        os._exit(status)


def _call(function, *args):
    if function(*args):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
