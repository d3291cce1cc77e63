"""Run a long load with flushes and policy changes. Memory, descriptors and threads of server and agent do not grow."""

import json
import os
import subprocess
import sys
import time

from faults.load import Runtime, clean_up, pod_conf, together
from faults.world import World
from lab.node import eventually, run

from fastcni.kit import policies
from fastcni.server.service import MAX_BACKGROUND_THREADS
from fastcni.spec.errors import CniError

PODS, RESTRICTED_PODS = 3, 1
WARM_UP = 0.25                  # the share of the time in which caches and the heap may grow
SAMPLE_S = 0.5                  # between two samples
PRINT_S = 60                    # between two printed lines
MAX_GROWTH_KB = 3 << 10         # the most that resident memory may grow after the warm-up
MAX_MORE = 16                   # the most descriptors that may be added after the warm-up
CLOSE_S = 20                    # until the server has closed the sockets of idle namespaces
READY_S = 60                    # until the agent enforces the policies
PORT = 80                       # the port that the policies allow at the beginning and at the end
NODE = "192.0.2.1"
NETWORK = {"network": {"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}},
           "nodes": [{"name": "here", "subnets": ["10.244.1.0/24"], "public": [NODE]}]}


class Sample:
    """A process's resident memory in kB, and its numbers of descriptors and threads."""

    def __init__(self, pid):
        with open(f"/proc/{pid}/status") as file:
            values = dict(line.split(":", 1) for line in file)
        self.memory, self.threads = int(values["VmRSS"].split()[0]), int(values["Threads"])
        self.descriptors = len(os.listdir(f"/proc/{pid}/fd"))

    def __str__(self):
        return f"{self.memory / 1024:.1f} MB, {self.descriptors} descriptors, {self.threads} threads"


class Flat:
    """A process whose memory, descriptors and threads must not grow after the warm-up."""

    def __init__(self, name, pid):
        self.name, self.pid, self.first, self.highest = name, pid, None, 0

    def sample(self, warm):
        now = Sample(self.pid)
        if warm:
            self.first = self.first or now
            self.highest = max(self.highest, now.memory)

    def compare(self, row):
        """Report growth since the warm-up, and add the first and the last sample to the row's notes."""
        if self.first is None:
            row.note("no sample was taken after the warm-up: nothing is compared")
            self.first = Sample(self.pid)
        first = self.first
        eventually(lambda: Sample(self.pid).descriptors <= first.descriptors + MAX_MORE, CLOSE_S)
        last = Sample(self.pid)
        # A server starts background threads when requests need them
        for what, more in (("memory", MAX_GROWTH_KB), ("descriptors", MAX_MORE), ("threads", MAX_BACKGROUND_THREADS)):
            before, now = getattr(first, what), getattr(last, what)
            if now > before + more:
                highest = f", {self.highest} at most" if what == "memory" else ""
                row.failed(f"{what} of the {self.name}: {before} after the warm-up, {now} at the end{highest}")
        row.note(f"{self.name} {first.memory / 1024:.1f} to {last}")


class Agent:
    """`with Agent(world) as agent:` runs `fastcni agent --policies` on the world's node."""

    def __init__(self, world):
        self.directory = world.directory / "agent"
        self.files, self.socket = self.directory / "policies", self.directory / "state" / "policy.sock"

    def __enter__(self):
        self.files.mkdir(parents=True)
        (self.directory / "nodes.json").write_text(json.dumps(NETWORK))
        self.change(PORT)
        run("ip", "link", "add", "up0", "type", "veth", "peer", "up1")
        run("ip", "link", "set", "up0", "up")
        run("ip", "addr", "add", f"{NODE}/24", "dev", "up0")
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fastcni", "agent", "--nodes", f"{self.directory}/nodes.json", "--node-name",
                 "here", "--iface", "up0", "--subnet-file", f"{self.directory}/subnet.env", "--conflist", "",
                 "--folder", f"{self.directory}/state", "--policies", str(self.files)], stderr=log)
        try:
            assert eventually(self.enforces, READY_S), (self.directory / "log").read_text()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def enforces(self):
        """Return whether the policies are in force."""
        try:
            policies.ask(str(self.socket), {"do": "status"})
        except CniError:
            return False
        return True

    def keeps_no_pod(self):
        """Return whether the agent protects no pod any more. After a DEL the agent protects the pod until it sees that
        the kernel has removed the pod's link."""
        return not list((self.directory / "state" / "pods").glob("*.json")) and self.enforces()

    def change(self, port):
        """Write policies that allow this port."""
        policy = {"kind": "NetworkPolicy", "metadata": {"name": "web"}, "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": port}]}]}}
        (self.files / ".new").write_text(json.dumps({"kind": "List", "items": [policy]}))
        (self.files / ".new").rename(self.files / "web.json")


class Restricted(Runtime):
    """The runtime of a pod with the plugins ptp and policy."""

    def __init__(self, world, row, socket, pod, number, agent):
        conf = {**world.node.conf("10.23.0.0/24", "fd00:23::/64", name="restricted"), "type": "ptp"}
        super().__init__(world, row, conf, pod, number, [socket], flushed=True)
        self.policy = {"cniVersion": conf["cniVersion"], "name": "restricted", "type": "policy",
                       "agentSocketPath": str(agent.socket), "runtimeConfig": {"labels": {"app": "web"}}}

    def pod_lives(self):
        """Do ADD and DEL of both plugins."""
        added = self.request("ADD", self.conf)
        if added.status == 0:
            policy = {**self.policy, "prevResult": json.loads(added.stdout)}
            self.request("ADD", policy)
            self.request("DEL", policy)
        self.request("DEL", self.conf)


def campaign(row, _options):
    with World() as world, Agent(world) as agent:
        conf, server, pods = pod_conf(world.node), world.server(), [world.pod() for _ in range(PODS + RESTRICTED_PODS)]
        runtimes = [Runtime(world, row, conf, pod, number, [server.path], flushed=True)
                    for number, pod in enumerate(pods[:PODS])]
        runtimes += [Restricted(world, row, server.path, pod, PODS + number, agent)
                     for number, pod in enumerate(pods[PODS:])]
        runtimes[-1].pod_lives()                        # creates the tables that the agent keeps for all pods
        assert eventually(agent.keeps_no_pod, CLOSE_S), "the agent keeps a pod after its DEL"
        base, rng, started = world.node.left(*pods), row.rng(), time.monotonic()
        warm_at, print_at = started + WARM_UP * (row.until - started), started + PRINT_S
        watched = Flat("server", server.process.pid), Flat("agent", agent.process.pid)

        def sample():
            nonlocal print_at
            time.sleep(SAMPLE_S)
            for each in watched:
                each.sample(time.monotonic() > warm_at)
            if time.monotonic() > print_at:
                found = "; ".join(f"{each.name} {Sample(each.pid)}" for each in watched)
                print(f"  {(time.monotonic() - started) / 60:.0f} min, {row.attempts:,} requests: {found}", flush=True)
                print_at += PRINT_S
            if rng.random() < SAMPLE_S / 10:
                run("nft", "flush ruleset", check=False)
            if rng.random() < SAMPLE_S:
                agent.change(rng.randrange(1, 1 << 16))

        together([each.loop for each in runtimes], row, sample)
        for each in watched:
            each.compare(row)
        agent.change(PORT)
        clean_up(world, row, conf, pods, base, server.path)
