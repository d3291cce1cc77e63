"""Other programs change the node's iptables and nftables. Each pod keeps its connections, or has connections again
soon.

These programs set the policy DROP as ufw, docker and kube-proxy do, flush, restore rules that they saved earlier, and
add rules, with iptables-nft and iptables-legacy. A server of fastcni restores its rules. After each change every pod
that stays connects to an outside host by TCP, while other pods are added and deleted. A DEL leaves nothing."""

import contextlib
import shutil
import subprocess
import time

from faults.load import Runtime, clean_up, together
from faults.world import World
from lab.node import cid_of, set_sysctl
from lab.traffic import add_external, ask, listen
from unit.server.foreign_firewalls import KUBE_PROXY

from fastcni.runtime import RuntimeConf
from fastcni.runtime.cache import Cache
from fastcni.spec import json

STAYING, COMING = 2, 2          # numbers of pods: that stay, that are added and deleted
EXTERNAL, PORT = "198.51.100.9", 80
RESTORED_S = 30.0               # the server delays restores after repeated changes
ASK_S = 0.5
KINDS = {"nft": "iptables", "legacy": "iptables-legacy"}


def forbid(program):
    return [program, "-P", "FORWARD", "DROP"], ""


def allow(program):
    return [program, "-P", "FORWARD", "ACCEPT"], ""


def flush(program):
    return [program, "-F"], ""


def kube_proxy(program):
    return [f"{program}-restore", "--noflush"], KUBE_PROXY


def from_before(program):
    """Return rules that another program saved before fastcni's pods were added."""
    return [f"{program}-restore"], "*filter\n:INPUT ACCEPT\n:FORWARD DROP\n:OUTPUT ACCEPT\nCOMMIT\n"


def own_rule(program):
    return [program, "-A", "FORWARD", "-s", "192.0.2.0/24", "-j", "DROP"], ""


def flush_all(_):
    return ["nft", "flush", "ruleset"], ""


CHANGES = (forbid, allow, flush, kube_proxy, from_before, own_rule, flush_all)


class Chain:
    """A network of bridge and firewall. Chain calls both plugins and writes cache files, as a runtime does."""

    def __init__(self, world, row, server):
        self.world, self.row, self.server = world, row, server
        self.bridge = world.node.conf("10.22.0.0/24", isDefaultGateway=True)
        self.firewall = {"cniVersion": self.bridge["cniVersion"], "name": self.bridge["name"], "type": "firewall"}

    def call(self, command, conf, pod):
        self.row.attempt()
        answer = self.world.call(command, conf, pod, self.server.path)
        if answer.status:
            self.row.failed(f"{command} of {conf['type']} for {pod}: {answer.stdout!r}")
        return answer

    def add(self, pod):
        """Add a pod by both plugins, and write the runtime's cache file."""
        result = json.read(self.call("ADD", self.bridge, pod).stdout)
        self.call("ADD", {**self.firewall, "prevResult": result}, pod)
        network = {"cniVersion": "1.0.0", "name": self.bridge["name"], "plugins": [self.bridge, self.firewall]}
        Cache(self.world.directory / "cache").write(
            network["name"], json.write(network), RuntimeConf(cid_of(pod), f"/run/netns/{pod}", "eth0"), result)

    def delete(self, pod):
        for conf in (self.firewall, self.bridge):
            self.call("DEL", conf, pod)


def campaign(row, _options):
    kinds = [program for program in KINDS.values() if shutil.which(program)]
    if not kinds:
        row.note("nothing done: iptables is not installed")
        return
    with World() as world, contextlib.ExitStack() as opened:
        server = world.server("--cache-dir", str(world.directory / "cache"))
        chain, staying = Chain(world, row, server), [world.pod() for _ in range(STAYING)]
        coming = [world.pod() for _ in range(COMING)]
        opened.enter_context(listen(add_external(world.pod, has_default_route=True), PORT))
        base = world.node.left(*staying, *coming)
        for pod in staying:
            chain.add(pod)
        changes, slowest = changed(row, chain, staying, coming, kinds)
        for program in kinds:
            for more in (["-P", "FORWARD", "ACCEPT"], ["-F"], ["-X"]):
                subprocess.run([program, *more], capture_output=True)
        for pod in staying:
            chain.delete(pod)
        clean_up(world, row, chain.bridge, [*staying, *coming], base, server.path)
        row.note(f"{changes} changes, reached again after {slowest:.1f} s at most")


def changed(row, chain, staying, coming, kinds):
    """Make changes until the row's end. Return (the number of changes, the longest time in seconds until all pods had
    connections again)."""
    rng, count, slowest = row.rng(), 0, 0.0
    row.until -= min(RESTORED_S, row.until - time.monotonic()) / 2      # leaves time for the last restore

    def change():
        nonlocal count, slowest
        for _ in range(rng.choice((1, 1, 3))):
            words, stdin = rng.choice(CHANGES)(rng.choice(kinds))
            # May fail: another process holds the lock, or the table was deleted
            subprocess.run(words, input=stdin, text=True, capture_output=True)
            count += 1
        set_sysctl("net/ipv4/ip_forward", "1")
        began = time.monotonic()
        for pod in staying:
            while not ask(pod, EXTERNAL, PORT, wait=ASK_S):
                if time.monotonic() - began > RESTORED_S:
                    row.failed(f"{pod} reaches nothing {RESTORED_S:.0f} s after {' '.join(words)}: "
                               f"{chain.server.log_text()[-1500:]}")
                    row.until = 0.0
                    return
        slowest = max(slowest, time.monotonic() - began)

    runtimes = [Runtime(chain.world, row, chain.bridge, pod, number, [chain.server.path, ""], flushed=True)
                for number, pod in enumerate(coming)]
    together([each.loop for each in runtimes], row, change)
    return count, slowest
