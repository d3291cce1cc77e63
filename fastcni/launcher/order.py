"""The order in which the modules of a plugin can be run, read from the imports at the top of their sources."""

from __future__ import annotations

import ast
from collections.abc import Container

from fastcni.launcher.strip import stripped


def needs_of(sources: dict[str, bytes]) -> dict[str, list[str]]:
    """{module name: the known modules that it imports when it is run} of {module name: source}.

    Imports inside functions do not count: they are put off on purpose. Nor do those for type checkers.
    """
    return {name: imports(source, sources) for name, source in sources.items()}


def load_order(needs: dict[str, list[str]], ends: list[str]) -> list[str]:
    """The modules `ends` and all that they need, each after those that it imports."""
    return list(walk(ends, needs, {}))


def imports(source: bytes, known: Container[str]) -> list[str]:
    """The known modules that a module imports when it is run, a package before its modules."""
    found: list[str] = []
    for node in stripped(source, "<source>").body:
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{item.name}" for item in node.names] + [node.module or ""]
        elif isinstance(node, ast.Import):
            found += [item.name for item in node.names]
    return [name for name in found if name in known]


def walk(names: list[str], needs: dict[str, list[str]], seen: dict[str, bool]) -> dict[str, bool]:
    """Depth first; `seen` is a dict for its order. A module comes after its package and its imports."""
    for name in names:
        if name not in seen:
            parent = name.rpartition(".")[0]
            walk([parent] if parent else [], needs, seen)
            walk(needs[name], needs, seen)
            seen[name] = True
    return seen
