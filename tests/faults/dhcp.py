"""Kill the dhcp daemon with SIGKILL at random times, while pods are added and deleted and the daemon renews leases.
Damage lease files, too.

Each new daemon continues the leases of the files, so pods that stay keep their addresses. A DEL also succeeds without a
daemon. At the end the DHCP server has no lease, the directory has no lease file, and no link has an address."""

import os
import signal
import time
from pathlib import Path

from faults.load import TRY_AGAIN, together
from faults.world import World
from lab.node import eventually, run
from unit.dhcp.process import Daemon, call
from unit.dhcp.server import Network, Server, addresses

from fastcni.dhcp import packets
from fastcni.dhcp.lease_files import SUFFIX

STAYING, COMING = 2, 3          # numbers of pods: that stay, that are added and deleted
LEASE_S = 20  # the daemon renews a lease after half of this time, long enough for daemons that start slowly
STAY_S = 3                      # the longest life of a pod that comes and goes
DAEMON_LIFE_S = (0.0, 2.0)      # from a daemon's start to its kill: shortest, longest
DEAD_S = 0.3                    # the longest time until the next daemon starts
RENEWED_S = 30                  # time in which each pod that stays renews its lease
FLAGS = ("-timeout", "500ms", "-resendmax", "1s", "-resendtimeout", "8s")


class Pod:
    """One attachment. Only its own thread uses it."""

    def __init__(self, row, world, network, daemon, name):
        self.row, self.daemon, self.name, self.netns = row, daemon, name, network.pod()
        self.rng, self.plugin = row.rng(name), str(world.bin_dir / "dhcp")

    def request(self, command):
        """Make a request by the plugin file. Return its status and document."""
        self.row.attempt()
        status, document, stderr = call(command, self.daemon.conf(), self.netns, plugin=self.plugin, cid=self.name)
        again = command == "ADD" and document and document.get("code") == TRY_AGAIN
        if status and not again:
            self.row.failed(f"{command} of {self.name}: status {status} {document} {stderr}")
        return status, document

    def add(self):
        """Add the pod, and put its address on the link as an interface plugin does. Return the address or None."""
        status, document = self.request("ADD")
        if status:
            return None
        address = document["ips"][0]["address"]
        run("ip", "addr", "replace", address, "dev", "eth0", netns=os.path.basename(self.netns))
        return address

    def loop(self):
        while self.row.running:
            if self.add():
                time.sleep(self.rng.uniform(0, STAY_S))
            self.request("DEL")


def campaign(row, _options):
    with (World() as world, Network() as network, Server(network, seconds=LEASE_S) as server,
          Daemon(world.directory, *FLAGS) as daemon):
        pods(row, world, network, server, daemon)


def pods(row, world, network, server, daemon):
    staying = [Pod(row, world, network, daemon, f"staying-{number}") for number in range(STAYING)]
    coming = [Pod(row, world, network, daemon, f"coming-{number}") for number in range(COMING)]
    before = {pod: pod.add() for pod in staying}
    rng, killed, damaged = row.rng(), 0, 0
    kept = {path.name for path in lease_files(daemon)}

    def kill():
        nonlocal killed, damaged
        time.sleep(rng.uniform(*DAEMON_LIFE_S))
        daemon.stop(signal.SIGKILL)
        killed += 1
        if rng.random() < 0.3:
            damaged += damage(rng, [path for path in lease_files(daemon) if path.name not in kept])
        time.sleep(rng.uniform(0, DEAD_S))
        daemon.start()

    together([each.loop for each in coming], row, kill)
    until_now = len(server.heard)

    def renews(pod):
        requests = (message for kind, message in server.heard[until_now:] if kind == "request")
        return any(f"{pod.name}/".encode() in message.options[packets.CLIENT_ID] for message in requests)

    for pod in staying:
        if not eventually(lambda pod=pod: renews(pod), RENEWED_S):
            row.failed(f"{pod.name} does not renew its lease")
        if addresses(pod.netns) != [before[pod]]:
            row.failed(f"{pod.name} had {before[pod]}, and has {addresses(pod.netns)}")
    for pod in (*staying, *coming):
        pod.request("ADD")  # repeats the ADD: otherwise the server would keep a lease whose file was damaged
        if pod.request("DEL")[0] == 0 and not eventually(lambda pod=pod: addresses(pod.netns) == [], 5):
            row.left(f"{addresses(pod.netns)} in {pod.name}")
    if not eventually(lambda: not server.leases, 10):
        row.left(f"leases of the server: {server.leases}")
    row.left(" ".join(path.name for path in lease_files(daemon)))
    row.note(f"daemon killed {killed} times, {damaged} lease files damaged")


def lease_files(daemon):
    return sorted(Path(daemon.leases).glob(f"*{SUFFIX}"))


def damage(rng, paths):
    """Cut one of the files, or change one byte of it. Return the number of damaged files, 0 or 1."""
    if not paths:
        return 0
    path = rng.choice(paths)
    data = bytearray(path.read_bytes())
    if rng.random() < 0.5:
        del data[rng.randrange(len(data)):]
    else:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return 1
