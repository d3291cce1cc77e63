"""Take the documents out of an untrusted JSON or YAML file, within limits.

    for where, document in parse("all.yaml", data):     # document: a mapping, or a ParseError
        ...

This module checks the limits before it builds a value. Without limits, a YAML file of 2 KB could expand to gigabytes
(aliases), or keep a parser busy for seconds (nesting). A value that is nested deeper than MAX_DEPTH becomes None, and a
number with more than MAX_DIGITS digits becomes infinity. Such a document still has its name, and its reader rejects it.
"""

from __future__ import annotations

import codecs
import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES = 4 << 20             # the maximum size of a file
MAX_EXPANDED = 8 << 20          # size of a file with expanded aliases: its characters, and NODE_COST for each value
NODE_COST = 16
MAX_DEPTH = 64                  # levels of nesting; a policy needs 12
MAX_DIGITS = 20
MAX_DOCUMENTS = 10_000          # documents of a file; each item of a List counts
SEPARATOR = re.compile(rb"^(?:---|\.\.\.)(?=\s|$)", re.MULTILINE)
DIRECTIVE = re.compile(rb"^%.*$", re.MULTILINE)
JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)
YAML_TAG = "tag:yaml.org,2002:"


class ParseError(ValueError):
    """A document or a file cannot be parsed."""


def parse(name: str, data: bytes) -> Iterator[tuple[str, dict[str, Any] | ParseError]]:
    """Yield (where, document) for each document of a file and for each item of a List. Yield (where, ParseError) if a
    document cannot be parsed. where: for example "document 2", or "document 2, items[7]" in a List. name: the file's
    name; if it ends with .json, the file is JSON, otherwise YAML."""
    if len(data) > MAX_BYTES:
        yield "", ParseError(f"has more than {MAX_BYTES >> 20} MB")
        return
    count = 0
    for where, document in (read_json if name.endswith(".json") else read_yaml)(data):
        for place, each in [(where, document)] if isinstance(document, ParseError) else flatten(where, document):
            count += 1
            if count > MAX_DOCUMENTS:
                yield "", ParseError(f"has more than {MAX_DOCUMENTS} documents")
                return
            yield place, each


def flatten(where: str, document: Any, inherited: dict[str, Any] | None = None,
            ) -> Iterator[tuple[str, dict[str, Any] | ParseError]]:
    """Yield (where, document) for a document, or for each item of a List. An item without a kind gets the kind from the
    List: an item of a NetworkPolicyList is a NetworkPolicy. inherited: kind and apiVersion from the List."""
    if not isinstance(document, dict):
        yield where, ParseError("expected a mapping")
        return
    document = {**(inherited or {}), **document}
    kind, items = document.get("kind"), document.get("items")
    if not isinstance(kind, str) or not kind:
        yield where, ParseError("kind: is missing" if kind is None else "kind: expected text")
    elif not kind.endswith("List") or "spec" in document:
        yield where, ParseError(f"kind: expected List, got {kind[:99]!r}") if isinstance(items, list) else document
    elif not isinstance(items, list):
        yield where, ParseError("items: expected a list")
    else:
        said = {key: document[key] for key in ("kind", "apiVersion") if key in document} if kind != "List" else {}
        for number, item in enumerate(items):
            yield from flatten(f"{where}{', ' if where else ''}items[{number}]", item,
                               said and {**said, "kind": kind.removesuffix("List")})


# -- JSON --------------------------------------------------------------------------------------------------------------

def read_json(data: bytes) -> Iterator[tuple[str, Any]]:
    if sum(map(data.count, (b",", b"[", b"{"))) * NODE_COST > MAX_EXPANDED:
        yield "", ParseError("has too many values")
        return
    why = ""
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
        try:
            found = json.loads(text, parse_int=read_int, object_pairs_hook=read_object)
        except RecursionError:
            why = "nested too deep: "
            found = json.loads(without_depths(text), parse_int=read_int, object_pairs_hook=read_object)
    except ValueError as e:                     # UnicodeDecodeError and JSONDecodeError too
        found = ParseError(f"{why}{e}")
    yield "", found


def without_depths(text: str) -> str:
    """Return the JSON text with `null` in place of each value that is nested deeper than MAX_DEPTH."""
    depth, begin, parts = 0, 0, []
    for token in JSON_TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                parts += [text[begin:token.start()], "null"]
        elif token[0] in "]}":
            if depth == MAX_DEPTH + 1:
                begin = token.end()
            depth -= 1
    return "".join(parts) + text[begin:]


def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the mapping of an object's (key, value) pairs. Raises ParseError if a key occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        left = iter(found)              # the keys in the order of their first occurrence
        raise twice(next(key for key, _ in pairs if key != next(left, None)))
    return found


def twice(key: str) -> ParseError:
    """Return the error for a key that a mapping has twice. A strict API server also rejects the document, because some
    programs use the first value, and others the last value."""
    return ParseError(f"the key {key[:99]} occurs twice")


def read_int(text: str) -> float:
    """Return the number, or infinity if it has more than MAX_DIGITS digits: int() raises an error for more than 4,300
    digits, which would reject the complete file."""
    return int(text) if len(text) <= MAX_DIGITS else float("inf")


