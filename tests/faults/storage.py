"""Make requests on a failing file system: full, without free inodes, or read-only; and with index files that are sparse
or cut.

The data directory is a small tmpfs. Each answer is one document, a failed ADD leaves nothing, and DEL works on a full
disk. The server does not end. After the disk is repaired, all requests succeed."""

import ctypes
import os
import subprocess
from pathlib import Path

from faults.load import pod_conf
from faults.rounds import document_of
from faults.world import World, left_behind
from lab.node import run

CLONE_NEWNS = 0x20000
libc = ctypes.CDLL(None, use_errno=True)
INDEX = ".fastcni.index"


class Disk:
    """A tmpfs at `path`."""

    def __init__(self, path):
        self.path, self.filler, self.read_only = path, Path(path, "filler"), False
        os.makedirs(path, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=64", "faults", path)

    def forbid_writes(self):
        """Mount a read-only bind mount over the path. Open files would prevent a read-only remount of the tmpfs
        itself."""
        run("mount", "--bind", self.path, self.path)
        run("mount", "-o", "remount,bind,ro", self.path)
        self.read_only = True

    def fill(self):
        with open(self.filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass            # the disk is full

    def use_inodes(self):
        for number in range(1 << 20):
            try:
                Path(self.path, f"inode-{number}").touch()
            except OSError:
                return

    def repair(self):
        if self.read_only:
            run("umount", self.path)
            self.read_only = False
        for path in (self.filler, *Path(self.path).glob("inode-*")):
            path.unlink(missing_ok=True)


def sparse(disk):
    """Replace the index by a sparse file, as restored from a backup, and fill the disk."""
    for path in Path(disk.path).glob(f"networks/*/{INDEX}"):
        size = path.stat().st_size
        path.unlink()
        path.touch()
        os.truncate(path, size)
    disk.fill()


def cut(disk):
    for path in Path(disk.path).glob(f"networks/*/{INDEX}"):
        os.truncate(path, 0)


# condition: (the function that makes it, whether DEL must work)
CONDITIONS = {"full": (Disk.fill, True), "no inodes": (Disk.use_inodes, True),
              "read-only": (Disk.forbid_writes, False),
              "full, a sparse index": (sparse, True), "a cut index": (cut, True)}


def campaign(row, _options):
    home = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)
    with World() as world:
        try:
            if libc.unshare(CLONE_NEWNS):
                raise OSError(ctypes.get_errno(), "unshare a mount namespace")
            run("mount", "--make-rprivate", "/")
            conditions(row, world)
        finally:
            world.closing.callback(os.close, home)
            if libc.setns(home, CLONE_NEWNS):       # the kernel removes the tmpfs with the mount namespace
                raise OSError(ctypes.get_errno(), "return to the mount namespace")


def conditions(row, world):
    disk = Disk(str(world.directory / "disk"))
    world.node.data_dir = f"{disk.path}/networks"
    pod, other, conf = world.pod(), world.pod(), pod_conf(world.node)
    server, base = world.server(), world.node.left(pod, other)
    try:
        while row.running:
            for name, (make, deletes) in CONDITIONS.items():
                for socket in (server.path, ""):
                    one(row, world, conf, (pod, other), disk, socket, name, make, deletes)
                    run("ip", "link", "del", "br0", check=False)
                    row.left(left_behind(world.node, base, pod, other))
                    if server.process.poll() is not None:
                        row.failed(f"{name}: the server ended with status {server.process.returncode}")
                        return
    finally:
        server.__exit__()                           # the server has open files in the tmpfs, which prevent its removal
        subprocess.run(["umount", "-l", disk.path], check=False)


def one(row, world, conf, pods, disk, socket, name, make, deletes):
    """Add one pod before the failure. Add and delete another pod during the failure."""
    where = f"{name}, {'warm' if socket else 'one-shot'}"
    here, new = pods

    def asked(command, pod, *, must):
        row.attempt()
        answer = world.call(command, conf, pod, socket)
        if wrong := document_of(answer, command):
            row.failed(f"{where}: {command}: {wrong}")
        elif must and answer.status:
            row.failed(f"{where}: {command}: {answer.stdout!r}")
        return answer

    asked("ADD", here, must=True)
    before = world.node.left(*pods)
    make(disk)
    if asked("ADD", new, must=False).status:
        row.left(left_behind(world.node, before, *pods))
    asked("DEL", new, must=deletes)
    asked("DEL", here, must=deletes)
    disk.repair()
    for pod in pods:
        asked("DEL", pod, must=True)
        asked("ADD", pod, must=True)
        asked("DEL", pod, must=True)
