"""Read selectors of Calico, and write selectors of Kubernetes.

    alternatives("app == 'web' && tier in {'a', 'b'} || has(old)")
    [(app In web, tier In a b), (old Exists)]

A selector of Kubernetes has no `||`, so the result is a list of alternatives. An alternative matches if all its
requirements match. Language: https://docs.tigera.io/calico/latest/reference/resources/networkpolicy#selectors
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, NoReturn

from fastcni.agent.policy.objects import DOES_NOT_EXIST, EXISTS, IN, NOT_IN, Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable

    Alternative = tuple[Requirement, ...]
    Tree = tuple[str, Any]      # ("and" or "or", list of trees), ("not", tree), ("is", requirement), ("all", None)

MAX_CHARACTERS = 4096
MAX_DEPTH = 32                          # levels of parentheses and negations
MAX_ALTERNATIVES = 25                   # a rule of a ClusterNetworkPolicy has at most 25 peers
TOKEN = re.compile(r"""\s*(?:(?P<symbol>&&|\|\||==|!=|[!(){},])|(?P<text>"[^"]*"|'[^']*')"""
                   r"""|(?P<word>[A-Za-z0-9_./-]+)|(?P<end>\Z))""")
COMPLEMENTS = {IN: NOT_IN, NOT_IN: IN, EXISTS: DOES_NOT_EXIST, DOES_NOT_EXIST: EXISTS}
UNKNOWN = {"contains": "contains", "starts": "starts with", "ends": "ends with"}       # Kubernetes has no such operator


class SelectorError(ValueError):
    """A Calico selector cannot be read, or no selector of Kubernetes can express it."""


def alternatives(text: str, *, negated: bool = False) -> list[Alternative]:
    """Return the alternatives of a Calico selector, or of its negation; "" matches everything. Raises SelectorError."""
    if not text.strip():
        text = "all()"
    if len(text) > MAX_CHARACTERS:
        raise SelectorError(f"has more than {MAX_CHARACTERS} characters")
    return expand(Parser(text).whole(), negated)


def expand(tree: Tree, negated: bool) -> list[Alternative]:
    """Return the alternatives of a tree; with `negated`, of its negation. Raises SelectorError."""
    kind, value = tree
    if kind == "all":
        return [] if negated else [()]
    if kind == "not":
        return expand(value, not negated)
    if kind == "is":
        return [(Requirement(value.key, COMPLEMENTS[value.operator], value.values) if negated else value,)]
    parts = [expand(each, negated) for each in value]
    if (kind == "or") != negated:
        return bounded(itertools.chain.from_iterable(parts))
    found: list[Alternative] = [()]
    for part in parts:
        found = both(found, part)
    return found


def both(first: Iterable[Alternative], other: list[Alternative]) -> list[Alternative]:
    """Return the alternatives that match the objects that both `first` and `other` match. Raises SelectorError."""
    return bounded((*left, *right) for left in first for right in other)


def bounded(found: Iterable[Alternative]) -> list[Alternative]:
    """Return the alternatives without duplicates. Raises SelectorError if there are more than MAX_ALTERNATIVES."""
    first = [tuple(dict.fromkeys(each)) for each in itertools.islice(found, MAX_ALTERNATIVES + 1)]
    if len(first) > MAX_ALTERNATIVES:
        raise SelectorError(f"has more than {MAX_ALTERNATIVES} alternatives")
    return list(dict.fromkeys(first))


def label_selector(requirements: Iterable[Requirement]) -> dict[str, Any]:
    """Return the Kubernetes LabelSelector of an alternative: matchLabels and matchExpressions."""
    labels: dict[str, str] = {}
    expressions = []
    for each in requirements:
        if each.operator == IN and len(each.values) == 1 and each.key not in labels:
            labels[each.key] = next(iter(each.values))
        else:
            values = {"values": sorted(each.values)} if each.operator in (IN, NOT_IN) else {}
            expressions.append({"key": each.key, "operator": each.operator, **values})
    return {**({"matchLabels": labels} if labels else {}), **({"matchExpressions": expressions} if expressions else {})}


class Parser:
    """Reads a Calico selector into a Tree."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        place = 0
        while not self.tokens or self.tokens[-1][0] != "end":
            if not (found := TOKEN.match(text, place)):
                raise SelectorError(f"cannot be read from {text[place:place + 20].strip()!r} on")
            self.tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            place = found.end()
        self.tokens.reverse()           # so that the next token is always the last item

    def whole(self) -> Tree:
        found = self.either(0)
        if self.tokens[-1][0] != "end":
            self.wrong("&& or ||")
        return found

    def either(self, depth: int) -> Tree:
        found = [self.every(depth)]
        while self.take("symbol", "||"):
            found.append(self.every(depth))
        return ("or", found)

    def every(self, depth: int) -> Tree:
        found = [self.single(depth)]
        while self.take("symbol", "&&"):
            found.append(self.single(depth))
        return ("and", found)

    def single(self, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise SelectorError(f"is nested deeper than {MAX_DEPTH}")
        if self.take("symbol", "!"):
            return ("not", self.single(depth + 1))
        if self.take("symbol", "("):
            found = self.either(depth + 1)
            self.need("symbol", ")")
            return found
        key = self.need("word")
        if self.take("symbol", "("):
            return self.call(key)
        return ("is", self.comparison(key))

    def call(self, name: str) -> Tree:
        """Read the rest of `all()` or `has(label)` after the opening parenthesis. name: "all" or "has"."""
        if name == "has":
            key = self.need("word")
            self.need("symbol", ")")
            return ("is", Requirement(key, EXISTS))
        if name != "all":
            raise SelectorError(f"{name}() cannot be expressed")
        self.need("symbol", ")")
        return ("all", None)

    def comparison(self, key: str) -> Requirement:
        """Read the rest of a requirement after the label's name `key`. `!=` and `not in` also match objects without the
        label."""
        for symbol, operator in (("==", IN), ("!=", NOT_IN)):
            if self.take("symbol", symbol):
                return Requirement(key, operator, frozenset([self.value()]))
        word = self.need("word")
        if word in UNKNOWN:
            raise SelectorError(f"{key} {UNKNOWN[word]}: cannot be expressed")
        operator = NOT_IN if word == "not" else IN
        if word == "not":
            word = self.need("word")
        if word != "in":
            raise SelectorError(f"{key} {word}: is not known")
        self.need("symbol", "{")
        values = {self.value()}
        while self.take("symbol", ","):
            values.add(self.value())
        self.need("symbol", "}")
        return Requirement(key, operator, frozenset(values))

    def value(self) -> str:
        return self.need("text")[1:-1]

    def take(self, kind: str, text: str) -> bool:
        """If the next token has this kind and text, skip the token and return True."""
        if self.tokens[-1] != (kind, text):
            return False
        self.tokens.pop()
        return True

    def need(self, kind: str, text: str = "") -> str:
        """Skip the next token and return its text. Raises SelectorError if the token has another kind or text."""
        if self.tokens[-1][0] != kind or text not in ("", self.tokens[-1][1]):
            self.wrong(text or {"word": "the name of a label", "text": "a value in quotes"}[kind])
        return self.tokens.pop()[1]

    def wrong(self, expected: str) -> NoReturn:
        raise SelectorError(f"expected {expected}, got {self.tokens[-1][1][:20]!r}")
