"""Measure the cost of `fastcni flows --follow` on a node with 10,000 new connections a second.

    .venv/bin/python benchmarks/bench_flows.py           # as root; a minute

Two pods of ptp are behind a chain that accepts by conntrack, as policies do. One thread sends UDP datagrams at that
rate, each for a new connection. The kernel handles a datagram within the sender's call. The command runs in every other
round. The benchmark prints the share of a core that the kernel uses in the sender's calls, and the share that the
command uses.

`make test` runs the benchmark once, with small numbers, and asserts no time.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fastcni.kernel import sysctl
from fastcni.testing.namespaces import CLONE_NEWNET, Inside, libc, run

PODS = {"10.75.0.2": "flows-a", "10.75.1.2": "flows-b"}
RULES = """table inet other {
    chain f {
        type filter hook forward priority 0
        ct state established accept
        udp dport 1-65535 accept
    }
}"""
PORTS, SOCKETS = 250, 200  # their product is the number of connections; conntrack forgets a connection after a second


class Node:
    """A node in this thread's namespace, with two pods."""

    def __init__(self, make_netns, directory):
        self.cache = directory
        (directory / "results").mkdir()
        sysctl.write("net/ipv4/ip_forward", "1")
        self.spaces = {address: make_netns() for address in PODS}
        for number, (address, space) in enumerate(self.spaces.items()):
            gateway = f"10.75.{number}.1"
            run("ip", "link", "add", f"port{number}", "type", "veth", "peer", "eth0", "netns", space)
            run("ip", "addr", "add", f"{gateway}/24", "dev", f"port{number}")
            run("ip", "link", "set", f"port{number}", "up")
            run("ip", "addr", "add", f"{address}/24", "dev", "eth0", netns=space)
            run("ip", "link", "set", "eth0", "up", netns=space)
            run("ip", "route", "add", "default", "via", gateway, netns=space)
            (directory / "results" / f"net-{PODS[address]}-eth0").write_text(json.dumps(
                {"kind": "cniCacheV1", "containerId": PODS[address], "ifName": "eth0", "networkName": "net",
                 "config": "e30=", "result": {"cniVersion": "1.0.0", "ips": [{"address": f"{address}/24"}]}}))
        run("nft", "-f", "-", stdin=RULES)
        for name in ("udp_timeout", "udp_timeout_stream"):
            sysctl.write(f"net/netfilter/nf_conntrack_{name}", "1")
        source, self.target = self.spaces
        with Inside(self.spaces[source]):
            self.senders = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(SOCKETS)]
        # Drop the datagrams in the target namespace, which would otherwise answer with ICMP errors
        with Inside(self.spaces[self.target]):
            run("nft", "add table ip c; add chain ip c i { type filter hook input priority 0; policy drop; }")

    def close(self):
        for each in self.senders:
            each.close()

    def send(self, rate, seconds):
        """Begin `rate` connections a second. Return (the share of the time spent in the send calls, the connections a
        second)."""
        busy, sent, started = 0.0, 0, time.perf_counter()
        while (now := time.perf_counter()) < started + seconds:
            while sent < (now - started) * rate:
                sender, port = self.senders[sent // PORTS % SOCKETS], 1000 + sent % PORTS
                before = time.thread_time()
                sender.sendto(b"x", (self.target, port))
                busy += time.thread_time() - before
                sent += 1
            time.sleep(0.0005)
        return busy / seconds, sent / seconds


class Command:
    """A running `fastcni flows --follow`."""

    def __init__(self, cache):
        self.out = os.fdopen(os.memfd_create("flows"), "w+")
        self.process = subprocess.Popen([sys.executable, "-m", "fastcni", "flows", "--follow", "--json", "--cache-dir",
                                         cache], stdout=self.out, stderr=subprocess.PIPE)
        assert b"following" in self.process.stderr.readline()

    def cpu_s(self):
        """Return the command's processor time in seconds. The scheduler counts in nanoseconds."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) / 1e9

    def close(self):
        """End the command. Return the number of lines that the command has printed."""
        self.process.terminate()
        self.process.communicate()
        self.out.seek(0)
        with self.out:
            return sum(1 for _ in self.out)


def measure(node, rate, seconds, rounds):
    """Return the medians of (the kernel's share of a core without the command, with the command, the command's share,
    connections a second, printed lines a second)."""
    found = []
    for _ in range(rounds):
        off, _ = node.send(rate, seconds)
        command = Command(node.cache)
        try:
            node.send(rate, min(seconds, 0.2))          # lets the command start
            before, started = command.cpu_s(), time.perf_counter()
            on, sent = node.send(rate, seconds)
            took = (command.cpu_s() - before) / (time.perf_counter() - started)
        finally:
            lines = command.close()
        found.append((off, on, took, sent, lines / (seconds + 0.2)))
    return [statistics.median(each) for each in zip(*found, strict=True)]


def report(rate, found):
    off, on, took, sent, lines = found
    return (f"connections a second      {sent:8.0f}   (wanted {rate})\n"
            f"lines printed a second    {lines:8.0f}\n"
            f"kernel, command off       {off:8.2%}   of a core\n"
            f"kernel, command on        {on:8.2%}   {on - off:+.2%}\n"
            f"the command               {took:8.2%}\n"
            f"cost                      {on - off + took:8.2%}")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
def test_each_part_runs(host_netns, pod_netns, tmp_path):
    node = Node(pod_netns, tmp_path)
    try:
        assert "lines printed" in report(200, measure(node, 200, 0.2, 1))
    finally:
        node.close()


def main():
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--rate", type=int, nargs="+", default=[1000, 10_000])
    options.add_argument("--seconds", type=float, default=2.0, help="seconds of a round")
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        node = Node(lambda: stack.enter_context(namespace()), directory)
        stack.callback(node.close)
        for rate in chosen.rate:
            print(report(rate, measure(node, rate, chosen.seconds, chosen.rounds)), flush=True)


@contextlib.contextmanager
def namespace():
    """Make a named network namespace. Yield its name, and remove the namespace at the end."""
    name = f"flows-bench-{os.urandom(3).hex()}"
    run("ip", "netns", "add", name)
    try:
        yield name
    finally:
        run("ip", "netns", "del", name)


if __name__ == "__main__":
    if libc.unshare(CLONE_NEWNET):
        raise SystemExit("needs root: makes network namespaces")
    run("ip", "link", "set", "lo", "up")
    main()
