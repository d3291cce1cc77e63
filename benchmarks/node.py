"""A node to measure on: its own network namespace, pods, and one CNI plugin call as one process, timed.

Both sides are called by the same code: os.posix_spawn with the configuration as a file on stdin, from the exec to
the exit status, as a container runtime sees it.
"""

import ctypes
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

PEER = os.environ.get("PEER", "/usr/lib/cni")
CLONE_NEWNET = 0x40000000


class Node:
    """`with Node(pods) as node:` puts this thread in a fresh namespace with that many pod namespaces."""

    def __init__(self, pods=1):
        self.pods = [f"fcni-bench-{os.getpid()}-{i}" for i in range(pods)]

    def __enter__(self):
        self.home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.folder = tempfile.mkdtemp(prefix="fastcni-bench.")
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        for pod in self.pods:
            subprocess.run(["ip", "netns", "add", pod], check=True)
        return self

    def __exit__(self, *_):
        for pod in self.pods:
            subprocess.run(["ip", "netns", "del", pod], check=False)
        ctypes.CDLL(None).setns(self.home, CLONE_NEWNET)
        os.close(self.home)
        shutil.rmtree(self.folder)

    def conf(self, side, kind, **keys):
        """A configuration with host-local on 10.22.0.0/16; each side has its own bridge, addresses and files."""
        subnet = {"peer": "10.21.0.0/16", "fastcni": "10.22.0.0/16"}[side]
        base = {"cniVersion": "1.0.0", "name": f"bench-{side}", "type": kind, "bridge": f"br-{side}",
                "ipam": {"type": "host-local", "subnet": subnet, "dataDir": f"{self.folder}/{side}",
                         "routes": [{"dst": "0.0.0.0/0"}]}}
        return {**base, **keys}

    def call(self, folder, command, conf, *, pod=0, container="c0", ifname="eth0"):
        """Run one plugin; milliseconds. Raises AssertionError with its output when it fails."""
        stdin = os.memfd_create("stdin")
        os.write(stdin, json.dumps(conf).encode())
        os.lseek(stdin, 0, os.SEEK_SET)
        stdout = os.memfd_create("stdout")
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": container, "CNI_NETNS": f"/run/netns/{self.pods[pod]}",
               "CNI_IFNAME": ifname, "CNI_PATH": folder, "PATH": os.environ["PATH"]}
        path = f"{folder}/{conf['type']}"
        actions = [(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, stdout, 1)]
        start = time.perf_counter()
        pid = os.posix_spawn(path, [path], env, file_actions=actions)
        _, status = os.waitpid(pid, 0)
        spent = (time.perf_counter() - start) * 1e3
        said = os.pread(stdout, 1 << 16, 0)
        os.close(stdin)
        os.close(stdout)
        assert status == 0, f"{path} {command}: {said.decode()}"
        return spent


def percentile(samples, share):
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * share))]


def median(samples):
    return statistics.median(samples)
