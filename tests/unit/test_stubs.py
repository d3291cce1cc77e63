"""Each extension module has a stub (.pyi) for type checkers. Module and stub have the same names."""

import ast
import importlib
from pathlib import Path

import pytest

import fastcni

DIRECTORY = Path(fastcni.__file__).parent
LEAVES = sorted(path.stem for path in DIRECTORY.glob("*.pyx"))


def public(names):
    return {name for name in names if not name.startswith("_")}


def stub_of(leaf):
    """Return ({name: its node in the syntax tree}, {class: names of its members}) of a stub."""
    body = ast.parse((DIRECTORY / f"{leaf}.pyi").read_text()).body
    names = {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.target.id: node for node in body if isinstance(node, ast.AnnAssign)}
    members = {name: {getattr(each, "name", None) or each.target.id for each in node.body
                      if isinstance(each, ast.FunctionDef | ast.AnnAssign)}
               for name, node in names.items() if isinstance(node, ast.ClassDef)}
    return names, members


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_stub_names_what_its_leaf_has(leaf):
    module, (names, members) = importlib.import_module(f"fastcni.{leaf}"), stub_of(leaf)
    assert public(names) == public(vars(module))
    for name, found in members.items():
        assert public(found) == public(vars(getattr(module, name))), name


def parameters(text):
    """Return the names of the parameters of `def name(...)`, without self. The text is Cython or Python."""
    inside = text.partition("(")[2].rpartition(")")[0].replace("\n", " ")
    parts = [part.partition("=")[0].partition(":")[0].replace("not None", "").split() for part in inside.split(",")]
    return [tokens[-1] for tokens in parts if tokens and tokens[-1] not in ("self", "*")]


@pytest.mark.parametrize("leaf", LEAVES)
def test_functions_of_a_stub_take_what_those_of_the_leaf_take(leaf):
    source, (names, _) = (DIRECTORY / f"{leaf}.pyx").read_text(), stub_of(leaf)
    for name, node in names.items():
        if isinstance(node, ast.FunctionDef):
            signature = source.partition(f"\ndef {name}(")[2].partition("):\n")[0]
            arguments = [it.arg for it in (*node.args.args, *node.args.kwonlyargs)]
            assert arguments == parameters(f"({signature})"), name
