"""Measure the node agent: its cost with many nodes, and that packets take no longer than without the agent.

    .venv/bin/python benchmarks/bench_agent.py              # root; etcd, iperf3
    .venv/bin/python benchmarks/bench_agent.py --only peers

peers       write 1,000 other nodes: sends and time; flush all neighbours: time until they are restored; memory
process     `fastcni agent` with 1,000 nodes in a file: processor time of the start, of an idle time, and of one changed
            node; memory
packets     TCP and the round trip of a datagram between pods of two nodes, in turn through the agent's vxlan link and
            through a vxlan link made by ip(8)
recovery    damage each field of a node's own record in etcd: time until a running agent, or an agent that is started
            then, has written the record again
join        time from the start of `fastcni agent` to the first answered ping, in a network of some nodes on a real etcd

The benchmark makes network namespaces, and removes them at the end. `make test` runs `peers` with a few nodes, and
asserts no time.
"""

import argparse
import contextlib
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from ipaddress import ip_address, ip_network
from pathlib import Path

from fastcni.agent.backends import open_backend
from fastcni.agent.contract import Family, NetworkConf, Node
from fastcni.agent.keeper import Keeper
from fastcni.agent.underlay import Options, choose
from fastcni.clients.etcd import Client, put
from fastcni.daemon import log as logs
from fastcni.kernel import wire
from fastcni.testing import needs_root
from fastcni.testing.namespaces import Inside

NETWORK = ip_network("10.200.0.0/13")
PARTS = ("peers", "process", "packets", "recovery", "join")
IDLE_S, CHANGES = 10.0, 10
ECHO = """if True:
    import socket, sys
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((sys.argv[1], 9))
    print(flush=True)
    while True:
        sock.sendto(*sock.recvfrom(64))"""
PREFIX = f"fcab{os.getpid()}"


def quietly(*words, **named):
    """Run a program, and return its exit status."""
    return subprocess.run([*map(str, words)], capture_output=True, check=False, **named).returncode


def ip(*words, netns=None):
    subprocess.run(["ip", *(["-n", netns] if netns else []), *map(str, words)], check=True, capture_output=True)


@contextlib.contextmanager
def machines(count):
    """Yield the names of `count` + 1 namespaces. The first has a bridge with 192.0.2.254. Each other namespace has eth0
    on this bridge, with 192.0.2.NUMBER."""
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


def backend(directory):
    first = next(NETWORK.subnets(new_prefix=24))
    conf = NetworkConf({4: Family(NETWORK, 24, first, first)}, {"Type": "vxlan"})
    return open_backend(conf, choose(Options(iface=["eth0"]), [4]), str(directory), publishes=True)


def peers(directory, count):
    """Return (the number of full-size sends, ms to write all nodes, ms to restore the neighbours after a flush, MB of
    this process)."""
    log = logs.make("debug", "logfmt")
    with machines(1) as (_, name), Inside(name):
        keeper, it = Keeper(log), backend(directory)
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


def process(directory, count):
    """Return (the agent's processor seconds for its start, for IDLE_S without a change, and for one node's change; its
    memory in MB)."""
    file, env = directory / "nodes.json", directory / "subnet.env"

    def write(changed):
        nodes = [{"name": it.name, "subnets": [str(it.subnets[4])], "public": [str(it.public[4])]}
                 for it in map(record, range(count + 1))]
        nodes[7]["public"] = [f"192.0.2.{8 + changed}"]
        (directory / "new").write_text(json.dumps({
            "network": {"Network": str(NETWORK), "Backend": {"Type": "vxlan"}}, "nodes": nodes}))
        (directory / "new").rename(file)

    with machines(1) as (_, name):
        write(0)
        agent = start_agent(name, env, "--nodes", file, "--node-name", "node-0")
        try:
            wait_for(env.exists)
            started = processor_s(agent.pid)
            time.sleep(IDLE_S)
            idle = processor_s(agent.pid) - started
            for number in range(1, CHANGES + 1):
                write(number % 2)
                time.sleep(0.5)
            changes = processor_s(agent.pid) - started - idle
            return started, idle, changes / CHANGES, memory_mb(agent.pid)
        finally:
            agent.terminate()
            agent.wait(20)


