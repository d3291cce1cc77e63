"""Test each row of the failure table of docs/ipam-operation.md on a real etcd, except the kills, which test_kills.py
tests.

Nodes are simulated (tests/unit/kit/ipam/cluster/simulation.py): each has a directory, a boot id and a clock. So a
reboot, a jump of the clock and the cool-down take no time. etcd is real, so the end of a lease takes its real time.
"""

import json

import pytest
from cluster.proxy import Proxy
from unit.kit.ipam.cluster.simulation import PAUSE, Cluster, simulated_modules

from fastcni.kit.ipam.cluster.contract import ALIVE, DEAD, LOST, QUARANTINE
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.testing.witnesses import eventually

TRY_AGAIN_LATER = 11
NODE_TTL_S = 2                  # the shortest lease that etcd grants


class Lab:
    """Three nodes and an etcd. add() returns a pod's address, refused() the error document of a failed ADD."""

    def __init__(self, directory, store):
        self.store = open_store(store)
        self.cluster = Cluster(directory, ("n1", "n2", "n3"), lambda: open_store(store))
        self.nodes = self.cluster.nodes

    def conf(self, **ipam):
        return {"cniVersion": "1.1.0", "name": "net", "type": "cluster", "ipam": {
            "type": "cluster", "store": {"type": "local", "path": "/nowhere"}, "range": "10.0.0.0/27", "block_size": 30,
            "network_name": "s", **ipam}}

    def call(self, node, command, container, fault=None, args="", **ipam):
        process = node.call(command, self.conf(**ipam), container, args, fault)
        return process if process.paused else process.reply

    def add(self, node, container, **ipam):
        reply = self.call(node, "ADD", container, **ipam)
        document = json.loads(reply.stdout)
        assert reply.status == 0, document
        return document["ips"][0]["address"].split("/")[0]

    def refused(self, node, container, **ipam):
        reply = self.call(node, "ADD", container, **ipam)
        document = json.loads(reply.stdout)
        assert reply.status and document["code"] == TRY_AGAIN_LATER, document
        return document["msg"] + " " + document.get("details", "")

    def delete(self, node, container, **ipam):
        reply = self.call(node, "DEL", container, **ipam)
        assert reply.status == 0, reply.stdout

    def fill(self, node, name):
        """Add pods until the node's blocks are full. Return {container: address}."""
        given = {}
        for number in range(8):
            reply = self.call(node, "ADD", f"{name}{number}")
            if reply.status:
                break
            given[f"{name}{number}"] = json.loads(reply.stdout)["ips"][0]["address"].split("/")[0]
        return given

    def record(self, name):
        return next(node for node in self.store.nodes() if node.name == name)

    def lose(self, node):
        """Cut the node off from etcd until etcd has ended the node's lease."""
        node.reachable = False
        self.cluster.now += 301.0
        assert eventually(lambda: self.record(node.name).state != ALIVE, pause=0.05), "the lease does not end"

    def blocks(self, node=""):
        return [block.cidr for block in self.store.blocks("s", node)]


@pytest.fixture
def lab(etcd, tmp_path):
    yield from labs(etcd | {"node_ttl": NODE_TTL_S}, tmp_path)


def labs(store, directory):
    lab = Lab(directory, store)
    with simulated_modules(lambda: lab.cluster):
        yield lab
    for node in lab.nodes:
        if node.process:
            node.process.kill()
    lab.store.close()


# -- the store cannot be reached ---------------------------------------------------------------------------------------

def test_a_node_without_its_store_gives_the_addresses_of_its_blocks_and_then_says_why_not(lab):
    n1, n2, _ = lab.nodes
    first, other = lab.add(n1, "c0"), lab.add(n2, "d0")
    n1.reachable = False
    lab.cluster.now += 400.0            # long after the node's last confirmation
    given = lab.fill(n1, "c")
    assert given["c0"] == first and len(given) == 4 and other not in given.values()
    text = lab.refused(n1, "late")
    assert "no route to the store" in text and "10.0.0.0/27" in text
    for container in given:
        lab.delete(n1, container)
    n1.reachable = True
    assert lab.add(n1, "late") != other


