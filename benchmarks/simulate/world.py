"""Run a real node, the registry, and the process of the simulated nodes in one network namespace.

    with World(EtcdRegistry, 200, pods_per_s=30) as world:
        world.nodes.call("replace", old=[3], new=[201])
        world.routes.wait(lambda seen: 201 in seen, 10)
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from cluster_nodes import ENV, Etcd
from simulate import addresses
from simulate.kubernetes_registry import Mock
from simulate.processes import Process, cpu_s, memory_mb

from fastcni.agent.registries.etcd import PREFIX
from fastcni.agent.tables import route_key
from fastcni.bench.sides import serve
from fastcni.clients.etcd import Client, put
from fastcni.kernel import rtnl, uapi, wire
from fastcni.launcher.install import install
from fastcni.testing.namespaces import Inside, ip

NETWORK_CONF = json.dumps({"Network": str(addresses.NETWORK), "SubnetLen": 24, "Backend": {"Type": "vxlan"}})
LINK = "eth0"
HELD_PODS = 100  # pods on the real node: after each ADD, the pod is deleted that was added HELD_PODS ADDs before
START_S = 60.0
EVENT_BYTES = 32 << 20          # the receive buffer for the kernel's notifications
BESIDE = Path(__file__).parents[1]


class Failed(Exception):
    """An error that ends the simulation. The text tells the operator the reason."""


class World:
    """The real node, the registry and the simulated nodes. open_registry: makes the registry in a directory. count: the
    number of nodes, including the real node. pods_per_s: ADDs and DELs a second through the server."""

    def __init__(self, open_registry, count, pods_per_s):
        self.open_registry, self.count, self.pods_per_s = open_registry, count, pods_per_s
        self.netns, self.pods = f"simulate-{os.getpid()}", None

    def __enter__(self):
        with contextlib.ExitStack() as opened:
            self.directory = Path(tempfile.mkdtemp(prefix=f"fastcni-simulate-{os.getpid()}-", dir="/dev/shm"))
            opened.callback(shutil.rmtree, self.directory)
            opened.callback(remove_namespace, self.netns)
            ip("netns", "add", self.netns)
            opened.enter_context(Inside(self.netns))
            ip("link", "set", "lo", "up")
            ip("link", "add", LINK, "up", "type", "veth", "peer", "name", "wire0")
            ip("link", "set", "wire0", "up")
            ip("addr", "add", f"{addresses.AGENT}/{addresses.UNDERLAY.prefixlen}", "dev", LINK)
            self.registry = opened.enter_context(self.open_registry(self.directory))
            self.nodes = opened.enter_context(Nodes(self.registry))
            self.routes = opened.enter_context(Routes())
            if self.pods_per_s:
                self.pods = opened.enter_context(Pods(self.registry.store, self.directory, self.pods_per_s))
            self.opened = opened.pop_all()
        return self

    def __exit__(self, *error):
        return self.opened.__exit__(*error)

    def start_agent(self):
        """Start the real agent. Wait until the agent has joined and the kernel has a route to each simulated node.
        Raises Failed."""
        env = self.directory / "subnet.env"
        self.agent = self.opened.enter_context(Process(
            [sys.executable, "-m", "fastcni", "agent", *self.registry.agent_options, "--iface", LINK, "--subnet-file",
             env, "--conflist", "", "--folder", self.directory / "agent"], self.directory / "agent.log"))
        self.routes.wait(lambda seen: env.exists() and len(seen) >= self.count - 1, START_S, self.agent)


def remove_namespace(name):
    """End all processes in a namespace, and remove the namespace. After an interrupt, no object may have recorded a
    started process yet."""
    for pid in map(int, ip("netns", "pids", name, check=False).split()):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    ip("netns", "del", name, check=False)


class Nodes(Process):
    """The process of the simulated nodes. nodes.py documents its commands."""

    def __init__(self, registry):
        super().__init__([sys.executable, "-m", "simulate.nodes", *registry.nodes_options],
                         registry.directory / "nodes.log", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                         env={**os.environ, "PYTHONPATH": str(BESIDE)})

    def call(self, do, **words):
        """Send a command to the process, and return the answer. Raises Failed."""
        try:
            print(json.dumps({"do": do, **words}), file=self.popen.stdin, flush=True)
            answer = self.popen.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            raise Failed(f"the process of the simulated nodes has ended: {self.tail()}")
        return json.loads(answer)


class Routes:
    """A thread that records when the kernel gets the route to each simulated node's subnet. The agent writes this route
    last, so packets to the node pass from this time on. seen: {number: monotonic time}, without nodes whose route was
    deleted."""

    def __enter__(self):
        self.seen, self.lost, self.ended = {}, False, threading.Event()
        self.sock = wire.open_socket(groups=[uapi.RTNLGRP_IPV4_ROUTE])
        wire.set_buffer_size(self.sock, EVENT_BYTES)
        self.thread = threading.Thread(target=self._follow, name="routes")
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        self.sock.close()

    def _follow(self):
        while not self.ended.is_set():
            try:
                found = wire.receive(self.sock, 200)
            except OSError:                     # ENOBUFS: notifications were lost
                self.lost = True
                return
            now = time.monotonic()
            for kind, _, _, _, payload in found or ():
                self._note(kind, payload, now)

    def _note(self, kind, payload, now):
        route = rtnl.read_route(payload)
        if route is None or len(route.dst) != 4 or route.prefix != 24 or route.table != uapi.RT_TABLE_MAIN:
            return
        number = addresses.number_of(route_key(payload, route)[0])
        if kind == uapi.RTM_NEWROUTE:
            self.seen.setdefault(number, now)
        else:
            self.seen.pop(number, None)

    def wait(self, done, seconds, agent):
        """Wait until done(seen) is true, at most for `seconds`. Raises Failed."""
        limit = time.monotonic() + seconds
        while not done(self.seen):
            if self.lost or time.monotonic() > limit:
                raise Failed(f"the agent has {len(self.seen)} routes after {seconds:.0f} s: {agent.tail()}")
            time.sleep(0.005)


class Pods:
    """A thread that adds and deletes pods on the real node: ADDs and DELs of cluster IPAM by plugin files, through the
    server."""

    def __init__(self, store, directory, per_s):
        self.directory, self.per_s, self.failure = directory / "server", per_s, ""
        self.directory.mkdir()
        ipam = {"type": "cluster", "store": store, "dataDir": f"{self.directory}/ipam", "node_name": "simulated",
                "range": "172.16.0.0/12", "network_name": "simulated"}
        self.stdin = json.dumps({"cniVersion": "1.1.0", "name": "simulated", "type": "cluster", "ipam": ipam}).encode()
        self.ended = threading.Event()

    def __enter__(self):
        install(self.directory / "bin")
        self.server = serve(str(self.directory)).__enter__()
        self.thread = threading.Thread(target=self._churn, name="pods")
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.ended.set()
        self.thread.join()
        self.server.__exit__(*error)

    def _churn(self):
        began = time.monotonic()
        for number in itertools.count():
            if self.ended.wait(max(0.0, began + number / self.per_s - time.monotonic())) or self.failure:
                return
            self._call("ADD", number)
            if number >= HELD_PODS:
                self._call("DEL", number - HELD_PODS)

    def _call(self, command, number):
        env = {**ENV, "CNI_COMMAND": command, "CNI_CONTAINERID": f"{number:064x}", "CNI_PATH": f"{self.directory}/bin",
               "FASTCNI_SOCKET": self.server.sock, "PATH": os.environ["PATH"]}
        done = subprocess.run([f"{self.directory}/bin/cluster"], input=self.stdin, env=env, capture_output=True,
                              check=False)
        if done.returncode:
            self.failure = f"{command} of pod {number}: {done.stdout.decode()[-500:]}"


class EtcdRegistry(Etcd):
    """A registry: a real etcd of one member on loopback, with its data in memory."""

    def __init__(self, directory):
        super().__init__(directory=directory)

    def __enter__(self):
        super().__enter__()
        with contextlib.closing(Client({"endpoints": [self.url]})) as client:
            client.txn([], [put(f"{PREFIX}/config", NETWORK_CONF)])
        host, _, port = self.url.removeprefix("http://").partition(":")
        self.store = self.conf
        self.agent_options, self.nodes_options = ["--etcd", self.url], ["etcd", host, port]
        return self

    def cpu_s(self):
        return cpu_s(self.process.pid)

    def memory_mb(self):
        return memory_mb(self.process.pid)


REGISTRIES = {"etcd": EtcdRegistry, "kubernetes": Mock}
