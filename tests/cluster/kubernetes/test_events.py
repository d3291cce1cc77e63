"""Kubernetes Events of the server, with the API mock."""

import json
import time
from types import SimpleNamespace

import pytest
from cluster.kubernetes.api_server import documents, kubeconfig
from unit.server.client import Server
from unit.server.flushed import Log

from fastcni.clients.errors import Away, Rejected
from fastcni.daemon import kubernetes_events, log
from fastcni.daemon.kubernetes_events import MAX_SERIES, KubernetesEvents
from fastcni.testing.witnesses import eventually

FULL = {"network": "net-a", "range": "10.1.0.0/24", "held": 91, "free": 9}
RULES = [{**rule, "namespace": "default"} for rule in documents("kubernetes-events.yaml")[0]["rules"]]


@pytest.fixture
def path(mock, tmp_path):
    """Return the path of a kubeconfig whose user has the rights that the manifest of deploy/ gives."""
    mock.do(lambda api: setattr(api, "rules", RULES))
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig(mock.url))
    return str(path)


@pytest.fixture
def events(path):
    it = KubernetesEvents(path, "node-a")
    it.attach(SimpleNamespace(logger=Log()))
    yield it
    it.stop()
    it.api.close()


def stored(mock):
    """Return the Events in the API server, the oldest first."""
    found = mock.do(lambda api: [it for (kind, _, _), it in api.stored.items() if kind.plural == "events"])
    return sorted(found, key=lambda it: int(it["metadata"]["resourceVersion"]))


def receive(events, name="pool_nearly_full", **fields):
    events.receive({"event": name, **(fields or FULL)})


def test_a_line_is_an_event_of_the_node(mock, events):
    receive(events)
    assert events.send_due() is None
    event, = stored(mock)
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}
    assert (event["type"], event["reason"]) == ("Warning", "PoolNearlyFull") and "series" not in event
    assert event["note"] == ("Pods hold more than 90% of a range of host-local. "
                             "network=net-a range=10.1.0.0/24 held=91 free=9")


def test_lines_about_one_thing_are_one_event_with_a_number(mock, events, monkeypatch):
    for _ in range(3):
        receive(events)
    events.send_due()
    for _ in range(4):
        receive(events)
    assert 0 < events.send_due() <= kubernetes_events.SERIES_S      # the next count is sent later
    assert [it["series"]["count"] for it in stored(mock)] == [3]
    monkeypatch.setattr(kubernetes_events, "SERIES_S", 0.0)
    for one in events.series.values():
        one.due = 0.0
    events.send_due()
    event, = stored(mock)
    assert event["series"]["count"] == 7
    assert event["series"]["lastObservedTime"] >= event["eventTime"]


def test_other_things_are_other_events(mock, events):
    receive(events)
    receive(events, "pool_nearly_full", **{**FULL, "network": "net-b"})
    receive(events, "pool_recovered", **FULL)
    events.send_due()
    assert [it["reason"] for it in stored(mock)] == ["PoolNearlyFull", "PoolNearlyFull", "PoolRecovered"]
    assert stored(mock)[-1]["type"] == "Normal"


def test_other_lines_and_other_fields_are_not_sent(mock, events):
    receive(events, "request_done", command="ADD")
    receive(events, "pool_nearly_full", **FULL, secret="geheim")
    events.send_due()
    event, = stored(mock)
    assert "geheim" not in event["note"]


def test_a_long_or_odd_text_is_cut_to_what_the_api_takes(mock, events):
    receive(events, "rules_replayed", gone="\udcff\x1b" + "\u00e9" * 3000, by="x")
    events.send_due()
    event, = stored(mock)
    assert 1000 < len(event["note"].encode()) <= kubernetes_events.MAX_NOTE


def test_an_event_that_the_api_server_has_removed_is_made_anew(mock, events):
    receive(events)
    events.send_due()
    mock.do(lambda api: api.drop("events.events.k8s.io", stored_name(api), "default"))
    receive(events)
    events.send_due(everything=True)
    assert [it["series"]["count"] for it in stored(mock)] == [2]


def stored_name(api):
    return next(name for (kind, _, name) in api.stored if kind.plural == "events")


def test_an_api_server_that_is_away_gets_all_later(mock, events):
    mock.do(lambda api: api.next.extend([(500, {})] * 2))
    receive(events)
    assert events.send_due() == kubernetes_events.RETRY_S
    assert [name for name, _ in events.log.lines] == ["kubernetes_event_unsent"]
    receive(events)
    events.send_due()
    events.send_due()
    assert [it["series"]["count"] for it in stored(mock)] == [2]


