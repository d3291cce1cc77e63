"""Nodes of the cluster without a sign of life, the watch of a store, and which pods are gone."""

import json
import threading

import pytest
from server.flushed import Log

from fastcni.clients.away import Away
from fastcni.kernel.presence import GONE, UNKNOWN
from fastcni.kit.ipam.cluster.contract import ALIVE, DEAD, LOST, NODE_TTL_S, QUARANTINE, Block, Node
from fastcni.kit.ipam.cluster.stores.local import LocalStore
from fastcni.server.cluster.lost import LostNodes
from fastcni.server.cluster.pods import Pods
from fastcni.server.cluster.times import Times
from fastcni.server.cluster.watch import ClusterWatch

CACHED, OTHER = ("net", "c", "eth0"), ("net", "other", "eth0")
CIDR = "10.0.0.64/26"


@pytest.fixture
def store(tmp_path):
    return LocalStore({"path": str(tmp_path / "store")})


@pytest.fixture
def silence(tmp_path):
    """silence(node): make a node look as if it had given no sign of life."""
    def silence(node):
        path = tmp_path / "store" / "store.json"
        data = json.loads(path.read_text())
        data["nodes"][node]["seen"] -= 2 * NODE_TTL_S
        path.write_text(json.dumps(data))
    return silence


@pytest.fixture
def lost_node(store, silence):
    """A node with a block, that gives no sign of life any more."""
    node = store.join("b", "boot")
    store.claim(node, [("s", CIDR)])
    silence("b")
    return node


def nodes_of(store):
    return {node.name: (node.epoch, node.state) for node in store.nodes()}


def observer(store, log=None, **times):
    store.join("a", "boot")
    return LostNodes("a", Times(**times), log or Log())


def test_a_lost_node_is_dead_after_the_time_of_grace(store, lost_node):
    log = Log()
    watcher = observer(store, log, grace_s=100.0)
    assert watcher.look(store, 1000.0) <= 1100.0
    watcher.look(store, 1099.0)
    assert nodes_of(store)["b"] == (1, LOST)
    watcher.look(store, 1100.0)
    assert nodes_of(store)["b"] == (2, DEAD)
    assert [block.state for block in store.blocks()] == [QUARANTINE]
    assert [event for event, _ in log.lines] == ["cluster_node_dead"]


def test_a_sign_of_life_ends_the_time_of_grace(store, lost_node, silence):
    watcher = observer(store, grace_s=100.0)
    watcher.look(store, 1000.0)
    store.keep_alive(lost_node)
    watcher.look(store, 1050.0)
    silence("b")
    watcher.look(store, 1101.0)
    assert nodes_of(store)["b"] == (1, LOST)


def test_the_time_of_grace_begins_anew_after_the_store_was_away(store, lost_node):
    """While the store was away no node could give a sign of life: all look lost when it is back."""
    watcher = observer(store, grace_s=100.0)
    watcher.look(store, 1000.0)
    watcher.reset()
    watcher.look(store, 1101.0)
    assert nodes_of(store)["b"] == (1, LOST)


def test_a_node_does_not_declare_itself_dead(store, silence):
    watcher = observer(store, grace_s=0.0)
    silence("a")
    watcher.look(store, 1.0)
    watcher.look(store, 2.0)
    assert nodes_of(store)["a"] == (1, LOST)


