"""Detach a server that a plugin file has started from the runtime's request whose process attributes it inherits.

The launcher gives the server a session, an environment and streams (launcher/autostart.h). This module does the rest.
If the node does not permit one of these changes, the server works without that change.
"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress

CGROUPS = "/sys/fs/cgroup"
OWN_CGROUP = "fastcni"          # the server's cgroup if the root cgroup allows no processes, as in a container
OOM_SCORE_ADJ = -500            # as in fastcni.service
# {limit: its value}: systemd's defaults for units, and LimitNOFILE of fastcni.service
LIMITS = {resource.RLIMIT_NOFILE: 16384,
          **dict.fromkeys((resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE),
                          resource.RLIM_INFINITY)}
KEPT_SIGNALS = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}     # Python ignores the last two


def detach(cgroups: str = CGROUPS) -> None:
    """Leave the caller's cgroups, processors, signals, working directory and limits. cgroups: where the hierarchies are
    mounted."""
    os.chdir("/")
    os.umask(0o022)
    for number in signal.valid_signals() - KEPT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for limit, value in LIMITS.items():
        with suppress(OSError, ValueError):
            resource.setrlimit(limit, (value, value))
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    with suppress(OSError):
        write("/proc/self/oom_score_adj", str(OOM_SCORE_ADJ))
    leave_cgroups(cgroups)
    with suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(1))        # init's processors, without those of isolcpus=


def leave_cgroups(cgroups: str) -> None:
    """Move this process to the root of each cgroup hierarchy, so that it outlives the caller's cgroup (cgroups(7))."""
    with suppress(OSError):
        for line in read("/proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if path != "/":
                for mount in mounts(cgroups, controllers):
                    move(mount)


def mounts(cgroups: str, controllers: str) -> list[str]:
    """Return the directories where a hierarchy is usually mounted. controllers: as in /proc/PID/cgroup."""
    if not controllers:                 # cgroup v2, alone or together with v1
        found = [f"{cgroups}/unified", cgroups]
        return [directory for directory in found if os.path.exists(f"{directory}/cgroup.controllers")][:1]
    return [f"{cgroups}/{controllers.removeprefix('name=')}"]


def move(hierarchy: str) -> None:
    """Move this process to the hierarchy's root. In a container the mounted root is not the real root, and may not
    allow processes (EBUSY)."""
    pid = str(os.getpid())
    try:
        write(f"{hierarchy}/cgroup.procs", pid)
    except OSError:
        with suppress(OSError):
            os.makedirs(f"{hierarchy}/{OWN_CGROUP}", exist_ok=True)
            write(f"{hierarchy}/{OWN_CGROUP}/cgroup.procs", pid)


def read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def write(path: str, text: str) -> None:
    """Write to a file of the kernel in one write(2). Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
