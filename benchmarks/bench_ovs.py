"""Measure how long the ovs plugin, `ovs-vsctl add-port` and ovs-cni take to add a port to Open vSwitch, in turn, with
few and with many ports.

Prints medians, asserts no time. Needs root and Debian's openvswitch-switch. The switch runs in a separate network
namespace, with the userspace datapath. OVS_CNI: the directory of a built ovs-cni, whose plugin file is named ovs.
ovs-cni finds host-local in PEER.

    .venv/bin/python -m pytest -s benchmarks/bench_ovs.py
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from conftest import PEER
from lab.openvswitch import PATH, Switch, needs_ovs
from modes import WarmInProcess

from fastcni.kit.ovs import ports
from fastcni.launcher.install import install
from fastcni.testing import pod_netns  # noqa: F401 - a fixture
from fastcni.testing.real_runtime import RealRuntime, cid_of

pytestmark = [needs_ovs, pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")]
ROUNDS = 30


class Warm:
    """fastcni's ovs plugin in this process, in the mode of the server, without the launcher. late: [seconds from the
    time at which the port is up until the ADD's answer]."""

    name = "fastcni warm, in process"

    def __init__(self, monkeypatch):
        self.runtime, self.mode, self.late, self.up = RealRuntime(), WarmInProcess(), [], 0.0
        await_port = ports.await_port

        def note(*args):
            await_port(*args)
            self.up = time.perf_counter()

        monkeypatch.setattr(ports, "await_port", note)

    def add(self, conf, pod):
        self.runtime.add(conf, pod, mode=self.mode)
        self.late.append(time.perf_counter() - self.up)

    def delete(self, conf, pod):
        self.runtime.delete(conf, pod, mode=self.mode)


class PluginFile:
    """A plugin file that is started as a process. path: the directory of the other plugins."""

    def __init__(self, name, file, path):
        self.name, self.file, self.path = name, file, path

    def call(self, command, conf, pod):
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": cid_of(pod), "CNI_NETNS": f"/run/netns/{pod}",
               "CNI_IFNAME": "eth0", "CNI_PATH": self.path, "PATH": PATH, "FASTCNI_SOCKET": ""}
        done = subprocess.run([self.file], check=False, input=json.dumps(conf).encode(), env=env,
                              capture_output=True)
        assert done.returncode == 0, done.stdout

    def add(self, conf, pod):
        self.call("ADD", conf, pod)

    def delete(self, conf, pod):
        self.call("DEL", conf, pod)


class Vsctl:
    """ovs-vsctl, which adds an existing veth pair. It moves no link into a namespace and gives no address."""

    name = "ovs-vsctl add-port, del-port"

    def __init__(self, switch):
        self.switch = switch
        subprocess.run(["ip", "link", "add", "bench0", "type", "veth", "peer", "name", "bench1"], check=True)

    def add(self, conf, pod):
        self.switch.vsctl("add-port", "br0", "bench0")

    def delete(self, conf, pod):
        self.switch.vsctl("del-port", "br0", "bench0")


@pytest.mark.parametrize("others", [0, 100])
def test_add_and_del(host_netns, pod_netns, tmp_path, monkeypatch, scaled, others):  # noqa: F811 - a fixture
    install(tmp_path / "bin", names=["host-local", "ovs"])
    with Switch("br0") as switch:
        warm = Warm(monkeypatch)
        sides = [warm, PluginFile("fastcni one-shot", tmp_path / "bin" / "ovs", str(tmp_path / "bin")), Vsctl(switch)]
        if directory := os.environ.get("OVS_CNI"):
            sides.append(PluginFile("ovs-cni", f"{directory}/ovs", f"{directory}:{PEER}"))
        conf = {"cniVersion": "1.0.0", "name": "net", "type": "ovs", "bridge": "br0", "vlan": 100,
                "socket_file": switch.address, "dataDir": str(tmp_path / "cache"),
                "ipam": {"type": "host-local", "subnet": "10.22.0.0/16", "dataDir": str(tmp_path / "networks")}}
        fillers = [pod_netns() for _ in range(scaled(others))]
        for filler in fillers:
            warm.add(conf, filler)
        warm.late.clear()
        rounds = ROUNDS if scaled(ROUNDS) == ROUNDS else 2
        figures = measure(sides, conf, pod_netns(), rounds)
        for filler in fillers:
            warm.delete(conf, filler)
        warm.mode.release()
    print(f"\n{len(fillers)} other ports, medians of {rounds} rounds\n{'':32}{'ADD':>10}{'DEL':>10}")
    for name, (adds, deletes) in figures.items():
        print(f"{name:32}{statistics.median(adds) * 1e3:7.2f} ms{statistics.median(deletes) * 1e3:7.2f} ms")
    print(f"fastcni answers {statistics.median(warm.late) * 1e3:.2f} ms after the port is up, at most "
          f"{max(warm.late) * 1e3:.2f} ms")


def measure(sides, conf, pod, rounds):
    """Return {implementation: ([seconds of an ADD], [seconds of a DEL])}."""
    figures = {side.name: ([], []) for side in sides}
    for _ in range(rounds):
        for side in sides:
            for seconds, call in zip(figures[side.name], (side.add, side.delete), strict=True):
                began = time.perf_counter()
                call(conf, pod)
                seconds.append(time.perf_counter() - began)
    return figures
