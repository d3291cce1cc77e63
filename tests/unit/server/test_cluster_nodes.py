"""Nodes of the cluster that send no heartbeats, the watch of a store, and this node in a store."""

import json
import threading
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from unit.server.flushed import Log

from fastcni.clients.errors import Away
from fastcni.kernel.presence import GONE, UNKNOWN
from fastcni.kit.ipam.cluster.contract import (
    ALIVE,
    DEAD,
    LOST,
    NODE_TTL_S,
    QUARANTINE,
    Block,
    Event,
    Fenced,
    IPClaim,
    Node,
)
from fastcni.kit.ipam.cluster.stores.local import LocalStore
from fastcni.server.cluster import watch as watch_module
from fastcni.server.cluster.configured import read_configured
from fastcni.server.cluster.lost import LostNodes
from fastcni.server.cluster.member import Availability, Member
from fastcni.server.cluster.pods import Pods, blind
from fastcni.server.cluster.times import NEVER, Job, Times, spread
from fastcni.server.cluster.watch import ClusterWatch

CACHED, OTHER = ("net", "c", "eth0"), ("net", "other", "eth0")
CIDR = "10.0.0.64/26"


@pytest.fixture
def store(tmp_path):
    return LocalStore({"path": str(tmp_path / "store")})


@pytest.fixture
def silence(tmp_path):
    """Return a function silence(node) that makes the node's last heartbeat too old."""
    def silence(node):
        path = tmp_path / "store" / "store.json"
        data = json.loads(path.read_text())
        data["nodes"][node]["seen"] -= 2 * NODE_TTL_S
        path.write_text(json.dumps(data))
    return silence


@pytest.fixture
def lost_node(store, silence):
    """Return a node that has a block and whose heartbeats have stopped."""
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


def test_a_lost_node_is_looked_at_when_its_time_of_grace_ends(store, lost_node):
    """Once, the server checked a lost node only together with the other nodes. In a cluster of 1,000 nodes, this was 20
    minutes later."""
    watcher = observer(store, grace_s=100.0, nodes_s=3600.0)
    assert watcher.look(store, 1000.0) == watcher.look(store, 1050.0) == 1100.0
    assert watcher.look(store, 1100.0) >= 1100.0 + 3240.0


def test_the_first_look_at_nodes_is_at_a_random_time(store):
    watcher = observer(store, nodes_s=60.0)
    found = [watcher.first(1000.0) for _ in range(50)]
    assert 1000.0 <= min(found) < 1020.0 and 1040.0 < max(found) <= 1060.0


def test_a_sign_of_life_ends_the_time_of_grace(store, lost_node, silence):
    watcher = observer(store, grace_s=100.0)
    watcher.look(store, 1000.0)
    store.keep_alive(lost_node)
    watcher.look(store, 1050.0)
    silence("b")
    watcher.look(store, 1101.0)
    assert nodes_of(store)["b"] == (1, LOST)


def test_the_time_of_grace_begins_anew_after_the_store_was_away(store, lost_node):
    """While the store is unavailable, no node can send a heartbeat. So all nodes look LOST when the store is available
    again."""
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
    assert watcher.log.lines[1:] == [("cluster_node_forgotten", {
        "node": "b", "why": "local has no such node any more", "blocks": "free"})]


def test_reclaim_after_frees_the_blocks_of_a_dead_node(store, lost_node):
    watcher = observer(store, grace_s=0.0)
    watcher.reclaim_after_s = 50.0
    for now in (1.0, 2.0, 51.0):
        watcher.look(store, now)
    assert len(store.blocks()) == 1
    watcher.look(store, 52.0)
    assert store.blocks() == []
    assert watcher.log.lines[-1][1]["why"] == "dead for 50 s"


def test_a_declaration_that_was_cut_off_is_completed(store, lost_node, tmp_path):
    """In a store without transactions, a server can be killed after it has written the node's new epoch and before it
    writes the states of the blocks."""
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
    monkeypatch.setattr(store, "nodes", lambda: [Node(f"n{i}", 1, "boot", "", ALIVE) for i in range(3)])
    assert 54 <= observer(store, nodes_s=60.0).look(store, 0.0) <= 66


