"""Lines of logfmt, and how many of them a caller can cause."""

import pytest

from fastcni.server import log


@pytest.mark.parametrize(("value", "shown"), [
    ("c1", "c1"), (1.5, "1.5"), (None, "None"), ("", '""'), ("a b", '"a b"'), ("a=b", '"a=b"'), ('a"b', '"a\\"b"'),
    ("a\\b", '"a\\\\b"'), ("a\nb", '"a\\nb"'), ("\udcff", '"?"'), ("dé", "dé"),
])
def test_only_a_value_with_special_characters_is_quoted(value, shown):
    event = {"timestamp": "now", "level": "info", "event": "request_done", "command": "ADD", "container": value,
             "ms": 0.25}
    line = log.logfmt(None, "info", event)
    assert line == f"timestamp=now level=info event=request_done command=ADD container={shown} ms=0.25"


def test_a_caller_cannot_flood_the_log(monkeypatch):
    """Any local user could fill the disk with one line for each refused connection."""
    lines, clock = [], iter([100.0, 100.1, 109.9, 110.1, 110.2])
    monkeypatch.setattr(log, "monotonic", lambda: next(clock))
    refused = log.RateLimited(lambda event, **fields: lines.append((event, fields)), seconds=10.0)
    for _ in range(5):
        refused("user_refused", uid=1)
    assert lines == [("user_refused", {"uid": 1, "left_out": 0}), ("user_refused", {"uid": 1, "left_out": 2})]