def test_an_event_that_the_api_rejects_keeps_no_other_from_being_sent(events, monkeypatch):
    """The server sent the waiting Events in order and stopped at the first error, for example an Event that a webhook
    rejects."""
    sent = []

    def create(_, event):
        if "network=bad" in event["note"]:
            raise Rejected("status 403: denied")
        sent.append(event["note"].partition("network=")[2][:1])

    monkeypatch.setattr(events.api, "create", create)
    for network in ("bad", "a", "b"):
        receive(events, **{**FULL, "network": network})
    events.send_due()
    assert sent == []                   # the API server may be unavailable
    events.send_due()
    assert sent == ["a", "b"]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_invalid_event_is_dropped_with_one_log_line_and_delays_no_other(mock, events, status):
    """Once, the server sent such an Event again every 10 s without end."""
    mock.do(lambda api: api.next.append((status, {})))
    receive(events, **{**FULL, "network": "bad"})
    receive(events, **{**FULL, "network": "good"})
    assert events.send_due() is None and events.send_due(everything=True) is None
    assert ["network=good" in it["note"] for it in stored(mock)] == [True]
    (name, fields), = events.log.lines
    assert (name, fields["reason"]) == ("kubernetes_event_unsent", "PoolNearlyFull")
    assert f"status {status}" in fields["why"]


def test_a_forbidden_event_is_sent_when_the_right_is_given(mock, events):
    """A quota, or access rights that an administrator adds later, may let the same request pass."""
    mock.do(lambda api: api.next.append((403, {})))
    receive(events)
    assert events.send_due() == kubernetes_events.RETRY_S and not stored(mock)
    events.send_due()
    assert [it["reason"] for it in stored(mock)] == ["PoolNearlyFull"]


def test_a_create_whose_answer_was_lost_makes_one_event(mock, events, monkeypatch):
    """If the connection breaks before the answer, the client sends the create request again."""
    create = events.api.create
    monkeypatch.setattr(events.api, "create", lambda *args: (create(*args), create(*args)))
    receive(events)
    events.send_due()
    receive(events)
    events.send_due(everything=True)
    assert [it["series"]["count"] for it in stored(mock)] == [2]


def test_the_table_is_bounded(events):
    events.api.create = raising([Away("away")])
    for at in range(MAX_SERIES + 50):
        receive(events, "pool_nearly_full", **{**FULL, "network": f"net-{at}"})
    assert len(events.series) == MAX_SERIES
    events.send_due()
    assert events.log.lines[0] == ("kubernetes_event_unsent", {
        "lines": 50, "why": f"{MAX_SERIES} others wait", "left_out": 0})


def raising(errors):
    def create(*_):
        raise errors[0]
    return create


def test_what_was_sent_makes_room(events, monkeypatch):
    monkeypatch.setattr(events.api, "create", lambda *_: None)
    for at in range(MAX_SERIES):
        receive(events, "pool_nearly_full", **{**FULL, "network": f"net-{at}"})
    events.send_due()
    receive(events, "server_fault")
    assert len(events.series) == MAX_SERIES and events.left_out == 0


def test_deletes_of_many_pods_that_are_repeated_are_one_event(events):
    for at in range(300):
        receive(events, "delete_retried", plugin="bridge", network="net-a", container=f"c-{at}", ifname="eth0")
    assert [one.count for one in events.series.values()] == [300]


def test_an_api_server_that_is_away_is_asked_once_in_a_while(events, monkeypatch):
    tried = []
    monkeypatch.setattr(events.api, "create", lambda *_: tried.append(1) or raising([Away("away")])())
    events.start()
    for at in range(20):
        receive(events, "pool_nearly_full", **{**FULL, "network": f"net-{at}"})
        time.sleep(0.02)
    assert len(tried) == 1


def test_a_series_without_lines_ends(mock, events, monkeypatch):
    receive(events)
    events.send_due()
    monkeypatch.setattr(kubernetes_events, "ENDED_S", -1.0)
    events.send_due()
    assert not events.series


def test_the_stop_sends_what_waits(mock, events):
    receive(events)
    events.start()
    assert eventually(lambda: len(stored(mock)) == 1)
    receive(events)                     # within SERIES_S
    events.stop()
    assert not events.thread.is_alive()
    assert [it["series"]["count"] for it in stored(mock)] == [2]


def test_a_stop_does_not_wait_for_an_api_server_that_hangs(events, monkeypatch):
    monkeypatch.setattr(events.api, "create", lambda *_: time.sleep(3))
    receive(events)
    events.start()
    started = time.monotonic()
    events.stop()
    assert time.monotonic() - started < 2


def test_without_a_kubeconfig_the_log_says_so(tmp_path):
    it = KubernetesEvents(str(tmp_path / "none"), "node-a")
    it.attach(SimpleNamespace(logger=Log()))
    receive(it)
    assert it.send_due() == kubernetes_events.RETRY_S
    assert "kubeconfig" in it.log.lines[0][1]["why"]


def test_each_line_of_the_log_is_received(events, capsys):
    logger = log.make("info", "logfmt", receivers=[events.receive])
    logger.warning("pool_nearly_full", **FULL)
    logger.info("request_done", command="ADD")
    assert [one.event for one in events.series.values()] == ["pool_nearly_full"]
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_server_reports(host_netns, mock, path, tmp_path):
    """A DEL that fails twice causes an Event."""
    conf = {"cniVersion": "1.1.0", "name": "net-a", "type": "bridge", "ipam": {"type": "nobody-has-this"}}
    with Server(tmp_path, "--kubernetes-events", path) as server:
        for _ in range(2):
            server.call("DEL", conf, "/nowhere", cid="web-1")
        assert eventually(lambda: stored(mock)), server.log_text()
    event, = stored(mock)
    assert event["reason"] == "DeleteRetried" and "container=web-1" in event["note"], json.dumps(event)
