"""What rules by HTTP requests cost: requests a second and latency through HAProxy, beside no rule and a rule by ports.

    .venv/bin/python benchmarks/bench_http.py            # as root; needs haproxy and wrk; a minute

Two pods on links of their own and the agent's policies in one namespace. wrk asks from one pod; in the other one a
HAProxy answers each request itself. The policies change in turn, in each round. Prints medians of the rounds.

`make test` runs it once, with small numbers, and asserts no time.
"""

import argparse
import contextlib
import json
import os
import re
import select
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
import structlog

from fastcni.agent.policy.http.part import Proxy
from fastcni.agent.policy.ruleset import see_bridged_traffic
from fastcni.agent.policy.service import Policies, Settings
from fastcni.kernel import sysctl
from fastcni.testing.namespaces import CLONE_NEWNET, Inside, libc, run

CLIENT, SERVER = "10.76.0.2", "10.76.1.2"
PODS = {CLIENT: "client", SERVER: "server"}
SERVES = f"""
global
    nbthread 1
defaults
    mode http
    timeout client 60s
frontend f
    bind {SERVER}:80
    http-request return status 200 content-type text/plain string "ok"
"""
PORTS = [{"port": "80", "protocol": "TCP"}]
POLICIES = {"no policy": None, "by ports": [{"toPorts": [{"ports": PORTS}]}],
            "by HTTP": [{"toPorts": [{"ports": PORTS, "rules": {"http": [
                {"method": "GET", "path": "/a.*"}, {"method": "POST", "path": "/b.*"}]}}]}]}
LOADS = {"16 clients, keep-alive": (16, ()), "16 clients, close": (16, ("-H", "Connection: close")),
         "1 client, keep-alive": (1, ()), "1 client, close": (1, ("-H", "Connection: close"))}
WAIT_S = 20


class Node:
    """The namespace of this thread, with two pods and the agent's policies."""

    def __init__(self, make_netns, folder):
        self.open = contextlib.ExitStack()
        see_bridged_traffic()
        sysctl.write("net/ipv4/ip_forward", "1")
        self.spaces = {address: make_netns() for address in PODS}
        for number, (address, space) in enumerate(self.spaces.items()):
            run("ip", "link", "add", f"port{number}", "type", "veth", "peer", "eth0", "netns", space)
            run("ip", "addr", "add", f"10.76.{number}.1/24", "dev", f"port{number}")
            run("ip", "link", "set", f"port{number}", "up")
            run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")
            run("ip", "-n", space, "route", "add", "default", "via", f"10.76.{number}.1")
        (folder / "server.cfg").write_text(SERVES)
        self.folder = folder / "policies"
        self.folder.mkdir()
        self.write([])
        try:
            with Inside(self.spaces[SERVER]):
                server = subprocess.Popen(["haproxy", "-db", "-f", str(folder / "server.cfg")],
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.open.callback(server.wait)
            self.open.callback(server.terminate)
            settings = Settings(str(self.folder), state=str(folder / "pods"), socket=str(folder / "policy.sock"))
            self.policies = self.open.enter_context(contextlib.closing(Policies(settings, structlog.wrap_logger(
                None, processors=[self._pass_over]))))
            self.ended = threading.Event()
            thread = threading.Thread(target=self._attend)
            thread.start()
            self.open.callback(thread.join)
            self.open.callback(self.ended.set)
        except BaseException:
            self.open.close()
            raise

    def close(self):
        self.open.close()

    def _pass_over(self, *_):
        raise structlog.DropEvent

    def _attend(self):
        while not self.ended.is_set():
            select.select([self.policies], [], [], 0.02)
            self.policies.attend()

    def write(self, documents):
        pods = [{"kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "status": {"podIP": address}}
                for address, name in PODS.items()]
        (self.folder / "new").write_text(json.dumps({"kind": "List", "items": [*pods, *documents]}))
        (self.folder / "new").rename(self.folder / "all.json")

    def use(self, name):
        """Let a policy hold, and wait until requests are judged by it."""
        ingress = POLICIES[name]
        self.write([] if ingress is None else [{
            "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {"name": "web"},
            "spec": {"endpointSelector": {"matchLabels": {"app": "server"}}, "ingress": ingress}}])
        wanted, until = {"no policy": (0, False), "by ports": (1, False), "by HTTP": (1, True)}[name], (
            time.monotonic() + WAIT_S)
        while time.monotonic() < until:
            proxy = next(each for each in self.policies.parts if isinstance(each, Proxy)).process
            if (len(self.policies.compiler.cluster.policies), bool(proxy and proxy.listens)) == wanted:
                time.sleep(0.3)
                return
            time.sleep(0.02)
        raise TimeoutError(name)

    def load(self, connections, words, seconds):
        """Requests a second, and the median latency in microseconds."""
        with Inside(self.spaces[CLIENT]):
            done = subprocess.run(["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", *words,
                                   f"http://{SERVER}/a"], capture_output=True, text=True, check=True)
        assert "Non-2xx" not in done.stdout, done.stdout
        number, unit = re.search(r"50%\s+([\d.]+)(us|ms|s)", done.stdout).groups()
        rate = float(re.search(r"Requests/sec:\s+([\d.]+)", done.stdout).group(1))
        return rate, float(number) * {"us": 1, "ms": 1000, "s": 1_000_000}[unit]


def measure(node, rounds, seconds):
    """{(load, policy): [(rate, latency)]}"""
    found = {(load, name): [] for load in LOADS for name in POLICIES}
    for number in range(rounds):
        names = list(POLICIES)
        for name in names[number % len(names):] + names[:number % len(names)]:
            node.use(name)
            for load, (connections, words) in LOADS.items():
                found[load, name].append(node.load(connections, words, seconds))
    return found


def report(found):
    for load in LOADS:
        for name in POLICIES:
            rates, latencies = zip(*found[load, name], strict=True)
            print(f"{load:24}{name:12}{statistics.median(rates):10,.0f} requests/s "
                  f"{statistics.median(latencies):8,.0f} us")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
@pytest.mark.skipif(not (shutil.which("haproxy") and shutil.which("wrk")),
                    reason="needs haproxy and wrk (apt-get install haproxy wrk)")
def test_costs_of_http_rules_are_measured(host_netns, pod_netns, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "LOADS", {"16 clients, keep-alive": (16, ())})
    node = Node(pod_netns, tmp_path)
    try:
        report(measure(node, 1, 1))
    finally:
        node.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2, help="of one load")
    args = parser.parse_args()
    if libc.unshare(CLONE_NEWNET):
        raise SystemExit("needs root")
    run("ip", "link", "set", "lo", "up")
    spaces = []

    def make():
        spaces.append(f"http-{os.getpid()}-{len(spaces)}")
        run("ip", "netns", "add", spaces[-1])
        return spaces[-1]
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            node = Node(make, Path(folder))
            try:
                report(measure(node, args.rounds, args.seconds))
            finally:
                node.close()
    finally:
        for space in spaces:
            run("ip", "netns", "del", space)


if __name__ == "__main__":
    main()
