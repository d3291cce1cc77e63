"""The sources of pods and of network definitions that a node's configurations need. The tests have no API server."""

import os
from types import SimpleNamespace

import pytest
from unit.server.flushed import Log
from unit.server.test_watched_pods import WEB, Objects, web

from fastcni.server.networks import sources
from fastcni.server.networks.sources import NetworkSources
from fastcni.server.networks.watch import WatchThread


@pytest.fixture
def networks(tmp_path, monkeypatch):
    """Return a function networks(*configurations) that makes NetworkSources with these configurations. Its attribute
    opened lists the keys of the opened sources, and started lists the watches and the hot plug that the sources tried
    to start."""
    opened, started = [], []
    monkeypatch.setattr(WatchThread, "start", lambda self: started.append(self.path.rpartition("/")[2]))
    monkeypatch.setattr(sources.HotPlug, "start", lambda self: started.append("hot plug"))

    def source_of(keys):
        def open_objects():
            opened.append(keys.kubeconfig)
            return Objects(tmp_path)
        return keys.kubeconfig, open_objects

    monkeypatch.setattr(sources.chosen, "source_of", source_of)

    def make(*configurations):
        it = NetworkSources(-1, Log(), lambda: configurations, "node-1")
        it.opened, it.started = opened, started
        it.attach(SimpleNamespace(records=SimpleNamespace(receivers=[])))
        it.learn()
        assert it.log.lines == []
        return it

    return make


def multus(kubeconfig="/k", **more):
    return {"name": "a", "type": "multus", "cniVersion": "1.1.0", "kubeconfig": kubeconfig,
            "delegates": [{"type": "bridge"}], **more}


PASSED = {"capabilities": {"io.kubernetes.cri.pod-annotations": True}}


def test_a_source_is_opened_once_for_each_kubeconfig(networks):
    it = networks(multus(), multus(name="b"), multus("/other", type="multus-shim"), {"type": "bridge"}, "no object",
                  multus("relative"), {k: v for k, v in multus().items() if k != "kubeconfig"})
    it.keep()
    assert it.opened == ["/k", "/other"] == [*it.sources] and len(it.describe()) == 2
    it.stop()
    assert [source.objects.asked for source in it.sources.values()] == [["close"], ["close"]]


@pytest.mark.parametrize("more, wanted, hot", [({}, True, False), (PASSED, False, False),
                                               ({**PASSED, "hotPlug": True}, True, True)])
def test_pods_are_watched_if_requests_or_hot_plug_need_them(networks, more, wanted, hot):
    it = networks(multus(**more))
    assert (it.sources["/k"].pods_wanted, [*it.hot_plugs]) == (wanted, ["/k"] * hot)
    assert it.acceptor.records.receivers == [it.note] * hot


def test_a_changed_configuration_is_that_of_later_updates(networks):
    it = networks(multus(hotPlug=True))
    before, new = it.hot_plugs["/k"], multus(hotPlug=True, binDir="/new")
    it.configured = lambda: [new]
    it.keep()
    assert it.hot_plugs["/k"] is before and before.conf == new
    assert len(it.acceptor.records.receivers) == 1


def test_hot_plug_ends_when_no_configuration_has_it_any_more(networks):
    """Once, the server still changed running pods until its restart."""
    it = networks(multus(hotPlug=True))
    before = it.hot_plugs["/k"]
    it.configured = lambda: [multus()]
    it.keep()
    it.sources["/k"].pods.changed(WEB, web())
    assert it.hot_plugs == before.due == {} and before.stopping.is_set()
    it.configured = lambda: [multus(), multus(name="b", hotPlug=True)]
    it.keep()
    it.keep()
    assert it.hot_plugs["/k"] is not before and it.acceptor.records.receivers == [it.note]


def test_configurations_that_cannot_be_read_end_no_hot_plug(networks):
    it = networks(multus(hotPlug=True))
    it.configured = lambda: 1 / 0
    it.keep()
    assert [*it.hot_plugs] == ["/k"] and [event for event, _ in it.log.lines] == ["server_fault"]


@pytest.mark.parametrize("command, plugin, compared", [("ADD", "multus", True), ("ADD", "bridge", False),
                                                       ("DEL", "multus", False)])
def test_pods_are_compared_when_an_add_of_multus_has_ended(networks, command, plugin, compared):
    it = networks(multus(hotPlug=True))
    it.sources["/k"].pods.found[WEB] = web()
    it.note(SimpleNamespace(call=SimpleNamespace(command=command, message=SimpleNamespace(plugin=plugin))))
    assert [*it.hot_plugs["/k"].due] == [WEB] * compared


def test_what_could_not_be_started_is_started_later(networks):
    """Python sometimes cannot start a thread, so the server tries again."""
    it = networks(multus(hotPlug=True))
    first = ["network-attachment-definitions", "pods", "hot plug"]
    assert it.started == first
    it.started.clear()
    it.keep()
    assert {*it.started} == {*first}


@pytest.mark.parametrize("node, variable, found", [("n", "x", "n"), ("", "x", "x"),
                                                   pytest.param("", "", os.uname().nodename.lower(), id="host")])
def test_the_pods_of_this_node_are_watched(monkeypatch, node, variable, found):
    monkeypatch.setenv("NODE_NAME", variable)
    assert NetworkSources(-1, Log(), node=node).node == found


def test_after_a_stop_nothing_is_started_or_written(networks):
    it = networks(multus())
    source = it.sources["/k"]
    source.unwritten[WEB] = "uid-1", "x"
    it.keep()
    assert [asked[:2] for asked in source.objects.asked] == [WEB]
    source.unwritten[WEB] = "uid-1", "x"
    it.stop()
    it.configured = lambda: [multus(hotPlug=True)]
    it.started.clear()
    it.keep()
    it.objects("new", lambda: source.objects)
    assert it.hot_plugs == {} and it.started == ["pods"] and source.objects.asked[1:] == ["close"]
