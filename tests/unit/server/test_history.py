"""A server's last requests, and the story of a request that has failed."""

import json
import time

import pytest

from fastcni._steps import Steps
from fastcni.server import control
from fastcni.server.records import history, secrets, stories
from fastcni.server.records.ended import Ended, Phases
from fastcni.testing.witnesses import eventually

STEP_BYTES = 100        # the size that _steps.pyx counts for each step


class Message:
    def __init__(self, number, container="c1", stdin=b'{"name": "net"}'):
        self.id, self.pid, self.plugin, self.stdin = f"ab-{number}", 7, "bridge", stdin
        self.env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": container, "CNI_IFNAME": "eth0"}


class Call:
    command, network, waited = "ADD", "net", 0.25

    def __init__(self, message):
        self.message, self.arrived = message, time.monotonic() - self.waited


def ended(number=1, outcome="0", error="", **more):
    phases = Phases()
    phases.steps = Steps(stories.MAX_BYTES)
    return Ended(Call(Message(number, **more)), outcome, 0.05, 0.2, phases, error)


def asked(past, **variables):
    return json.loads(past.document({name: str(value) for name, value in variables.items()}))


def numbers(past, **variables):
    return [entry["number"] for entry in asked(past, **variables)["requests"]]


@pytest.fixture
def past():
    """Return a history that keeps three of five requests."""
    past = history.History(3)
    for number in range(1, 6):
        past.note(ended(number))
    return past


def test_the_newest_come_without_after_and_the_next_ones_with_it(past):
    assert numbers(past) == [3, 4, 5]
    assert numbers(past, LIMIT=2) == [4, 5]
    assert numbers(past, AFTER=3) == [4, 5]
    assert numbers(past, AFTER=3, LIMIT=1) == [4]
    assert numbers(past, AFTER=5) == [] and asked(past, AFTER=5)["next"] == 5
    assert numbers(past, LIMIT=1) == [5] and numbers(past, LIMIT=0) == []
    assert asked(past)["next"] == 5 and asked(past, AFTER=3, LIMIT=1)["next"] == 4


def test_an_empty_history_misses_nothing():
    found = asked(history.History(3))
    assert (found["first"], found["next"], found["lost"], found["requests"]) == (1, 0, 0, [])


def test_dropped_requests_are_counted(past):
    assert asked(past, AFTER=1)["lost"] == 1
    assert asked(past, AFTER=2)["lost"] == asked(past, AFTER=4)["lost"] == asked(past)["lost"] == 0


def test_the_number_of_an_earlier_server_asks_for_all(past):
    assert numbers(past, AFTER=4711) == [3, 4, 5]


@pytest.mark.parametrize("variables", [{"AFTER": "x"}, {"LIMIT": ""}, {"LIMIT": "1e9"}])
def test_a_number_that_is_none_is_refused(past, variables):
    with pytest.raises(ValueError, match="invalid literal"):
        past.document(variables)


def test_a_negative_limit_is_refused(past):
    with pytest.raises(ValueError, match="invalid limit: -1"):
        past.document({"AFTER": "0", "LIMIT": "-1"})


def test_phases_and_times_count_from_the_end_of_the_queue():
    past, one = history.History(), ended()
    start = one.call.arrived + one.queued
    one.phases.entries.append((0, int((start + 0.001) * 1e9), 2_000_000))
    past.note(one)
    entry, = asked(past)["requests"]
    assert entry["phases"] == [{"name": "netlink", "startMs": pytest.approx(1, abs=0.01), "ms": 2.0}]
    assert entry["queueMs"] == 50 and entry["ms"] == 200
    assert time.time() - 0.25 - 5 < entry["time"] < time.time() - 0.2


def test_only_failed_requests_keep_their_story_unless_a_reader_asks_for_all():
    past = history.History()
    past.note(ended(1))
    past.note(ended(2, "11", '{"code": 11, "msg": "no"}'))
    asked(past, WIRE=1)
    past.note(ended(3))
    entries = asked(past)["requests"]
    assert ["story" in entry for entry in entries] == [False, True, True]
    assert entries[1]["story"]["error"] == {"code": 11, "msg": "no"}


