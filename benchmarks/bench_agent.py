"""The node agent: what it costs with many nodes, and that it adds nothing to the packets.

    .venv/bin/python benchmarks/bench_agent.py              # root; etcd, iperf3
    .venv/bin/python benchmarks/bench_agent.py --only peers

peers       1,000 other nodes at the start: sends and time; a flush of all neighbours: time until they are back; memory
packets     TCP between pods of two nodes, through the agent's vxlan and through one made by ip(8), in turn
join        from the start of `fastcni agent` to the first answered ping, in a network of some nodes on a real etcd

All is in network namespaces that are removed at the end. `make test` runs `peers` with a few nodes, and asserts no
time.
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from ipaddress import ip_address, ip_network
from pathlib import Path

import structlog

from fastcni.agent.backends import open_backend
from fastcni.agent.contract import Family, NetworkConf, Node
from fastcni.agent.keeper import Keeper
from fastcni.agent.underlay import Options, choose
from fastcni.kernel import wire
from fastcni.testing import needs_root
from fastcni.testing.namespaces import Inside

NETWORK = ip_network("10.200.0.0/13")
PARTS = ("peers", "packets", "join")
PREFIX = f"fcab{os.getpid()}"


def quietly(*words, **named):
    """Run a program, and return its exit status."""
    return subprocess.run([*map(str, words)], capture_output=True, check=False, **named).returncode


def ip(*words, netns=None):
    subprocess.run(["ip", *(["-n", netns] if netns else []), *map(str, words)], check=True, capture_output=True)


@contextlib.contextmanager
def machines(count):
    """Yield the names of `count` namespaces, each with eth0 192.0.2.NUMBER on one bridge, which 192.0.2.254 is on."""
    names = [f"{PREFIX}-{number}" for number in range(count + 1)]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("link", "set", "lo", "up", netns=name)
        ip("link", "add", "lan", "up", "type", "bridge", netns=names[0])
        ip("addr", "add", "192.0.2.254/24", "dev", "lan", netns=names[0])
        for number, name in enumerate(names[1:], 1):
            ip("link", "add", f"port{number}", "master", "lan", "up", "type", "veth", "peer", "eth0", "netns", name,
               netns=names[0])
            ip("addr", "add", f"192.0.2.{number}/24", "dev", "eth0", netns=name)
            ip("link", "set", "eth0", "up", netns=name)
            ip("route", "add", "default", "via", "192.0.2.254", netns=name)
        yield names
    finally:
        for name in names:
            quietly("ip", "netns", "del", name)


def record(number):
    subnet = ip_network((int(NETWORK[0]) + number * 256, 24))
    mac = f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}"
    return Node(f"node-{number}", {4: subnet}, {4: ip_address("192.0.2.1") + number % 200}, "vxlan",
                {4: {"VNI": 1, "VtepMAC": mac}})


def backend(folder):
    first = next(NETWORK.subnets(new_prefix=24))
    conf = NetworkConf({4: Family(NETWORK, 24, first, first)}, {"Type": "vxlan"})
    return open_backend(conf, choose(Options(iface=["eth0"]), [4]), str(folder), publishes=True)


def peers(folder, count):
    """Return (sends of the largest size, ms to write all, ms until a flush is repaired, MB of this process)."""
    log = structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
    with machines(1) as (_, name), Inside(name):
        keeper, it = Keeper(log), backend(folder)
        me, others, sent, real = record(0), [record(number) for number in range(1, count + 1)], [], wire.send
        keeper.set(it.state(me, []))
        wire.send = lambda sock, data: (sent.append(len(data)), real(sock, data))
        try:
            began = time.perf_counter()
            keeper.set(it.state(me, others))
            written = (time.perf_counter() - began) * 1e3
        finally:
            wire.send = real
        keeper.attend()
        quietly("ip", "neigh", "flush", "dev", "flannel.1", "nud", "all")
        began = time.perf_counter()
        keeper.attend()
        repaired = (time.perf_counter() - began) * 1e3
        shown = subprocess.run(["ip", "-j", "neigh", "show", "dev", "flannel.1", "nud", "permanent"],
                               capture_output=True, check=True).stdout
        assert len(json.loads(shown)) == count
        keeper.close()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return sum(size > 1000 for size in sent), written, repaired, memory


def hand_made(one, two):
    """A vxlan link between two namespaces, VNI 2, by ip(8)."""
    macs = {1: "02:00:00:00:01:01", 2: "02:00:00:00:01:02"}
    for here, mine, theirs in ((one, 1, 2), (two, 2, 1)):
        mac, other = macs[mine], macs[theirs]
        ip("link", "add", "hand", "address", mac, "mtu", 1450, "type", "vxlan", "id", 2, "dev", "eth0", "local",
           f"192.0.2.{mine}", "dstport", 8473, "nolearning", netns=here)
        ip("addr", "add", f"10.99.{mine}.0/32", "dev", "hand", netns=here)
        ip("link", "set", "hand", "up", netns=here)
        ip("neigh", "add", f"10.99.{theirs}.0", "lladdr", other, "dev", "hand", "nud", "permanent", netns=here)
        subprocess.run(["bridge", "-n", here, "fdb", "append", other, "dev", "hand", "dst", f"192.0.2.{theirs}"],
                       check=True)
        ip("route", "add", f"10.99.{theirs}.0/24", "via", f"10.99.{theirs}.0", "dev", "hand", "onlink", netns=here)
        ip("addr", "add", f"10.99.{mine}.5/32", "dev", "lo", netns=here)


def iperf(one, two, source, target, seconds):
    """Gbit/s of one TCP connection."""
    server = subprocess.Popen(["ip", "netns", "exec", two, "iperf3", "-s", "-1", "-B", target],
                              stdout=subprocess.DEVNULL)
    time.sleep(0.3)
    done = subprocess.run(["ip", "netns", "exec", one, "iperf3", "-c", target, "-B", source, "-t", str(seconds), "-J"],
                          capture_output=True, check=True)
    server.wait(10)
    return json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"] / 1e9


def packets(folder, rounds, seconds):
    """Return ([Gbit/s through the agent's link], [through the hand-made one])."""
    log = structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
    with machines(2) as (_, one, two):
        made = {}
        for number, name in ((1, one), (2, two)):
            with Inside(name):
                it = backend(folder / name)
                subnet = ip_network(f"10.200.{number}.0/24")
                made[number] = it, Node(name, {4: subnet}, {4: ip_address(f"192.0.2.{number}")}, "vxlan", it.data())
            ip("addr", "add", f"10.200.{number}.5/32", "dev", "lo", netns=name)
        for number, name in ((1, one), (2, two)):
            with Inside(name):
                keeper, (it, me) = Keeper(log), made[number]
                keeper.set(it.state(me, [made[3 - number][1]]))
                keeper.close()
        hand_made(one, two)
        found = [], []
        for _ in range(rounds):
            found[0].append(iperf(one, two, "10.200.1.5", "10.200.2.5", seconds))
            found[1].append(iperf(one, two, "10.99.1.5", "10.99.2.5", seconds))
    return found


def join(folder, count):
    """Return ([s from the start of an agent to the first answered ping], nodes there already)."""
    took, running = [], []
    conf = '{"Network": "10.200.0.0/13", "Backend": {"Type": "vxlan"}}'
    with machines(count) as (lan, *names):
        try:
            client = "http://192.0.2.254:2379"
            running.append(subprocess.Popen(
                ["ip", "netns", "exec", lan, "etcd", "--data-dir", f"{folder}/etcd", "--listen-client-urls", client,
                 "--advertise-client-urls", client, "--listen-peer-urls", "http://127.0.0.1:2380"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            put = ["ip", "netns", "exec", lan, "etcdctl", "--endpoints", client, "put", "/coreos.com/network/config"]
            wait_for(lambda: not quietly(*put, conf, env={**os.environ, "ETCDCTL_API": "3"}))
            for number, name in enumerate(names, 1):
                began, env = time.perf_counter(), Path(folder, name, "subnet.env")
                running.append(subprocess.Popen(
                    ["ip", "netns", "exec", name, sys.executable, "-m", "fastcni", "agent", "--etcd", client,
                     "--iface", "eth0", "--subnet-file", env, "--conflist", "", "--folder", env.parent],
                    stderr=subprocess.DEVNULL))
                wait_for(env.exists)
                address = env.read_text().partition("FLANNEL_SUBNET=")[2].partition("/")[0]
                ip("addr", "add", f"{address}/32", "dev", "lo", netns=name)
                if number > 1:
                    ping = ["ip", "netns", "exec", names[0], "ping", "-c1", "-W1", address]
                    wait_for(lambda ping=ping: not quietly(*ping))
                    took.append(time.perf_counter() - began)
            status = Path(f"/proc/{running[1].pid}/status").read_text()
            memory = int(status.partition("VmRSS:")[2].split()[0]) / 1e3
        finally:
            for each in running:
                each.terminate()
            for each in running:
                each.wait(20)
    return took, memory


def wait_for(done, seconds=30.0):
    limit = time.monotonic() + seconds
    while not done():
        if time.monotonic() > limit:
            raise SystemExit("in vain")
        time.sleep(0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help=",".join(PARTS))
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    parts = options.only.split(",") if options.only else PARTS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "peers" in parts:
            sends, written, repaired, memory = peers(folder, options.peers)
            print(f"{options.peers:,} nodes: {sends} send, {written:.0f} ms (wanted: 3, 200 ms); a flush of the "
                  f"neighbours repaired in {repaired:.0f} ms; {memory:.0f} MB")
        if "packets" in parts:
            agent, hand = packets(folder, options.rounds, 2)
            print(f"TCP between pods: {statistics.median(agent):.2f} Gbit/s, by a hand-made vxlan "
                  f"{statistics.median(hand):.2f} Gbit/s: {statistics.median(agent) / statistics.median(hand):.2f}x")
        if "join" in parts:
            took, memory = join(folder, options.nodes)
            print(f"{options.nodes} nodes: from an agent's start to the first ping {statistics.median(took):.2f} s, "
                  f"the last one {took[-1]:.2f} s; the first agent has {memory:.0f} MB")


@needs_root
def test_the_part_of_many_nodes_runs(tmp_path, scaled):
    sends, *_ = peers(tmp_path, scaled(100))
    assert sends <= 1


if __name__ == "__main__":
    main()
