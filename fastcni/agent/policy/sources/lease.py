"""Know by the kernel's leases (fcntl(2), F_SETLEASE) that no program writes a file."""

from __future__ import annotations

import fcntl
import signal
from errno import EAGAIN

SHARED = {"nfs4", "cifs", "smb3"}       # file systems that may refuse each lease with EAGAIN


def is_written(fd: int) -> bool:
    """Return whether a program has the regular file of `fd` open for writing. If none has, a program that opens the
    file for writing waits until `fd` is closed.

    Return False where leases do not exist: on some file systems, and without CAP_LEASE for another user's file.
    """
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)      # about a program that waits; SIGIO would end this process
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as e:
        return e.errno == EAGAIN and file_system(fd) not in SHARED
    return False


def file_system(fd: int) -> str:
    """Return the type of the file system of an open file. Source: proc_pid_fdinfo(5), proc_pid_mountinfo(5)."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
        mount = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        return next((line.partition(" - ")[2].split()[0] for line in lines if line.split()[0] == mount), "")
