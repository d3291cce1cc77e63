"""The last requests of a server, for fastcni top."""

import time
from types import SimpleNamespace

import pytest
from server.client import Server

from fastcni.kernel import uapi
from fastcni.server import history, protocol
from fastcni.server.history import History
from fastcni.server.records import MAX_PHASES, Ended, Phases
from fastcni.spec import json

STATUS = {"cniVersion": "1.1.0", "name": "net-a", "type": "loopback"}


def ended(number=1, *, key=("c-1", "eth0"), network="net-a", outcome="0", phases=None):
    message = SimpleNamespace(plugin="bridge", id=f"ab12-{number}", pid=99)
    call = SimpleNamespace(command="ADD", network=network, key=key, message=message)
    return Ended(call, outcome, 0.0005, 0.002, phases or Phases())


def kept(size, *numbers):
    it = History(size)
    for number in numbers:
        it.note(ended(number))
    return it


def read(it, **env):
    return json.read(it.answer({key: str(value) for key, value in env.items()}))


def test_an_entry_has_names_times_and_phases():
    it, phases = History(8), Phases()
    phases.note(uapi.NETLINK_ROUTE, time.perf_counter_ns() - 300_000)
    phases.note("ipam", time.perf_counter_ns() - 1_000_000)
    it.note(ended(17, outcome="11", phases=phases))
    answer = read(it)
    assert (answer["next"], answer["lost"]) == (1, 0)
    (entry,) = answer["requests"]
    assert abs(entry.pop("time") - time.time() + 0.0025) < 2
    netlink, ipam = entry.pop("phases")
    assert (netlink["name"], ipam["name"]) == ("netlink", "ipam")
    assert 0.3 <= netlink["ms"] < 100 and 1.0 <= ipam["ms"] < 100 and 0 <= ipam["startMs"] < 2
    assert entry == {"number": 1, "id": "ab12-17", "command": "ADD", "plugin": "bridge", "network": "net-a",
                     "container": "c-1", "ifname": "eth0", "pid": 99, "outcome": "11", "queueMs": 0.5, "ms": 2.0}


@pytest.mark.parametrize("env, numbers, following, lost", [
    ({}, [3, 4, 5], 5, 2), ({"AFTER": 1}, [3, 4, 5], 5, 1), ({"AFTER": 2}, [3, 4, 5], 5, 0), ({"AFTER": 4}, [5], 5, 0),
    ({"AFTER": 5}, [], 5, 0), ({"AFTER": 2, "LIMIT": 2}, [3, 4], 4, 0),
    ({"AFTER": "x", "LIMIT": "-1"}, [3, 4, 5], 5, 2)])
def test_readers_go_on_where_they_were_and_learn_what_they_lost(env, numbers, following, lost):
    answer = read(kept(3, 1, 2, 3, 4, 5), **env)
    assert [it["number"] for it in answer["requests"]] == numbers
    assert [it["id"] for it in answer["requests"]] == [f"ab12-{number}" for number in numbers]
    assert (answer["next"], answer["lost"]) == (following, lost)


def test_an_empty_history_and_the_number_of_another_server():
    assert read(History(3))["requests"] == []
    assert (read(History(3))["next"], read(History(3))["lost"]) == (0, 0)
    answer = read(kept(3, 1, 2), AFTER=4711)
    assert (answer["next"], answer["requests"], answer["lost"]) == (2, [], 0)


def test_an_answer_fits_a_message_whatever_callers_send():
    it, phases = History(300), Phases()
    for _ in range(MAX_PHASES):
        phases.note("\x01" * 20, time.perf_counter_ns())
    for number in range(300):
        it.note(ended(number, key=("\x01" * 60_000, "\udcff" * 60_000), network="\x01" * 60_000, phases=phases))
    after, seen = 0, 0
    while True:
        data = it.answer({"AFTER": str(after)})
        assert len(data) <= protocol.MAX_ANSWER
        answer = json.read(data)
        if not answer["requests"]:
            break
        assert answer["next"] > after
        after, seen = answer["next"], seen + len(answer["requests"])
    assert seen == 300


def test_a_server_tells_its_last_requests_and_not_those_for_them(server):
    assert history.ask(str(server.path))["requests"] == []
    server.ok("STATUS", STATUS)
    server.refused("ADD", {**STATUS, "type": "bridge", "bridge": 7}, "/nowhere", cid="web-1")
    answer = history.ask(str(server.path))
    first, second = answer["requests"]
    assert (first["command"], first["plugin"], first["outcome"]) == ("STATUS", "loopback", "0")
    assert (second["command"], second["network"], second["container"], second["outcome"]) == (
        "ADD", "net-a", "web-1", "7")
    assert first["ms"] > 0 and abs(first["time"] - time.time()) < 60
    assert answer["pid"] == server.process.pid
    assert history.ask(str(server.path), answer["next"])["requests"] == []
    assert len(history.ask(str(server.path), 0, 1)["requests"]) == 1


def test_a_server_without_a_history_declines(host_netns, tmp_path):
    with Server(tmp_path, "--history", "0") as server:
        assert history.ask(str(server.path)) is None
