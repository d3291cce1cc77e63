"""A server keeps a limited number of flows, and `fastcni top` shows the drops."""

import json

from fastcni.cli.text.top import View, frame
from fastcni.flows import last_flows
from fastcni.flows.flow import ALLOWED, DROPPED, POLICY, End, Flow
from fastcni.flows.last_flows import MAX_COUNTS, OTHER, SIZE, LastFlows
from fastcni.flows.pods import Pods
from fastcni.node.activity import summary


def flow(number, verdict=DROPPED, policy="shop/db", time=0.0):
    ends = (End(f"shop/{name}", "net", f"id-{name}", "10.0.0.1", port) for name, port in (("web", number), ("db", 80)))
    return Flow(time, verdict, POLICY, policy, "tcp", *ends, "inet fastcni-policy ingress")


def test_the_newest_flows_are_kept_and_all_are_counted():
    it = LastFlows(lambda: None)
    it.note([flow(number) for number in range(SIZE + 5)])
    found = json.loads(it.document())["flows"]
    assert [found[0]["source"]["port"], found[-1]["source"]["port"], len(found)] == [5, SIZE + 4, SIZE]
    assert it.copy_counts() == {(DROPPED, POLICY, "shop/db", "net"): SIZE + 5}


def test_too_many_policies_are_counted_together():
    it = LastFlows(lambda: None)
    it.note([flow(1, policy=f"shop/{number}") for number in range(MAX_COUNTS + 3)])
    assert len(it.copy_counts()) == MAX_COUNTS + 1
    assert it.copy_counts()[DROPPED, POLICY, OTHER, OTHER] == 3


def test_top_shows_how_many_flows_are_dropped_and_the_last_one(monkeypatch):
    monkeypatch.setattr(last_flows, "time", lambda: 100.0)
    it = LastFlows(lambda: None)
    it.note([flow(1, time=39.0), flow(2, time=41.0), flow(3, ALLOWED, time=42.0), flow(4, time=43.0)])
    server = {"version": "1", "pid": 1, "uptimeSeconds": 1.0, "running": 0, "waiting": 0, "queueSize": 1, "workers": 1}
    for flows, seen in ((it.summary(), True), (None, False)):
        node = summary.Node(server | {"flows": flows})
        document = summary.document(summary.Sample((), 0.0, 60.0), node, "")
        text = frame(document, View(), 120, 24).plain
        assert ("2 dropped in 60 s, the last: " in text) == seen
        assert ("tcp    shop/web@net > shop/db@net:80  by policy shop/db" in text) == seen


def test_a_result_that_a_del_removes_at_this_moment_is_no_error(tmp_path):
    """scandir(3) still names the removed file. A symbolic link without a target has the same effect. Once, the error
    ended the flows of the node."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "net-ctr-eth0").symlink_to("removed")
    pods = Pods([str(tmp_path)])
    pods.refresh()
    assert pods.by_address == {}
