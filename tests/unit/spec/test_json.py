"""The dialect of JSON: agreement with the standard library, inputs that Go rejects, escapes and numbers."""

import json as stdlib
import math
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fastcni
from fastcni.spec import json

ROOT = str(Path(fastcni.__file__).parent.parent)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
FINITE = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.none() | st.booleans() | st.integers() | TEXT


def nested(leaves):
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner))


@given(nested(PLAIN | FINITE), st.sampled_from([None, 0, 3]), st.booleans())
def test_reading_agrees_with_the_standard_library(value, indent, escaped):
    document = stdlib.dumps(value, indent=indent, ensure_ascii=escaped).encode()
    assert json.read(document) == stdlib.loads(document)


@given(nested(PLAIN), st.sampled_from([0, 4]), st.booleans())
def test_the_standard_library_reads_what_is_written(value, indent, sort):
    assert stdlib.loads(json.write(value, indent, sort)) == value


@given(st.binary())
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b"\xff\xfe")
@example(b'"\\ud800')
@example(b"9" * 5000)
@example(b"-")
def test_no_bytes_raise_anything_but_a_json_error(data):
    try:
        json.read(data)
    except json.JsonError:
        pass


PIECES = (
    b"{", b"}", b"[", b"]", b":", b",", b'"', b'"a"', b"\\", b"\\u", b"d800", b"1", b"-", b".", b"e", b"true",
    b"nul", b"l", b"NaN", b"Infinity", b" ", b"\n", b"\x00", b"\xc3", b"\xef\xbb\xbf")


@given(st.lists(st.sampled_from(PIECES), max_size=15).map(b"".join))
def test_no_almost_valid_json_raises_anything_but_a_json_error(data):
    try:
        value = json.read(data)
    except json.JsonError:
        return
    assert json.read(json.write(value)) == value


REFUSED = [
    (b"", "unexpected end of JSON input"),
    (b" \n", "unexpected end of JSON input"),
    (b'{"a":1', "unexpected end of JSON input"),
    (b'"abc', "unexpected end of JSON input"),
    (b'{"name":"n"} x', "invalid character 'x' after top-level value"),
    (b"{}{}", "invalid character '{' after top-level value"),
    (b"01", "invalid character '1' after top-level value"),
    (b"\xef\xbb\xbf{}", "invalid character 'ï' looking for beginning of value"),
    (b"NaN", "invalid character 'N' looking for beginning of value"),
    (b"[Infinity]", "invalid character 'I' looking for beginning of value"),
    (b"-Infinity", "invalid character 'I' in numeric literal"),
    (b"'a'", r"invalid character '\'' looking for beginning of value"),
    (b'{"a":1,}', "invalid character '}' looking for beginning of object key string"),
    (b"[1, ]", "invalid character ']' looking for beginning of value"),
    (b"{a:1}", "invalid character 'a' looking for beginning of object key string"),
    (b'{"a" 1}', "invalid character '1' after object key"),
    (b"[1 2]", "invalid character '2' after array element or object key:value pair"),
    (b'"a\nb"', r"invalid character '\n' in string literal"),
    (b'"a\\qb"', "invalid character 'q' in string escape code"),
    (b'"\\u12x4"', r"invalid character 'x' in \u hexadecimal character escape"),
    (b"1e999", "json: cannot unmarshal number 1e999 into Go value of type float64"),
    (b"[" * 501 + b"]" * 501, "exceeded max depth"),
]


@pytest.mark.parametrize("data,message", REFUSED, ids=[str(row[0][:20]) for row in REFUSED])
def test_a_refusal_has_go_s_text(data, message):
    with pytest.raises(json.JsonError) as caught:
        json.read(data)
    assert str(caught.value) == message


def test_a_refusal_is_the_same_where_the_json_package_is_not_loaded():
    code = (f"import sys; sys.path.append({ROOT!r})\nfrom fastcni.spec import json\n"
            "assert 'json' not in sys.modules\ntry: json.read(b'{')\nexcept json.JsonError as e: print(e)")
    output = subprocess.check_output([sys.executable, "-I", "-S", "-c", code], text=True)
    assert output == "unexpected end of JSON input\n"


def test_nesting_of_500_is_read_and_written():
    document = b"[" * 500 + b"]" * 500
    assert json.write(json.read(document)) == document


