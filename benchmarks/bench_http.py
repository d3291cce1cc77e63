"""Measure the cost of policy rules for HTTP requests: requests a second, latency and HAProxy's processor time.

    .venv/bin/python benchmarks/bench_http.py            # as root; needs haproxy and wrk; a minute
    .venv/bin/python benchmarks/bench_http.py --rules 2 20 500          # by the number of rules; two minutes

One namespace has two pods on separate links, and the agent's policies. wrk sends requests from one pod; in the other
pod a HAProxy answers each request itself. Each round measures all policies in turn. Prints medians of the rounds.

With --rules, the last rule allows the requests. The requests have the same path, or all paths differ, because HAProxy
caches which rule a text matches. The time of a change is the time of Proxy.prepare() after one rule of the policy has
changed. The kernel's rules wait for this call.

`make test` runs the benchmark once, with small numbers, and asserts no time.
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

from fastcni.agent.policy.http.part import Proxy
from fastcni.agent.policy.ruleset import see_bridged_traffic
from fastcni.agent.policy.service import Policies, Settings
from fastcni.daemon import log
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


def by_http(number, last="GET"):
    """Return the ingress section of a policy with `number` HTTP rules. Only the last rule allows the requests."""
    found = [{"method": "POST", "path": f"/b/{each}/.*"} for each in range(number - 1)]
    found.append({"method": last, "path": "/a.*"})
    return [{"toPorts": [{"ports": PORTS, "rules": {"http": found[at:at + 50]}}]} for at in range(0, number, 50)]


POLICIES = {"no policy": None, "by ports": [{"toPorts": [{"ports": PORTS}]}], "by HTTP": by_http(2)}
OTHER_PATHS = """local number = 0
request = function()
    number = number + 1
    return wrk.format("GET", "/a/" .. number)
end
"""
LOADS = {"16 clients, keep-alive": (16, ()), "16 clients, close": (16, ("-H", "Connection: close")),
         "1 client, keep-alive": (1, ()), "1 client, close": (1, ("-H", "Connection: close"))}
WAIT_S = 20


class Node:
    """A node in this thread's namespace, with two pods and the agent's policies."""

    def __init__(self, make_netns, directory):
        self.open = contextlib.ExitStack()
        see_bridged_traffic()
        sysctl.write("net/ipv4/ip_forward", "1")
        self.spaces = {address: make_netns() for address in PODS}
        for number, (address, space) in enumerate(self.spaces.items()):
            run("ip", "link", "add", f"port{number}", "type", "veth", "peer", "eth0", "netns", space)
            run("ip", "addr", "add", f"10.76.{number}.1/24", "dev", f"port{number}")
            run("ip", "link", "set", f"port{number}", "up")
            run("ip", "addr", "add", f"{address}/24", "dev", "eth0", netns=space)
            run("ip", "link", "set", "eth0", "up", netns=space)
            run("ip", "link", "set", "lo", "up", netns=space)
            run("ip", "route", "add", "default", "via", f"10.76.{number}.1", netns=space)
        (directory / "server.cfg").write_text(SERVES)
        self.directory = directory / "policies"
        self.directory.mkdir()
        self.write([])
        try:
            with Inside(self.spaces[SERVER]):
                server = subprocess.Popen(["haproxy", "-db", "-f", str(directory / "server.cfg")],
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.open.callback(server.wait)
            self.open.callback(server.terminate)
            settings = Settings(str(self.directory), state=str(directory / "pods"),
                                socket=str(directory / "policy.sock"))
            self.policies = self.open.enter_context(contextlib.closing(Policies(settings, log.make("error", "logfmt"))))
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

    def _attend(self):
        while not self.ended.is_set():
            select.select([self.policies], [], [], 0.02)
            self.policies.attend()

    def write(self, documents):
        pods = [{"kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "status": {"podIP": address}}
                for address, name in PODS.items()]
        (self.directory / "new").write_text(json.dumps({"kind": "List", "items": [*pods, *documents]}))
        (self.directory / "new").rename(self.directory / "all.json")

    def documents(self, name):
        ingress = POLICIES[name]
        return [] if ingress is None else [{
            "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {"name": "web"},
            "spec": {"endpointSelector": {"matchLabels": {"app": "server"}}, "ingress": ingress}}]

    def use(self, name):
        """Write the policy `name`, and wait until HAProxy decides requests by this policy."""
        self.write(self.documents(name))
        wanted, until = (name != "no policy", name.startswith("by HTTP")), time.monotonic() + WAIT_S
        while time.monotonic() < until:
            proxy = self.proxy.process
            if (len(self.policies.compiler.cluster.policies), bool(proxy and proxy.listens)) == wanted:
                time.sleep(0.3)
                return
            time.sleep(0.02)
        raise TimeoutError(name)

    @property
    def proxy(self):
        return next(each for each in self.policies.parts if isinstance(each, Proxy))

    def change(self, number):
        """Change one of `number` rules. Return the ms for which the kernel's rules waited for HAProxy."""
        prepare, took = self.proxy.prepare, []

        def timed(new_chains):
            began = time.perf_counter()
            prepare(new_chains)
            took.append(1000 * (time.perf_counter() - began))
        POLICIES["changed"] = by_http(number, "GET|HEAD")
        self.policies.engine.prepare = timed
        try:
            self.write(self.documents("changed"))
            until = time.monotonic() + WAIT_S
            while not took and time.monotonic() < until:
                time.sleep(0.01)
        finally:
            self.policies.engine.prepare = prepare
        return took[0]

    def load(self, connections, words, seconds):
        """Send requests for `seconds`. Return (requests a second, the median latency in us, the proxy's processor
        seconds for a request)."""
        before = self.processor_s()
        with Inside(self.spaces[CLIENT]):
            done = subprocess.run(["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", *words,
                                   f"http://{SERVER}/a"], capture_output=True, text=True, check=True)
        assert "Non-2xx" not in done.stdout, done.stdout
        number, unit = re.search(r"50%\s+([\d.]+)(us|ms|s)", done.stdout).groups()
        rate = float(re.search(r"Requests/sec:\s+([\d.]+)", done.stdout).group(1))
        requests = int(re.search(r"(\d+) requests in", done.stdout).group(1))
        return rate, float(number) * {"us": 1, "ms": 1000, "s": 1_000_000}[unit], (
            self.processor_s() - before) / requests

    def processor_s(self):
        """Return the processor seconds that the proxy has used."""
        if not self.proxy.process:
            return 0.0
        fields = Path(f"/proc/{self.proxy.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")       # fields utime and stime


