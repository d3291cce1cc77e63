"""The spans of one request, made in this process: the nesting and times of phases, and errors of sending."""

import logging

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import StatusCode

from fastcni.kernel import uapi
from fastcni.server.otel import spans
from fastcni.server.otel.traces import Traced

TO_UNIX = 10**18
ROUTE, NFT = uapi.NETLINK_ROUTE, uapi.NETLINK_NETFILTER


@pytest.fixture
def sender(monkeypatch):
    """Return a Sender whose exporter adds the spans to `sent`, logs `line`, and returns `result`."""
    made = spans.Sender("http://127.0.0.1:9")
    made.sent, made.result, made.line = [], SpanExportResult.SUCCESS, ""

    def export(batch):
        made.sent += batch
        if made.line:
            logging.getLogger("opentelemetry.exporter").warning(made.line)
        return made.result

    monkeypatch.setattr(made.exporter, "export", export)
    yield made
    made.close()


def traced(outcome="0", error="", phases=(), merged=None):
    return Traced("ADD", "bridge", "net-a", "a-1", 7, {}, outcome, error, list(phases), merged or {}, 100, 110, 1000,
                  TO_UNIX)


def send(sender, *requests):
    for each in requests:
        sender.add(each)
    return sender.send()


def tree(sent):
    """Return [(name, the parent's name, begin, end)] of the spans, ordered by begin. Times are as in traced()."""
    names = {span.context.span_id: span.name for span in sent}
    return sorted(((span.name, names.get(span.parent and span.parent.span_id), span.start_time - TO_UNIX,
                    span.end_time - TO_UNIX) for span in sent), key=lambda one: (one[2], -one[3]))


def test_a_phase_is_inside_the_shortest_one_that_lasts_at_least_as_long(sender):
    """The Sender gets phases in the order of their ends, and finds each phase's parent by the times."""
    phases = [(ROUTE, 220, 10), ("program", 215, 20), (ROUTE, 250, 50), ("delegate", 210, 90), ("ipam", 210, 190),
              (NFT, 450, 50), (ROUTE, 500, 20),
              ("late", 990, 20)]
    assert send(sender, traced(phases=phases)) == ""
    assert tree(sender.sent) == [
        ("ADD bridge", None, 100, 1000), ("queue", "ADD bridge", 100, 110), ("ipam", "ADD bridge", 210, 400),
        ("delegate", "ipam", 210, 300), ("program", "delegate", 215, 235), ("netlink", "program", 220, 230),
        ("netlink", "delegate", 250, 300), ("nftables", "ADD bridge", 450, 500), ("netlink", "ADD bridge", 500, 520),
        ("late", "ADD bridge", 990, 1010)]


def test_each_request_is_sent_once_with_its_own_phases(sender):
    send(sender, traced(phases=[(ROUTE, 200, 1)]), traced(phases=[(NFT, 300, 1)]))
    assert len({span.context.trace_id for span in sender.sent}) == 2
    assert sorted(span.name for span in sender.sent) == ["ADD bridge"] * 2 + ["netlink", "nftables", "queue", "queue"]
    sender.sent.clear()
    assert send(sender) == "" and not sender.sent


def test_a_request_whose_spans_cannot_be_made_leaves_none_of_them(sender, monkeypatch):
    add_phases = sender.add_phases

    def fail(*request):
        add_phases(*request)
        raise ValueError

    monkeypatch.setattr(sender, "add_phases", fail)
    with pytest.raises(ValueError):
        sender.add(traced(phases=[(ROUTE, 200, 1)]))
    monkeypatch.setattr(sender, "add_phases", add_phases)
    assert send(sender, traced()) == "" and [span.name for span in sender.sent] == ["queue", "ADD bridge"]


@pytest.mark.parametrize("outcome, error, expected", [
    ("0", "", None), ("declined", "no plugin", None), ("7", '{"code": 7, "msg": "bad"}', "CNI error 7: bad"),
    ("fault", "", "fault"), ("caller_gone", "no JSON", "caller_gone: no JSON"), ("7", "[1]", "CNI error 7: [1]"),
    ("7", '{"msg": "%s"}' % ("x" * 600), "CNI error 7: " + "x" * 499),
    ("7", '{"msg": "GET http://u:p@host/"}', "CNI error 7: GET http://(hidden)@host/")])
def test_an_error_is_the_status_in_at_most_512_characters(sender, outcome, error, expected):
    send(sender, traced(outcome, error))
    status = sender.sent[-1].status
    assert (status.status_code, status.description) == (
        (StatusCode.ERROR, expected) if expected else (StatusCode.UNSET, None))


def test_attributes_have_the_outcome_and_the_phases_beyond_the_limit(sender):
    send(sender, traced(), traced("7", merged={ROUTE: 1_500_000, "ipam": 2000}))
    good, bad = (span.attributes for span in sender.sent if span.name == "ADD bridge")
    assert dict(good) == {"cni.command": "ADD", "cni.plugin": "bridge", "cni.network": "net-a", "cni.outcome": "0",
                          "fastcni.request_id": "a-1", "cni.caller_pid": 7}
    assert dict(bad) == {**good, "cni.outcome": "7", "error.type": "7",
                         "fastcni.merged_phases": "netlink 1.500 ms, ipam 0.002 ms"}


def test_why_an_export_failed_is_the_last_line_of_the_sdk_which_no_other_log_gets(sender, monkeypatch):
    other = spans.LastLine()
    monkeypatch.setattr(logging.getLogger(), "handlers", [other])
    sender.result = SpanExportResult.FAILURE
    assert send(sender, traced()) == "the export failed"
    sender.line = "Connection refused"
    assert send(sender, traced()) == "Connection refused"
    sender.line = ""
    assert send(sender, traced()) == "the export failed"
    assert other.text == ""