def test_a_failed_request_stays_while_many_others_come():
    past = history.History(3)
    past.note(ended(1, "11", '{"code": 11, "msg": "no"}'))
    for number in range(2, 9):
        past.note(ended(number))
    found = asked(past, AFTER=0)
    assert [entry["number"] for entry in found["requests"]] == [1, 6, 7, 8] and found["first"] == 6
    assert found["requests"][0]["story"]["error"]["msg"] == "no"
    assert numbers(past, AFTER=1) == [6, 7, 8]


def test_following_all_requests_drops_no_story_of_a_failed_one():
    past = history.History()
    past.note(ended(1, "11"))
    asked(past, WIRE=1)
    for number in range(2, history.MAX_STORIES + 5):
        past.note(ended(number))
    entries = asked(past)["requests"]
    assert ["story" in entry for entry in entries] == [True, *[False] * 3, *[True] * history.MAX_STORIES]


def test_steps_of_successful_requests_are_kept_only_for_a_while_after_a_reader_asked(monkeypatch):
    clock, past = [100.0], history.History()
    monkeypatch.setattr(history, "monotonic", lambda: clock[0])
    asked(past, WIRE=1)
    for number in range(3):
        past.note(ended(number))
        clock[0] += history.WIRE_S * 0.6
    assert ["story" in entry for entry in asked(past)["requests"]] == [True, True, False]


def test_steps_have_their_time_since_the_end_of_the_queue():
    past, one = history.History(), ended(1, "11")
    start = one.call.arrived + one.queued
    one.phases.steps.entries.extend([(int((start + 0.002) * 1e9), ">", b"\x01\xff"),
                                     (int((start + 0.003) * 1e9), "!", b"rollback")])
    past.note(one)
    assert asked(past)["requests"][0]["story"]["steps"] == [
        {"ms": pytest.approx(2, abs=0.01), "kind": "sent", "data": "01ff"},
        {"ms": pytest.approx(3, abs=0.01), "kind": "step", "text": "rollback"}]


def test_a_step_has_the_time_of_perf_counter():
    steps, before = Steps(STEP_BYTES + 3), time.perf_counter_ns()
    steps(">", b"abc")
    steps("<", b"")                     # the steps have no memory left
    steps("<", b"de")
    (at, way, data), = steps.entries
    assert (way, data, steps.dropped) == (">", b"abc", 2) and before <= at <= time.perf_counter_ns()


def test_stories_are_few_and_small():
    past = history.History()
    for number in range(history.MAX_STORIES + 3):
        one = ended(number, "999", container="c" * 10_000, stdin=b"[" + b"0," * 100_000 + b"0]")
        for _ in range(100):
            one.phases.steps("<", bytes(4096))
        past.note(one)
    entries = asked(past)["requests"]
    assert ["story" in entry for entry in entries] == [False] * 3 + [True] * history.MAX_STORIES
    assert len(json.dumps(entries[-1])) < 160_000 and len(entries[-1]["container"]) == history.MAX_NAME
    fit = stories.MAX_BYTES // (4096 + STEP_BYTES)
    assert len(entries[-1]["story"]["steps"]) == fit and entries[-1]["story"]["dropped"] == 4096 * (100 - fit)
    assert entries[-1]["story"]["configuration"] == "more than 16384 bytes"


def test_secrets_are_hidden():
    stdin = json.dumps({"name": "net", "ipam": {"store": {"type": "etcd", "user": "u", "password": "p", "ca": "/ca"},
                                                "list": [{"apiToken": "t"}]}}).encode()
    past = history.History()
    past.note(ended(1, "7", stdin=stdin))
    store = asked(past)["requests"][0]["story"]["configuration"]["ipam"]["store"]
    assert store == {"type": "etcd", "user": "u", "password": "(hidden)", "ca": "/ca"}
    assert '"t"' not in past.document({}).decode()


