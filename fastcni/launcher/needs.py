"""Which modules each plugin needs, read from the imports at the top of their sources."""

from __future__ import annotations

import ast
import functools
from collections.abc import Container, Iterable

from fastcni.kit.firewall import backends
from fastcni.launcher.modules import ENTRY, LEAVES, Module
from fastcni.launcher.strip import stripped
from fastcni.plugins import BUILT_IN

ASKS_IPAM = "fastcni.kit.call.ipam"     # the module that plugins import to ask an IPAM plugin
FINDS_LINKS = "fastcni.kit.links.find"  # the module that plugins import to read links; all that ask IPAM do


def needed(own: dict[str, Module], others: dict[str, dict[str, Module]]) -> dict[str, list[str]]:
    """{CNI type: the modules and leaves of fastcni that it needs, in an order in which they can be run}.

    With a plugin that asks IPAM goes host-local, the usual delegate. own: fastcni's modules. others: {CNI type: the
    modules of a plugin of another distribution}. The import system loads these: they may import each other in a circle,
    and use the attributes that it sets in a module.
    """
    needs = needs_of_all(own)
    ends = {kind: [module] for kind, module in BUILT_IN.items()}
    for kind, theirs in others.items():
        known = {name: module.source for name, module in theirs.items()} | dict.fromkeys(own, b"")
        ends[kind] = sorted({name for found in needs_of(known).values() for name in found if name in own})
    found = {}
    for kind, names in ends.items():
        found[kind] = load_order([*ENTRY, *names], needs)
        if ASKS_IPAM in found[kind]:
            found[kind] = load_order([*found[kind], BUILT_IN["host-local"]], needs)
    return found


def needs_of_all(own: dict[str, Module]) -> dict[str, list[str]]:
    """needs_of() fastcni's modules and leaves."""
    return needs_of({name: module.source for name, module in own.items()} | {f"fastcni.{leaf}": b"" for leaf in LEAVES})


def late_groups(own: dict[str, Module], every: Container[str]) -> list[tuple[list[str], list[int]]]:
    """The modules that requests import late and together, without leaves and those in `every`: the firewall backends,
    and what they need. [(the modules of a group, the indexes of the groups that they need, itself among them)]"""
    needs = needs_of_all(own)
    ends = [f"{backends.__package__}.{module}" for of in backends.TABLE.values() for module in of.values()]
    found = [[name for name in group if name in own and name not in every] for group in groups(ends, needs)]
    found = [group for group in found if group]
    closures = [{*load_order(group, needs)} for group in found]
    return [(group, [number for number, other in enumerate(found) if not closure.isdisjoint(other)])
            for group, closure in zip(found, closures, strict=True)]


def in_one_part(parts: dict[str, list[str]]) -> dict[str, str]:
    """{module: a plugin that needs it} of the modules that are in one part only; equal parts count as one."""
    distinct = {tuple(names): kind for kind, names in parts.items()}
    kinds: dict[str, list[str]] = {}
    for names, kind in distinct.items():
        for name in names:
            kinds.setdefault(name, []).append(kind)
    return {name: found[0] for name, found in kinds.items() if len(found) == 1}


def common(orders: Iterable[list[str]]) -> list[str]:
    """The modules that are in each of `orders`, in a valid order: what one of them imports is one of them."""
    first, *rest = orders
    return [name for name in first if all(name in other for other in rest)]


def groups(ends: Iterable[str], needs: dict[str, list[str]]) -> list[list[str]]:
    """The modules that `ends` need, in groups: the modules of a group are needed by the same ones of them.

    Groups, and the modules in each, are in an order in which they can be run: an end that needs a module also needs
    what the module imports, so the groups of more ends go first.
    """
    closures = [{*load_order([end], needs)} for end in ends]
    found: dict[tuple[bool, ...], list[str]] = {}
    for name in load_order(ends, needs):
        found.setdefault(tuple(name in closure for closure in closures), []).append(name)
    return [found[needed_by] for needed_by in sorted(found, key=sum, reverse=True)]


def needs_of(sources: dict[str, bytes]) -> dict[str, list[str]]:
    """{module name: the known modules that it imports when it is run} of {module name: source}.

    Imports inside functions do not count: they are put off on purpose. Nor do those for type checkers.
    """
    return {name: imports(source, sources) for name, source in sources.items()}


def others(modules: dict[str, Module]) -> list[str]:
    """The modules of Python and of other projects that some statement of `modules` imports, also within functions."""
    found: set[str] = set()
    for module in modules.values():
        for node in ast.walk(stripped(module.source, "<source>")):
            if isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
            elif isinstance(node, ast.Import):
                found |= {item.name for item in node.names}
    return sorted(name for name in found - {*modules} if name != "fastcni" and not name.startswith("fastcni._"))


def load_order(ends: Iterable[str], needs: dict[str, list[str]]) -> list[str]:
    """The modules `ends` and all that they need, each after its package and after those that it imports."""
    return list(walk(ends, needs, {}))


def walk(names: Iterable[str], needs: dict[str, list[str]], seen: dict[str, bool]) -> dict[str, bool]:
    """Depth first; `seen` is a dict for its order."""
    for name in names:
        if name and name not in seen:
            walk([name.rpartition(".")[0]], needs, seen)
            walk(needs[name], needs, seen)
            seen[name] = True
    return seen


def imports(source: bytes, known: Container[str]) -> list[str]:
    """The known modules that a module imports when it is run."""
    return [name for name in imported(source) if name in known]


@functools.cache
def imported(source: bytes) -> tuple[str, ...]:
    """All that a module imports when it is run; of `from a import b` both a.b and a. It is asked for more than once."""
    found: list[str] = []
    for node in stripped(source, "<source>").body:
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{item.name}" for item in node.names] + [node.module or ""]
        elif isinstance(node, ast.Import):
            found += [item.name for item in node.names]
    return tuple(found)