# -- YAML --------------------------------------------------------------------------------------------------------------

def read_yaml(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield (where, document or ParseError) for each document of a file; an error in one document does not hide the
    other documents. A file without a document is an error unless it has a line `---`: a full disk or an interrupted
    write may have emptied it."""
    try:
        import yaml
    except ImportError:
        yield "", ParseError("reading YAML needs PyYAML: install fastcni[cluster], or Debian's python3-yaml")
        return
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)      # Debian's and PyPI's PyYAML have libyaml
    build, number = Builder(), 0
    for text in SEPARATOR.split(data := data.removeprefix(codecs.BOM_UTF8)):
        text = DIRECTIVE.sub(b"", text)
        try:
            document = build.document(yaml.parse(text, loader))
        except (yaml.YAMLError, ParseError, ValueError) as e:
            document = ParseError(" ".join(str(e).split()))
        if document is not None:
            number += 1
            yield f"document {number}", document
    if not number and not SEPARATOR.search(data):
        yield "", ParseError("has no document; delete the file, or write --- into the file to keep it empty")


class Builder:
    """Builds values from the events of a YAML parser. All documents of a file together may cost MAX_EXPANDED. Scalars
    have the types of yaml.safe_load(), but dates and all keys are text, as in kubectl."""

    def __init__(self) -> None:
        self.left = MAX_EXPANDED
        self.anchors: dict[str, tuple[Any, int]] = {}           # {anchor: (its value, the cost)}

    def document(self, events: Iterator[Any]) -> Any:
        """Return the document that the events describe; None if there is no document. Raises ParseError,
        yaml.YAMLError, ValueError."""
        self.anchors.clear()
        self.events = events
        for event in events:
            self.spend(0)
            if type(event).__name__ == "DocumentStartEvent":
                return self.value(next(events), 1)
        return None

    def spend(self, size: int) -> None:
        self.left -= NODE_COST + size
        if self.left < 0:
            raise ParseError(f"stands for more than {MAX_EXPANDED >> 20} MB of values")

    def value(self, event: Any, depth: int) -> Any:
        kind, before = type(event).__name__, self.left
        found: Any = None
        if kind == "AliasEvent":
            if event.anchor not in self.anchors:
                raise ParseError(f"alias {event.anchor[:99]}: there is no such anchor before it")
            found, size = self.anchors[event.anchor]
            self.spend(size)
            return found
        if kind == "ScalarEvent":
            self.spend(len(event.value))
            found = scalar(event.tag, event.value, event.implicit)
        elif depth > MAX_DEPTH:
            self.skip()
        elif kind == "SequenceStartEvent":
            self.spend(0)
            found = [self.value(each, depth + 1) for each in self.until("SequenceEndEvent")]
        else:
            self.spend(0)
            found = self.mapping(depth)
        if event.anchor:
            self.anchors[event.anchor] = found, before - self.left
        return found

    def mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[Any] | None = None
        for event in self.until("MappingEndEvent"):
            merges = type(event).__name__ == "ScalarEvent" and event.value == "<<" and event.implicit[0]
            key = self.key(event)
            value = self.value(next(self.events), depth + 1)
            if key in found or (merges and merged is not None):
                raise twice(key)
            if merges:
                merged = value if isinstance(value, list) else [value]
            else:
                found[key] = value
        for each in merged or ():
            if not isinstance(each, dict):
                raise ParseError("<<: expected mappings")
            found = {**each, **found}
        return found

    def key(self, event: Any) -> str:
        if type(event).__name__ == "ScalarEvent":
            self.spend(len(event.value))
            if event.anchor:
                self.anchors[event.anchor] = event.value, len(event.value)
            return str(event.value)
        if type(event).__name__ == "AliasEvent" and isinstance(found := self.value(event, 1), str):
            return found
        raise ParseError("a key is no text")

    def until(self, end: str) -> Iterator[Any]:
        while type(event := next(self.events)).__name__ != end:
            yield event

    def skip(self) -> None:
        """Skip the remaining events of a sequence or mapping."""
        inside = 1
        while inside:
            name = type(next(self.events)).__name__
            self.spend(0)
            inside += name.endswith("StartEvent") - name.endswith("EndEvent")


@lru_cache(maxsize=4096)
def scalar(tag: str | None, text: str, implicit: tuple[bool, bool]) -> Any:
    """Return the value of a YAML scalar. tag, implicit: as in yaml.ScalarEvent. Raises ParseError, ValueError."""
    import yaml

    if tag in (None, "!"):
        tag = yaml.resolver.Resolver().resolve(yaml.ScalarNode, text, implicit)
    kind = str(tag).removeprefix(YAML_TAG)
    if kind in ("str", "timestamp"):
        return text
    if kind == "int" and len(text) > MAX_DIGITS:
        return read_int(text)
    if kind not in ("null", "bool", "int", "float"):
        raise ParseError(f"the tag {tag} is not known")
    construct = getattr(yaml.constructor.SafeConstructor, f"construct_yaml_{kind}")
    return construct(yaml.constructor.SafeConstructor(), yaml.ScalarNode(tag, text))