def start_agent(netns, env, *registry):
    """Start `fastcni agent` as a process. env: the path of the subnet file; the agent's other files are in the same
    directory."""
    return subprocess.Popen(
        ["ip", "netns", "exec", netns, sys.executable, "-m", "fastcni", "agent", *registry, "--iface", "eth0",
         "--subnet-file", env, "--conflist", "", "--folder", env.parent], stderr=subprocess.DEVNULL)


def processor_s(pid):
    """Return the seconds of processor time that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid):
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1e3


def hand_made(one, two):
    """Make a vxlan link with VNI 2 between two namespaces, by ip(8)."""
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
    """Return the Gbit/s of one TCP connection between two namespaces."""
    server = subprocess.Popen(["ip", "netns", "exec", two, "iperf3", "-s", "-1", "-B", target],
                              stdout=subprocess.DEVNULL)
    time.sleep(0.3)
    done = subprocess.run(["ip", "netns", "exec", one, "iperf3", "-c", target, "-B", source, "-t", str(seconds), "-J"],
                          capture_output=True, check=True)
    server.wait(10)
    return json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"] / 1e9


def echo(one, two, source, target, count=2000):
    """Return the median round trip of a datagram in microseconds."""
    server = subprocess.Popen(["ip", "netns", "exec", two, sys.executable, "-c", ECHO, target], stdout=subprocess.PIPE)
    try:
        server.stdout.readline()
        with Inside(one), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(5)
            sock.bind((source, 0))
            sock.connect((target, 9))
            found = []
            for _ in range(count):
                began = time.perf_counter()
                sock.send(b"x")
                sock.recv(64)
                found.append((time.perf_counter() - began) * 1e6)
        return statistics.median(found)
    finally:
        server.terminate()
        server.wait(10)


def packets(directory, rounds, seconds):
    """Return (Gbit/s through the agent's link, Gbit/s through a link made by ip(8), us through the agent's link, us
    through the other)."""
    log = logs.make("debug", "logfmt")
    with machines(2) as (_, one, two):
        made = {}
        for number, name in ((1, one), (2, two)):
            with Inside(name):
                it = backend(directory / name)
                subnet = ip_network(f"10.200.{number}.0/24")
                made[number] = it, Node(name, {4: subnet}, {4: ip_address(f"192.0.2.{number}")}, "vxlan", it.data())
            ip("addr", "add", f"10.200.{number}.5/32", "dev", "lo", netns=name)
        for number, name in ((1, one), (2, two)):
            with Inside(name):
                keeper, (it, me) = Keeper(log), made[number]
                keeper.set(it.state(me, [made[3 - number][1]]))
                keeper.close()
        hand_made(one, two)
        found = [], [], [], []
        ways = ("10.200.1.5", "10.200.2.5"), ("10.99.1.5", "10.99.2.5")
        for _ in range(rounds):
            for number, way in enumerate(ways):
                found[number].append(iperf(one, two, *way, seconds))
            for number, way in enumerate(ways, 2):
                found[number].append(echo(one, two, *way))
    return [statistics.median(each) for each in found]


@contextlib.contextmanager
def network(directory, count):
    """Yield (the names of `count` nodes, a Client of the etcd that the nodes reach, etcd's URL, a list of processes to
    end later). etcd is the first process of the list."""
    running = []
    conf = '{"Network": "10.200.0.0/13", "Backend": {"Type": "vxlan"}}'
    with machines(count) as (lan, *names), Inside(lan):
        try:
            url = "http://192.0.2.254:2379"
            running.append(subprocess.Popen(
                ["etcd", "--data-dir", f"{directory}/etcd", "--listen-client-urls", url,
                 "--advertise-client-urls", url, "--listen-peer-urls", "http://127.0.0.1:2380"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            put_conf = ["etcdctl", "--endpoints", url, "put", "/coreos.com/network/config", conf]
            wait_for(lambda: not quietly(*put_conf, env={**os.environ, "ETCDCTL_API": "3"}))
            with contextlib.closing(Client({"endpoints": [url]})) as client:
                yield names, client, url, running
        finally:
            for each in running:
                each.terminate()
            for each in running:
                each.wait(20)


def join(directory, count):
    """Return ([seconds from the start of an agent to the first answered ping], the number of nodes that had joined
    before)."""
    took = []
    with network(directory, count) as (names, _, url, running):
        for number, name in enumerate(names, 1):
            began, env = time.perf_counter(), Path(directory, name, "subnet.env")
            running.append(start_agent(name, env, "--etcd", url))
            wait_for(env.exists)
            address = env.read_text().partition("FLANNEL_SUBNET=")[2].partition("/")[0]
            ip("addr", "add", f"{address}/32", "dev", "lo", netns=name)
            if number > 1:
                ping = ["ip", "netns", "exec", names[0], "ping", "-c1", "-W1", address]
                wait_for(lambda ping=ping: not quietly(*ping))
                took.append(time.perf_counter() - began)
        memory = memory_mb(running[1].pid)
    return took, memory


def recovery(directory):
    """Return {damaged part of a node's own record: (ms until a running agent has written the record again, ms until a
    newly started agent has)}."""
    other = {"VNI": 1, "VtepMAC": "02:00:00:00:00:99"}
    damages = {"value": "[", "PublicIP": 5, "PublicIP of another": "192.0.2.99", "PublicIPv6": "nonsense",
               "BackendType": "host-gw", "BackendData": None, "VtepMAC": other}
    found, env = {}, Path(directory, "subnet.env")
    with network(directory, 1) as ((name,), client, url, running):
        for what, value in damages.items():
            took = []
            for stopped in (False, True):
                if len(running) == 1:
                    running.append(start_agent(name, env, "--etcd", url))
                    wait_for(env.exists)
                    time.sleep(1.0)         # the agent renews its record after its start
                ((before,), _) = client.read_range("/coreos.com/network/subnets/", "/coreos.com/network/subnets0")
                document = json.loads(before.value)
                key = "BackendData" if what == "VtepMAC" else what.partition(" ")[0]
                if key in document:
                    document[key] = value
                if stopped:
                    running[1].terminate()
                    running.pop().wait(20)
                client.txn([], [put(before.key, "[" if what == "value" else json.dumps(document))])
                began = time.perf_counter()
                if stopped:
                    running.append(start_agent(name, env, "--etcd", url))
                wait_for(lambda before=before: client.read(before.key)[0].value == before.value)
                took.append((time.perf_counter() - began) * 1e3)
            found[what] = took
    return found


def wait_for(done, seconds=30.0):
    limit = time.monotonic() + seconds
    while not done():
        if time.monotonic() > limit:
            raise SystemExit(f"the awaited event did not happen within {seconds:.0f} s")
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
        directory = Path(name)
        if "peers" in parts:
            sends, written, repaired, memory = peers(directory, options.peers)
            print(f"{options.peers:,} nodes: {sends} send, {written:.0f} ms (wanted: 3, 200 ms); a flush of the "
                  f"neighbours repaired in {repaired:.0f} ms; {memory:.0f} MB")
        if "process" in parts:
            start, idle, change, memory = process(directory, options.peers)
            print(f"{options.peers:,} nodes in a file: processor time {start:.2f} s to start, {idle:.2f} s in "
                  f"{IDLE_S:.0f} s without a change, {change * 1e3:.0f} ms for a change of one node; {memory:.0f} MB")
        if "packets" in parts:
            agent, hand, agent_us, hand_us = packets(directory, options.rounds, 2)
            print(f"TCP between pods: {agent:.2f} Gbit/s, by a hand-made vxlan {hand:.2f} Gbit/s: {agent / hand:.2f}x\n"
                  f"a datagram there and back: {agent_us:.1f} us, hand-made {hand_us:.1f}: {agent_us / hand_us:.2f}x")
        if "recovery" in parts:
            for what, (running, stopped) in recovery(directory / "recovery").items():
                print(f"damaged {what}: written again after {running:.0f} ms, after a start {stopped:.0f} ms")
        if "join" in parts:
            took, memory = join(directory, options.nodes)
            print(f"{options.nodes} nodes: from an agent's start to the first ping {statistics.median(took):.2f} s, "
                  f"the last one {took[-1]:.2f} s; the first agent has {memory:.0f} MB")


@needs_root
def test_the_part_of_many_nodes_runs(tmp_path, scaled):
    sends, *_ = peers(tmp_path, scaled(100))
    assert sends <= 1


if __name__ == "__main__":
    main()
