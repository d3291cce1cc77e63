"""Measure how long the server takes to restore the pods' firewall state after the kernel has notified of a flush.

Each pod has bridge with ipMasq, portmap with one port, firewall, and an address of each family. With nftables a pod has
eleven elements. Prints figures. A round fails if the server does not restore everything. Needs root, for a network
namespace.

    .venv/bin/python -m pytest --benchmark-only benchmarks/bench_restore.py
"""

import os
import select
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager

import pytest

from fastcni.bench.sides import Child
from fastcni.kernel import netns, uapi, wire
from fastcni.runtime.cache import Cache
from fastcni.runtime.records import RuntimeConf
from fastcni.runtime.restore import restore
from fastcni.spec import json

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("iptables-save") or not shutil.which("nft"),
                                reason="needs root, nft and iptables: makes a network namespace, and flushes in it")
NAME = f"fcni-bench-restore-{os.getpid()}"
PODS = f"{NAME}-pods"  # one namespace for all pods, because a restore checks that the namespace has a link to the node
PODS_NETNS = f"/run/netns/{PODS}"
ROUNDS = 9
LIMIT_S = 10
READY = "event=start_replay_done"       # logged when the server has read all tables
# With nftables the server restores its copy of its own tables. With iptables it replays the result cache.
DONE = {"nftables": "event=rules_restored", "iptables": "event=rules_replayed"}
CASES = [pytest.param(backend, flush, pods, id=f"{backend}, {flush}, {pods} pods") for backend, flushes, sizes in (
    ("nftables", ("nft flush ruleset", "nft delete table inet fastcni"), (1, 30, 182)),
    ("iptables", ("nft flush ruleset", "iptables -t nat -F"), (1, 30)))
    for flush in flushes for pods in sizes]


def write_cache(directory, backend, pods):
    """Write a runtime's result cache with `pods` pods."""
    plugins = [{"type": "bridge", "bridge": "br0", "isGateway": True, "ipMasq": True, "ipMasqBackend": backend,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/16"}], [{"subnet": "fd00:22::/64"}]]}},
               {"type": "portmap", "backend": backend, "capabilities": {"portMappings": True}},
               {"type": "firewall", "backend": backend}]
    network = json.write({"cniVersion": "1.0.0", "name": "net", "plugins": plugins})
    for number in range(2, pods + 2):
        ports = [{"hostPort": 10000 + number, "containerPort": 80, "protocol": "tcp"}]
        rt = RuntimeConf(f"pod{number}", PODS_NETNS, "eth0", capability_args={"portMappings": ports})
        Cache(directory).write("net", network, rt, {
            "cniVersion": "1.0.0", "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": PODS_NETNS}],
            "ips": [{"address": f"10.22.{number >> 8}.{number & 255}/16", "interface": 1},
                    {"address": f"fd00:22::{number:x}/64", "interface": 1}]})


class Node:
    """A node in this thread's namespace. `with node.server:` runs its server. Each round has a new server, because a
    server delays its second restore."""

    def __init__(self, directory, backend, flush):
        self.directory, self.flush, self.done = directory, flush.split(), DONE[backend]
        self.sock, self.log, self.server = f"{directory}/sock", f"{directory}/log", ExitStack()
        self.before = ruleset()

    def start_and_flush(self):
        self.server.enter_context(Child(["-m", "fastcni", "serve", "--socket", self.sock, "--cache-dir", self.directory,
                                         "--log-level", "info"], self.sock, self.log))
        self.wait_for(READY)
        sock = wire.open_socket(uapi.NETLINK_NETFILTER, groups=(uapi.NFNLGRP_NFTABLES,))
        self.server.callback(sock.close)        # closes the socket after the round, because the close takes some ms
        self.server.enter_context(subprocess.Popen(self.flush))
        assert select.select([sock], [], [], LIMIT_S)[0], f"{self.flush} flushed nothing"

    def wait_until_restored(self):
        self.wait_for(self.done)

    def wait_for(self, event):
        deadline = time.monotonic() + LIMIT_S
        while event not in self.log_text() and time.monotonic() < deadline:
            time.sleep(0.001)

    def check_and_stop(self):
        assert ruleset() == self.before, self.log_text()
        self.server.close()

    def log_text(self):
        with open(self.log, encoding="utf-8") as log:
            return log.read()


def ruleset():
    """Return the sorted words of the ruleset, so that the order of elements does not matter."""
    text = subprocess.run(["nft", "-s", "list", "ruleset"], check=True, capture_output=True, text=True).stdout
    return sorted(text.replace(",", " ").split())


@contextmanager
def inside_a_namespace():
    with ExitStack() as stack:
        for name in (NAME, PODS):
            subprocess.run(["ip", "netns", "add", name], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
        for command in ("br0 type bridge", f"veth0 type veth peer eth0 netns {PODS}"):
            subprocess.run(["ip", "-n", NAME, "link", "add", *command.split()], check=True)
        fd = netns.open_path(f"/run/netns/{NAME}")
        stack.callback(os.close, fd)
        with netns.inside(fd):
            yield


@pytest.mark.parametrize(("backend", "flush", "pods"), CASES)
def test_restore(benchmark, tmp_path, backend, flush, pods):
    benchmark.group = f"restore, {backend}, after `{flush}`"
    write_cache(tmp_path, backend, pods)
    with inside_a_namespace():
        assert restore(Cache(tmp_path)).failed == ()
        node = Node(str(tmp_path), backend, flush)
        with node.server:
            benchmark.pedantic(node.wait_until_restored, setup=node.start_and_flush, teardown=node.check_and_stop,
                               rounds=ROUNDS)