def measure(node, rounds, seconds):
    """Return {(load, policy): [the results of Node.load()]}."""
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
            rate, latency, processor_s = map(statistics.median, zip(*found[load, name], strict=True))
            print(f"{load:24}{name:12}{rate:10,.0f} requests/s {latency:8,.0f} us, of the proxy's processor time "
                  f"{1_000_000 * processor_s:6.1f} us a request")


def report_changes(node, number, rounds):
    took = []
    for _ in range(rounds):
        node.use(f"by HTTP {number}")
        took.append(node.change(number))
    print(f"a change of one of {number} rules: {statistics.median(took):.2f} ms")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
@pytest.mark.skipif(not (shutil.which("haproxy") and shutil.which("wrk")),
                    reason="needs haproxy and wrk (apt-get install haproxy wrk)")
def test_costs_of_http_rules_are_measured(host_netns, pod_netns, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "LOADS", {"16 clients, keep-alive": (16, ())})
    monkeypatch.setitem(globals(), "POLICIES", {**POLICIES, "by HTTP 60": by_http(60)})
    node = Node(pod_netns, tmp_path)
    try:
        report(measure(node, 1, 1))
        report_changes(node, 60, 1)
    finally:
        node.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2, help="seconds of one load")
    parser.add_argument("--rules", type=int, nargs="+", default=(), help="measure these numbers of rules")
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
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            if args.rules:
                (Path(directory) / "other.lua").write_text(OTHER_PATHS)
                POLICIES.clear()
                POLICIES.update({f"by HTTP {number}": by_http(number) for number in args.rules})
                LOADS.clear()
                LOADS.update({"16 clients, one path": (16, ()),
                              "16 clients, all paths": (16, ("-s", str(Path(directory) / "other.lua")))})
            node = Node(make, Path(directory))
            try:
                report(measure(node, args.rounds, args.seconds))
                for number in args.rules:
                    report_changes(node, number, args.rounds)
            finally:
                node.close()
    finally:
        for space in spaces:
            run("ip", "netns", "del", space)


if __name__ == "__main__":
    main()
