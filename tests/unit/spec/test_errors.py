"""Errors: their text, and the JSON document that a plugin prints."""

from fastcni.spec import json
from fastcni.spec.errors import CniError


def test_details_follow_the_message_where_there_are_any():
    assert str(CniError(7, "bad", "why")) == "bad; why"
    assert str(CniError(7, "bad")) == "bad"


def test_the_document_has_no_version_and_no_empty_details_S36():
    assert json.write(CniError(7, "a <&>", "why").as_document(), indent=4) == (
        b'{\n    "code": 7,\n    "msg": "a \\u003c\\u0026\\u003e",\n    "details": "why"\n}')
    assert CniError(999, "x").as_document() == {"code": 999, "msg": "x"}
