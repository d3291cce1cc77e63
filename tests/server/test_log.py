"""Lines of logfmt."""

import pytest

from fastcni.server import log


@pytest.mark.parametrize(("value", "shown"), [
    ("c1", "c1"), (1.5, "1.5"), (None, "None"), ("", '""'), ("a b", '"a b"'), ("a=b", '"a=b"'), ('a"b', '"a\\"b"'),
    ("a\\b", '"a\\\\b"'), ("a\nb", '"a\\nb"'), ("\udcff", '"?"'), ("dé", "dé"),
])
def test_a_value_that_is_not_plain_is_quoted_and_leaves_the_others_alone(value, shown):
    event = {"timestamp": "now", "level": "info", "event": "done", "command": "ADD", "container": value, "ms": 0.25}
    line = log.logfmt(None, "info", event)
    assert line == f"timestamp=now level=info event=done command=ADD container={shown} ms=0.25"
