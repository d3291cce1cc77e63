"""Measure the round trip of a packet through the iptables rules of the plugin firewall, with one pod and with 1,000
pods.

The pods are in an ipset, or each pod has two rules, as the Go plugin adds them. Prints figures, asserts no time. Needs
root, for network namespaces.

    .venv/bin/python -m pytest --benchmark-only benchmarks/bench_forward.py

The measured pod's address is the last in the rules. A round is 100 datagrams from the pod to an outside address, and
100 answers. One process has the sockets of both ends, so the figures contain no time to wake a thread.
"""

import json
import os
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from socket import AF_INET, SOCK_DGRAM, socket

import pytest

from fastcni.handle import handle
from fastcni.kernel import netns
from fastcni.kit.firewall.forward import iptables as forward_iptables
from fastcni.kit.firewall.forward import iptables_chain
from fastcni.runtime.mode import SharedMode

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces"),
              pytest.mark.skipif(not shutil.which("iptables-restore"), reason="needs iptables")]
NODE, POD, FAR = (f"fcni-bench-{role}-{os.getpid()}" for role in ("node", "pod", "far"))
ADDRESSES = {POD: "10.22.255.254", FAR: "192.0.2.9"}
GATEWAYS = {POD: "10.22.0.1/16", FAR: "192.0.2.1/24"}
DATAGRAMS = 100


def run(*args, stdin=""):
    subprocess.run(args, check=True, input=stdin.encode(), capture_output=True)


@pytest.fixture
def ends():
    """Return the sockets of a pod and of an outside host, on a node that forwards packets and has the policy drop."""
    with ExitStack() as stack:
        for name in (NODE, POD, FAR):
            run("ip", "netns", "add", name)
            stack.callback(run, "ip", "netns", "del", name)
        sockets = []
        for name, address in ADDRESSES.items():
            gateway, _, prefix = GATEWAYS[name].partition("/")
            run("ip", "-n", NODE, "-batch", "-", stdin=f"link add {name[5:20]} type veth peer name eth0 netns {name}\n"
                f"addr add {gateway}/{prefix} dev {name[5:20]}\nlink set {name[5:20]} up\n")
            run("ip", "-n", name, "-batch", "-", stdin=f"addr add {address}/{prefix} dev eth0\nlink set eth0 up\n"
                f"route add default via {gateway}\n")
            with opened(name) as fd, netns.inside(fd):
                sockets.append(stack.enter_context(socket(AF_INET, SOCK_DGRAM)))
                sockets[-1].bind((address, 4000))
                sockets[-1].settimeout(10)
        fd = stack.enter_context(opened(NODE))
        stack.enter_context(netns.inside(fd))
        with open("/proc/sys/net/ipv4/ip_forward", "w") as file:
            file.write("1")
        run("iptables", "-P", "FORWARD", "DROP")
        yield sockets


@contextmanager
def opened(name):
    fd = netns.open_path(f"/run/netns/{name}")
    try:
        yield fd
    finally:
        os.close(fd)


def there_and_back(near, far):
    for _ in range(DATAGRAMS):
        near.sendto(b"question", (ADDRESSES[FAR], 4000))
        far.sendto(b"answer", far.recvfrom(64)[1])
        near.recv(64)


def add(addresses):
    """Add the rules of a pod for each address."""
    mode = SharedMode()
    for number, text in enumerate(addresses):
        conf = {"cniVersion": "1.0.0", "name": "net", "type": "firewall", "backend": "iptables",
                "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": f"{text}/16"}]}}
        env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": f"pod{number}", "CNI_NETNS": "/proc/1/ns/net",
               "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere", "PATH": os.environ["PATH"]}
        reply = handle("firewall", env, json.dumps(conf).encode(), mode)
        assert not reply.status, reply.stdout
    mode.close()


@pytest.mark.parametrize("rules", ["no rules of pods", "in an ipset", "two rules a pod"])
@pytest.mark.parametrize("pods", [1, 1000])
def test_packets(benchmark, ends, scaled, monkeypatch, pods, rules):
    addresses = [*(f"10.22.{number >> 8}.{number & 255}" for number in range(2, scaled(pods) + 1)), ADDRESSES[POD]]
    if rules == "no rules of pods":
        run("iptables", "-P", "FORWARD", "ACCEPT")
    elif rules == "in an ipset":
        add(addresses)
    else:
        monkeypatch.setattr(forward_iptables, "has_set", lambda *_: False)
        add(addresses[:1])
        lines = [rule for text in addresses[1:]
                 for rule in iptables_chain.rules(bytes(map(int, text.split("."))))]
        run("iptables-restore", "--noflush", stdin="\n".join(["*filter", *lines, "COMMIT", ""]))
    benchmark.pedantic(there_and_back, ends, warmup_rounds=2, rounds=100)
