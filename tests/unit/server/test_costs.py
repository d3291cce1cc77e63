"""Count the work of warm requests. The tests measure no time: a change that makes a request costlier exceeds a limit in
the table. A count is higher if the request waits or does the work of another thread: on a busy machine, a DEL called 16
functions more. So a test repeats a round until all counts are within the limits, ROUNDS times at most."""

import sys
import threading
from threading import get_ident

import pytest
from lab.portmap_chain import mapping
from unit.server.system_calls import Counter, tracepoint

from fastcni.server.records.history import History
from fastcni.server.requests import mode
from fastcni.server.requests.workers import Workers
from fastcni.testing.witnesses import eventually

ROUNDS = 60
GATEWAY = {"isGateway": True}
CHAINED = [{"type": "portmap", "runtimeConfig": {"portMappings": [mapping()]}},
           {"type": "firewall", "backend": "nftables"}]
# {network: (keys of its first plugin, configurations of its chained plugins)}
NETWORKS = {"bridge": (GATEWAY, []), "bridge, ipMasq": ({**GATEWAY, "ipMasq": True}, []), "ptp": ({"type": "ptp"}, []),
            "bridge, portmap, firewall": ({**GATEWAY, "ipMasq": True}, CHAINED)}
# {(network, command): (limit of Python functions, limit of netlink datagrams, limit of system calls)}. Functions are
# those of Python 3.11. Functions and system calls are counted from the queue to the log line. Datagrams and system
# calls are those of the request's thread. The limit of functions is four above the count, because a request calls more
# if the machine is busy. If a change makes a count smaller, write the smaller limit here.
LIMITS = {
    ("bridge", "ADD"): (266, 7, 64), ("bridge", "DEL"): (182, 3, 36),
    ("bridge, ipMasq", "ADD"): (310, 9, 67), ("bridge, ipMasq", "DEL"): (263, 11, 52),
    ("ptp", "ADD"): (253, 7, 60), ("ptp", "DEL"): (181, 3, 36),
    ("bridge, portmap, firewall", "ADD"): (976, 30, 113), ("bridge, portmap, firewall", "DEL"): (990, 30, 107),
}
of_this_python = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the limits are those of Python 3.11")


@pytest.fixture
def least(node, pod, pod_netns, request, monkeypatch):
    """Return a function least(server, counts, limits) that returns {command: the least count of a round}. A round is
    ADD and DEL of the pod. It makes at most ROUNDS rounds, until no count is above its limit.

    counts: gets the count of each request, in the order of the requests. limits: {command: count}. Another pod stays on
    the network: when a bridge loses its last port, the server forgets what it knows of the bridge.
    """
    monkeypatch.setattr(mode, "SETTLED_NS", 0)      # as on a node, whose plugin files are older than a few seconds
    keys, more = NETWORKS[request.getfixturevalue("network")]
    first = node.conf("10.22.0.0/24", routes=["0.0.0.0/0"], **keys)
    chain = [first, *({"cniVersion": first["cniVersion"], "name": first["name"], **each} for each in more)]

    def measured(server, counts, limits):
        found = {}
        server.ok("ADD", first, pod_netns())
        for _ in range(ROUNDS):
            assert eventually(lambda: counts)
            counts.clear()
            result = {}
            for conf in chain:
                result = {"prevResult": server.ok("ADD", {**conf, **result}, pod)}
            for conf in reversed(chain):
                server.ok("DEL", {**conf, **result}, pod)
            assert eventually(lambda: len(counts) == 2 * len(chain)), counts
            for command, part in (("ADD", counts[:len(chain)]), ("DEL", counts[len(chain):])):
                found[command] = min(sum(part), found.get(command, sum(part)))
            if all(found[command] <= limits[command] for command in limits):
                break
        return found

    return measured


def assert_within(found, limits):
    assert not {command: (count, "limit", limits[command]) for command, count in found.items()
                if count > limits[command]}


class Calls:
    """A counter of the Python functions that are called in Workers._serve(), for each request. It omits comprehensions,
    which since Python 3.12 are not functions."""

    def __init__(self):
        self.requests, self.running = [], {}

    def __call__(self, frame, event, _):
        code = frame.f_code
        if code is Workers._serve.__code__ and event in ("call", "return"):
            if event == "call":
                self.running[get_ident()] = 0
            else:
                self.requests.append(self.running.pop(get_ident()))
        elif event == "call" and get_ident() in self.running and not code.co_name.startswith("<"):
            self.running[get_ident()] += 1


@of_this_python
@pytest.mark.parametrize("network", NETWORKS)
def test_a_warm_request_calls_no_more_python_functions(local, least, network):
    calls, limits = Calls(), {command: LIMITS[network, command][0] for command in ("ADD", "DEL")}
    threading.setprofile(calls)
    try:
        server = local()
    finally:
        threading.setprofile(None)
    server.acceptor.records.receivers.append(History().note)
    server.queue.recording = True           # as in a server that keeps a history
    assert_within(least(server, calls.requests, limits), limits)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_warm_request_exchanges_no_more_netlink_datagrams(local, least, network):
    datagrams, limits = [], {command: LIMITS[network, command][1] for command in ("ADD", "DEL")}
    server = local()
    server.queue.recording = True
    server.acceptor.records.receivers.append(lambda ended: datagrams.append(
        sum(way in "<>" for _, way, _ in ended.phases.steps.entries)))
    assert_within(least(server, datagrams, limits), limits)


@of_this_python
@pytest.mark.needs("system-call-tracepoint")
@pytest.mark.parametrize("network", NETWORKS)
def test_a_warm_request_makes_no_more_system_calls(local, least, network, tmp_path_factory, monkeypatch):
    number, counters, requests = tracepoint(tmp_path_factory.mktemp("tracefs")), {}, []
    serve, limits = Workers._serve, {command: LIMITS[network, command][2] for command in ("ADD", "DEL")}

    def counted(*args):
        if get_ident() not in counters:
            counters[get_ident()] = Counter(number)
        counter = counters[get_ident()]
        before = counter.read()
        try:
            serve(*args)
        finally:
            requests.append(counter.read() - before - 1)

    monkeypatch.setattr(Workers, "_serve", counted)
    server = local()
    server.queue.recording = True
    server.acceptor.records.receivers.append(History().note)
    try:
        assert_within(least(server, requests, limits), limits)
    finally:
        for counter in counters.values():
            counter.close()
