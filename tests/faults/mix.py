"""Let fastcni warm, fastcni one-shot and the Go plugins use one address directory at the same time, while address files
are also added and removed by hand.

No address is given twice. Each implementation deletes pods that another implementation added. At the end the directory
is empty."""

import fcntl
import json
import os
import subprocess
import tempfile
import threading
import time

from conftest import PEER
from faults.load import clean_up, pod_conf, together
from faults.world import ANSWER, World
from lab.node import Inside

SUBNET = "10.99.0.0/26"         # 61 addresses, so the subnet is sometimes full
HAMMERS, PODS = 4, 2
FULL = "no IP addresses available"


class Addresses:
    """The owner of each address. An address removed by hand has no owner."""

    def __init__(self, row):
        self.row, self.owners, self.lock = row, {}, threading.Lock()

    def give(self, address, owner):
        with self.lock:
            if other := self.owners.get(address):
                self.row.failed(f"{address} was given to {owner}, but {other} has it")
            self.owners[address] = owner

    def take(self, address):
        with self.lock:
            return self.owners.pop(address, None)


class Hammer:
    """A loop that adds and deletes attachments of host-local, each request by a random implementation."""

    def __init__(self, world, row, server, addresses, number):
        self.world, self.row, self.server, self.addresses = world, row, server, addresses
        self.rng, self.number, self.mine, self.made = row.rng("hammer", number), number, {}, 0
        self.conf = host_local(world)

    def loop(self):
        with Inside(self.world.name):
            while self.row.running:
                if self.mine and self.rng.random() < len(self.mine) / 20:
                    self.delete(self.rng.choice(list(self.mine)))
                else:
                    self.add()
            for owner in list(self.mine):
                self.delete(owner)

    def add(self):
        self.made += 1
        owner = f"hammer-{self.number}-{self.made}"
        done, by = call(self, "ADD", self.conf, owner)
        if done.returncode == 0:
            address = json.loads(done.stdout)["ips"][0]["address"].split("/")[0]
            self.mine[owner] = address
            self.addresses.give(address, owner)
        elif FULL not in done.stdout:
            self.row.failed(f"ADD by {by}: {done.stdout} {done.stderr}")

    def delete(self, owner):
        self.addresses.take(self.mine.pop(owner))
        done, by = call(self, "DEL", self.conf, owner)
        if done.returncode or done.stdout:
            self.row.failed(f"DEL by {by}: {done.returncode} {done.stdout} {done.stderr}")


class Bridges(Hammer):
    """A loop that adds and deletes a pod by the bridge plugin, each request by a random implementation."""

    def __init__(self, world, row, server, pod, number):
        super().__init__(world, row, server, None, number)
        self.pod, self.conf = pod, {**pod_conf(world.node, name="net-b"), "cniVersion": "1.0.0", "ipMasq": False}

    def loop(self):
        with Inside(self.world.name):
            while self.row.running:
                for command in ("ADD", "DEL", "DEL"):
                    done, by = call(self, command, self.conf, f"c-{self.pod}", f"/run/netns/{self.pod}")
                    if done.returncode:
                        self.row.failed(f"bridge {command} by {by}: {done.stdout} {done.stderr}")


def host_local(world):
    return {"cniVersion": "1.0.0", "name": "net-a", "type": "host-local", "ipam": {
        "type": "host-local", "dataDir": world.node.data_dir, "ranges": [[{"subnet": SUBNET}]]}}


def call(hammer, command, conf, cid, netns="/run/netns/none"):
    """Start a request by a random implementation. Return (the process, the implementation's name)."""
    by = hammer.rng.choice(["warm", "one-shot", "Go"])
    hammer.row.attempt()
    directory = PEER if by == "Go" else hammer.world.bin_dir
    env = hammer.world.environment(command, socket=hammer.server.path if by == "warm" else "",
                                   CNI_CONTAINERID=cid, CNI_NETNS=netns, CNI_PATH=str(directory))
    return subprocess.run([f"{directory}/{conf['type']}"], input=json.dumps(conf), env=env, capture_output=True,
                          text=True, timeout=ANSWER), by


def campaign(row, _options):
    if not os.path.exists(f"{PEER}/host-local"):
        row.note(f"not run: no Go plugins in {PEER}")
        return
    with World() as world:
        server, addresses, rng = world.server(), Addresses(row), row.rng()
        pods, foreign, count = [world.pod() for _ in range(PODS)], [], 0
        base = world.node.left(*pods)
        directory = os.path.join(world.node.data_dir, "net-a")
        hammers = [Hammer(world, row, server, addresses, number) for number in range(HAMMERS)]
        bridges = [Bridges(world, row, server, pod, number) for number, pod in enumerate(pods)]

        def by_hand():
            """Add or remove an address file of another program, or remove an address file of fastcni."""
            nonlocal count
            time.sleep(0.05)
            count += 1
            if foreign and rng.random() < 0.5:
                address = foreign.pop()
                addresses.take(address)
                os.unlink(os.path.join(directory, address))
            elif rng.random() < 0.5:
                address = f"10.99.0.{rng.randrange(2, 60)}"
                if create(os.path.join(directory, address)):
                    addresses.give(address, "another program")
                    foreign.append(address)
            else:
                with addresses.lock:
                    removable = [each for each, owner in addresses.owners.items() if owner != "another program"]
                if removable:
                    remove(addresses, directory, rng.choice(removable))

        together([each.loop for each in (*hammers, *bridges)], row, by_hand)
        for address in foreign:
            os.unlink(os.path.join(directory, address))
        clean_up(world, row, {**pod_conf(world.node, name="net-b"), "ipMasq": False}, pods, base, server.path)
        row.note(f"{count} changes by hand")


def create(path):
    """Create an address file of another program, complete in one step. Without the lock, fastcni takes a file that is
    empty for 10 ms for a torn file."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path), prefix="new-") as file:
            file.write("another program\r\neth0")
            file.flush()
            os.link(file.name, path)
    except (FileExistsError, FileNotFoundError):        # the address is taken, or there is no directory
        return False
    return True


def remove(addresses, directory, address):
    """Remove an address file under the network's lock, so that no other attachment gets the address in between."""
    owner = addresses.take(address)
    path = os.path.join(directory, address)
    try:
        with open(os.path.join(directory, "lock")) as lock, open(path) as file:
            fcntl.flock(lock, fcntl.LOCK_EX)
            holds = file.read()
        if owner and holds.startswith(owner + "\r"):    # otherwise another attachment has the address now
            os.unlink(path)
    except FileNotFoundError:
        pass                    # the attachment's DEL removed the file before