def test_two_servers_at_once_declare_a_node_dead_once(store, lost_node):
    first, second = observer(store, grace_s=0.0), observer(store, grace_s=0.0)
    barrier = threading.Barrier(2)

    def look(watcher):
        barrier.wait()
        watcher.look(store, 1.0)

    threads = [threading.Thread(target=look, args=(it,)) for it in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert nodes_of(store)["b"] == (2, DEAD)


def test_blocks_of_a_dead_node_stay_until_its_node_is_gone(store, lost_node, monkeypatch):
    watcher = observer(store, grace_s=0.0)
    for now in (1.0, 1e9):
        watcher.look(store, now)
    assert len(store.blocks()) == 1
    monkeypatch.setattr(store, "node_gone", lambda name: name == "b", raising=False)
    watcher.look(store, 1e9 + 1)
    assert store.blocks() == [] and "b" not in nodes_of(store)


def test_reclaim_after_frees_the_blocks_of_a_dead_node(store, lost_node):
    watcher = observer(store, grace_s=0.0)
    watcher.reclaim_after_s = 50.0
    for now in (1.0, 2.0, 51.0):
        watcher.look(store, now)
    assert len(store.blocks()) == 1
    watcher.look(store, 52.0)
    assert store.blocks() == []


def test_a_declaration_that_was_cut_off_is_completed(store, lost_node, tmp_path):
    """A server was killed between the epoch and the blocks, as it can be in a store without transactions."""
    store.declare_dead(store.nodes()[0])
    path = tmp_path / "store" / "store.json"
    data = json.loads(path.read_text())
    for block in data["blocks"].values():
        block["state"] = "active"
    path.write_text(json.dumps(data))
    observer(store).look(store, 1.0)
    assert [block.state for block in store.blocks()] == [QUARANTINE]
    assert nodes_of(store)["b"] == (2, DEAD)


def test_in_a_large_cluster_each_server_looks_less_often(store, monkeypatch):
    monkeypatch.setattr(store, "nodes", lambda: [Node(f"n{i}", 1, "boot", "", ALIVE) for i in range(200)])
    assert 200 <= observer(store, nodes_s=60.0).look(store, 0.0) <= 300


class TestWatch:
    @pytest.fixture
    def watch(self, store):
        """watch(store): a ClusterWatch that runs; woken is set when there are changes."""
        made = []

        def make(store=store, wanted=lambda event: True, **times):
            woken = threading.Event()
            it = ClusterWatch(store, wanted, woken.set, Times(away_s=0.001, max_away_s=0.01, **times), Log())
            it.woken = woken
            made.append(it)
            it.start()
            return it

        yield make
        for it in made:
            it.stop()
            it.join(10)
            assert not it.thread.is_alive()

    def test_it_hands_over_what_is_wanted(self, store, watch):
        it = watch(wanted=lambda event: isinstance(event.record, Block))
        me = store.join("a", "boot")
        store.claim(me, [("s", CIDR)])
        assert it.woken.wait(30)
        assert [event.record.cidr for event in it.take()] == [CIDR]
        assert it.take() == []

    def test_it_watches_again_when_the_store_is_back(self, watch):
        class Coming:
            name, calls = "fake", 0

            def watch(self, changed, stop):
                self.calls += 1
                if self.calls < 4:
                    raise Away("no route")
                changed("it is back")
                while not stop():
                    threading.Event().wait(0.01)

        it = watch(Coming())
        assert it.woken.wait(30)
        assert it.take() == ["it is back"]
        assert [event for event, _ in it.log.lines] == ["cluster_watch_lost"]


class TestPods:
    def states(self, **paths):
        cached = {CACHED: ("/n/x", 7.0)}
        return Pods(lambda path, since: (paths[f"{path}@{since:g}"], ""), lambda: cached)

    def test_a_pod_is_gone_if_its_namespace_was_at_the_time_of_its_record(self):
        pods = self.states(**{"/n/b@5": GONE, "/n/b@6": UNKNOWN, "/n/a@5": ALIVE})
        assert pods.is_gone(OTHER, "/n/b", 5.0)
        assert not pods.is_gone(OTHER, "/n/b", 6.0) and not pods.is_gone(OTHER, "/n/a", 5.0)

    def test_nothing_is_said_of_a_namespace_that_is_not_known(self):
        assert not self.states().is_gone(OTHER)

    def test_the_path_in_the_cache_counts_too(self):
        gone = {"/n/x@7": GONE, "/n/noted@5": GONE}
        assert self.states(**gone).is_gone(CACHED) and self.states(**gone).is_gone(CACHED, "/n/noted", 5.0)
        assert not self.states(**gone | {"/n/x@7": ALIVE}).is_gone(CACHED, "/n/noted", 5.0)
        assert not self.states(**gone | {"/n/noted@5": UNKNOWN}).is_gone(CACHED, "/n/noted", 5.0)
