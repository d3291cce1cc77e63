"""Decide whether the network namespace at a path still exists.

GONE needs proof, because callers then delete attachments, addresses and leases. A namespace that this process cannot
see is UNKNOWN: this process may see only the file without its mount (`-v /run/netns:/run/netns` without rslave), or
another directory at the same path (a container's own /run/netns). Proofs are:

- /proc/PID/ns/net: a procfs that shows all processes of the node has no process PID.
- Any other path: the file is missing, and its directory is the same as at ADD: the directory's birth is before the ADD,
  and its last change (a file was added or removed) is after the ADD. Neither a mount point without its mount nor a
  container's own directory meets both conditions.
"""

from __future__ import annotations

import os
import time
from errno import EACCES, ENOENT

from fastcni._system import directory_times
from fastcni.kernel import netns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ALIVE, GONE, UNKNOWN = "alive", "gone", "unknown"
PF_KTHREAD = 0x00200000                 # linux/sched.h
INIT_TIME_NAMESPACE = 0xEFFFFFFA        # PROC_TIME_INIT_INO, linux/proc_ns.h
SETTLE_S, PAUSE_S = 0.5, 0.05           # seconds for which a file must have no mount; seconds between two checks
USUAL_DIRECTORIES = ("/run/netns", "/run/docker/netns")
MOUNTS = "are these the mounts and the processes of the node?"


def state_of(path: str, since: float = 0.0) -> tuple[str, str]:
    """Return (ALIVE, GONE or UNKNOWN, why) of a pod's network namespace.

    path: the value of CNI_NETNS. since: a unix time at which the pod had this namespace, for example the time of the
    file that its ADD wrote; 0.0 if no time is known.
    """
    state, why = look_up(path, since)
    if state == UNKNOWN and 0 < since < boot_began():
        return GONE, "it is from before the last boot"
    return state, why


def look_up(path: str, since: float) -> tuple[str, str]:
    """Return what state_of() returns, but do not compare `since` with the time of the last boot."""
    if not path:
        return UNKNOWN, "the cache does not name its network namespace"
    if not path.startswith("/"):
        return UNKNOWN, f"{path} is not absolute"
    try:
        device = os.stat(netns.OWN).st_dev              # the device of nsfs, on which all namespaces' files are
    except OSError as e:
        return UNKNOWN, f"{netns.OWN}: {strerror(e)}"
    try:
        found = os.stat(path)
    except ValueError as e:
        return UNKNOWN, f"its network namespace cannot be named: {e}"
    except OSError as e:
        if e.errno == ENOENT:
            return missing(path, since)
        # EACCES: the namespace belongs to another user's process
        seen = e.errno == EACCES and os.path.lexists(path)
        return ALIVE if seen else UNKNOWN, f"{path} cannot be read: {strerror(e)}"
    if found.st_dev == device:
        return ALIVE, f"{path} exists"
    return UNKNOWN, (f"{path} is a plain file here, where a namespace that this process cannot see may be mounted; if "
                     "the pod no longer exists, remove the file")


def missing(path: str, since: float) -> tuple[str, str]:
    """Return the state of a namespace whose path has no file."""
    try:
        real = os.path.realpath(path)
    except OSError:                     # the process has ended, but is not reaped
        return UNKNOWN, f"{path} cannot be followed"
    proc, pid = process_of(real)
    if pid:
        if sees_processes(proc) and not os.path.lexists(f"{proc}/{pid}"):
            return GONE, f"{path} does not exist any more"
        return UNKNOWN, f"{proc} does not show that process {pid} has ended; {MOUNTS}"
    directory = os.path.dirname(real)
    try:
        born, changed = directory_times(directory)
    except OSError:
        return UNKNOWN, f"there is no {directory} here; {MOUNTS}"
    if 0 < since <= changed and (has_namespaces(directory) if born is None else born <= since):
        return GONE, f"{path} does not exist any more"
    return UNKNOWN, f"{path} does not exist, but nothing shows that {directory} is the directory of its ADD; {MOUNTS}"


def process_of(path: str) -> tuple[str, str]:
    """Return (the procfs, the pid) of /proc/PID/ns/net, /proc/PID/task/TID/ns/net or /proc/PID/fd/FD; ("", "") for
    another path."""
    above, _, rest = path.rpartition("/proc/")
    pid, _, inner = rest.partition("/")
    is_namespace = inner.endswith("ns/net") or inner.startswith("fd/")
    return (f"{above}/proc", pid) if pid.isdecimal() and is_namespace else ("", "")


