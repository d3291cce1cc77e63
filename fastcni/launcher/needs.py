"""Find the modules that each plugin needs, from the imports at the top of the sources."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Mapping

from fastcni.kit.firewall import backends
from fastcni.launcher.modules import ENTRY, LEAVES, Module
from fastcni.launcher.strip import stripped
from fastcni.plugins import BUILT_IN

ASKS_IPAM = "fastcni.kit.call.ipam"     # the module that plugins import to ask an IPAM plugin
FINDS_LINKS = "fastcni.kit.links.find"  # the module that plugins import to read links, or to ask IPAM


def needed(own: dict[str, Module], others: dict[str, dict[str, Module]]) -> dict[str, list[str]]:
    """Return {CNI type: the modules and extension modules of fastcni that the plugin needs, each after its imports}.

    A plugin that asks IPAM also gets the modules of host-local, the usual delegate. own: fastcni's modules. others:
    {CNI type: the modules of a plugin of another distribution}. The result does not contain the modules of other
    distributions. The import system loads these modules, because they may import each other in a circle, and may use
    the attributes that the import system sets in a module.
    """
    needs = needs_of_all(own)
    ends = {kind: [module] for kind, module in BUILT_IN.items()}
    for kind, theirs in others.items():
        known = {name: module.imports for name, module in theirs.items()} | dict.fromkeys(own, ())
        ends[kind] = sorted({name for found in needs_of(known).values() for name in found if name in own})
    found = {}
    for kind, names in ends.items():
        found[kind] = load_order([*ENTRY, *names], needs)
        if ASKS_IPAM in found[kind]:
            found[kind] = load_order([*found[kind], BUILT_IN["host-local"]], needs)
    return found


def needs_of_all(own: dict[str, Module]) -> dict[str, list[str]]:
    """Return {module: the modules that it imports}, see needs_of(), for fastcni's modules and extension modules."""
    return needs_of({name: module.imports for name, module in own.items()} | {f"fastcni.{leaf}": () for leaf in LEAVES})


def late_groups(own: dict[str, Module], every: Container[str]) -> list[tuple[list[str], list[int]]]:
    """Return the groups of modules that requests import late and together: [(the modules of a group, the indexes of the
    groups that these modules need, including their own group)]. The modules are the firewall backends and the modules
    that they need, without extension modules and the modules in `every`."""
    needs = needs_of_all(own)
    ends = [f"{backends.__package__}.{module}" for of in backends.TABLE.values() for module in of.values()]
    found = [[name for name in group if name in own and name not in every] for group in groups(ends, needs)]
    found = [group for group in found if group]
    closures = [{*load_order(group, needs)} for group in found]
    return [(group, [number for number, other in enumerate(found) if not closure.isdisjoint(other)])
            for group, closure in zip(found, closures, strict=True)]


def in_one_part(parts: dict[str, list[str]]) -> dict[str, str]:
    """Return {module: a plugin that needs the module} for the modules that are in only one of `parts`, {plugin:
    modules}. Equal parts count as one part."""
    distinct = {tuple(names): kind for kind, names in parts.items()}
    kinds: dict[str, list[str]] = {}
    for names, kind in distinct.items():
        for name in names:
            kinds.setdefault(name, []).append(kind)
    return {name: found[0] for name, found in kinds.items() if len(found) == 1}


def common(orders: Iterable[list[str]]) -> list[str]:
    """Return the modules that are in all of `orders`, each after its imports, which are in all of `orders`, too."""
    first, *rest = orders
    return [name for name in first if all(name in other for other in rest)]


def groups(ends: Iterable[str], needs: dict[str, list[str]]) -> list[list[str]]:
    """Return the modules that `ends` need, in groups: the same ends need all modules of a group.

    Each module comes after its imports. So groups that more ends need come first: an end that needs a module also needs
    the module's imports.
    """
    closures = [{*load_order([end], needs)} for end in ends]
    found: dict[tuple[bool, ...], list[str]] = {}
    for name in load_order(ends, needs):
        found.setdefault(tuple(name in closure for closure in closures), []).append(name)
    return [found[needed_by] for needed_by in sorted(found, key=sum, reverse=True)]


def needs_of(imports: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return {module: the modules in `imports` that the module imports}. imports: {module: Module.imports}."""
    return {name: [it for it in names if it in imports] for name, names in imports.items()}


def others(modules: dict[str, Module]) -> list[str]:
    """Return the modules of Python and of other projects that a statement in `modules` imports, also within
    functions."""
    found: set[str] = set()
    for module in modules.values():
        for node in ast.walk(stripped(module.source, "<source>")):
            if isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
            elif isinstance(node, ast.Import):
                found |= {item.name for item in node.names}
    return sorted(name for name in found - {*modules} if name != "fastcni" and not name.startswith("fastcni._"))


def load_order(ends: Iterable[str], needs: dict[str, list[str]]) -> list[str]:
    """Return the modules `ends` and all modules that they need, each after its package and after its imports."""
    return list(walk(ends, needs, {}))


def walk(names: Iterable[str], needs: dict[str, list[str]], seen: dict[str, bool]) -> dict[str, bool]:
    """Add the modules and their imports to `seen`, imports first. seen: a dict, because a dict keeps the order."""
    for name in names:
        if name and name not in seen:
            walk([name.rpartition(".")[0]], needs, seen)
            walk(needs[name], needs, seen)
            seen[name] = True
    return seen
