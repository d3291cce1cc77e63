"""Find out by a lease (fcntl(2), F_SETLEASE) whether a program has a file open for writing."""

from __future__ import annotations

import fcntl
import signal
from errno import EAGAIN

SHARED = {"nfs4", "cifs", "smb3"}       # file systems that may answer EAGAIN to every lease


def is_written(fd: int) -> bool:
    """Return whether a program has the regular file of `fd` open for writing. If no program has the file open, a
    program that opens it for writing waits until `fd` is closed.

    Return False if the kernel gives no lease: on some file systems, and without CAP_LEASE for another user's file.
    """
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)      # sent when a program waits; SIGIO would end this process
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as e:
        return e.errno == EAGAIN and file_system(fd) not in SHARED
    return False


def file_system(fd: int) -> str:
    """Return the file system type of an open file, for example "ext4". Source: proc_pid_fdinfo(5),
    proc_pid_mountinfo(5)."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
        mount = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        return next((line.partition(" - ")[2].split()[0] for line in lines if line.split()[0] == mount), "")
