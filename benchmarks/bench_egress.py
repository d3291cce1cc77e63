"""Measure egress addresses: how long after a node's failure another node has its address, and how long both have it.

    .venv/bin/python benchmarks/bench_egress.py                 # root; etcd
    .venv/bin/python benchmarks/bench_egress.py --rounds 3

killed      the agent of the holder is killed
stopped     the agent of the holder is stopped (SIGSTOP)
cut off     the node of the holder no longer reaches etcd

The benchmark runs one etcd and three nodes with one pod each, in network namespaces that it removes at the end. `moved`
is the time until another node has the address. `answered` is the time until a pod of another node got an answer through
the address. `two` is the longest time for which two nodes had the address. The benchmark reads the nodes' addresses
each 2 ms.

The last line has the time of the request that an ADD (plugin `policy`) sends to the agent, in turn for a pod without an
egress address and for a pod with one.
"""

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cluster.agent.egress_nodes import EGRESS, Outside, Pod, egress_address, put
from cluster.agent.test_agent import CONF, Node
from cluster.agent.test_egress import ask, fail, recover
from cluster.etcd import Etcd

from fastcni.clients.etcd import Client
from fastcni.clients.etcd import put as put_key
from fastcni.kernel import wire
from fastcni.kit.links import find
from fastcni.spec.address import read_ip
from fastcni.testing.namespaces import Inside, ip
from fastcni.testing.witnesses import eventually

PREFIX = f"fceg{os.getpid()}"
FAILURES = ("killed", "stopped", "cut off")
ADDRESS = read_ip(EGRESS[4])
LIMIT_S, LOOK_S = 20.0, 0.002


class Cluster:
    """Three nodes with one pod each, connected in the calling thread's namespace."""

    def __init__(self, opened, directory):
        self.home, self.directory = namespace(opened, "host"), directory / "policies"
        opened.enter_context(Inside(self.home))
        ip("link", "set", "lo", "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        ip("link", "add", "wire", "up", "type", "bridge")
        ip("addr", "add", "192.0.2.254/24", "dev", "wire")
        etcd = opened.enter_context(Etcd(host="192.0.2.254"))
        client = Client(etcd.conf())
        client.txn([], [put_key("/net/config", CONF % "vxlan")])
        client.close()
        self.directory.mkdir()
        opened.enter_context(contextlib.closing(Outside()))
        self.nodes = []
        for number in (1, 2, 3):
            node = Node(number, namespace(opened, f"n{number}"), etcd.endpoints, directory)
            opened.callback(node.end, signal.SIGKILL)
            node.more = ["--policies", str(self.directory)]
            node.start()
            self.nodes.append(node)
        for node in self.nodes:
            assert eventually((node.directory / "net.conflist").exists), node.log()
        self.pods = [Pod(node, namespace(opened, f"p{node.number}")) for node in self.nodes]
        put(self.directory, "all.yaml", egress_address(addresses=[EGRESS[4]], namespaces=namespace_named("shop")),
            *(pod.document(f"p{number}") for number, pod in enumerate(self.pods)))
        self.sockets = []
        for node in self.nodes:
            with Inside(node.netns):
                self.sockets.append((opened.enter_context(contextlib.closing(wire.open_socket())),
                                     wire.index_of("eth0")))

    def holders(self):
        return [node for node, (sock, index) in zip(self.nodes, self.sockets, strict=True)
                if any(it.packed == ADDRESS for it in find.addresses(sock, index, [2]))]

    def steady(self):
        """Wait until one node holds the address, and all pods use it as source. Return the node."""
        assert eventually(lambda: [pod.source() for pod in self.pods] == [EGRESS[4]] * 3)
        (one,) = self.holders()
        return one


def namespace_named(name):
    return {"matchLabels": {"kubernetes.io/metadata.name": name}}


def namespace(opened, name):
    found = f"{PREFIX}-{name}"
    ip("netns", "add", found)
    opened.callback(subprocess.run, ["ip", "netns", "del", found], check=False)
    return found


def one_move(cluster, failure):
    """Let the holder fail. Return the seconds (moved, answered, two)."""
    first = cluster.steady()
    pod = next(pod for pod in cluster.pods if pod.node is not first)
    fail(first, failure)
    began, moved, two = time.monotonic(), 0.0, 0.0
    before = began
    while (now := time.monotonic()) < began + LIMIT_S:
        held = cluster.holders()
        two += now - before if len(held) > 1 else 0.0
        before = now
        if not moved and any(node is not first for node in held):
            moved = now - began
        if moved and first not in held:
            break
        time.sleep(LOOK_S)
    assert moved, [node.log() for node in cluster.nodes]
    assert eventually(lambda: pod.source() == EGRESS[4])
    answered = time.monotonic() - began
    recover(first, failure)
    return moved, answered, two


def time_of_requests(cluster, rounds):
    """Return {namespace: [ms of a request `protect`]}. Pods of the namespace `late` have an egress address, pods of
    `plain` do not."""
    node = cluster.nodes[0]
    put(cluster.directory, "late.yaml", egress_address("late", [EGRESS[4]], namespaces=namespace_named("late")))
    found = {"plain": [], "late": []}
    pod = {"id": ["net", "c1", "eth0"], "uid": "", "labels": {}, "addresses": ["10.244.99.9"]}
    for number in range(rounds + 1):
        for where, results in found.items():
            began = time.perf_counter()
            assert ask(node, {**pod, "do": "protect", "pod": f"{where}/a{number}"}) == {}
            results.append((time.perf_counter() - began) * 1000)
            ask(node, {"do": "forget", "id": pod["id"]})
    # The first request waits until the agent has read the file
    return {where: results[1:] for where, results in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=8, help="rounds of each failure")
    parser.add_argument("--adds", type=int, default=200, help="number of requests of ADDs")
    options = parser.parse_args()
    found = {failure: [] for failure in FAILURES}
    with contextlib.ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        cluster = Cluster(opened, directory)
        for _ in range(options.rounds):
            for failure in FAILURES:
                found[failure].append(one_move(cluster, failure))
        cluster.steady()
        took = time_of_requests(cluster, options.adds)
    print(f"{'':10}{'moved: p50':>12}{'p99':>7}{'max':>7}{'answered: p50':>16}{'max':>7}{'two: max':>10}   seconds")
    for failure, results in found.items():
        moved, answered, two = (sorted(each) for each in zip(*results, strict=True))
        p99 = moved[min(len(moved) - 1, round(0.99 * (len(moved) - 1)))]
        print(f"{failure:10}{statistics.median(moved):12.2f}{p99:7.2f}{moved[-1]:7.2f}{statistics.median(answered):16.2f}"
              f"{answered[-1]:7.2f}{two[-1]:10.2f}")
    plain, late = (statistics.median(results) for results in took.values())
    print(f"protect   {plain:.2f} ms without, {late:.2f} ms with an egress address: median of {options.adds}")


if __name__ == "__main__":
    main()
