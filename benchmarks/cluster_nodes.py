"""Run an etcd and simulated nodes for the benchmark of cluster-wide addresses. Each node has its own name and
directory."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import orjson

from fastcni.handle import handle
from fastcni.kit.call.mode import Mode
from fastcni.server.requests.configurations import Configurations
from fastcni.spec import result as results

ENV = {"CNI_IFNAME": "eth0", "CNI_NETNS": "/nowhere/pod", "CNI_NETNS_OVERRIDE": "1"}


class Etcd:
    """`with Etcd() as etcd:` runs one member on loopback, with its data in a directory below `directory`. conf: the
    value of `store` in an IPAM configuration."""

    def __init__(self, url="", directory=None):
        self.url, self.directory, self.home, self.process = url, directory, "", None

    def __enter__(self):
        if not self.url:
            try:
                self._start()
            except BaseException:       # also after an interrupt
                self.__exit__()
                raise
        self.conf = {"type": "etcd", "endpoints": [self.url], "prefix": f"/fastcni-bench/{os.getpid()}"}
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.kill()         # SIGKILL is safe, because nothing reads its data again
            self.process.wait()
        if self.home:
            shutil.rmtree(self.home)

    def _start(self):
        self.home = tempfile.mkdtemp(prefix="bench-etcd-", dir=self.directory)
        client, peer = free_ports(2)
        self.url = f"http://127.0.0.1:{client}"
        with open(f"{self.home}/log", "wb") as log:
            self.process = subprocess.Popen(
                ["etcd", "--name", "one", "--data-dir", f"{self.home}/data", "--listen-client-urls", self.url,
                 "--advertise-client-urls", self.url, "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                 "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                 "--initial-cluster", f"one=http://127.0.0.1:{peer}"], stdout=log, stderr=log)
        self._wait()

    def _wait(self):
        for _ in range(400):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                if json.load(answer).get("health") == "true":
                    return
            time.sleep(0.05)
        raise SystemExit(f"etcd does not answer: {Path(self.home, 'log').read_text()[-500:]}")

    def requests(self):
        """Return {method: number of requests that etcd has answered}. Methods are Range, Put, Txn, LeaseGrant and
        others."""
        found = {}
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("grpc_server_handled_total") and not line.endswith(" 0"):
                    method = line.partition('grpc_method="')[2].partition('"')[0]
                    found[method] = found.get(method, 0) + int(float(line.rpartition(" ")[2]))
        return found

    def cpu_s(self):
        """Return the processor seconds of the etcd that this benchmark has started, or 0.0 if the benchmark uses
        another etcd."""
        if not self.process:
            return 0.0
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Local:
    """The store `local` in place of Etcd. It counts no requests, and has no process that uses processor time."""

    def __init__(self, directory):
        self.conf = {"type": "local", "path": str(directory / "store")}

    def requests(self):
        return {}

    def cpu_s(self):
        return 0.0


def free_ports(count):
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()
    return ports


class KeptMode(Mode):
    """A mode that keeps the store and decoded configurations between requests, as the server's mode does. It decodes by
    orjson."""

    __slots__ = ("known",)

    def __init__(self):
        super().__init__()
        self.known = Configurations()

    def decode(self, stdin):
        return self.known.decode(stdin)

    def encode(self, result):
        return orjson.dumps(results.printed(result), option=orjson.OPT_INDENT_2)

    def end_request(self):
        pass


class Node:
    """A simulated node with one network. call() makes a request in this process, and returns the answer."""

    def __init__(self, store, directory, name, **keys):
        self.mode = KeptMode()
        ipam = {"type": "cluster", "store": store, "dataDir": f"{directory}/{name}", "node_name": name,
                "range": "10.0.0.0/12", **keys}
        self.conf = {"cniVersion": "1.1.0", "name": "net", "type": ipam["type"], "ipam": ipam}
        self.type, self.stdin = ipam["type"], json.dumps(self.conf).encode()

    def call(self, command, number):
        env = {**ENV, "CNI_COMMAND": command, "CNI_CONTAINERID": f"{number:064x}", "CNI_PATH": "/nowhere"}
        reply = handle(self.type, env, self.stdin, self.mode)
        if reply.status:
            raise SystemExit(f"{command} by {self.type}: {reply.stdout.decode()}")
        return reply.stdout

    def add(self, number):
        return json.loads(self.call("ADD", number))["ips"][0]["address"].split("/")[0]

    def close(self):
        self.mode.close()


def host_local(directory):
    """Return a Node whose network uses host-local."""
    return Node({}, directory, "host-local", type="host-local", ranges=[[{"subnet": "10.0.0.0/12"}]])
