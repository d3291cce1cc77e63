"""Parts of the metrics that need no server: the counts of requests, the listener, and the addresses of --metrics."""

import os
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from fastcni._steps import MAX_PHASES
from fastcni.daemon.listening import ListenError
from fastcni.kernel import uapi
from fastcni.server import latest
from fastcni.server.latest import Latest
from fastcni.server.metrics import requests
from fastcni.server.metrics.one_shot import OneShotCount
from fastcni.server.records.ended import Ended, Phases, Records, code_of
from fastcni.server.requests.workers import ms, ns_as_ms
from fastcni.server.web import address, listener
from fastcni.server.web.listener import Listener, Page
from fastcni.testing.witnesses import eventually


class Log:
    def __init__(self):
        self.events = []

    def exception(self, event, **_):
        self.events.append(event)

    warning = exception


def ended(command="ADD", plugin="bridge", network="net", outcome="0", took=0.003, phases=None):
    call = SimpleNamespace(command=command, network=network, message=SimpleNamespace(plugin=plugin))
    return Ended(call, outcome, 0.0001, took, phases or Phases())


def test_phases_are_named_and_bounded():
    phases = Phases()
    for _ in range(MAX_PHASES):
        phases.note(uapi.NETLINK_ROUTE, time.perf_counter_ns() - 1000)
    before = phases.totals()
    phases.note(uapi.NETLINK_ROUTE, time.perf_counter_ns() - 10**9)
    phases.note("program", time.perf_counter_ns() - 10**9)
    assert len(phases.entries) == MAX_PHASES
    assert set(before) == {"netlink"}
    after = phases.totals()
    assert after["netlink"] - before["netlink"] >= 10**9
    assert after["program"] >= 10**9
    assert all(took >= 1000 and started > 0 for _, started, took in phases.entries)


def test_the_total_of_phases_is_their_sum():
    phases, recorded = Phases(), Counter()
    for number in range(MAX_PHASES + 2):
        phases.note("program" if number % 2 else uapi.NETLINK_ROUTE, time.perf_counter_ns() - 10**6 * number)
    assert len(phases.entries) == MAX_PHASES
    for what, _, took in phases.entries:
        recorded[what] += took
    assert phases.merged.keys() == phases.sums.keys() == recorded.keys()
    assert phases.sums == {what: took + phases.merged[what] for what, took in recorded.items()}
    assert min(phases.merged.values()) >= 10**6 * MAX_PHASES


def test_milliseconds_are_rounded_to_microseconds():
    assert [ms(seconds) for seconds in (0.0, 4e-7, 6e-7, 0.0012344, 0.0012346, 61.5)] == [
        0.0, 0.0, 0.001, 1.234, 1.235, 61500.0]
    assert [ns_as_ms(nanoseconds) for nanoseconds in (0, 499, 500, 1_234_499, 1_234_500, 61_500_000_000)] == [
        0.0, 0.0, 0.001, 1.234, 1.235, 61500.0]


def test_a_fault_of_a_receiver_fails_no_request():
    log, got = Log(), []
    them = Records(log.exception)
    them.report(ended().call, "0", 0.0)
    assert log.events == []
    them.receivers += [lambda _: 1 / 0]
    them.report(ended().call, "0", 0.0)
    assert log.events == ["server_fault"]
    them.receivers[:] = [got.append]
    them.report(ended().call, "11", 2.0)
    assert [(it.outcome, it.queued, it.took, it.phases.totals()) for it in got] == [("11", 2.0, 0.0, {})]


@pytest.mark.parametrize("document, code", [('{"code": 7, "msg": ""}', "7"), ("", "fault"), ("[]", "fault"),
                                            ('{"msg": "x"}', "fault"), ('{"code": "x"}', "fault")])
def test_the_outcome_of_a_failed_request_is_its_code(document, code):
    assert code_of(document) == code


def test_requests_are_counted_by_their_labels():
    them, phases = requests.Requests(), Phases()
    phases.note(uapi.NETLINK_NETFILTER, time.perf_counter_ns())
    them.note(ended(phases=phases))
    them.note(ended(took=0.3))
    them.note(ended(command="DEL", outcome="declined", took=2.0))
    counts, times, spent = them.copy()
    assert counts == {("ADD", "bridge", "net", "0"): 2, ("DEL", "bridge", "net", "declined"): 1}
    assert set(times) == {("ADD", "bridge")}                # the server gave no answer to the declined request
    assert times["ADD", "bridge"].total == pytest.approx(0.3032)
    buckets = dict(times["ADD", "bridge"].buckets())
    assert [buckets[end] for end in ("0.002", "0.004", "0.25", "0.5", "60.0", "+Inf")] == [0, 1, 1, 2, 2, 2]
    assert set(spent) == {("ADD", "queue"), ("ADD", "nftables"), ("DEL", "queue")}
    assert spent["ADD", "nftables"].total == pytest.approx(phases.totals()["nftables"] / 1e9)
    assert spent["ADD", "queue"].total == pytest.approx(0.0002)


