"""A node to measure on: a network namespace of its own, pods as named namespaces, and the networks they are put in.

All names begin with fcni-bench-, so that what a killed run has left can be seen in `ip netns`.
"""

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack, closing
from dataclasses import dataclass

from fastcni._netlink import Batch
from fastcni.kernel import netns, rtnl, wire
from fastcni.kit.links.change import delete_by_name
from fastcni.spec import errors
from fastcni.spec.address import ip_text
from fastcni.spec.errors import CniError

PREFIX = "fcni-bench-"
FOLDER = "/run/netns"
LOOPBACK = 1                    # lo's index in every network namespace


@dataclass(frozen=True, slots=True)
class Pod:
    """A namespace: its number on the node, its name and its path."""

    number: int
    name: str

    @property
    def path(self):
        return f"{FOLDER}/{self.name}"


class Node:
    """`with Node(data_dir) as node:` has this thread in a fresh network namespace; it and the pods are removed at the
    end, and two folders: `folder`, and `data` for the networks' files, which is made in data_dir."""

    def __init__(self, data_dir):
        self.prefix = f"{PREFIX}{os.getpid()}-"
        self.data_dir, self.made = data_dir, []

    def __enter__(self):
        with ExitStack() as stack:
            self.folder = tempfile.mkdtemp(prefix=self.prefix)
            stack.callback(shutil.rmtree, self.folder)
            self.data = tempfile.mkdtemp(prefix=self.prefix, dir=self.data_dir)
            stack.callback(shutil.rmtree, self.data)
            stack.callback(self._remove)
            name = f"{self.prefix}node"
            ip_batch([f"netns add {name}"])
            fd = netns.open_path(f"{FOLDER}/{name}")
            stack.callback(os.close, fd)
            stack.enter_context(netns.inside(fd))
            with closing(wire.open_socket()) as sock:
                wire.exchange(sock, rtnl.set_link(Batch(), LOOPBACK, up=True))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def pods(self, count):
        """The first so many pods, each made when it is first asked for."""
        more = [Pod(n, f"{self.prefix}{n}") for n in range(len(self.made), count)]
        ip_batch([f"netns add {pod.name}" for pod in more])
        self.made += more
        return self.made[:count]

    def keep(self, count):
        """Remove all but the first so many pods."""
        ip_batch([f"netns del {pod.name}" for pod in self.made[count:]])
        del self.made[count:]

    def renew(self):
        """Fresh namespaces under the same names: a call has failed, and what it left is in nobody's way."""
        ip_batch([line for pod in self.made for line in (f"netns del {pod.name}", f"netns add {pod.name}")])

    def _remove(self):
        names = os.listdir(FOLDER) if os.path.isdir(FOLDER) else []
        ip_batch([f"netns del {name}" for name in names if name.startswith(self.prefix)])


def ip_batch(lines):
    """Have ip(8) do them all. Raises CniError. In a process group of its own, so that Ctrl-C does not cut it short."""
    if not lines:
        return
    done = subprocess.run(["ip", "-force", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True,
                          process_group=0, check=False)
    if done.returncode:
        raise CniError(errors.INTERNAL, f"ip -batch, beginning with {lines[0]!r}: {done.stderr.strip()[-500:]}")


class Network:
    """One network of one side: its configuration, and host-local's folder of it."""

    def __init__(self, node, name, case, *, subnet, bridge):
        """subnet: the second byte of 10.x.0.0/16."""
        self.case, self.bridge, self.subnet = case, bridge, subnet
        data_dir = f"{node.data}/{name}"
        self.folder = f"{data_dir}/{name}"
        os.makedirs(self.folder)
        conf = {"cniVersion": "1.0.0", "name": name, "type": case.type, "bridge": bridge,
                "ipam": {"type": "host-local", "subnet": f"10.{subnet}.0.0/16", "dataDir": data_dir,
                         "routes": [{"dst": "0.0.0.0/0"}]}}
        self.conf = {**conf, **case.keys}
        self.link, self.links, self.served = f"up{subnet}", [], set()
        self.results = {}           # of a chain: {pod: the last result}
        self.held = 0               # addresses of others
        self.first = 0              # of the addresses that pods have, the one of pod 0

    def stdin(self, pod, more=()):
        """The configuration as one pod's calls are given it, and more keys."""
        behind = {"prevResult": self._result(pod)} if self.case.behind else {}
        return json.dumps({**self.conf, **self.case.of_pod(self.link, pod.number), **behind, **dict(more)}).encode()

    def _result(self, pod):
        """What a plugin before would have answered."""
        return {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": pod.path}],
                "ips": [{"address": f"{ip_text(self.address(pod.number))}/16", "gateway": ip_text(self.gateway),
                         "interface": 0}]}

    def _line(self, text, pod=None):
        text = text.replace("@link", self.link).replace("@gateway", f"{ip_text(self.gateway)}/16")
        return text.replace("@pod", str(pod.number)) if pod else text

    def make_links(self, pods):
        """What the case needs on the host: once, and for each of these pods that has nothing yet."""
        lines = [] if self.served else [self._line(line) for line in self.case.host]
        new = [pod for pod in pods if pod.number not in self.served]
        lines += [self._line(line, pod) for pod in new for line in self.case.each]
        ip_batch(lines)
        self.links += [line.split()[2] for line in lines if line.startswith("link add ")]
        self.served |= {pod.number for pod in new}

    @property
    def gateway(self):
        return bytes((10, self.subnet, 0, 1))

    @property
    def subnet_address(self):
        return bytes((10, self.subnet, 0, 0))

    def address(self, number):
        """An address of the network: number 0 is the first after the gateway's."""
        return bytes((10, self.subnet, number + 2 >> 8, number + 2 & 255))

    def address_of(self, pod):
        return self.address(self.first + pod.number)

    def file(self, address):
        """Where host-local writes down who has that address."""
        return f"{self.folder}/{ip_text(address)}"

    def hold(self, count):
        """Have the first so many addresses held by other containers, in files as the Go plugin writes them."""
        for number in range(self.held, count):
            with open(self.file(self.address(number)), "w", encoding="ascii") as file:
                file.write(f"other{number}\r\neth0")
        self.held = self.first = max(self.held, count)

    def remove(self):
        shutil.rmtree(os.path.dirname(self.folder), ignore_errors=True)     # after an interrupt a server may be at it
        with closing(wire.open_socket()) as sock:
            for name in self.links:
                delete_by_name(sock, name)
