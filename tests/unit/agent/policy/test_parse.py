"""Files of policies with documents that any user may have written."""

import json
import random
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fastcni.agent.policy.sources import parse as module
from fastcni.agent.policy.sources.parse import ParseError, parse

DEEP = {".json": b'{"kind": "A", "x": %s, "y": 1}', ".yaml": b"kind: A\nx: %s\ny: 1\n"}


def read(text, name="a.yaml"):
    """Return [(where, the document, or the text of its error)]."""
    return [(where, str(each) if isinstance(each, ParseError) else each)
            for where, each in parse(name, text if isinstance(text, bytes) else text.encode())]


def test_documents_of_a_stream_are_read_one_by_one_and_a_mistake_hides_no_other():
    text = "%YAML 1.1\n---\nkind: A\n---\nkind: [\n--- # comment\n...\n---\nkind: B\nx: |\n  --- not here\n"
    (first, wrong, last) = read(text)
    assert (first, last) == (("document 1", {"kind": "A"}), ("document 3", {"kind": "B", "x": "--- not here\n"}))
    assert wrong[0] == "document 2" and "expected node content" in wrong[1]


@pytest.mark.parametrize("document, found", [
    ({"kind": "List", "items": [{"kind": "A"}, {"kind": "BList", "items": [{}]}]},
     [("items[0]", {"kind": "A"}), ("items[1], items[0]", {"kind": "B"})]),
    ({"kind": "NetworkPolicyList", "apiVersion": "v9", "items": [{"x": 1}, {"kind": "C"}]},
     [("items[0]", {"kind": "NetworkPolicy", "apiVersion": "v9", "x": 1}),
      ("items[1]", {"kind": "C", "apiVersion": "v9"})]),
    ({"kind": "List", "items": [{"x": 1}, 5, None]},
     [("items[0]", "kind: is missing"), ("items[1]", "expected a mapping"), ("items[2]", "expected a mapping")]),
    ({"kind": "List", "items": 5}, [("", "items: expected a list")]), ({"kind": "List", "items": []}, []),
    ({"kind": "List"}, [("", "items: expected a list")]), (None, [("", "expected a mapping")]),
    ({"kind": "PodList", "items": None}, [("", "items: expected a list")]),
    ({"kind": "BlockList", "spec": {}}, [("", {"kind": "BlockList", "spec": {}})]),
    ({"x": 1}, [("", "kind: is missing")]), ({"kind": 5}, [("", "kind: expected text")]),
    ([], [("", "expected a mapping")])])
def test_items_of_lists_are_read_one_by_one_and_have_a_kind(document, found):
    """Once, items of a NetworkPolicyList without a kind were skipped without an error."""
    assert read(json.dumps(document), "a.json") == found


@pytest.mark.parametrize("text", ["", "\n \n", "# all.yaml\n", "\ufeff", "%YAML 1.1\n", "~\n", "null\n"])
def test_a_file_without_a_document_is_a_mistake_unless_it_says_so(text):
    """Once, a full disk or an interrupted write emptied a file. Its policies no longer applied, and no error said
    so."""
    assert [(where, each[:15]) for where, each in read(text)] == [("", "has no document")]
    assert read(f"{text}---\n") == [] and read(text, "a.json")


@pytest.mark.parametrize("text, found", [
    ("a: on\nb: 017\nc: 1.5\nd: ~\n", {"a": True, "b": 15, "c": 1.5, "d": None}),
    ("e: '1'\nf: !!str 5\n", {"e": "1", "f": "5"}),
    ("2: x\nyes: y\n~: z\n", {"2": "x", "yes": "y", "~": "z"}),  # like kubectl, the parser reads each key as text
    ("date: 2020-01-01\n", {"date": "2020-01-01"}),
    ("x: &x {a: '1', b: '2'}\ny: {<<: *x, b: '3'}\n", {"x": {"a": "1", "b": "2"}, "y": {"a": "1", "b": "3"}}),
    ("x: &x {a: 1}\ny: {<<: [*x, {a: 2, b: 3}]}\n", {"x": {"a": 1}, "y": {"a": 1, "b": 3}}),
    ("&k key: 1\nother: *k\n", {"key": 1, "other": "key"}), ("? *k\n: 1\n", None), ("x: *k\n", None),
    ("x: &x [*x]\n", None), ("x: !!binary aGk=\n", None), ("x: !!python/name:os.system\n", None),
    ("? [a]\n: 1\n", None), ("y: {<<: 5}\n", None)])
