"""Measure portmap and firewall by nftables in this process: with four ports and 2,000 ports, on an empty node and with
1,000 pods.

Each of the 1,000 pods has four ports. Prints figures, asserts no time. Needs root, for a network namespace.

    .venv/bin/python -m pytest --benchmark-only --benchmark-group-by=func benchmarks/bench_firewall.py
"""

import json
import os
import subprocess

import pytest
from modes import WarmInProcess

from fastcni.handle import handle
from fastcni.kernel import netns

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a network namespace")
NAME = f"fcni-bench-firewall-{os.getpid()}"
PORTS = 4
A_RANGE = {"hostPort": 20000, "containerPort": 80, "protocol": "tcp", "range": 2000}


@pytest.fixture(scope="module", params=(0, 1000), ids="{}_pods".format)
def mode(request, scaled):
    """Return the server's mode, in a namespace in which the parameter's number of pods exists."""
    subprocess.run(["ip", "netns", "add", NAME], check=True)
    fd = netns.open_path(f"/run/netns/{NAME}")
    try:
        with netns.inside(fd):
            subprocess.run(["sh", "-c", "ip link add br0 type bridge && ip addr add 10.22.0.1/16 dev br0 "
                            "&& ip link set br0 up"], check=True)
            warm = WarmInProcess()
            for number in range(scaled(request.param)):
                call("ADD", warm, "portmap", number)
                call("ADD", warm, "firewall", number)
            yield warm
            warm.release()
    finally:
        os.close(fd)
        subprocess.run(["ip", "netns", "del", NAME], check=True)


def call(command, mode, plugin, number=1000, ports=None):
    ports = ports or [{"hostPort": 10000 + number * PORTS + n, "containerPort": 80 + n, "protocol": "tcp"}
                      for n in range(PORTS)]
    conf = {"cniVersion": "1.0.0", "name": "net", "type": plugin, "runtimeConfig": {"portMappings": ports},
            "prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "br0"}],
                           "ips": [{"address": f"10.22.{number + 2 >> 8}.{number + 2 & 255}/16"}]}}
    env = {"CNI_COMMAND": command, "CNI_CONTAINERID": f"pod{number}", "CNI_NETNS": "/proc/1/ns/net",
           "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere"}
    reply = handle(plugin, env, json.dumps(conf).encode(), mode)
    assert not reply.status, reply.stdout


@pytest.mark.parametrize("plugin", ["portmap", "firewall"])
def test_add(benchmark, mode, plugin):
    benchmark.pedantic(call, ("ADD", mode, plugin), setup=lambda: call("DEL", mode, plugin), rounds=300)
    call("DEL", mode, plugin)


@pytest.mark.parametrize("plugin", ["portmap", "firewall"])
def test_del(benchmark, mode, plugin):
    benchmark.pedantic(call, ("DEL", mode, plugin), setup=lambda: call("ADD", mode, plugin), rounds=300)


def test_add_of_a_range(benchmark, mode):
    """Add a mapping of 2,000 ports, for which nftables gets one element for each port."""
    benchmark.pedantic(call, ("ADD", mode, "portmap", 1001, [A_RANGE]),
                       setup=lambda: call("DEL", mode, "portmap", 1001, [A_RANGE]), rounds=9)
    call("DEL", mode, "portmap", 1001, [A_RANGE])
