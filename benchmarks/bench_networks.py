"""Measure a pod with three networks (bridge, macvlan, bridge; host-local): one warm call of multus, and three warm
calls of plugins.

    .venv/bin/python benchmarks/bench_networks.py                           # as root; a minute
    .venv/bin/python benchmarks/bench_networks.py --multus PATH             # also thin Multus with the Go plugins

Each round runs an ADD and a DEL of every implementation, in the reverse order of the previous round. Then each
implementation adds --pods pods at the same time, and deletes them. The benchmark pauses before each ADD, because the
kernel removes links after a DEL has returned, and an ADD would wait for this. Prints medians and their ratios to
multus. The pods are in one host namespace, and files are in /dev/shm.

`make test` runs the benchmark once, with small numbers, and asserts no time.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fastcni.kernel import netns
from fastcni.launcher.install import install
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
GO = "/usr/lib/cni"
IFNAMES = ("eth0", "net1", "net2")
SECOND = {"type": "macvlan", "master": "up0"}       # the second of the three networks
COMMANDS = ("ADD", "DEL")
WARM_UP = 3
PAUSE_S = 0.3                   # pause before many pods; before one pod a tenth of this


class Implementation:
    """A way to attach the three networks of a pod. directory: the directory of the plugin files. confs: the
    configurations of one pod. together: call them at the same time, not one after another. socket: the server's socket,
    or "" for one-shot."""

    def __init__(self, name, directory, confs, socket="", together=False):
        self.name, self.directory, self.confs, self.socket, self.together = name, directory, confs, socket, together

    def start(self, command, conf, ifname, pod):
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": f"c-{pod}", "CNI_NETNS": f"/run/netns/{pod}",
               "CNI_IFNAME": ifname, "CNI_PATH": self.directory, "PATH": os.environ["PATH"],
               "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_INFRA_CONTAINER_ID=c",
               "FASTCNI_SOCKET": self.socket}
        process = subprocess.Popen([conf.get("program") or f"{self.directory}/{conf['type']}"], env=env,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        process.stdin.write(json.dumps({key: value for key, value in conf.items() if key != "program"}).encode())
        process.stdin.close()
        return process

    def call(self, command, pods):
        """Run the command for all pods at the same time. Return the duration in ms."""
        calls = list(zip(self.confs, IFNAMES, strict=False))
        if command == "DEL":
            calls.reverse()
        for group in [calls] if self.together else [[call] for call in calls]:
            processes = [self.start(command, *call, pod) for call in group for pod in pods]
            for process in processes:
                out = process.stdout.read()
                process.stdout.close()
                assert process.wait() == 0, (self.name, command, out)


def networks(directory, subnet):
    """Return the configurations of three networks. directory: host-local's data directory. subnet: the second byte of
    the addresses."""
    def network(number, **keys):
        ipam = {"type": "host-local", "dataDir": str(directory), "subnet": f"10.{subnet}.{number}.0/24"}
        return {"cniVersion": "1.0.0", "name": f"net-{subnet}-{number}", "ipam": ipam, **keys}

    return [network(1, type="bridge", bridge=f"br{subnet}-1"), network(2, **SECOND),
            network(3, type="bridge", bridge=f"br{subnet}-3")]


def implementations(directory, own, socket, multus):
    """Return the implementations to compare. multus: the path of Multus' program, or "" to leave Multus out."""
    def conf(subnet, **keys):
        return {"cniVersion": "1.0.0", "name": "multus", "type": "multus", "cniDir": f"{directory}/multus-{subnet}",
                "delegates": networks(directory, subnet), **keys}

    found = [Implementation("multus, warm", own, [conf(11)], socket),
             Implementation("three calls, warm", own, networks(directory, 12), socket),
             Implementation("three calls together, warm", own, networks(directory, 15), socket, together=True)]
    if os.path.exists(f"{GO}/macvlan"):
        found.append(Implementation("three calls, Go plugins", GO, networks(directory, 13)))
        if multus:
            found.append(Implementation("thin Multus, Go plugins", GO, [
                conf(14, binDir=GO, logToStderr=False, program=multus)]))
    return found