def test_a_node_that_may_not_serve_after_the_loss_refuses_by_the_time_since_its_last_confirmation(lab):
    n1 = lab.nodes[0]
    lab.add(n1, "c0", serve_after_loss=500)
    n1.reachable = False
    lab.cluster.now += 400.0
    lab.add(n1, "c1", serve_after_loss=500)
    lab.cluster.now += 200.0
    assert "500 s" in lab.refused(n1, "c2", serve_after_loss=500)
    n1.reachable = True
    lab.cluster.now += 21.0                                 # ADD asks again after 20 s, a server immediately
    lab.add(n1, "c2", serve_after_loss=500)


def test_a_new_node_without_its_store_gives_nothing(lab):
    lab.nodes[2].reachable = False
    assert "no route to the store" in lab.refused(lab.nodes[2], "c0")


def test_a_lost_answer_costs_no_block_and_no_address(etcd, etcd_member, tmp_path):
    """etcd makes the claim, but the answer is lost. The second attempt finds the claim."""
    with Proxy(etcd_member.members[0].client) as proxy:
        for lab in labs(etcd | {"endpoints": [proxy.endpoint], "node_ttl": NODE_TTL_S}, tmp_path):
            for number in range(1, 12):                     # loses answers of the first ADD and of later claims
                proxy.lose = 1
                reply = lab.call(lab.nodes[0], "ADD", f"c{number}")
                if reply.status:
                    proxy.lose = 0
                    lab.add(lab.nodes[0], f"c{number}")
            assert proxy.lost
            proxy.lose = 0
            assert len(lab.blocks("n1")) == 3               # for eleven pods
            other = lab.add(lab.nodes[1], "d")
            assert len({other, *(lab.add(lab.nodes[0], f"c{number}") for number in range(1, 12))}) == 12


# -- nodes that are declared dead --------------------------------------------------------------------------------------

def test_a_dead_nodes_blocks_are_given_to_nobody_until_it_is_forgotten(lab):
    n1, n2, _ = lab.nodes
    lab.fill(n1, "c")
    owned = lab.blocks("n1")
    lab.lose(n1)
    dead = lab.store.declare_dead(lab.record("n1"))
    assert dead.state == DEAD and {block.state for block in lab.store.blocks("s", "n1")} == {QUARANTINE}
    lab.fill(n2, "d")
    assert lab.blocks("n1") == owned and not set(owned) & set(lab.blocks("n2"))
    n1.up = False                       # the node's pods are stopped, as rule A1 requires
    lab.store.forget(dead)
    assert lab.blocks("n1") == []


def test_a_node_that_was_declared_dead_keeps_its_pods_and_its_blocks_when_it_is_back(lab):
    n1, n2, _ = lab.nodes
    address = lab.add(n1, "c0")
    lab.lose(n1)
    lab.store.declare_dead(lab.record("n1"))
    others = lab.fill(n2, "d")
    n1.reachable = True
    assert lab.add(n1, "c0") == address
    more = lab.add(n1, "c1")
    assert lab.record("n1").epoch == 2 and lab.record("n1").state == ALIVE
    assert {block.epoch for block in lab.store.blocks("s", "n1")} == {2}
    assert len({address, more, *others.values()}) == len(others) + 2


def test_a_claim_of_a_former_epoch_is_refused_by_the_store(lab):
    """The node's process hangs before it claims a block, and continues after the node was declared dead."""
    n1, n2, _ = lab.nodes
    given = lab.fill(n2, "d")
    process = lab.call(n1, "ADD", "c0", fault=(PAUSE, "claim"))
    assert process.paused
    lab.lose(n1)
    lab.store.declare_dead(lab.record("n1"))
    given |= lab.fill(n2, "e")
    n1.reachable = True
    process.resume()
    assert all(block.epoch == lab.record("n1").epoch for block in lab.store.blocks("s", "n1"))
    assert lab.add(n1, "c1") not in given.values()


# -- the store is restored, the node reboots, clocks jump --------------------------------------------------------------