def test_ten_thousand_objects_beside_each_other_are_no_nesting():
    assert len(json.read(b"[" + b",".join([b"{}"] * 10_000) + b"]")) == 10_000


@pytest.mark.parametrize("data,text", [
    (b'"\\ud800"', "\ufffd"), (b'"\\ud800a\\udc00"', "\ufffda\ufffd"), (b'"\\ud83d\\ude00"', "\U0001f600"),
    (b'"\xe2\x82"', "\ufffd" * 2), (b'"\xed\xa0\x80"', "\ufffd" * 3), (b'"\xff\\ud800"', "\ufffd" * 2),
])
def test_each_bad_byte_and_each_lone_surrogate_is_one_replacement_character(data, text):
    assert json.read(data) == text


@pytest.mark.parametrize("value,data", [
    ("a<b>&c", rb'"a\u003cb\u003e\u0026c"'),
    ("\u2028\u2029", rb'"\u2028\u2029"'),
    ("\n\r\t\x01\x1f", rb'"\n\r\t\u0001\u001f"'),
    ("\x7f/'\"\\é", b'"\x7f/\'\\"\\\\\xc3\xa9"'),
    ("\ud800", b'"\xef\xbf\xbd"'),
    ((1, True, None), b"[1,true,null]"),
    ({"b": 1, "a": {}}, b'{"b":1,"a":{}}'),
])
def test_strings_are_escaped_as_go_does_it(value, data):
    assert json.write(value) == data


def test_sorting_is_by_bytes_and_does_not_fold_case():
    assert json.write({"b": 1, "a": 2, "B": 3, "é": 4, "\U0001f600": 5, "\uffff": 6}, sort=True) == (
        '{"B":3,"a":2,"b":1,"é":4,"\uffff":6,"\U0001f600":5}'.encode())


def test_indented_empty_values_stay_on_their_line():
    assert json.write({"a": {}, "b": [], "c": [1]}, indent=4) == (
        b'{\n    "a": {},\n    "b": [],\n    "c": [\n        1\n    ]\n}')


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_float_that_is_no_number_is_not_written(value):
    with pytest.raises(ValueError, match="unsupported value"):
        json.write(value)


def test_a_value_without_a_json_type_is_a_type_error():
    with pytest.raises(TypeError, match="bytes"):
        json.write({"a": b""})


@pytest.mark.parametrize("number,text", [
    (0.0, "0"), (-0.0, "-0"), (1.0, "1"), (1.5, "1.5"), (1e-6, "0.000001"), (1e-7, "1e-7"),
    (-1.5e-7, "-1.5e-7"), (0.000012345, "0.000012345"), (1e16, "10000000000000000"),
    (12345678901234567890.0, "12345678901234567000"),
    (1.2345e20, "123450000000000000000"), (1e21, "1e+21"), (-2.5e22, "-2.5e+22"), (5e-324, "5e-324"),
])
def test_floats_are_printed_as_go_prints_them(number, text):
    assert json.float_text(number) == text


@given(FINITE)
def test_a_printed_float_is_the_same_float(number):
    assert struct.pack("d", float(json.float_text(number))) == struct.pack("d", number)


@pytest.mark.parametrize("text,quoted", [
    ("", '""'), ('a"b\\', r'"a\"b\\"'), ("\n\t\a\v\x01\x7f", r'"\n\t\a\v\x01\x7f"'), ("é", '"é"'),
    ("\u200b", r'"\u200b"'), ("\U000e0001", r'"\U000e0001"'), ("\udcff", r'"\xff"'), ("a b", '"a b"'),
    ("\xa0", r'"\u00a0"'),
])
def test_quote_is_go_s(text, quoted):
    assert json.quote(text) == quoted


def test_numbers_of_a_generic_map_are_floats():
    document = json.normalize(json.read(b'{"n":12345678901234567890,"f":1.0,"l":[9007199254740993],"i":7}'))
    assert json.write(document) == b'{"n":12345678901234567000,"f":1,"l":[9007199254740992],"i":7}'


def test_an_integer_beyond_all_floats_is_a_json_error():
    with pytest.raises(json.JsonError, match="float64"):
        json.normalize([10 ** 400])
