"""A restarted agent reads the records of all nodes from its file, and asks etcd only for changed records."""

import json
import random
import threading

import pytest
from cluster.agent.etcd_network import CONF, PREFIX, Registry, node
from cluster.etcd import Etcd
from lab.loggers import logger_to

from fastcni.agent.registries import open_registry, record_file
from fastcni.agent.registries.etcd_view import LIST_WAIT_S, View
from fastcni.agent.registries.record_file import RecordFile
from fastcni.clients.etcd import below, delete, put
from fastcni.testing.witnesses import eventually


class Life:
    """One run of an agent, which joins and watches. lists: for each list, (the revision since which the agent asked for
    changes, the number of records in the answer). seen: the last nodes by name."""

    def __init__(self, network, path, number=1):
        self.stop, self.lists, self.log, self.seen = threading.Event(), [], [], None
        log = logger_to(self._note)
        self.registry = open_registry("etcd", {**network.etcd.conf(prefix=network.prefix), "kept": str(path)}, log,
                                      self.stop.wait)
        read_changes = self.registry.client.read_changes

        def spy(first, end, since, timeout_s=0.0):
            found = read_changes(first, end, since, timeout_s)
            self.lists.append((since, len(found[0])))
            assert timeout_s == LIST_WAIT_S     # with the default timeout, long lists failed and were repeated
            return found

        self.registry.client.read_changes = spy
        self.me = self.registry.join(self.registry.conf(), node(number))
        self.thread = threading.Thread(target=self.registry.watch, args=(self._changed, self.stop.is_set))

    def _note(self, event):
        self.log.append(event["event"])

    def _changed(self, nodes):
        self.seen = {node.name: node for node in nodes}

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(60)
        self.registry.close()


def live(network, path, names):
    """Run an agent until it has seen these nodes. Return its Life."""
    with Life(network, path) as life:
        assert eventually(lambda: life.seen is not None and life.seen.keys() == names, 30)
    return life


def test_a_restarted_agent_gets_only_the_records_that_have_changed(network, tmp_path):
    """Each restarted agent read all records: 5,000 restarted agents took five minutes of etcd's processor time."""
    one = network.open()
    names = {one.join(one.conf(), node(number)).name for number in range(2, 12)}
    names.add(live(network, tmp_path / "nodes", names | {Life(network, "").me.name}).me.name)
    for number in (20, 21):
        names.add(one.join(one.conf(), node(number)).name)
    again = live(network, tmp_path / "nodes", names)
    (since, records), = again.lists
    assert since and records == 3   # the newest record of the first run is read again, to show that etcd is the same


def test_restarted_agents_ask_after_a_random_time_that_grows_with_the_records(network, tmp_path, monkeypatch):
    """The test replaces random.uniform() and the wait."""
    waited = []
    monkeypatch.setattr(record_file.random, "uniform", lambda low, high: high)
    monkeypatch.setattr(threading.Event, "wait", lambda self, seconds=None, wait=threading.Event.wait: (
        waited.append(seconds), wait(self, seconds))[1])
    for start, records in enumerate((0, 1)):
        with Life(network, tmp_path / "nodes") as life:
            assert eventually(lambda life=life: life.seen is not None)
        assert record_file.START_S_OF_A_RECORD * records in waited, start
        waited.clear()
    assert record_file.start_pause(100_000) == record_file.MAX_START_S


def test_a_record_that_was_deleted_while_the_agent_did_not_run_is_not_known(network, tmp_path):
    one = network.open()
    others = [one.join(one.conf(), node(number)) for number in (2, 3)]
    names = {each.name for each in others}
    me = live(network, tmp_path / "nodes", names | {Life(network, "").me.name}).me.name
    one.leave(others[0])
    again = live(network, tmp_path / "nodes", {others[1].name, me})
    assert again.lists[-1][0] == 0              # revision 0: the agent read all records


def test_after_a_restore_from_a_backup_all_records_are_read(tmp_path):
    with Etcd() as etcd:
        network = Registry(etcd, f"{PREFIX}/kept-restored")
        network.configure(CONF)
        one = network.open()
        first, me = one.join(one.conf(), node(2)), Life(network, "").me
        saved = etcd.backup()
        network.put("beside", "")
        second = one.join(one.conf(), node(3))
        live(network, tmp_path / "nodes", {first.name, second.name, me.name})
        etcd.restore(saved)
        etcd.await_health()
        # The new etcd has had as many changes: the second node's key has the same revision, but names another node.
        network.put(f"subnets/{first.name}", '{"PublicIP":"192.0.2.99","BackendType":"vxlan"}')
        third = one.join(one.conf(), node(4, former=str(second.subnets[4])))
        again = live(network, tmp_path / "nodes", {first.name, third.name, me.name})
        assert third.name == second.name and again.seen[third.name] == third
        assert str(again.seen[first.name].public[4]) == "192.0.2.99"
        network.close()


@pytest.mark.parametrize("damage", [lambda text: text.replace("192.0.2.2", "192.0.2.3"), lambda text: text[:-9],
                                    lambda text: "", lambda text: text.replace("/subnets/", "/other/", 1)],
                         ids=["changed", "shorter", "empty", "another prefix"])
def test_a_damaged_file_is_told_and_not_used(network, tmp_path, damage):
    one = network.open()
    names = {one.join(one.conf(), node(2)).name, Life(network, "").me.name}
    live(network, tmp_path / "nodes", names)
    (tmp_path / "nodes").write_text(damage((tmp_path / "nodes").read_text()))
    again = live(network, tmp_path / "nodes", names)
    assert again.log == ["nodes_not_kept"] and again.lists == [(0, 2)]


def test_a_file_that_cannot_be_written_is_told_and_the_agent_goes_on(network, tmp_path):
    (tmp_path / "file").write_text("")
    life = Life(network, tmp_path / "file" / "nodes")
    with life:
        assert eventually(lambda: life.seen == {life.me.name: life.me})
    assert set(life.log) == {"nodes_not_kept"}


def test_a_node_that_leaves_keeps_no_records(network, tmp_path):
    life = live(network, tmp_path / "nodes", {Life(network, "").me.name})
    assert (tmp_path / "nodes").exists()
    life.registry.leave(life.me)
    assert not (tmp_path / "nodes").exists()


def test_what_is_kept_and_what_has_changed_are_together_all_records(network, tmp_path):
    """Make random changes between two runs of an agent. Then compare the agent's records with etcd's."""
    decide, client = random.Random(39), network.client
    directory = f"{network.prefix}/subnets/"
    for _ in range(60):
        file = RecordFile(str(tmp_path / "nodes"), directory, network.open().log)
        view = View(directory, file.read() or ())
        view.refresh(client)
        pairs, _ = client.read_range(*below(directory))
        assert {pair.fields() for pair in view.pairs.values()} == {pair.fields() for pair in pairs}
        file.write(view.stored())
        for _ in range(decide.randrange(4)):
            key = f"{directory}10.244.{decide.randrange(6)}.0-24"
            client.txn([], [decide.choice([put(key, json.dumps({"n": decide.random()})), delete(key)])])
