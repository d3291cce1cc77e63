"""The watch of etcd as the registry: the agent sees changes, also after a lost connection, a compaction and a
restore."""

import threading

import pytest
from cluster.agent.etcd_network import CONF, PREFIX, Registry, node
from cluster.etcd import Etcd

from fastcni.agent.registries import etcd as etcd_registry
from fastcni.clients.errors import Away
from fastcni.testing.witnesses import eventually


def test_the_watch_sees_nodes_come_change_and_go(network):
    one, two, stop, seen = network.open(), network.open(), threading.Event(), []
    thread = threading.Thread(target=one.watch, args=(lambda nodes: seen.append({it.name: it for it in nodes}),
                                                      stop.is_set))
    thread.start()
    assert eventually(lambda: seen == [{}])
    first = two.join(two.conf(), node(1, VtepMAC="02:00:00:00:00:01"))
    assert eventually(lambda: seen[-1] == {first.name: first})
    changed = two.join(two.conf(), node(1, VtepMAC="02:00:00:00:00:02"))
    assert eventually(lambda: seen[-1] == {changed.name: changed})
    network.put("subnets/nonsense", "{")
    network.put("subnets/10.244.200.0-24", '{"PublicIP":"192.0.2.9","BackendType":"vxlan"}')
    assert eventually(lambda: len(seen[-1]) == 2)
    assert [event["key"] for event in network.log] == [f"{network.prefix}/subnets/nonsense"]
    two.leave(changed)
    assert eventually(lambda: list(seen[-1]) == ["10.244.200.0-24"])
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


class Watching:
    """A registry that watches in a thread. seen: the names of the latest nodes. lists: how often the registry has
    listed all records."""

    def __init__(self, registry, monkeypatch):
        self.registry, self.seen, self.lists, self.stop = registry, None, 0, threading.Event()
        real = registry.client.read_changes

        def read_changes(*words):
            self.lists += 1
            return real(*words)

        monkeypatch.setattr(registry.client, "read_changes", read_changes)
        self.thread = threading.Thread(target=registry.watch, args=(self._note, self.stop.is_set))

    def _note(self, nodes):
        self.seen = {node.name for node in nodes}

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(60)


def test_a_restarted_agent_lists_once(network, monkeypatch):
    """A restarted agent listed all records twice, and a new node's agent three times: 1,000 agents that started at the
    same time cost etcd a minute."""
    one, two = network.open(), network.open()
    joined = one.join(one.conf(), node(1))
    watching = Watching(two, monkeypatch)
    assert two.join(two.conf(), node(1)) == joined
    with watching:
        assert eventually(lambda: watching.seen == {joined.name})
        other = one.join(one.conf(), node(2))
        assert eventually(lambda: watching.seen == {joined.name, other.name})
    assert watching.lists == 1


def test_a_change_between_the_list_of_join_and_the_watch_is_seen(network, monkeypatch):
    one, two = network.open(), network.open()
    watching = Watching(two, monkeypatch)
    joined = two.join(two.conf(), node(1))
    other = one.join(one.conf(), node(2))
    with watching:
        assert eventually(lambda: watching.seen == {joined.name, other.name})


def test_a_watch_that_is_lost_goes_on_without_a_list(monkeypatch):
    """After a member of etcd had restarted, each node listed all records again."""
    with Etcd() as etcd:
        network = Registry(etcd, f"{PREFIX}/goes-on")
        network.configure(CONF)
        one, two = network.open(), network.open()
        with Watching(two, monkeypatch) as watching:
            assert eventually(lambda: watching.seen == set())
            first = one.join(one.conf(), node(1))
            assert eventually(lambda: watching.seen == {first.name})
            etcd.members[0].kill()
            assert eventually(lambda: "registry_away" in {event["event"] for event in network.log}, 30)
            etcd.members[0].restart()
            etcd.await_health()
            second = one.join(one.conf(), node(2))
            one.leave(first)
            assert eventually(lambda: watching.seen == {second.name}, 60)
            assert watching.lists == 1
        network.close()


def test_an_agent_whose_watch_was_compacted_waits_for_a_random_time_before_it_lists(network, monkeypatch):
    """After a restart of etcd all agents listed at the same time, if etcd no longer had the changes since the agents'
    last revision."""
    one, waits = network.open(), []
    one.join(one.conf(), node(1))
    view = one.listed
    for number in (2, 3):
        network.open().join(one.conf(), node(number))
    network.client.call("/kv/compaction", {"revision": network.client.read_range("a", "b")[1]})
    monkeypatch.setattr(one, "wait", waits.append)
    monkeypatch.setattr(etcd_registry, "CHANGES_S_OF_A_RECORD", 5.0)
    assert not one._follow(view, lambda view: None, lambda: False)
    assert len(waits) == 1 and 0 < waits[0] <= 5.0
    view.refresh(one.client)
    assert len(view.nodes(one.log, set())) == 3


def test_after_a_restore_from_a_backup_the_watch_lists_again(monkeypatch):
    """The restored etcd lacks the record of a node, but its revision is higher than the last one that the watch has
    seen."""
    with Etcd() as etcd:
        network = Registry(etcd, f"{PREFIX}/restored")
        network.configure(CONF)
        one, two = network.open(), network.open()
        first = one.join(one.conf(), node(1))
        with Watching(two, monkeypatch) as watching:
            assert eventually(lambda: watching.seen == {first.name})
            saved = etcd.backup()
            second = one.join(one.conf(), node(2))
            assert eventually(lambda: watching.seen == {first.name, second.name})
            monkeypatch.setattr(two.client, "watch", lambda *words: (_ for _ in ()).throw(Away("not yet")))
            etcd.restore(saved)
            etcd.await_health()
            for number in range(20):
                network.put(f"beside/{number}", "")
            third = one.join(one.conf(), node(3))
            monkeypatch.undo()
            assert eventually(lambda: watching.seen == {first.name, third.name}, 60)
        network.close()


def test_the_watch_survives_a_compaction_and_a_restart(request):
    with Etcd() as etcd:
        network = Registry(etcd, f"{PREFIX}/restart")
        network.configure(CONF)
        one, stop, seen = network.open(), threading.Event(), []
        thread = threading.Thread(target=one.watch, args=(lambda nodes: seen.append(len(nodes)), stop.is_set))
        thread.start()
        assert eventually(lambda: seen == [0])
        etcd.members[0].kill()
        with pytest.raises(Away):
            network.open().conf()
        etcd.members[0].restart()
        etcd.await_health()
        for number in range(1, 4):
            one.join(one.conf(), node(number))
        revision = network.client.read_range("a", "b")[1]
        network.client.call("/kv/compaction", {"revision": revision})
        assert eventually(lambda: seen[-1] == 3)
        assert "registry_away" in {event["event"] for event in network.log}
        stop.set()
        thread.join(30)
        network.close()
