"""The server's thread for cluster-wide addresses on a real etcd."""

import time

import pytest
from unit.server.cluster import ClusterNode

from fastcni.kit.ipam.cluster.contract import DEAD
from fastcni.testing.witnesses import eventually


@pytest.fixture
def on(tmp_path):
    """Return a function on(store, name, **options) that makes a ClusterNode whose store is an etcd."""
    running = []

    def make(store, name="a", **options):
        running.append(ClusterNode(tmp_path, name, ipam={"store": store}, **options))
        return running[-1]

    yield make
    for one in running:
        one.stop()
    assert not [one.faults for one in running if one.faults]


def blocks_uses_and_answers(a, b):
    """Check that the maintenance threads of two nodes claim a block ahead, store uses of addresses, and answer the
    other node."""
    pods = [a.add(f"c{i}") for i in range(13)]
    assert eventually(lambda: len(a.stored) == 2 and a.blocks == a.stored)
    assert eventually(lambda: {one["address"] for use in b.store.uses() for one in use.holders} == set(pods))
    free = next(f"10.0.0.{i}" for i in range(1, 255) if f"10.0.0.{i & ~15}/28" in a.blocks
                and f"10.0.0.{i}" not in pods and i % 16 not in (0, 15))
    assert b.add("x1", args=f"IP={free}") == free
    status, document = b.call("ADD", "x2", args=f"IP={pods[0]}")
    assert status == 1 and "c0" in document["msg"]
    b.delete("x1")
    assert eventually(lambda: free not in a.held)


def test_blocks_uses_and_answers(etcd, on):
    blocks_uses_and_answers(on(etcd), on(etcd, "b"))


def test_an_etcd_that_is_killed_and_comes_back(etcd_alone, on):
    a = on(etcd_alone.conf(node_ttl=2), confirm_s=0.05, away_s=0.1)
    a.add("c0")
    assert eventually(lambda: a.stored)
    etcd_alone.members[0].kill()
    a.logged("cluster_store_away")
    addresses = {a.add(f"c{i}") for i in range(1, 8)}
    assert len(addresses) == 7
    etcd_alone.members[0].restart()
    etcd_alone.await_health()
    a.logged("cluster_store_back")
    assert eventually(lambda: addresses <= {one["address"] for use in a.store.uses() for one in use.holders})
    assert [event for event, _ in a.log.lines].count("cluster_store_restored") == 0


def test_an_etcd_that_hangs_holds_up_no_request(etcd_alone, on):
    a = on(etcd_alone.conf(), confirm_s=0.05)
    a.add("c0")
    assert eventually(lambda: a.stored)
    etcd_alone.members[0].pause()
    began = time.monotonic()
    for i in range(1, 8):
        a.add(f"c{i}")
        a.delete(f"c{i}")
    assert time.monotonic() - began < 5
    a.logged("cluster_store_away")
    etcd_alone.members[0].resume()
    a.logged("cluster_store_back")


def test_an_etcd_that_is_restored_from_a_backup(etcd_alone, on):
    a = on(etcd_alone.conf(), confirm_s=0.05, away_s=0.1)
    a.add("c0")
    assert eventually(lambda: a.stored)
    saved = etcd_alone.backup()
    for i in range(1, 40):
        a.add(f"c{i}")
    mine = a.blocks
    etcd_alone.restore(saved)
    a.logged("cluster_store_restored")
    assert eventually(lambda: mine <= a.stored and a.stored == a.blocks)


def test_a_killed_node_is_declared_dead_by_another(etcd, on):
    store = {**etcd, "node_ttl": 1, "dead_after": 1}
    a, b = on(store), on(store, "b", nodes_s=0.1)
    a.add("c1", one_shot=True)
    b.add("x1")
    assert b.logged("cluster_node_dead")["node"] == "a"
    assert [node.state for node in b.store.nodes() if node.name == "a"] == [DEAD]
    assert [block.state for block in b.store.blocks(node="a")] == ["quarantine"]
    a.add("c2")
    assert a.held.keys() and eventually(lambda: [block.state for block in b.store.blocks(node="a")] == ["active"])