def test_a_request_that_was_rejected_in_the_queue_has_no_time():
    them = requests.Requests()
    them.note(ended(outcome="11", took=0.0))
    counts, times, _ = them.copy()
    assert (list(counts.values()), times) == ([1], {})


def test_a_copy_does_not_change_with_later_requests():
    them = requests.Requests()
    them.note(ended())
    counts, times, spent = them.copy()
    them.note(ended())
    assert counts["ADD", "bridge", "net", "0"] == 1
    assert sum(times["ADD", "bridge"].counts) == sum(spent["ADD", "queue"].counts) == 1
    assert times["ADD", "bridge"].total == pytest.approx(0.0031)


def test_a_bucket_has_its_upper_end():
    it = requests.Histogram()
    it.observe(requests.BOUNDS[3])
    it.observe(1e6)
    found = it.buckets()
    assert found[2][1] == 0 and found[3] == (repr(requests.BOUNDS[3]), 1)
    assert found[-2][1] == 1 and found[-1] == ("+Inf", 2)
    assert list(requests.BOUNDS) == sorted(requests.BOUNDS)


def test_the_number_of_labels_is_bounded():
    them = requests.Requests()
    for n in range(300):
        them.note(ended(f"X{n}", f"plugin{n}", f"net{n}", str(n)))
    counts, times, spent = them.copy()
    for at, most in enumerate((0, requests.MAX_PLUGINS, requests.MAX_NETWORKS, requests.MAX_CODES)):
        values = {key[at] for key in counts}
        assert len(values) <= most + 1
        assert "other" in values
    assert sum(counts.values()) == 300
    assert len(times) <= requests.MAX_PLUGINS + 1
    assert set(spent) == {("other", "queue")}


def test_the_number_of_counts_is_bounded():
    them = requests.Requests()
    for command in requests.COMMANDS:
        for n in range(requests.MAX_PLUGINS):
            for m in range(20):
                them.note(ended(command, f"plugin{n}", f"net{m}"))
    counts, times, _ = them.copy()
    others = [key for key in counts if key[1] == "other"], [key for key in times if key[1] == "other"]
    assert len(counts) - len(others[0]) == requests.MAX_COUNTS and len(others[0]) <= len(requests.COMMANDS)
    assert len(times) - len(others[1]) == requests.MAX_HISTOGRAMS and len(others[1]) <= len(requests.COMMANDS)
    assert sum(counts.values()) == len(requests.COMMANDS) * requests.MAX_PLUGINS * 20


def test_a_plugin_keeps_its_histogram_when_there_are_no_more():
    them = requests.Requests()
    them.note(ended("ADD", "bridge"))
    for command in requests.COMMANDS:
        for n in range(requests.MAX_PLUGINS - 1):
            them.note(ended(command, f"plugin{n}"))
    before = sum(them.copy()[1]["ADD", "bridge"].counts)
    them.note(ended("ADD", "bridge"))
    assert sum(them.copy()[1]["ADD", "bridge"].counts) == before + 1


@pytest.mark.parametrize("kind", ["fifo", "symbolic link", "another user's"])
def test_no_other_file_becomes_the_count_of_one_shot_requests(tmp_path, kind):
    """Otherwise, the server would count the bytes of another program's file, and then empty the file."""
    path, other = tmp_path / "s.one-shot", tmp_path / "other"
    other.write_bytes(b"nnn")
    before = os.listdir("/proc/self/fd")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "symbolic link":
        path.symlink_to(other)
    elif os.geteuid() == 0:
        other.rename(path)
        os.chown(path, 70001, 70001)
    else:
        pytest.skip("needs root: chown")
    with pytest.raises(OSError, match=r"s\.one-shot"):
        OneShotCount(str(tmp_path / "s"))
    assert os.listdir("/proc/self/fd") == before


def test_a_name_that_is_no_text_becomes_a_label():
    label = requests.Labels(2)
    assert label("n\udcff") == "n?"
    assert len(label("x" * 500)) == requests.MAX_NAME
    assert label("further") == "other"


