"""Packed plugins have no annotations, no imports for them, and of the source's places only the lines."""

import ast

from fastcni.launcher.needs import needs_of
from fastcni.launcher.strip import stripped

TYPED = '''
from __future__ import annotations
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
    class Only:
        pass
count: int = 0
name: str
class Link:
    index: int
class Pair(Link):
    async def wait(self, limit: float) -> None:
        yield limit
    def find(self, sock: Socket, /, *names: str, deep: bool = False, **rest: int) -> Link | None:
        found: list[Link] = []
        return found or (lambda a, *b: a)(count)
'''
PLAIN = '''
TYPE_CHECKING = False
count = 0
class Link:
    pass
class Pair(Link):
    async def wait(self, limit):
        yield limit
    def find(self, sock, /, *names, deep=False, **rest):
        found = []
        return found or (lambda a, *b: a)(count)
'''


def test_annotations_and_what_is_for_type_checkers_are_removed():
    assert ast.unparse(stripped(TYPED, "x")) == ast.unparse(ast.parse(PLAIN))


def test_imports_for_type_checkers_are_no_needs():
    sources = {"fastcni.a": TYPED.replace("from typing import Protocol", "import fastcni.b"), "fastcni.b": ""}
    assert needs_of(sources) == {"fastcni.a": [], "fastcni.b": []}


def test_code_keeps_the_lines_of_the_source_and_no_columns():
    found = list(compile(stripped(TYPED, "x"), "x", "exec").co_positions())
    assert {line for line, *_ in found} >= {3, 8, 10, 12}
    assert {tuple(columns) for _, _, *columns in found[1:]} == {(None, None)}      # the first is the module itself
