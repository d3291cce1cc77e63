"""A file system that fails: full, without inodes, read-only; and index files that are sparse or cut.

The data directory is a small tmpfs. One document is answered, a failed ADD leaves nothing, DEL works on a full disk,
the server lives on, and when the disk is well again everything goes as before."""

import ctypes
import os
import subprocess
from pathlib import Path

from faults.load import pod_conf
from faults.steps import document_of
from faults.world import World, left_behind
from real_kernel.node import run

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
        """A read-only mount over it: files that are open for writing keep a real one from becoming read-only."""
        run("mount", "--bind", self.path, self.path)
        run("mount", "-o", "remount,bind,ro", self.path)
        self.read_only = True

    def fill(self):
        with open(self.filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass            # full, which is what we want

    def use_inodes(self):
        for number in range(1 << 20):
            try:
                Path(self.path, f"inode-{number}").touch()
            except OSError:
                return

    def heal(self):
        if self.read_only:
            run("umount", self.path)
            self.read_only = False
        for path in (self.filler, *Path(self.path).glob("inode-*")):
            path.unlink(missing_ok=True)


def sparse(disk):
    """An index as a backup restores it: with holes, on a disk that has no room for them."""
    for path in Path(disk.path).glob(f"networks/*/{INDEX}"):
        size = path.stat().st_size
        path.unlink()
        path.touch()
        os.truncate(path, size)
    disk.fill()


def cut(disk):
    for path in Path(disk.path).glob(f"networks/*/{INDEX}"):
        os.truncate(path, 0)


# condition: (how it comes about, whether DEL has to work in it)
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
            if libc.setns(home, CLONE_NEWNS):       # the tmpfs goes with the namespace
                raise OSError(ctypes.get_errno(), "return to the mount namespace")


def conditions(row, world):
    disk = Disk(str(world.folder / "disk"))
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
        server.__exit__()                           # it has files of the tmpfs open
        subprocess.run(["umount", "-l", disk.path], check=False)


def one(row, world, conf, pods, disk, socket, name, make, deletes):
    """One pod is there before, another comes and goes while the disk fails."""
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
    disk.heal()
    for pod in pods:
        asked("DEL", pod, must=True)
        asked("ADD", pod, must=True)
        asked("DEL", pod, must=True)
