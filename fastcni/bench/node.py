"""Make a node for the measurements: a network namespace for the host, named network namespaces for pods, and the pods'
networks.

All namespaces' names begin with fcni-bench-, so that the user can find the namespaces of a killed run by `ip netns`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastcni._netlink import Batch
from fastcni.kernel import netns, rtnl, wire
from fastcni.kit.links.change import delete_by_name
from fastcni.spec import errors
from fastcni.spec.address import ip_text
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.bench.cases import Case

PREFIX = "fcni-bench-"
DIRECTORY = "/run/netns"
LOOPBACK = 1                    # lo's index in every network namespace


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the benchmark. number: its number on the node. name: the name of its network namespace."""

    number: int
    name: str

    @property
    def path(self) -> str:
        """Return the path of the pod's network namespace."""
        return f"{DIRECTORY}/{self.name}"


class Node:
    """A node of the benchmark. `with Node(data_dir) as node:` moves this thread into a fresh network namespace.

    Node makes two directories: `data`, below data_dir, for the networks' files, and `directory` for all other files. At
    the end, Node removes the namespaces and the directories."""

    def __init__(self, data_dir: str) -> None:
        self.prefix = f"{PREFIX}{os.getpid()}-"
        self.data_dir = data_dir
        self.made: list[Pod] = []

    def __enter__(self) -> Node:
        with ExitStack() as stack:
            self.directory = tempfile.mkdtemp(prefix=self.prefix)
            stack.callback(shutil.rmtree, self.directory)
            self.data = tempfile.mkdtemp(prefix=self.prefix, dir=self.data_dir)
            stack.callback(shutil.rmtree, self.data)
            stack.callback(self._remove)
            name = f"{self.prefix}node"
            ip_batch([f"netns add {name}"])
            fd = netns.open_path(f"{DIRECTORY}/{name}")
            stack.callback(os.close, fd)
            stack.enter_context(netns.inside(fd))
            with wire.open_socket() as sock:
                wire.exchange(sock, rtnl.set_link(Batch(), LOOPBACK, up=True))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def pods(self, count: int) -> list[Pod]:
        """Return the first `count` pods of the node. Make the missing pods."""
        more = [Pod(n, f"{self.prefix}{n}") for n in range(len(self.made), count)]
        ip_batch([f"netns add {pod.name}" for pod in more])
        self.made += more
        return self.made[:count]

    def keep(self, count: int) -> None:
        """Remove the pods' namespaces, except those of the first `count` pods."""
        ip_batch([f"netns del {pod.name}" for pod in self.made[count:]])
        del self.made[count:]

    def renew(self) -> None:
        """Replace the namespaces of all pods by new namespaces, because a failed call may have left objects in them."""
        ip_batch([line for pod in self.made for line in (f"netns del {pod.name}", f"netns add {pod.name}")])

    def _remove(self) -> None:
        names = os.listdir(DIRECTORY) if os.path.isdir(DIRECTORY) else []
        ip_batch([f"netns del {name}" for name in names if name.startswith(self.prefix)])


