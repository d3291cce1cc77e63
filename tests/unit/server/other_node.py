"""A node for the tests of autostart. It has its own first process, mounts, /run and /proc. It is in the test's network
namespace."""

import os
import socket
import struct
import subprocess
import time
from pathlib import Path

from fastcni.testing.witnesses import eventually

DIRECTORY = "/run/fastcni"
MOUNTS = ("mount --make-rprivate / && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /sys/fs/cgroup && echo ready "
          "&& exec sleep 600")
ANSWER = "one-shot answer"
INSTEAD_OF_PYTHON = f"#!/bin/sh\ncat >/dev/null\necho {ANSWER}\n"


class OtherNode:
    """`with OtherNode() as node:` starts a node, and ends all its processes at the end of the block."""

    def __enter__(self):
        self.outside = subprocess.Popen(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh",
                                         "-c", MOUNTS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.ready = self.outside.stdout.readline() == "ready\n"
        if self.ready:
            self.first = int(Path(f"/proc/{self.outside.pid}/task/{self.outside.pid}/children").read_text())
        return self

    def __exit__(self, *_):
        self.outside.kill()             # the kernel then kills the first process and all others
        self.outside.communicate()

    def start(self, *command, **more):
        entered = ["nsenter", f"--target={self.first}", "--mount", "--pid", *map(str, command)]
        return subprocess.Popen(entered, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)

    def call(self, *command, stdin="", env=None):
        """Run a plugin file on the node. Return its stdout as soon as no process has the stdout open."""
        variables = {"PATH": os.environ["PATH"], "CNI_COMMAND": "STATUS", "CNI_PATH": "/nowhere", **(env or {})}
        return self.start(*command, env=variables).communicate(stdin, timeout=60)[0].strip()

    def path(self, path):
        """Return the path by which the test reaches a file of the node."""
        return Path(f"/proc/{self.first}/root{path}")

    def processes(self, word):
        """Return the pids of the node's processes that have this argument, as the test sees the pids."""
        return [pid for pid in self.pids() if word in self.arguments(pid)]

    def pids(self):
        mine = os.readlink(f"/proc/{self.first}/ns/pid")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{pid}/ns/pid") == mine:
                    yield int(pid)
            except OSError:
                continue                # the process has ended

    @staticmethod
    def arguments(pid):
        try:
            return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            return []

    def server(self):
        """Wait until the node's server listens. Return its pid."""
        assert eventually(self.listens), self.log()
        (pid,) = self.processes("--detached")
        return pid

    def listens(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as conn:
            return conn.connect_ex(str(self.path(f"{DIRECTORY}/fastcni.sock"))) == 0

    def log(self):
        path = self.path(f"{DIRECTORY}/server.log")
        return path.read_text() if path.exists() else ""

    def set_last_attempt(self, seconds_ago):
        now = int(time.clock_gettime(time.CLOCK_BOOTTIME))
        self.path(f"{DIRECTORY}/autostart").write_bytes(struct.pack("q", now - seconds_ago))
