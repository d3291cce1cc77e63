"""A restarted agent reads the records of all Nodes from its file, and asks the API server only for changes."""

import json
import time

import pytest
from cluster.agent.kubernetes_nodes import ME, P, stored
from cluster.agent.test_kubernetes_watch import Watching, member
from cluster.kubernetes.api_server import merged

from fastcni.agent.registries import kubernetes, record_file
from fastcni.testing.witnesses import eventually

LISTED = "limit=500&resourceVersion=0"


@pytest.fixture
def agent(mock, registry, tmp_path):
    """Return a function that makes an agent of the node n1. The agent has joined the network."""
    def make(**more):
        it = registry(kept=str(tmp_path / "nodes"), **more)
        it.join(it.conf(), ME)
        return it

    mock.do(lambda api: [api.put("nodes", member(number)) for number in (3, 4)])
    return make


def lists(watching):
    return [query for path, query in watching.asked() if path == "/api/v1/nodes" and "watch" not in query]


def live(mock, it, names):
    """Let an agent watch until it has seen these nodes. Return (its lists, the nodes of its last change)."""
    with Watching(mock, it) as watching:
        assert eventually(lambda: watching.seen and watching.seen[-1].keys() == names), watching.seen
        assert eventually(lambda: any("watch=true" in query for _, query in watching.asked()))
    return lists(watching), watching.seen[-1]


ALL = {"n1", "n3", "n4"}


def test_a_restart_lists_nothing_and_sees_what_has_changed(mock, agent):
    first, before = live(mock, agent(), ALL)
    assert first == [LISTED]
    changed = merged(stored(mock, "n4"), {"metadata": {"annotations": {f"{P}/public-ip": "192.0.2.44"}}})
    mock.do(lambda api: (api.drop("nodes", "n3"), api.put("nodes", member(5)), api.put("nodes", changed)))
    with Watching(mock, agent()) as watching:
        assert eventually(lambda: watching.seen and watching.seen[-1].keys() == {"n1", "n4", "n5"}
                          and str(watching.seen[-1]["n4"].public[4]) == "192.0.2.44")
        assert watching.seen[0] == before
        assert lists(watching) == ["limit=1"]
    assert live(mock, agent(), {"n1", "n4", "n5"}) == (["limit=1"], watching.seen[-1])


def test_after_an_expired_revision_all_nodes_are_listed_once(mock, agent):
    live(mock, agent(), ALL)

    def forget(api):
        api.drop("nodes", "n3")
        api.compact()

    mock.do(forget)
    assert live(mock, agent(), {"n1", "n4"})[0] == ["limit=1", LISTED]


def test_after_a_restore_of_etcd_all_nodes_are_listed(mock, agent):
    live(mock, agent(), ALL)

    def restore(api):
        api.drop("nodes", "n3")
        api.revision, api.changes = 1, []

    mock.do(restore)
    assert live(mock, agent(), {"n1", "n4"})[0][-1] == LISTED


@pytest.mark.parametrize("how", ["damaged", "cut off", "old", "of another cluster", "of other annotations", "left"])
def test_a_file_that_may_be_wrong_is_not_used(mock, agent, tmp_path, monkeypatch, how):
    first = agent()
    live(mock, first, ALL)
    path, more, names = tmp_path / "nodes", {}, ALL
    if how == "damaged":
        path.write_text(path.read_text().replace("192.0.2.3", "192.0.2.9"))
    elif how == "cut off":
        path.write_text(path.read_text()[:200])
    elif how == "old":
        now = time.time()
        monkeypatch.setattr(kubernetes.time, "time", lambda: now + kubernetes.MAX_KEPT_S + 1)
    elif how == "of another cluster":
        mock.do(lambda api: (api.drop("nodes", "n1"), api.put("nodes", {
            **member(1), "metadata": {"name": "n1", "annotations": {}}})))
    elif how == "of other annotations":
        more, names = {"annotation_prefix": "example.com"}, {"n1"}
    else:
        first.leave(first.join(first.conf(), ME))
        assert not path.exists()
    assert live(mock, agent(**more), names)[0] == [LISTED]


def test_the_file_has_a_record_as_the_annotations_publish_it(mock, agent, tmp_path):
    live(mock, agent(), ALL)
    document = json.loads((tmp_path / "nodes").read_text().partition("\n")[2])
    assert document["nodes"]["n1"].items() <= stored(mock)["metadata"]["annotations"].items()


def test_restarted_agents_ask_after_a_random_time_that_grows_with_the_nodes(mock, agent, monkeypatch):
    """The test replaces random.uniform() and the wait."""
    live(mock, agent(), ALL)
    again, waited = agent(), []
    wait = again.wait
    monkeypatch.setattr(record_file.random, "uniform", lambda low, high: high)
    monkeypatch.setattr(again, "wait", lambda seconds: (waited.append(seconds), wait(seconds))[1])
    live(mock, again, ALL)
    assert waited[0] == record_file.START_S_OF_A_RECORD * len(ALL)