def test_a_value_whose_making_hangs_or_fails_leaves_the_last_one(monkeypatch):
    monkeypatch.setattr(latest, "WAIT_S", 0.05)
    log, go, calls = Log(), threading.Event(), []

    def make():
        calls.append(1)
        if len(calls) == 2:
            assert go.wait(30)
        elif len(calls) == 3:
            raise ValueError
        return len(calls)

    them = Latest(make, 0, 0.0, log, "test")
    assert eventually(lambda: them.get() == 1)
    assert eventually(lambda: them.get() and len(calls) == 2)
    assert [them.get() for _ in range(3)] == [1, 1, 1]          # the second call hangs, and no further one begins
    assert len(calls) == 2
    go.set()
    assert eventually(lambda: them.get() == 2)
    assert eventually(lambda: them.get() > 3)
    assert log.events == ["server_fault"]


def test_a_caller_waits_for_the_new_value(monkeypatch):
    monkeypatch.setattr(latest, "WAIT_S", 60.0)
    values = iter(range(1, 9))
    them = Latest(lambda: time.sleep(0.01) or next(values), 0, 0.0, Log(), "test")
    assert [them.get() for _ in range(3)] == [1, 2, 3]


def test_a_thread_that_cannot_be_started_leaves_the_last_value_and_is_tried_again(monkeypatch):
    monkeypatch.setattr(latest, "WAIT_S", 60.0)
    them = Latest(lambda: 1, 0, 0.0, Log(), "test")
    with monkeypatch.context() as patch:
        patch.setattr(latest, "start_thread", lambda *_: False)
        began = time.monotonic()
        assert them.get() == them.get() == 0
        assert time.monotonic() - began < 30
    assert them.get() == 1


def test_a_recent_value_is_not_made_again():
    calls = []
    them = Latest(lambda: calls.append(1) or len(calls), 0, 60.0, Log(), "test")
    assert eventually(lambda: them.get() == 1)
    assert them.get() == 1
    assert calls == [1]


@pytest.mark.parametrize("text, expected", [
    ("/run/m.sock", "/run/m.sock"), ("unix:/run/m.sock", "/run/m.sock"), ("127.0.0.1:9464", ("127.0.0.1", 9464)),
    ("[::1]:9464", ("::1", 9464)), ("localhost:1", ("127.0.0.1", 1)), ("127.1.2.3:65535", ("127.1.2.3", 65535))])
def test_addresses(text, expected):
    assert address.read(text) == expected


@pytest.mark.parametrize("text", ["", "9464", ":9464", "0.0.0.0:9464", "[::]:9464", "10.0.0.1:9464", "127.0.0.1",
                                  "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:x", "host:9464", "run/m.sock"])
def test_other_addresses_are_refused(text):
    with pytest.raises(address.AddressError, match=r"127\.0\.0\.1:PORT"):
        address.read(text)


@pytest.mark.parametrize("where, shown", [(("127.0.0.1", 9464), "127.0.0.1:9464"), (("::1", 9464), "[::1]:9464"),
                                          ("/run/m.sock", "/run/m.sock")])
def test_the_log_shows_an_address_as_the_option_has_it(where, shown):
    assert address.text(where) == shown and address.read(shown) == where


