"""The text about a request: headline, waterfall, error, steps."""

import errno
import struct

import pytest

from fastcni._netlink import Batch
from fastcni.kernel import uapi
from fastcni.node.activity import story_text
from fastcni.spec.errors import FAILED_AT

SENT = Batch().begin(uapi.RTM_NEWLINK, 0, struct.pack("=BxHiII", 0, 0, 7, 1, 1), "x").finish().hex()


def acknowledged(*codes):
    return b"".join(struct.pack("=IHHIIiIHHII", 36, uapi.NLMSG_ERROR, 0x100, 1, 0, -code, 16, uapi.RTM_NEWLINK, 0, 1, 0)
                    for code in codes).hex()


def request(outcome="0", ms=10.0, queue_ms=0.1, phases=(), steps=(), **story):
    found = {"number": 1, "id": "ab-1", "time": 1763900000.1239, "command": "ADD", "plugin": "bridge",
             "network": "mynet", "container": "c1", "ifname": "eth0", "pid": 9, "outcome": outcome,
             "queueMs": queue_ms, "ms": ms,
             "phases": [{"name": name, "startMs": start, "ms": took} for name, start, took in phases]}
    return found | {"story": {"steps": list(steps), "dropped": 0, **story}} if story or steps else found


def step(at, kind, text):
    return {"ms": at, "kind": kind, **({"text": text} if kind == "step" else {"data": text})}


FAILED = [step(0.1, "sent", SENT), step(0.2, "received", acknowledged(0)), step(0.3, "sent", SENT),
          step(0.4, "received", acknowledged(errno.ENODEV)), step(0.5, "step", "rollback"), step(0.6, "sent", SENT),
          step(0.7, "received", acknowledged(0)), step(0.8, "received", acknowledged(0))]


@pytest.mark.parametrize("outcome, expected", [
    ("0", "done in 10.00 ms"), ("11", "error 11 after 10.00 ms"),
    ("caller_gone", "its caller left after 10.00 ms"), ("declined", "declined, it went one-shot after 10.00 ms")])
def test_the_headline_names_the_request_and_its_end(outcome, expected):
    line = story_text.headline(request(outcome))
    assert line[2::3][:2] == "::" and line[8:12] == ".123"
    assert line[13:] == f"ADD bridge mynet c1/eth0: {expected}"


def test_the_headline_of_a_request_without_a_container_has_no_gap():
    assert story_text.headline(request() | {"container": "", "ifname": "", "network": ""})[13:].startswith(
        "ADD bridge: done")


def test_a_long_time_in_the_queue_is_told():
    assert story_text.headline(request(queue_ms=12)).endswith("done in 10.00 ms, 12.00 ms in the queue")


def test_the_waterfall_has_a_line_for_each_kind_of_phase():
    phases = [("netlink", 5.0, 2.5), ("ipam", 0.0, 2.5), ("netlink", 9.5, 9.0)]
    assert list(story_text.waterfall(request(phases=phases), 8)) == [
        "  ipam         2.50 |==      |", "  netlink     11.50 |    == =|"]


def test_every_phase_is_seen_however_short_or_wrong():
    phases = [("a", 0.0, 0.0), ("b", 20.0, 1.0), ("c", -3.0, 0.1)]
    bars = [line.partition("|")[2] for line in story_text.waterfall(request(phases=phases), 4)]
    assert sorted(bars) == ["   =|", "=   |", "=   |"]


def test_a_failed_request_shows_what_the_kernel_refused_and_the_rollback():
    lines = list(story_text.steps(request("11", steps=FAILED), brief=True))
    assert lines == ["      0.300 > RTM_NEWLINK index 7 up", "      0.400 < ENODEV", "      0.500 rollback"]


def test_that_something_is_not_there_is_no_refusal_of_a_change():
    asked = Batch().begin(uapi.RTM_GETLINK, 0, bytes(16), "x").finish().hex()
    steps = [step(0.1, "sent", asked), step(0.2, "received", acknowledged(errno.ENODEV)), *FAILED[4:]]
    assert list(story_text.steps(request("11", steps=steps), brief=True)) == ["      0.500 rollback"]


def test_all_steps_have_one_line_for_acknowledgements_in_a_row():
    lines = list(story_text.steps(request("11", steps=FAILED), brief=False))
    assert [line[12:] for line in lines] == ["> RTM_NEWLINK index 7 up", "< done", "> RTM_NEWLINK index 7 up",
                                             "< ENODEV", "rollback", "> RTM_NEWLINK index 7 up", "< done"]


def test_a_successful_request_is_brief_by_its_headline():
    assert list(story_text.steps(request("0", steps=FAILED), brief=True)) == []


def test_what_was_not_kept_is_told():
    found = request("11", steps=FAILED[:1])
    found["story"]["dropped"] = 4096
    assert list(story_text.steps(found, brief=True)) == ["  4096 bytes of further messages were not kept"]


def test_the_error_has_its_details_on_lines_of_their_own():
    assert list(story_text.error(request("7", error={"code": 7, "msg": "no", "details": "a\nb"}))) == [
        "  no", "    a", "    b"]
    assert list(story_text.error(request("fault", error="no JSON"))) == ["  no JSON"]
    assert list(story_text.error(request())) == []


def test_what_was_given_has_the_id_the_variables_and_the_configuration():
    found = request("7", environment={"CNI_ARGS": "A=B"}, configuration={"name": "mynet"})
    assert list(story_text.given(found)) == ["  request ab-1 of process 9", "  CNI_ARGS=A=B", "  {",
                                             '    "name": "mynet"', "  }"]


@pytest.mark.parametrize("error", [
    {"code": 7, "msg": "no", FAILED_AT: 1},  # the error that fastcni's runtime gets
    {"code": 7, "msg": 'plugin type="portmap" (index 1) failed (add): no'}])       # the error that other runtimes get
def test_the_headline_of_a_chain_names_the_plugin_that_failed(error):
    """Once, the headline named only the chain. The reader had to find the plugin in the error's text, which did not
    always name it."""
    chain = {"type": "chain", "plugins": [{"type": "bridge"}, {"type": "portmap"}]}
    failed = {**request("7", error=error, configuration=chain), "plugin": "chain"}
    assert " ADD chain (portmap) mynet c1/eth0: error 7 after" in story_text.headline(failed)
    assert " ADD bridge mynet c1/eth0: done" in story_text.headline(request())