@pytest.mark.parametrize("token", ["etcd-cluster", "after-the-loss"])
def test_a_store_restored_from_an_old_backup_gives_no_address_twice(etcd_alone, tmp_path, token):
    """The backup lacks a block of n1 that running pods use. n1 claims the block again before n2 may claim any block.
    Another token gives the restored etcd another cluster id."""
    for lab in labs(etcd_alone.conf(prefix="/t", node_ttl=NODE_TTL_S), tmp_path):
        n1, n2, _ = lab.nodes
        live = [lab.add(n1, "c0"), lab.add(n2, "d0")]
        saved = etcd_alone.backup()
        live += [lab.add(n1, f"c{number}") for number in range(1, 6)]
        assert len(lab.blocks("n1")) == 2
        etcd_alone.restore(saved, token)
        assert len(lab.blocks("n1")) == 1
        lab.cluster.now += 301.0                            # one-shot confirms after 300 s; a server each 20 s
        assert [lab.add(n1, "c0"), lab.add(n2, "d0")] == live[:2]
        lab.cluster.now += 61.0
        live += [lab.add(n2, "d1"), lab.add(n2, "d2")]
        assert "for another 5 s" in lab.refused(n2, "d3")
        lab.cluster.now += 6.0
        live += [lab.add(n2, f"d{number}") for number in range(3, 8)]
        assert len(set(live)) == len(live), live
        assert len(lab.blocks("n1")) == 2


def test_after_a_reboot_the_addresses_are_free_and_the_blocks_are_kept(lab):
    n1, n2, _ = lab.nodes
    given, owned = lab.fill(n1, "c"), lab.blocks("n1")
    other = lab.add(n2, "d0")
    n1.boot()
    lab.cluster.now += 60.0
    again = [lab.add(n1, f"e{number}") for number in range(len(given))]
    assert lab.blocks("n1") == owned and sorted(again) == sorted(given.values())
    assert other not in again


def test_a_node_that_was_forgotten_while_it_was_down_gives_nothing_of_its_former_blocks(lab):
    n1, n2, _ = lab.nodes
    lab.fill(n1, "c")
    lab.lose(n1)
    n1.up = False
    lab.store.forget(lab.store.declare_dead(lab.record("n1")))
    others = lab.fill(n2, "d") | lab.fill(n2, "e") | lab.fill(n2, "f") | lab.fill(n2, "g")
    assert len(set(others.values())) == 30                  # the range has 30 addresses
    n1.boot()
    n1.reachable = False
    assert "no route to the store" in lab.refused(n1, "c9")
    n1.reachable = True
    assert "10.0.0.0/27" in lab.refused(n1, "c9")


def test_a_full_range_names_the_range_the_nodes_that_hold_it_and_what_to_do(lab):
    n1, n2, _ = lab.nodes
    for name in "ab":
        lab.fill(n1, name)
    for name in "cdef":
        lab.fill(n2, name)
    text = lab.refused(n2, "late")
    assert "10.0.0.0/27" in text and "n1 has" in text and "n2 has" in text and "`fastcni ipam list`" in text


@pytest.mark.parametrize("seconds", [-86400.0, 86400.0])
def test_a_jump_of_a_clock_changes_no_address_and_no_owner(lab, seconds):
    n1, n2, _ = lab.nodes
    live = {"c0": lab.add(n1, "c0"), "d0": lab.add(n2, "d0")}
    owned = lab.blocks("n1")
    n1.skew = seconds
    assert lab.add(n1, "c0") == live["c0"]
    live |= {"c1": lab.add(n1, "c1"), "d1": lab.add(n2, "d1")}
    assert len(set(live.values())) == 4 and lab.blocks("n1") == owned
    assert lab.record("n1").state == ALIVE != LOST
    lab.delete(n1, "c1")
    assert lab.add(n1, "c2") not in live.values()           # the cool-down does not end by the wall clock


def test_a_released_address_is_given_again_after_the_cool_down_only(lab):
    n1 = lab.nodes[0]
    first = lab.add(n1, "c0")
    lab.delete(n1, "c0")
    given = [lab.add(n1, f"c{number}") for number in (1, 2)]
    assert first not in given
    lab.cluster.now += 31.0
    assert lab.add(n1, "c3") == first or lab.blocks("n1")