def sees_processes(proc: str = "/proc") -> bool:
    """Return whether a procfs shows all processes of the node.

    Such a procfs shows the kernel's threads, which are only in the first PID namespace, where kthreadd has PID 2.
    hidepid=2 hides them from other users. Source: proc_pid_stat(5).
    """
    try:
        with open(f"{proc}/2/stat", encoding="ascii", errors="replace") as file:
            return bool(int(file.read().rpartition(")")[2].split()[6]) & PF_KTHREAD)
    except (OSError, IndexError, ValueError):
        return False


def boot_began() -> float:
    """Return a unix time that is not later than the beginning of this boot; 0.0 in a time namespace, which changes the
    clock.

    If the clock was set forward since the boot, pods of this boot would seem older than the boot. So the modification
    time of /sys counts, too: the kernel made /sys at the boot, by the clock of that time.
    """
    try:
        if os.stat("/proc/self/ns/time").st_ino != INIT_TIME_NAMESPACE:
            return 0.0
    except OSError:
        pass                            # Linux before 5.6 has no time namespaces
    try:
        return min(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME), os.stat("/sys").st_mtime)
    except OSError:
        return 0.0


# Directories whose namespaces this process cannot see --------------------------------------------

def unseen(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (directory, why) of each directory in which this process does not see all namespaces of pods, or will not
    see namespaces that are mounted later.

    paths: the paths of pods' namespaces. unseen() checks the directories of these paths and USUAL_DIRECTORIES.
    """
    on_node = shares_mounts()
    usual = [directory for directory in USUAL_DIRECTORIES if os.path.isdir(directory)]
    named = [os.path.dirname(path) for path in paths if path.startswith("/") and not process_of(path)[1]]
    for directory in dict.fromkeys([*usual, *named]):
        if not os.path.isdir(directory):
            if not on_node:
                yield directory, "does not exist here"
        elif plain := len(plain_files(directory)):
            yield directory, f"has {plain} plain {'file' if plain == 1 else 'files'}, where namespaces may be mounted"
        elif not on_node and not receives_mounts(directory):
            yield directory, "is a private mount: namespaces that are made from now on do not appear here"


def plain_files(directory: str) -> set[str]:
    """Return the names of files on which no namespace is mounted during SETTLE_S. This leaves out files between open(2)
    and mount(2), or between umount(2) and unlink(2). Raises OSError."""
    found = without_mount(directory)
    deadline = time.monotonic() + SETTLE_S
    while found and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
        found &= without_mount(directory)
    return found


def without_mount(directory: str) -> set[str]:
    device = os.stat(netns.OWN).st_dev
    with os.scandir(directory) as entries:
        return {it.name for it in entries if it.is_file(follow_symlinks=False) and is_on(it.path) not in (device, None)}


def is_on(path: str) -> int | None:
    """Return the device of a file; None if the file does not exist."""
    try:
        return os.lstat(path).st_dev
    except FileNotFoundError:
        return None


def has_namespaces(directory: str) -> bool:
    """Return whether a namespace is mounted on a file of the directory. Raises OSError."""
    device = os.stat(netns.OWN).st_dev
    with os.scandir(directory) as found:
        return any(is_on(it.path) == device for it in found)


def shares_mounts() -> bool:
    """Return whether this process has the same mounts as the node's first process. Return False also if this process
    does not see all processes of the node, because process 1 may then be a container's."""
    try:
        return sees_processes() and os.stat("/proc/self/ns/mnt").st_ino == os.stat("/proc/1/ns/mnt").st_ino
    except OSError:
        return False


def has_other_mounts(pid: int) -> bool:
    """Return whether a process is in another mount namespace than this process. Return False also if this process may
    not read the other process's namespace, which needs the other process's capabilities."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino != os.stat("/proc/self/ns/mnt").st_ino
    except OSError:
        return False


def receives_mounts(directory: str) -> bool:
    """Return whether this process sees later mounts of the node in the directory: the directory's mount is shared or a
    slave.

    Source: proc_pid_mountinfo(5).
    """
    path, best, receives = os.path.realpath(directory), -1, False
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.split(" ")
            point = fields[4].replace("\\040", " ")
            if len(point) >= best and f"{path}/".startswith(f"{point.rstrip('/')}/"):
                best = len(point)
                receives = any(it.startswith(("shared:", "master:")) for it in fields[6:fields.index("-")])
    return receives


def strerror(error: OSError) -> str:
    return os.strerror(error.errno or 0).lower()