def test_the_port_of_a_server_that_has_just_ended_is_free(tmp_path):
    """The server closes each connection first, so its port has connections in TIME_WAIT for a minute."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = free.getsockname()[:2]
    for _ in range(2):
        it = Listener(address.listen(where).sock, {"/metrics": Page("text/plain", lambda: b"body")}, Log())
        it.start()
        with socket.create_connection(where, 30) as sock:
            sock.sendall(GET)
            assert rest_of(sock).endswith(b"body")
        it.stop()


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"listen on 127.0.0.1:{port}: Address already in use"):
            address.listen(("127.0.0.1", port))


def test_a_path_that_cannot_be_made_is_named(tmp_path):
    with pytest.raises(ListenError, match=f"{tmp_path}/no/directory/m: No such file"):
        address.listen(str(tmp_path / "no/directory/m"))


@contextmanager
def listening(tmp_path, make=lambda: b"body"):
    """`with listening(tmp_path) as it:` has a Listener on a unix socket. it.ask(bytes) returns its answer."""
    path = str(tmp_path / "m")
    made = address.listen(path)
    it = Listener(made.sock, {"/metrics": Page("text/plain", make)}, Log())
    it.path, it.ask = path, lambda data: ask(path, data)
    it.start()
    try:
        yield it
    finally:
        it.stop()
        made.unlock()


def connect(path):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(30)
    sock.connect(path)
    return sock


def ask(path, data):
    with connect(path) as sock:
        sock.sendall(data)
        return rest_of(sock)


def rest_of(sock):
    found = b""
    while piece := sock.recv(1 << 16):
        found += piece
    return found


GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("request_, status, body", [
    (GET, 200, b"body"), (GET.replace(b"GET", b"HEAD"), 200, b""), (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", 200, b"body"),
    (b"GET / HTTP/1.1\r\n\r\n", 404, b"the pages are /metrics\n"), (b"POST /metrics HTTP/1.1\r\n\r\n", 405, None),
    (b"\x16\x03\x01\r\n\r\n", 400, None), (b"GET /metrics SPDY/3\r\n\r\n", 400, None),
    (b"x" * (listener.MAX_HEAD_BYTES + 1), 400, None)])
def test_requests_get_the_right_status(tmp_path, request_, status, body):
    with listening(tmp_path) as it:
        head, _, got = it.ask(request_).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert body is None or got == body
    assert b"Content-Length: 4" in head or status != 200


def test_a_page_that_fails_is_an_error_500_and_the_next_one_is_served(tmp_path):
    results = [ZeroDivisionError, b"ok"]

    def make():
        it = results.pop(0)
        if isinstance(it, bytes):
            return it
        raise it

    with listening(tmp_path, make) as it:
        assert it.ask(GET).startswith(b"HTTP/1.1 500 ")
        assert it.log.events == ["server_fault"]
        assert it.ask(GET).endswith(b"ok")


def test_an_answer_names_the_methods_and_pages_that_there_are(tmp_path):
    with listening(tmp_path) as it:
        it.pages["/"] = Page("text/html", lambda: b"", "X-Own: 1\r\n", local=True)
        assert b"\r\nAllow: GET, HEAD\r\n" in it.ask(GET.replace(b"GET", b"PUT"))
        assert it.ask(b"GET /x HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\nthe pages are /metrics, /\n")
        head = it.ask(b"GET / HTTP/1.1\r\nAccept: */*\r\nHOST : localhost:80 \r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n") and b"\r\nX-Own: 1\r\n" in head


def test_a_request_may_come_in_pieces(tmp_path):
    with listening(tmp_path) as it, connect(it.path) as sock:
        for at in range(0, len(GET), 9):
            sock.sendall(GET[at:at + 9])
            time.sleep(0.005)
        assert rest_of(sock).endswith(b"body")


def test_slow_and_silent_clients_delay_no_other_one_and_are_closed(tmp_path):
    with listening(tmp_path, lambda: b"x" * (4 << 20)) as it:
        with connect(it.path) as silent, connect(it.path) as halfway, connect(it.path) as unread:
            halfway.sendall(GET[:10])
            unread.sendall(GET)
            assert len(it.ask(GET)) > 4 << 20
            for each in [*it.clients.values()]:
                each.deadline = 0.0     # as if their time were over
            it.wakeup.wake()
            assert (silent.recv(1), halfway.recv(1)) == (b"", b"")
            with pytest.raises((ConnectionError, AssertionError)):
                assert len(rest_of(unread)) > 4 << 20           # the answer is incomplete
        assert eventually(lambda: not it.clients)
        with connect(it.path):
            pass                        # this client leaves without a request
        assert eventually(lambda: not it.clients)
        assert it.log.events == []


def test_a_silent_client_is_closed_when_its_time_is_over(tmp_path, monkeypatch):
    """No other event wakes the listener: its wait ends when the time of the oldest client ends."""
    monkeypatch.setattr(listener, "CLIENT_TIMEOUT_S", 0.2)
    began = time.monotonic()
    with listening(tmp_path) as it, connect(it.path) as first, connect(it.path) as second:
        assert (first.recv(1), second.recv(1)) == (b"", b"")
        assert 0.2 <= time.monotonic() - began < 20
        assert not it.clients


def test_beyond_a_number_of_clients_the_oldest_is_closed(tmp_path):
    with listening(tmp_path) as it:
        many = [connect(it.path) for _ in range(listener.MAX_CLIENTS)]
        assert it.ask(GET).endswith(b"body")
        assert many[0].recv(1) == b""
        many[-1].sendall(GET)
        assert rest_of(many[-1]).endswith(b"body")
        for each in many:
            each.close()


def test_a_listener_ends_with_clients_connected(tmp_path):
    with listening(tmp_path) as it:
        client = connect(it.path)
        assert eventually(lambda: it.clients)
    assert client.recv(1) == b""
    client.close()
    assert not it.thread.is_alive()


def test_no_descriptor_is_left(tmp_path, collector_off):
    before = len(os.listdir("/proc/self/fd"))
    with listening(tmp_path) as it:
        for _ in range(3):
            it.ask(GET)
    assert len(os.listdir("/proc/self/fd")) == before
