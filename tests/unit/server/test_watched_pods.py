"""The server keeps the pods and the network definitions that its watches receive. The tests also cover its requests to
the API server. The tests of a running server are in tests/cluster/kubernetes/test_networks.py."""

import os
import threading
import tracemalloc

import pytest
from unit.server.flushed import Log

from fastcni.clients.errors import Away
from fastcni.clients.kubernetes_watch import KindWatch
from fastcni.kernel import netns
from fastcni.kit.networks.api_objects import DEFINITIONS, PODS, Pod, read_definition
from fastcni.kit.networks.copies import Copies, Stored
from fastcni.kit.networks.selection import NETWORKS
from fastcni.server.networks import watch, watched
from fastcni.server.networks.watch import WatchThread
from fastcni.server.networks.watched import WatchedObjects
from fastcni.testing.witnesses import eventually

MAX_BYTES = 2 << 20             # for 1,000 pods; the daemon of Multus takes 3.9 MB


def pod(number):
    """Return a pod as the API server sends it, about 3 kB."""
    return {"metadata": {"name": f"web-{number:05}", "namespace": f"shop-{number % 20}", "uid": f"{number:036}",
                         "resourceVersion": str(number), "labels": {f"label-{i}": f"{number}-{i}" for i in range(8)},
                         "annotations": {NETWORKS: f"storage,backup@bak{number % 5}", "notes": f"{number} " * 100}},
            "spec": {"containers": [{"name": "web", "env": [{"name": f"NAME_{i}", "value": f"{number} {i}" * 5}
                                                            for i in range(20)]}]}}


class Api:
    """An API server that has 1,000 pods. Its watch() measures the memory in use after the list, and ends."""

    size = 0

    def list_with_revision(self, *_):
        return [pod(number) for number in range(1000)], "1000"

    def watch(self, *_):
        self.size, _ = tracemalloc.get_traced_memory()
        return iter(())


def test_a_thousand_watched_pods_take_less_than_two_megabytes():
    api, watch = Api(), WatchThread(None, PODS, Pod, None, -1)
    tracemalloc.start()
    try:
        KindWatch(api, PODS, PODS, watch._tell, watch._list_ended).follow(lambda: api.size > 0)
    finally:
        tracemalloc.stop()
    assert len(watch.found) == 1000
    print(f"{api.size:,} bytes")
    assert api.size < MAX_BYTES


# -- one watch -----------------------------------------------------------------------------------------------------


def definition(name, config="{}"):
    return {"metadata": {"name": name, "namespace": "shop", "resourceVersion": "1"}, "spec": {"config": config}}


class Lists:
    """An API server that gives each connection the next of these lists. If it is an exception, the connection fails.
    After the last list, the connection stays open."""

    def __init__(self, *lists):
        self.lists, self.tried = [*lists], 0

    def list_with_revision(self, *_):
        self.tried += 1
        found = self.lists.pop(0)
        if isinstance(found, Exception):
            raise found
        return found, "1"

    def watch(self, path, revision, stop, *_):
        if self.lists:
            raise Away("closed")
        while not stop():
            threading.Event().wait(0.01)
        return iter(())

    def close(self):
        """Do nothing, because nothing is open."""


@pytest.fixture
def home():
    fd = netns.open_own()
    yield fd
    os.close(fd)


@pytest.fixture
def run(home, monkeypatch):
    """Yield a function run(*lists) that starts a WatchThread of definitions. The attribute `changes` lists the calls
    of changed()."""
    monkeypatch.setattr(watch, "RETRY_S", 0.01)
    made = []

    def make(*lists):
        changes = []
        it = WatchThread(Lists(*lists), DEFINITIONS, read_definition, Log(), home,
                         changed=lambda key, kept: changes.append((key[1], kept and kept.config)),
                         complete=lambda: changes.append("complete"))
        it.changes = changes
        made.append(it)
        it.start()
        return it

    yield make
    for it in made:
        it.stop()
        it.join()
        assert not it.thread.is_alive()


def test_an_object_that_a_later_list_lacks_is_gone(run):
    """The object was deleted while the watch was not connected, so no event reports it."""
    it = run([definition("b"), definition("c", "old")], [definition("c", "new")])
    assert eventually(lambda: it.changes.count("complete") == 2 and it.current)
    assert it.changes == [("b", "{}"), ("c", "old"), "complete", ("c", "new"), ("b", None), "complete"]
    assert {key[1]: kept.config for key, kept in it.found.items()} == {"c": "new"}


