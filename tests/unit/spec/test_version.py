"""Versions: how they are parsed, compared and supported, and the answer to VERSION."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcni.spec import version
from fastcni.spec.errors import CniError


@pytest.mark.parametrize("text,numbers", [
    ("", (0, 1, 0)), ("1", (1, 0, 0)), ("1.1", (1, 1, 0)), ("0.3.1", (0, 3, 1)), ("0.-42.0", (0, -42, 0)),
    ("+1.0.0", (1, 0, 0)), ("01.0.0", (1, 0, 0)),
])
def test_a_version_is_up_to_three_numbers(text, numbers):
    assert version.parse(text) == numbers


@pytest.mark.parametrize("text,message", [
    ("1.2.3.4", 'invalid version "1.2.3.4": too many parts'),
    ("x.y", 'failed to convert major version part "x": strconv.Atoi: parsing "x": invalid syntax'),
    ("1.y", 'failed to convert minor version part "y": strconv.Atoi: parsing "y": invalid syntax'),
    ("1.0.", 'failed to convert micro version part "": strconv.Atoi: parsing "": invalid syntax'),
    ("1.0.0-a", 'failed to convert micro version part "0-a": strconv.Atoi: parsing "0-a": invalid syntax'),
    ("v1", 'failed to convert major version part "v1": strconv.Atoi: parsing "v1": invalid syntax'),
    ("1_0", 'failed to convert major version part "1_0": strconv.Atoi: parsing "1_0": invalid syntax'),
    (" 1", 'failed to convert major version part " 1": strconv.Atoi: parsing " 1": invalid syntax'),
    ("²", 'failed to convert major version part "²": strconv.Atoi: parsing "²": invalid syntax'),
    ("+-1", 'failed to convert major version part "+-1": strconv.Atoi: parsing "+-1": invalid syntax'),
])
def test_the_error_names_an_invalid_version(text, message):
    with pytest.raises(ValueError) as caught:
        version.parse(text)
    assert str(caught.value) == message


@given(st.text("0123456789.+-_ vé", max_size=30) | st.just("9" * 5000))
def test_no_text_raises_anything_but_a_value_error(text):
    try:
        assert len(version.parse(text)) == 3
    except ValueError:
        pass


def test_order_is_by_number():
    assert version.at_least("0.10.0", "0.9.0")
    assert not version.at_least("", "0.2.0")
    assert sorted(version.ALL, key=version.parse) == list(version.ALL)


def test_starting_from_returns_that_version_and_all_later_ones():
    assert version.starting_from("0.4.0") == ("0.4.0", "1.0.0", "1.1.0")
    with pytest.raises(ValueError):
        version.starting_from("0.5.0")


@pytest.mark.parametrize("config_version", ["9.9.9", "1.1", "1.0.0", ""])
def test_support_is_the_same_text_and_nothing_else_S21(config_version):
    supported = ("0.1.0", "0.4.0", "1.1.0")
    version.check_supported("0.4.0", supported)
    with pytest.raises(CniError) as caught:
        version.check_supported(config_version, supported)
    assert (caught.value.code, caught.value.msg, caught.value.details) == (
        1, "incompatible CNI versions",
        f'config is "{config_version}", plugin supports ["0.1.0" "0.4.0" "1.1.0"]')


def test_the_reply_to_version_is_one_line_S19():
    assert version.version_reply(("0.1.0", "1.1.0")) == (
        b'{"cniVersion":"1.1.0","supportedVersions":["0.1.0","1.1.0"]}\n')


@pytest.mark.parametrize("reply,versions", [
    (b'{"cniVersion":"1.1.0","supportedVersions":["x","1.1.0"]}', ["x", "1.1.0"]),
    (b'{"CNIVERSION":"1.1.0","SupportedVersions":["1.1.0"],"other":1}', ["1.1.0"]),
    (b'{"cniVersion":"0.2.0"}', ["0.1.0", "0.2.0"]),
])
def test_a_reply_to_version_is_read(reply, versions):
    assert version.read_version_reply(reply) == versions


@pytest.mark.parametrize("reply,why", [
    (b"", "unexpected end of JSON input"),
    (b"null", "missing field cniVersion"),
    (b"{}", "missing field cniVersion"),
    (b'{"cniVersion":""}', "missing field cniVersion"),
    (b'{"cniVersion":"1.0.0"}', "missing field supportedVersions"),
    (b'{"cniVersion":5}', "cniVersion: expected a string"),
    (b"[]", "expected an object"),
    (b'{"cniVersion":"1.0.0","supportedVersions":[1]}', "supportedVersions: expected a list of strings"),
])
def test_a_reply_with_missing_members_is_refused(reply, why):
    with pytest.raises(ValueError) as caught:
        version.read_version_reply(reply)
    assert str(caught.value) == f"decoding version info: {why}"