@pytest.mark.parametrize("value", ["s3cr3t", 123456, ["s3cr3t"], {"value": "s3cr3t"}, [{"a": {"b": 123456}}]])
def test_all_below_a_secret_key_is_hidden(value):
    text = json.dumps(secrets.hide({"secrets": value, "mtu": 1500}))
    assert "s3cr3t" not in text and "123456" not in text and secrets.HIDDEN in text and "1500" in text


def test_what_is_empty_below_a_secret_key_is_shown_as_it_is():
    for value in ({"token": None, "password": "", "secret": True}, {"secrets": [None, "", False]}):
        assert secrets.hide(value) == value
    assert secrets.hide_arguments("TOKEN;PASSWORD=;K=v") == "TOKEN;PASSWORD=;K=v"


def test_passwords_in_urls_are_hidden_in_configurations_and_errors():
    url = "https://u:s3cr3t@etcd:2379"
    past = history.History()
    past.note(ended(1, "11", json.dumps({"code": 11, "msg": f"ask {url}: refused"}),
                    stdin=json.dumps({"endpoint": url}).encode()))
    past.note(ended(2, "fault", f"no JSON: {url}"))
    text = json.dumps(asked(past))
    assert "s3cr3t" not in text and text.count("https://(hidden)@etcd:2379") == 3


def test_secrets_of_cni_args_are_hidden():
    one = ended(1, "7")
    one.call.message.env["CNI_ARGS"] = "IgnoreUnknown=1;API_TOKEN=s3cr3t;K8S_POD_NAME=p"
    found = stories.Story(one).document(0.0)["environment"]
    assert found["CNI_ARGS"] == "IgnoreUnknown=1;API_TOKEN=(hidden);K8S_POD_NAME=p"


@pytest.mark.parametrize("stdin", [b"", b"\xff{", b"{} {}"])
def test_an_input_that_is_no_json_is_counted(stdin):
    assert stories.configuration(stdin) == f"{len(stdin)} bytes that are no JSON"


def test_a_server_tells_what_a_failed_request_did(server, node, pod):
    conf = node.conf(isGateway=True)
    server.ok("ADD", conf, pod)
    server.refused("ADD", conf, pod, ifname="lo")
    assert eventually(lambda: len(history.ask(str(server.path))["requests"]) == 2)
    done, failed = history.ask(str(server.path))["requests"]
    assert (done["command"], done["plugin"], done["network"], done["outcome"]) == ("ADD", "bridge", "net-a", "0")
    assert {"ipam", "netlink"} <= {phase["name"] for phase in done["phases"]} and "story" not in done
    assert failed["ifname"] == "lo" and failed["outcome"] == str(failed["story"]["error"]["code"])
    assert failed["story"]["configuration"]["bridge"] == "br0"


def test_the_rollback_of_a_failed_request_is_in_its_story(server, node, pod):
    conf = node.conf(isGateway=True, routes=["10.99.0.0/16"], ipam={**node.host_local(), "routes": [
        {"dst": "10.99.0.0/16", "gw": "192.0.2.1"}]})
    server.refused("ADD", conf, pod)
    assert eventually(lambda: history.ask(str(server.path))["requests"])
    steps = history.ask(str(server.path))["requests"][0]["story"]["steps"]
    assert {"sent", "received", "step"} == {step["kind"] for step in steps}
    at = [step.get("text") for step in steps].index("rollback")
    assert any(step["kind"] == "sent" for step in steps[at:])


def test_a_long_answer_comes_whole(server, node, pod):
    conf = node.conf(isGateway=True, args={"x": "y" * 9000})
    for _ in range(20):
        server.refused("ADD", conf, pod, ifname="lo")
    assert eventually(lambda: len(history.ask(str(server.path))["requests"]) == 20)
    found = history.ask(str(server.path))["requests"]
    assert all(entry["story"]["configuration"]["args"] == conf["args"] for entry in found)


def test_a_server_without_a_history_declines(start):
    server = start("--history", "0")
    assert history.ask(str(server.path)) is None


def test_a_question_that_makes_no_sense_is_declined(server):
    assert control.ask(str(server.path), history.NAME, {"AFTER": "x"}) is None