@contextmanager
def server(own, directory):
    path = f"{directory}/fastcni.sock"
    with open(f"{directory}/log", "w") as log:
        process = subprocess.Popen([sys.executable, "-m", "fastcni", "serve", "--socket", path], stderr=log)
    try:
        assert eventually(lambda: os.path.exists(path)), Path(directory, "log").read_text()
        yield path
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def took_ms(one, command, pods):
    started = time.perf_counter()
    one.call(command, pods)
    return (time.perf_counter() - started) * 1e3


def measure(directory, pods, rounds, multus):
    """Return {(implementation, "ADD" or "DEL", number of pods at the same time): [ms of each round]}. The calling
    thread must be in the host's namespace."""
    run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "ext0")
    for name in ("lo", "up0", "ext0"):
        run("ip", "link", "set", name, "up")
    own = Path(directory, "bin")
    install(own)
    with server(own, directory) as socket:
        sides = implementations(directory, str(own), socket, multus)
        found = {(one.name, command, count): [] for count in (1, len(pods)) for one in sides for command in COMMANDS}
        for at_once, times in ((pods[:1], rounds), (pods, max(1, rounds // 10))):
            for number in range(times + WARM_UP):
                for one in reversed(sides) if number % 2 else sides:
                    for command in COMMANDS:
                        time.sleep(PAUSE_S if len(at_once) > 1 else PAUSE_S / 10)
                        ms = took_ms(one, command, at_once)
                        if number >= WARM_UP:
                            found[one.name, command, len(at_once)].append(ms)
    return found


def table(found):
    """Return the lines of the table."""
    yield f"{'':26}{'pods':>6}{'ADD ms':>9}{'ratio':>8}{'DEL ms':>9}{'ratio':>8}"
    medians = {key: statistics.median(values) for key, values in found.items()}
    first = next(iter(found))[0]
    for name, pods in dict.fromkeys((name, pods) for name, _, pods in found):
        row = f"{name:26}{pods:6}"
        for command in COMMANDS:
            median = medians[name, command, pods]
            row += f"{median:9.2f}{median / medians[first, command, pods]:8.2f}"
        yield row


@contextmanager
def spaces(count):
    """Enter a new host namespace. Yield (its name, the names of `count` pod namespaces)."""
    names = [f"networks-{os.getpid()}-{number}" for number in range(count + 1)]
    with ExitStack() as closing:
        for name in names:
            run("ip", "netns", "add", name)
            closing.callback(run, "ip", "netns", "del", name)
        fd = netns.open_path(f"/run/netns/{names[0]}")
        closing.callback(os.close, fd)
        closing.enter_context(netns.inside(fd))
        yield names[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--pods", type=int, default=30, help="pods that are added and deleted together")
    parser.add_argument("--multus", default="", help="the path of Multus' thin program")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="networks-", dir="/dev/shm") as directory, spaces(options.pods) as pods:
        print(f"load {os.getloadavg()[0]:.1f}")
        print(*table(measure(directory, pods, options.rounds, options.multus)), f"load {os.getloadavg()[0]:.1f}",
              sep="\n")


def test_each_implementation_runs(tmp_path, monkeypatch):
    """The test uses ptp in place of macvlan, which the kernel may lack."""
    monkeypatch.setattr(sys.modules[__name__], "SECOND", {"type": "ptp"})
    monkeypatch.setattr(sys.modules[__name__], "WARM_UP", 0)
    with spaces(2) as pods:
        found = measure(tmp_path, pods, 1, "")
    assert {(command, count) for _, command, count in found} == {("ADD", 1), ("DEL", 1), ("ADD", 2), ("DEL", 2)}
    assert len([*table(found)]) == 1 + len(found) // 2


if __name__ == "__main__":
    main()
