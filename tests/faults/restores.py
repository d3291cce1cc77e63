"""Restore etcd from a backup, or let it hang (SIGSTOP), between requests of three nodes. No address has two live
owners.

Each pass is a new cluster on the same etcd. Nodes are simulated (tests/unit/kit/ipam/cluster/simulation.py), so a pause
of a minute takes no time. After a restore each node asks the store within a minute, as docs/ipam-operation.md requires;
servers ask each 20 s. While etcd hangs, each ADD gets an answer, and each DEL succeeds."""

import itertools
import json
import shutil
import time

from cluster.etcd import Etcd
from cluster.test_failures import NODE_TTL_S, Lab
from unit.kit.ipam.cluster.simulation import simulated_modules

from fastcni.kit.ipam.cluster import hold

TRY_AGAIN_LATER = 11
CONFIRM_S, PAUSE_S = 301.0, 61.0  # simulated seconds: until a node asks the store again; the pause after a restore
STEPS = 12                              # of a pass
HANGING_S = 45.0                        # real seconds that one request may take while etcd hangs: some timeouts of 5 s


class Owners:
    """The live owner of each address, as the answers of the requests say."""

    def __init__(self, row, lab):
        self.row, self.lab, self.numbers, self.live = row, lab, itertools.count(), {}

    def add(self, node, container=""):
        """Add a pod, or repeat the ADD of the pod `container`. Return whether the pod has an address."""
        container = container or f"c{next(self.numbers)}"
        self.row.attempt()
        reply = self.lab.call(node, "ADD", container)
        document = json.loads(reply.stdout)
        if reply.status:
            if document["code"] != TRY_AGAIN_LATER:
                self.row.failed(f"ADD of {container} on {node.name}: {document}")
            return False
        address, owner = document["ips"][0]["address"], (node.name, container)
        if self.live.setdefault(address, owner) != owner:
            self.row.failed(f"{address} has two live owners: {self.live[address]} and {owner}")
        return True

    def delete(self, rng, node):
        mine = [(address, owner) for address, owner in self.live.items() if owner[0] == node.name]
        if len(mine) < 2:               # keep the node's last pod: a node with pods asks the store after a restore
            return
        address, (_, container) = rng.choice(mine[1:])
        self.row.attempt()
        del self.live[address]
        reply = self.lab.call(node, "DEL", container)
        if reply.status:
            self.row.failed(f"DEL of {container} on {node.name}: {reply.stdout}")

    def first(self, node):
        return next(container for name, container in self.live.values() if name == node.name)


def campaign(row, _options):
    if not shutil.which("etcd"):
        row.note("nothing done: etcd is not installed")
        return
    rng, counts = row.rng(), {"restores": 0, "hangs": 0}
    with Etcd() as etcd:
        for number in itertools.count():
            if not row.running:
                break
            one_pass(row, rng, etcd, f"/pass-{number}", counts)
    row.note(f"{counts['restores']} restores, etcd hung {counts['hangs']} times")


def one_pass(row, rng, etcd, prefix, counts):
    lab = Lab(etcd.directory / prefix[1:], etcd.conf(prefix=prefix, node_ttl=NODE_TTL_S))
    owners, token = Owners(row, lab), prefix[1:]
    with simulated_modules(lambda: lab.cluster):
        for node in lab.nodes:
            if not owners.add(node):
                row.failed(f"{node.name} has no address in an empty cluster")
                return
        saved = etcd.backup()
        for _ in range(STEPS):
            if not row.running:
                break
            what, node = rng.choices(("add", "delete", "backup", "restore", "hang"), (8, 3, 1, 1, 1))[0], rng.choice(
                lab.nodes)
            if what == "add":
                owners.add(node)
            elif what == "delete":
                owners.delete(rng, node)
            elif what == "backup":
                saved = etcd.backup()
            elif what == "restore":
                former, token = etcd.cluster_token, f"{token}x"
                etcd.restore(saved, rng.choice((former, token)))
                counts["restores"] += 1
                come_back(row, rng, lab, owners)
            else:
                hang(row, rng, etcd, lab, owners)
                counts["hangs"] += 1
    lab.store.close()


def come_back(row, rng, lab, owners):
    """Let the nodes ask the restored store in a random order while pods are added. Then wait until the pause is
    over."""
    lab.cluster.now += CONFIRM_S
    for node in rng.sample(lab.nodes, len(lab.nodes)):
        owners.add(rng.choice(lab.nodes))
        if not owners.add(node, owners.first(node)):
            row.failed(f"{node.name} does not give a live pod its address after a restore")
    lab.cluster.now += PAUSE_S
    for node in lab.nodes:              # a claim starts the second step of the pause
        owners.add(node)
    lab.cluster.now += hold.SETTLE_S + 1


def hang(row, rng, etcd, lab, owners):
    """Add and delete pods while etcd is stopped and answers nothing."""
    (member,) = etcd.members
    member.pause()
    try:
        for request in rng.sample((owners.add, lambda node: owners.delete(rng, node)), 2):
            began = time.monotonic()
            request(rng.choice(lab.nodes))
            if (took := time.monotonic() - began) > HANGING_S:
                row.failed(f"a request took {took:.0f} s while etcd hung")
    finally:
        member.resume()
    etcd.await_health()
