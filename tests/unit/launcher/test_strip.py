"""Packed plugins have no annotations and no imports that only annotations need. They keep the line
numbers of the source, but no columns."""

import ast
import textwrap
import traceback
from pathlib import Path
from types import CodeType

import pytest

from fastcni.launcher import pack
from fastcni.launcher.modules import imported
from fastcni.launcher.needs import needs_of
from fastcni.launcher.strip import stripped, without_columns

TYPED = '''
from __future__ import annotations
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
    class Only:
        pass
elif older:
    import a
count: int = 0
name: str
if count:
    limit: int = 1
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
if older:
    import a
count = 0
if count:
    limit = 1
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


@pytest.mark.parametrize("head", ["if a:", "if a:\n    b\nelse:", "for a in b:", "while a:", "with a:", "class A:",
                                  "def a():", "try:\n    b\nexcept a:", "match a:\n  case b:"])
@pytest.mark.parametrize("only", ["b: int", "if TYPE_CHECKING:\n        import b"])
def test_a_block_with_nothing_but_types_can_be_compiled(head, only):
    """Once, stripping left an empty block, which compile() rejects, unless the block was a function's or a class's
    body."""
    compile(stripped(f"{head}\n    {only}\n", "x"), "x", "exec")


def test_a_typed_name_in_brackets_becomes_a_plain_assignment():
    assert ast.unparse(stripped("(a): int = 1\na.b: int = 2", "x")) == "a = 1\na.b = 2"


def test_imports_for_type_checkers_are_no_needs():
    sources = {"fastcni.a": TYPED.replace("from typing import Protocol", "import fastcni.b"), "fastcni.b": ""}
    imports = {name: imported(stripped(source, name)) for name, source in sources.items()}
    assert needs_of(imports) == {"fastcni.a": [], "fastcni.b": []}


def codes_of(code):
    yield code
    for it in code.co_consts:
        if isinstance(it, CodeType):
            yield from codes_of(it)


def test_code_keeps_the_lines_of_the_source_and_no_columns():
    for path in [*Path(pack.HERE).glob("*.py"), *Path(textwrap.__file__).parent.glob("t*.py")]:
        code = compile(path.read_bytes(), path.name, "exec")
        for before, after in zip(codes_of(code), codes_of(without_columns(code)), strict=True):
            assert [line for line, *_ in after.co_positions()] == [line for line, *_ in before.co_positions()]
            assert {tuple(columns) for _, _, *columns in after.co_positions()} == {(None, None)}


def test_a_traceback_names_the_line():
    text = "\n" * 5000 + "def fail():\n\n    return [\n        1 / 0]\n\nfail()"
    with pytest.raises(ZeroDivisionError) as caught:
        exec(without_columns(compile(text, "x", "exec")))
    assert [it.lineno for it in traceback.extract_tb(caught.tb)][1:] == [5006, 5004]
