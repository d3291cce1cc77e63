"""Kill a plugin file with SIGKILL before and after each of its changes. No address is lost or given twice.

Each round has a new address space, so that its ADD takes all steps: it joins, reads the block size, claims a block and
takes an address. FAULTS_SEED chooses the system calls, FAULTS_MAX limits their number.
"""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from faults.injector import KILL, PLUGIN, Injector, compiled, kills

from fastcni.handle import handle
from fastcni.kit.call.mode import Mode
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.launcher.install import install

SEED = int(os.environ.get("FAULTS_SEED", "20779"))
MAX_KILLS = int(os.environ.get("FAULTS_MAX", "20"))     # kills of each command

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: traces plugin files"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc: the injector is compiled"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs x86_64: the injector reads its registers"),
]


class Round:
    """Two nodes and a new address space, for one kill."""

    def __init__(self, world, number):
        self.world, self.space = world, f"s{number}"

    def conf(self, node):
        return {"cniVersion": "1.1.0", "name": "net", "type": "cluster", "ipam": {
            "type": "cluster", "store": self.world.store, "network_name": self.space, "range": "10.0.0.0/27",
            "block_size": 30, "node_name": node, "dataDir": str(self.world.directory / node)}}

    def environment(self, command, container):
        return {"CNI_COMMAND": command, "CNI_CONTAINERID": container, "CNI_IFNAME": "eth0", "CNI_NETNS": "/nowhere/pod",
                "CNI_PATH": str(self.world.bin_dir), "CNI_NETNS_OVERRIDE": "1", "FASTCNI_SOCKET": "",
                "PATH": os.environ["PATH"]}

    def call(self, node, command, container):
        """Make a request in this process. Return its JSON document, or None if the request prints none."""
        reply = handle("cluster", self.environment(command, container), json.dumps(self.conf(node)).encode(), Mode())
        assert reply.status == 0, reply.stdout.decode() + reply.stderr.decode()
        return json.loads(reply.stdout) if reply.stdout else None

    def add(self, node, container):
        return self.call(node, "ADD", container)["ips"][0]["address"]

    def traced(self, command, container, at, variant):
        """Make a request by a plugin file of n1, which is killed at system call number `at`."""
        run = self.world.injector.run([str(self.world.bin_dir / "cluster")], self.environment(command, container),
                                      json.dumps(self.conf("n1")).encode(), at, variant)
        assert run.status is not None, "the plugin file hangs"
        return run

    def held(self):
        """Return the addresses whose files name an owner. A kill before the plugin writes the owner leaves an empty
        file, which GC releases."""
        return [path.name for path in Path(self.world.directory).glob(f"n?/{self.space}/[0-9]*") if path.read_bytes()]


class World:
    def __init__(self, directory, store):
        self.directory, self.store, self.bin_dir = directory, store, directory / "bin"
        install(self.bin_dir)
        self.injector = Injector(compiled(directory), directory)

    def steps(self, command):
        """Run a request without a kill. Return the numbers of the system calls before which to kill later runs."""
        trial = Round(self, f"count-{command}")
        if command == "DEL":
            trial.add("n1", "c1")
        run = trial.traced(command, "c1", 0, -2)
        assert run.status == 0, run.stdout
        found = [at for at, _ in kills(run.calls, (PLUGIN,))]
        assert len(found) > 5, run.calls
        return sorted(random.Random(f"{SEED} {command}").sample(found, min(MAX_KILLS, len(found))))


@pytest.fixture(scope="module")
def world(etcd_member, tmp_path_factory):
    return World(tmp_path_factory.mktemp("kills"), etcd_member.conf(prefix=f"/fastcni/kills-{os.getpid()}"))


def check_end(world, one):
    """Check that no address file remains, and that each block belongs to one node."""
    assert one.held() == []
    blocks = open_store(world.store).blocks(one.space)
    assert len({block.cidr for block in blocks}) == len(blocks) and {block.node for block in blocks} <= {"n1", "n2"}


def test_an_add_that_is_killed_at_any_step_can_be_repeated_and_deleted(world):
    for at in world.steps("ADD"):
        one = Round(world, f"add-{at}")
        run = one.traced("ADD", "c1", at, KILL)
        assert run.status == -9 or not run.hit, run.hit
        live = [one.add("n2", "c2"), one.add("n1", "c1"), one.add("n1", "c3"), one.add("n2", "c4")]
        assert len(set(live)) == 4, f"killed at call {at}, {run.hit}: {live}"
        assert one.add("n1", "c1") == live[1], f"killed at call {at}, {run.hit}"
        for node, container in (("n1", "c1"), ("n1", "c3"), ("n2", "c2"), ("n2", "c4")):
            one.call(node, "DEL", container)
        check_end(world, one)


def test_a_del_that_is_killed_at_any_step_can_be_repeated(world):
    for at in world.steps("DEL"):
        one = Round(world, f"del-{at}")
        live = [one.add("n1", "c1"), one.add("n1", "c2")]
        run = one.traced("DEL", "c1", at, KILL)
        one.call("n1", "DEL", "c1")
        one.call("n1", "DEL", "c1")
        again = [live[1], one.add("n2", "c3"), one.add("n1", "c4"), one.add("n1", "c5")]
        assert len(set(again)) == 4, f"killed at call {at}, {run.hit}: {again}"
        for node, container in (("n1", "c2"), ("n2", "c3"), ("n1", "c4"), ("n1", "c5")):
            one.call(node, "DEL", container)
        check_end(world, one)
