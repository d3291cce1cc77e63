"""PID 1 of a test node: mount separate directories for the node, then reap processes until standard input ends.

    unshare --net --mount --pid --fork --mount-proc --kill-child python init.py [BASE UPPER DIRECTORY...]

With BASE, the node's root directory is an overlay of the system BASE, and writes go to UPPER. The overlay also has each
DIRECTORY of the machine. init.py prints "ready" when the directories are mounted. When init.py ends, the kernel ends
every process of the node and removes the node's mounts, so that nothing of a runtime stays on the machine.
"""

import ctypes
import os
import select
import signal
import sys

MS_BIND, MS_REC, MNT_DETACH = 0x1000, 0x4000, 2      # sys/mount.h
# The directories in which containerd, podman, runc, conmon and fastcni write by default. podman's POSIX locks are in
# /dev/shm.
OWN = ("/run", "/dev/shm", "/etc/cni", "/etc/containerd", "/etc/containers", "/opt/cni", "/opt/fastcni",
       "/var/lib/cni", "/var/lib/containerd", "/var/lib/containers")

libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind="", flags=0, data=""):
    if libc.mount(*(os.fsencode(word) for word in (source, target, kind)), flags, os.fsencode(data) or None):
        raise OSError(ctypes.get_errno(), f"mount {source} at {target}")


def make_own(path):
    """Mount an empty file system at `path`. If `path` does not exist, mount the file system at the nearest existing
    parent directory, and fill it with the parent's entries. So make_own() creates nothing on the machine."""
    at = path
    while not os.path.isdir(at):
        at = os.path.dirname(at)
    below = os.open(at, os.O_PATH)
    entries = os.listdir(at) if at != path else []
    mount("none", at, "tmpfs")
    for name in entries:
        source, target = f"/proc/1/fd/{below}/{name}", f"{at}/{name}"
        if os.path.islink(source):
            os.symlink(os.readlink(source), target)
            continue
        if os.path.isdir(source):
            os.mkdir(target)
        else:
            open(target, "x").close()
        mount(source, target, flags=MS_BIND | MS_REC)
    os.close(below)
    os.makedirs(path, exist_ok=True)


def unmount_below(paths):
    """Unmount the machine's mounts below these paths in this mount namespace. These mounts would keep network
    namespaces of the machine's pods alive."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        found = [line.split()[4] for line in file]
    for path in reversed(found):
        if path.startswith(tuple(f"{it}/" for it in paths)):
            libc.umount2(os.fsencode(path), MNT_DETACH)


def enter_system(base, upper, directories):
    """Change the root directory to an overlay of the system `base`. Writes go to `upper`. directories: the machine's
    directories to mount into the overlay."""
    root = f"{upper}/root"
    for name in ("upper", "work", "root"):
        os.mkdir(f"{upper}/{name}")
    mount("overlay", root, "overlay", data=f"lowerdir={base},upperdir={upper}/upper,workdir={upper}/work")
    mount("none", f"{root}/proc", "proc")
    for directory in ("/dev", "/sys", *directories):
        os.makedirs(root + directory, exist_ok=True) if os.path.isdir(directory) else open(root + directory,
                                                                                           "a").close()
        mount(directory, root + directory, flags=MS_BIND | MS_REC)
    os.chroot(root)


def own_sysfs():
    """Mount a /sys that shows the node's network namespace and the machine's cgroups."""
    cgroups = os.open("/sys/fs/cgroup", os.O_PATH)
    mount("none", "/sys", "sysfs")
    mount(f"/proc/1/fd/{cgroups}", "/sys/fs/cgroup", flags=MS_BIND | MS_REC)
    os.close(cgroups)


def reap():
    """Reap processes that have lost their parent, until standard input ends."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while True:
        ready, _, _ = select.select([sys.stdin, woken], [], [])
        if sys.stdin in ready:
            return
        os.read(woken, 4096)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            continue                                # there is no child now


if __name__ == "__main__":
    if sys.argv[1:]:
        enter_system(sys.argv[1], sys.argv[2], sys.argv[3:])
    os.chdir("/")
    own_sysfs()
    unmount_below(OWN)
    for directory in OWN:
        make_own(directory)
    print("ready", flush=True)
    reap()