class TestWatch:
    @pytest.fixture
    def watch(self, store):
        """Yield a function watch(store) that starts a ClusterWatch. The event `woken` is set when the watch has
        changes."""
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


    @pytest.mark.parametrize("fault", [False, True])
    def test_the_pauses_grow_while_the_store_is_away(self, monkeypatch, fault):
        pauses, answers = [], [*[Away("no route")] * 6, None, *([ValueError()] if fault else []), Away("timed out")]
        monkeypatch.setattr(watch_module, "spread", lambda seconds: pauses.append(seconds) or 0)

        def watch(*_):
            if not answers:
                it.stop()
            elif (error := answers.pop(0)) is not None:
                raise error

        it = ClusterWatch(SimpleNamespace(watch=watch, name="fake"), None, None, Times(), Log())
        it._work()
        # After a fault, the watch waits as long as after the longest series of failures
        assert pauses[:8] == [0, 1, 2, 4, 8, 16, 20, 0]
        assert pauses[8:] == ([20, 20, 0] if fault else [1, 0])
        lost = [values["why"] for event, values in it.log.lines if event == "cluster_watch_lost"]
        assert lost == (["no route"] if fault else ["no route", "timed out"])


class TestTimes:
    @pytest.mark.parametrize("settings, changed", [
        ({}, {}),
        ({"node_ttl": 6, "dead_after": 30}, {"confirm_s": 2, "nodes_s": 6, "grace_s": 30}),
        ({"node_ttl": 600}, {"restored_s": 600}),
        ({"type": "kubernetes"}, {"write_s": 5}), ({"type": "etcd"}, {})])
    def test_the_settings_of_a_store_change_these_times(self, settings, changed):
        assert asdict(Times(list_s=7).with_settings(settings)) == {**asdict(Times()), "list_s": 7, **changed}

    def test_a_longer_time_between_writes_is_kept(self):
        assert Times(write_s=9.0).with_settings({"type": "kubernetes"}).write_s == 9.0

    def test_nodes_spread_their_work_by_a_tenth(self):
        found = [spread(100.0) for _ in range(200)]
        assert 90.0 <= min(found) < 93.0 and 107.0 < max(found) <= 110.0
        assert spread(0.0) == 0.0 and spread(NEVER) == NEVER