def test_a_lost_connection_is_logged_once_until_it_is_restored(run):
    it = run(Away("no route"), Away("timed out"), [definition("b")])
    assert eventually(lambda: it.current)
    assert it.log.lines == [("networks_watch_lost", {"path": DEFINITIONS, "why": "no route"}),
                            ("networks_watch_restored", {"path": DEFINITIONS})]


def test_a_fault_ends_no_watch(run):
    it = run(ZeroDivisionError(), [definition("b")])
    assert eventually(lambda: it.current)
    assert [event for event, _ in it.log.lines] == ["server_fault", "networks_watch_restored"]


def test_a_first_connection_that_works_is_no_event(run):
    it = run([definition("b")])
    assert eventually(lambda: it.current)
    assert it.log.lines == []


def test_a_watch_is_not_current_before_its_list_and_while_it_is_lost():
    it = WatchThread(None, PODS, Pod, Log(), -1)
    assert not it.current
    it._list_ended(PODS)
    assert it.current
    it.why = "no route"
    assert not it.current


def test_a_watch_that_was_stopped_starts_no_thread():
    it = WatchThread(None, PODS, Pod, Log(), -1)
    it.stop()
    it.start()
    assert it.thread is None


# -- what requests get ---------------------------------------------------------------------------------------------

WEB = ("shop", "web")