def test_values_of_yaml(text, found):
    ((_, document),) = read(f"kind: A\n{text}")
    assert document == {"kind": "A", **found} if found else isinstance(document, str)


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-9**9, 9**9) | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)))
def test_what_yaml_and_json_write_is_read(value):
    document = {"kind": "A", "x": value}
    assert read(json.dumps(document), "a.json") == [("", document)]
    assert read(yaml.safe_dump(document)) == [("document 1", document)]


@given(st.binary(max_size=99) | st.text("-[]{}&*!|>'\"%#:,?~<a \n\t", max_size=99).map(str.encode))
def test_no_text_is_a_fault(data):
    for name in ("a.json", "a.yaml"):
        assert all(isinstance(each, str | dict) for _, each in read(data, name))


@pytest.mark.parametrize("ending, data, said", [
    (".yaml", b"[" * 2000, "nesting"), (".yaml", b"- " * 2000, "nesting"), (".json", b"[" * 100_000, "nested too deep"),
    (".yaml", b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(b"a%d: &a%d [%s]\n" % (each, each + 1, b",".join([
        b"*a%d" % each if each else b"*a"] * 9)) for each in range(9)), "stands for more than 8 MB"),
    (".yaml", b"kind: &a {}\n" + b"x%d: {<<: *a}\n" * 9, None),
    (".yaml", b"x: &a " + b"y" * 300_000 + b"\nz: [" + b"*a," * 99 + b"]\n", "stands for more than 8 MB"),
    (".yaml", b"---\n" * 1_000_000, None), (".yaml", b"[" + b"a," * 2_000_000 + b"]", "stands for more than 8 MB"),
    (".json", b"[" + b"{}," * 1_000_000 + b"{}]", "too many values"), (".json", b" " * 5_000_000, "more than 4 MB"),
    (".yaml", b"kind: List\nitems:\n" + b"- {kind: A}\n" * 10_001, "more than 10000 documents"),
    (".json", b"\xff", "can't decode"), (".yaml", b"\xff\x00", "")])
def test_a_file_is_bounded(ending, data, said):
    """Once, 2,000 brackets took 0.9 s of processor time, and 2 KB of aliases took 700 MB of memory."""
    began = time.process_time()
    found = read(data, "a" + ending)
    assert time.process_time() - began < 10
    if said:
        assert said in found[-1][1]


@pytest.mark.parametrize("ending", DEEP)
def test_a_value_that_is_nested_too_deep_is_left_out_and_its_document_is_read(ending):
    """Once, JSON with a depth of 3,000 was not read at all, so its policy closed no pod."""
    deep = 3000 if ending == ".json" else 900           # libyaml rejects a greater depth
    ((_, document),) = read(DEEP[ending] % (b"[" * deep + b'"]"' + b"]" * deep), "a" + ending)
    assert document.keys() == {"kind", "x", "y"} and document["y"] == 1
    depth, value = 0, document["x"]
    while value and depth < deep:
        (value,), depth = value, depth + 1
    assert 0 < depth <= module.MAX_DEPTH


def test_braces_in_texts_are_not_nested():
    values = ["[{" * 50, '\\"[', "]}", {"a": ["[\n"]}]
    random.Random(1).shuffle(values)
    text = json.dumps({"kind": "A", "v": values})
    assert json.loads(module.without_depths(text)) == json.loads(text)


@pytest.mark.parametrize("name, text", [("a.json", '{"kind": "A", "port": %s}'), ("a.yaml", "kind: A\nport: %s\n")])
def test_a_number_of_thousands_of_digits_is_no_port(name, text):
    """Python does not convert such a number. Once, the document's policy closed no pod for this reason."""
    ((_, document),) = read(text % ("9" * 4400), name)
    assert document["port"] == float("inf")


@pytest.mark.parametrize("name, text, key", [
    ("a.json", '{"kind": "A", "spec": 1, "spec": 2}', "spec"),
    ("a.json", '{"kind": "A", "x": [{"y": 1, "y": 1}]}', "y"),
    ("a.yaml", "kind: A\nspec: 1\nspec: 2\n", "spec"), ("a.yaml", "kind: A\nx: [{y: 1, 'y': 1}]\n", "y"),
    ("a.yaml", "a: &a {x: 1}\nb: &b {y: 1}\nc: {<<: *a, <<: *b}\n", "<<")])
def test_a_document_that_has_a_key_twice_is_refused(name, text, key):
    """Once, the last of two equal keys counted. A second `spec` of a policy opened pods, without an error."""
    ((_, why),) = read(text, name)
    assert why == f"the key {key} occurs twice"