class TestMember:
    """A Member, which is this node in one store. Its thread does not run."""

    @pytest.fixture
    def member(self):
        it = Member(SimpleNamespace(name="fake"), "a", Times(), Log(), lambda: None)
        it.jobs = []
        return it

    def test_the_pauses_grow_while_the_store_is_away(self):
        away, pauses = Availability(Times()), []
        assert away.end(5.0) is None
        for at in range(7):
            assert away.begin(100.0 + at, f"error {at}") == (at == 0)
            pauses.append(away.pause)
            assert 0.9 * away.pause <= away.until - (100.0 + at) <= 1.1 * away.pause
        assert (pauses, away.since, away.why) == ([1, 2, 4, 8, 16, 20, 20], 100.0, "error 6")
        assert away.end(130.0) == 30.0
        assert (away.since, away.pause, away.until) == (None, 0.0, 0.0)

    def test_only_jobs_on_local_files_run_while_the_store_is_away(self, member):
        ran = []
        member.jobs = [Job(lambda now: ran.append("remote") or NEVER, 5.0),
                       Job(lambda now: ran.append("local") or now + 60, 7.0, remote=False)]
        member.away.until = 10.0
        assert member.due() == 7.0
        member.run(6.0)
        assert ran == []
        member.run(7.0)
        assert ran == ["local"] and member.due() == 10.0
        member.run(10.0)
        assert ran == ["local", "remote"] and member.due() == 67.0

    def test_a_job_that_fails_is_repeated(self, member):
        def fail(now):
            raise errors.pop(0)

        job, node = Job(fail, 0.0), Node("a", 2, "boot", "", ALIVE)
        member.failed = member.log.warning              # a method of the log that drops no repeated line
        errors = [ValueError(), OSError(24, "Too many open files"), Fenced(node), Away("no route")]
        for now in (100.0, 200.0):          # after the longest pause for an unavailable store
            member._run(job, now)
            assert now + 18 <= job.due <= now + 22 and member.confirm.due == NEVER
        member._run(job, 300.0)
        assert 300.9 <= job.due <= 301.1 and job.due == member.confirm.due == member.compare.due
        member._run(job, 400.0)
        assert job.due == 400.0 and member.away.why == "no route"
        assert [event for event, _ in member.log.lines] == [
            "server_fault", "cluster_failed", "cluster_changed", "cluster_store_away"]

    @pytest.mark.parametrize("epoch, former, forgotten, why", [
        (4, None, False, "the cluster had declared this node dead"), (3, None, False, None),
        (2, None, True, "the store had forgotten this node"),
        (3, 2, False, None), (4, 3, False, "the cluster had declared this node dead")])
    def test_a_node_that_returns_learns_why(self, member, epoch, former, forgotten, why):
        member.spaces = {("/", "s"): SimpleNamespace(state=SimpleNamespace(epoch=3))}
        member.node = Node("a", epoch, "boot", "", ALIVE)
        member._note_epoch(former and Node("a", former, "boot", "", ALIVE))
        assert [values["why"] for _, values in member.log.lines] == ([why] if why else [])
        assert member.forgotten == forgotten

    def test_heartbeats_begin_with_the_first_block(self, member):
        """A later call does not send the next heartbeat sooner."""
        assert member.confirm.due == NEVER
        member.wake()
        assert member.confirm.due == 0.0
        member.confirm.due = 500.0
        member.wake()
        assert member.confirm.due == 500.0

    def test_a_store_of_an_earlier_revision_was_restored(self, member):
        """The server stops the claims of each address space, and compares its blocks with the store immediately."""
        stopped = []
        member.spaces = {("/", "s"): SimpleNamespace(local=SimpleNamespace(stop_claims=lambda: stopped.append("s")))}
        member.lost.since["b", 1, LOST] = 5.0
        member.store.log = lambda: None
        for revision in (5, 6, 3):
            member.store.history = lambda found=("etcd-1", revision, 2): found
            member._check_history(100.0)
        ((event, values),) = member.log.lines
        assert (event, values["why"]) == ("cluster_store_restored", "revision 3 of etcd-1 after 6 of etcd-1")
        assert (stopped, member.restored, member.compare.due, member.lost.since) == (["s"], True, 100.0, {})
        assert member.restored_until == 100.0 + member.times.restored_s

    def test_a_store_whose_revision_has_grown_again_was_restored(self, member):
        member.store.history = lambda: ("etcd-1", 50, 4)
        for index in (54, 56, 53):
            member.store.log = lambda found=(index, 50): found
            member._check_history(100.0)
        ((event, values),) = member.log.lines
        assert (event, values["why"]) == (
            "cluster_store_restored", "its log is shorter than before, at revision 50 of etcd-1")

    def test_a_node_that_is_new_has_not_returned(self, member):
        member.spaces = {("/", "s"): SimpleNamespace(state=SimpleNamespace(epoch=0))}
        member.node = Node("a", 1, "boot", "", ALIVE)
        member._note_epoch(None)
        assert member.log.lines == [] and not member.forgotten

    @pytest.mark.parametrize("after, reclaim", [([], 0), ([50, 90], 90), ([50, 0], 0)])
    def test_dead_nodes_are_forgotten_if_each_network_says_so(self, member, after, reclaim):
        networks = {str(n): SimpleNamespace(reclaim_after=seconds) for n, seconds in enumerate(after)}
        member.spaces, member.node = {("/", "s"): SimpleNamespace(networks=networks)}, Node("a", 1, "boot", "", ALIVE)
        member.store.nodes = list
        member.nodes.run(0.0)
        assert member.lost.reclaim_after_s == reclaim

    def test_without_a_record_of_this_node_no_other_is_looked_at(self, member):
        assert 54.0 <= member.nodes.run(0.0) <= 66.0

    @pytest.mark.parametrize("record, gone, wanted", [
        (Node("a", 1, "boot", "", ALIVE), False, True), (Node("b", 1, "boot", "", ALIVE), False, False),
        (Block(space="s", cidr=CIDR, node="a"), False, False), (Block(space="s", cidr=CIDR, node="a"), True, True),
        (Block(space="s", cidr=CIDR, node="b"), False, True), (Block(space="t", cidr=CIDR, node="b"), True, False),
        (IPClaim(space="s", block=CIDR, node="b"), False, True),
        (IPClaim(space="t", block=CIDR, node="b"), False, False),
        (IPClaim(space="t", block=CIDR, node="a"), False, True)])
    def test_changes_are_wanted_of_this_node_and_its_blocks(self, member, record, gone, wanted):
        member.own = frozenset({("s", CIDR)})
        assert member._wanted(Event(record, gone)) == wanted


def test_cluster_addresses_are_found_anywhere_in_the_configurations():
    ipam = {"type": "cluster", "range": "10.0.0.0/24", "store": {"type": "local", "path": "/nowhere"}}
    own = {"name": "a", "type": "bridge", "ipam": ipam}
    found = read_configured([
        own, {"plugins": [{**own, "name": "b"}]}, {"delegates": ({**own, "name": "c"},)},
        {**own, "ipam": {"type": "host-local"}}, {"ipam": "cluster"}, "cluster", None,
        {**own, "ipam": {**ipam, "range": 7}}, {**own, "ipam": {**ipam, "type": "whereabouts", "range": 7}}])
    assert [str(keys.ranges[0]) for keys in found] == ["10.0.0.0/24"] * 3


class TestPods:
    def test_a_server_that_does_not_look_takes_no_pod_for_gone(self):
        assert not blind().is_gone(OTHER, "/nowhere/netns") and blind().unseen() == []

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