class Objects:
    """ApiObjects that record their requests. If away is not "", write_status() raises Away with it."""

    def __init__(self, directory):
        self.api, self.copies, self.asked, self.away = Lists(), Copies(str(directory)), [], ""

    def pod(self, *key):
        self.asked.append(key)
        return "pod of the API"

    def definition(self, *key):
        self.asked.append(key)
        return "definition of the API"

    def write_status(self, *what):
        self.asked.append(what)
        if self.away:
            raise Away(self.away)

    def close(self):
        self.asked.append("close")


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Return a WatchedObjects whose watches have received a list and do not run."""
    monkeypatch.setattr(watched, "SEEN_S", 0.05)
    monkeypatch.setattr(watched, "FIRST_LIST_S", 0.05)
    monkeypatch.setattr(WatchThread, "start", lambda self: None)
    it = WatchedObjects(Objects(tmp_path), "node-1", Log(), -1)
    it.definitions.listed = it.pods.listed = True
    return it


def web(uid="uid-1"):
    return Pod({"metadata": {"uid": uid}})


def test_a_pod_of_the_watch_is_used_also_while_the_watch_is_lost(source):
    source.pods.found[WEB] = web()
    assert source.pod(*WEB, "uid-1") is source.pod(*WEB, "") is source.pods.found[WEB]
    source.pods.why = "no route"
    assert source.pod(*WEB, "uid-1") is source.pods.found[WEB]
    assert source.objects.asked == [] and source.pods_wanted


def test_the_api_is_asked_for_a_pod_that_the_watch_does_not_have(source):
    """A pod of the same name can be an earlier one, with another uid."""
    source.pods.found[WEB] = web("uid-2")
    assert source.pod(*WEB, "uid-1") == "pod of the API"
    assert source.objects.asked == [(*WEB, "uid-1")]


def test_a_pod_that_the_watch_sees_soon_is_waited_for(source, monkeypatch):
    monkeypatch.setattr(watched, "SEEN_S", 30.0)
    timer = threading.Timer(0.05, source.pods.found.__setitem__, (WEB, web()))
    timer.start()
    assert source.pod(*WEB, "uid-1") is source.pods.found[WEB]
    timer.join()


def test_a_definition_of_a_lost_watch_is_asked_for(source):
    """The server's own copy may be outdated. If the API server does not answer either, ApiObjects reports that its copy
    is stale."""
    source.definitions.found["shop", "b"] = Stored("{}")
    assert source.definition("shop", "b") is source.definitions.found["shop", "b"]
    assert source.objects.asked == []
    source.definitions.why = "no route"
    assert source.definition("shop", "b") == "definition of the API"
    assert source.definition("shop", "c") == "definition of the API"


def test_the_first_list_is_waited_for_unless_its_connection_has_failed(source, monkeypatch):
    monkeypatch.setattr(watched, "FIRST_LIST_S", 30.0)
    it = source.definitions
    it.listed, it.why = False, "no route"
    source._await_list(it)              # after a failed connection, this returns immediately
    it.why = ""
    timer = threading.Timer(0.05, it._list_ended, (DEFINITIONS,))
    timer.start()
    source._await_list(it)
    assert it.listed
    timer.join()


def test_copies_of_definitions_that_the_list_lacks_are_removed(source):
    copies = source.objects.copies
    for name in "bc":
        copies.keep("shop", name, Stored("{}"))
    source.definitions.found["shop", "c"] = Stored("{}")
    source.definitions.complete()
    assert sorted(copies.names()) == [("shop", "c")]
    source.definitions.changed(("shop", "d"), Stored("new"))
    assert copies.read("shop", "d").config == "new"


def test_copies_that_cannot_be_listed_are_logged(source, tmp_path):
    (tmp_path / "definitions").write_text("")
    source.definitions.complete()
    assert [event for event, _ in source.log.lines] == ["networks_copies_unreadable"]


def test_a_closed_source_ends_its_watches_before_it_waits_for_them(source, monkeypatch):
    joined = []
    for it in (source.definitions, source.pods):
        monkeypatch.setattr(it, "join", lambda it=it: joined.append((it, source.definitions.stopping.is_set()
                                                                     and source.pods.stopping.is_set())))
    source.close()
    assert joined == [(source.definitions, True), (source.pods, True)] and source.objects.asked == ["close"]


# -- statuses ------------------------------------------------------------------------------------------------------


def test_a_status_that_could_not_be_written_is_written_later(source):
    source.objects.away = "timed out"
    with pytest.raises(Away, match="timed out"):
        source.write_status(*WEB, "uid-1", "old")
    source.keep()
    assert source.describe()["statusesUnwritten"] == 1
    source.objects.away, source.objects.asked = "", []
    source.keep()
    source.keep()
    assert source.objects.asked == [(*WEB, "uid-1", "old", watched.WRITE_TIMEOUT_S)]
    assert source.describe() == {"definitions": 0, "pods": 0, "statusesUnwritten": 0}


def test_no_request_tries_to_write_while_the_watch_is_lost(source):
    """Otherwise, each ADD would wait until the write of its status timed out."""
    source.definitions.why = "no route"
    with pytest.raises(Away, match="no route"):
        source.write_status(*WEB, "uid-1", "new")
    assert source.objects.asked == [] and source.unwritten == {WEB: ("uid-1", "new")}
    assert source.describe()["why"] == "no route"


def test_a_newer_status_replaces_one_that_waits(source):
    source.unwritten[WEB] = "uid-1", "old"
    source.write_status(*WEB, "uid-1", "new")
    source.keep()
    assert source.objects.asked == [(*WEB, "uid-1", "new", watched.STATUS_TIMEOUT_S)]


def test_a_status_that_is_replaced_while_an_older_one_is_written_stays(source, monkeypatch):
    source.unwritten[WEB] = "uid-1", "old"
    monkeypatch.setattr(source.objects, "write_status",
                        lambda *_: source.unwritten.__setitem__(WEB, ("uid-2", "new")))
    source.keep()
    assert source.unwritten == {WEB: ("uid-2", "new")}


def test_a_status_that_the_api_rejects_keeps_no_other_from_being_written(source, monkeypatch):
    """Once, the webhook of one namespace rejected the change, and after an outage no status of the node was written any
    more."""
    written = []

    def write(namespace, name, *_):
        if name == "bad":
            raise Away("status 403: denied")
        written.append(name)

    monkeypatch.setattr(source.objects, "write_status", write)
    source.unwritten |= {("shop", name): ("", "x") for name in ("bad", "a", "b")}
    source.keep()
    # after an error, the server tries no other status at first, because the API server may be unavailable
    assert written == []
    source.keep()
    assert written == ["a", "b"] and [*source.unwritten] == [("shop", "bad")]


def test_the_number_of_waiting_statuses_is_limited(source, monkeypatch):
    monkeypatch.setattr(watched, "MAX_UNWRITTEN", 2)
    source.objects.away = "timed out"
    for name in "abc":
        with pytest.raises(Away):
            source.write_status("shop", name, "", "x")
    assert [*source.unwritten] == [("shop", "a"), ("shop", "b")]
