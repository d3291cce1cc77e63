"""Public functions have types: this test checks that they exist, `make lint` that they are right."""

import ast
from pathlib import Path

import pytest

import fastcni

ROOT = Path(fastcni.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))


def public_functions(body, owner=""):
    """(dotted name, node) of the functions and methods without a leading underscore."""
    for node in body:
        if getattr(node, "name", "_").startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            yield from public_functions(node.body, f"{owner}{node.name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{owner}{node.name}", node


def untyped(node):
    """The parameters without an annotation, and "return"."""
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    missing = [each.arg for each in every if each and not each.annotation and each.arg not in ("self", "cls")]
    return missing + ([] if node.returns else ["return"])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_public_functions_are_typed(path):
    found = {f"{name}, line {node.lineno}": missing
             for name, node in public_functions(ast.parse(path.read_text()).body) if (missing := untyped(node))}
    assert found == {}