def ip_batch(lines: Sequence[str]) -> None:
    """Run `lines` by `ip -batch`. The program is in its own process group, so that Ctrl-C does not end it. Raise
    CniError."""
    if not lines:
        return
    done = subprocess.run(["ip", "-force", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True,
                          process_group=0, check=False)
    if done.returncode:
        raise CniError(errors.INTERNAL, f"ip -batch, beginning with {lines[0]!r}: {done.stderr.strip()[-500:]}")


class Network:
    """A network of one implementation. conf: its configuration. directory: the directory of host-local's address
    files."""

    def __init__(self, node: Node, name: str, case: Case, *, subnet: int, bridge: str) -> None:
        """Make the network's directory. subnet: the second byte of the subnet 10.x.0.0/16. bridge: the bridge's
        name."""
        self.case, self.bridge, self.subnet = case, bridge, subnet
        data_dir = f"{node.data}/{name}"
        self.directory = f"{data_dir}/{name}"
        os.makedirs(self.directory)
        conf = {"cniVersion": "1.0.0", "name": name, "type": case.type, "bridge": bridge,
                "ipam": {"type": "host-local", "subnet": f"10.{subnet}.0.0/16", "dataDir": data_dir,
                         "routes": [{"dst": "0.0.0.0/0"}]}}
        self.conf: dict[str, Any] = {**conf, **case.keys}
        self.link = f"up{subnet}"
        self.links: list[str] = []                  # links that remove() deletes
        self.served: set[int] = set()               # numbers of the pods that have links
        self.results: dict[Pod, Any] = {}           # {pod: result of the chain's last plugin}
        self.held = 0                               # addresses that other containers hold
        self.first = 0                              # the number of the address of pod 0

    def stdin(self, pod: Pod, more: Iterable[tuple[str, Any]] = ()) -> bytes:
        """Return the stdin of one pod's calls: the configuration as JSON, with the further keys `more`."""
        behind = {"prevResult": self._result(pod)} if self.case.behind else {}
        return json.dumps({**self.conf, **self.case.of_pod(self.link, pod.number), **behind, **dict(more)}).encode()

    def fused(self, pod: Pod) -> dict[str, Any]:
        """Return the keys of a plugin `chain` that runs all plugins of the case for a pod."""
        keys = {**self.conf, **self.case.of_pod(self.link, pod.number)}
        asked = dict.fromkeys(keys.pop("runtimeConfig", {}), True)
        return {"type": "chain", "plugins": [{**keys, **each, "capabilities": asked} for each in self.case.chain]}

    def _result(self, pod: Pod) -> dict[str, Any]:
        """Return a result for a pod as a previous plugin would have printed it."""
        return {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": pod.path}],
                "ips": [{"address": f"{ip_text(self.address(pod.number))}/16", "gateway": ip_text(self.gateway),
                         "interface": 0}]}

    def _line(self, text: str, pod: Pod | None = None) -> str:
        text = text.replace("@link", self.link).replace("@gateway", f"{ip_text(self.gateway)}/16")
        return text.replace("@pod", str(pod.number)) if pod else text

    def make_links(self, pods: Iterable[Pod]) -> None:
        """Make the links that the case needs on the host: the network's links at the first call, and the links of each
        new pod."""
        lines = [] if self.served else [self._line(line) for line in self.case.host]
        new = [pod for pod in pods if pod.number not in self.served]
        lines += [self._line(line, pod) for pod in new for line in self.case.each]
        ip_batch(lines)
        self.links += [line.split()[2] for line in lines if line.startswith("link add ")]
        self.served |= {pod.number for pod in new}

    @property
    def gateway(self) -> bytes:
        """Return the address of the network's gateway, 4 bytes."""
        return bytes((10, self.subnet, 0, 1))

    @property
    def subnet_address(self) -> bytes:
        """Return the address of the network's subnet, 4 bytes."""
        return bytes((10, self.subnet, 0, 0))

    def address(self, number: int) -> bytes:
        """Return address `number` of the network, 4 bytes. Number 0 is the first address after the gateway."""
        return bytes((10, self.subnet, number + 2 >> 8, number + 2 & 255))

    def address_of(self, pod: Pod) -> bytes:
        """Return the address that the floor gives a pod, 4 bytes."""
        return self.address(self.first + pod.number)

    def file(self, address: bytes) -> str:
        """Return the path of host-local's file for an address of 4 bytes."""
        return f"{self.directory}/{ip_text(address)}"

    def hold(self, count: int) -> None:
        """Write address files as the Go plugin host-local does, so that other containers hold the first `count`
        addresses."""
        for number in range(self.held, count):
            with open(self.file(self.address(number)), "w", encoding="ascii") as file:
                file.write(f"other{number}\r\neth0")
        self.held = self.first = max(self.held, count)

    def remove(self) -> None:
        """Remove the network's files and links."""
        shutil.rmtree(os.path.dirname(self.directory), ignore_errors=True)     # after Ctrl-C a server may still write
        with wire.open_socket() as sock:
            for name in self.links:
                delete_by_name(sock, name)
