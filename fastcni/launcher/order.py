"""In which order the modules of a plugin can be run, read from the imports at the top of their sources."""

import ast

from fastcni.launcher.strip import stripped


def needs_of(sources):
    """{module name: the known modules that it imports when it is run} of {module name: source text}.

    Imports inside functions do not count: they are there to be put off. Nor do those for type checkers.
    """
    return {name: imports(text, sources) for name, text in sources.items()}


def load_order(needs, ends):
    """The modules that `ends` need and they themselves, each behind those it imports."""
    return list(walk(ends, needs, {}))


def imports(source, known):
    """The known modules that a module imports when it is run, packages before what is in them."""
    found = []
    for node in stripped(source, "<source>").body:
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{item.name}" for item in node.names] + [node.module]
        elif isinstance(node, ast.Import):
            found += [item.name for item in node.names]
    return [name for name in found if name in known]


def walk(names, needs, seen):
    """Depth first; `seen` is a dict for its order. A module comes behind its package and its imports."""
    for name in names:
        if name not in seen:
            parent = name.rpartition(".")[0]
            walk([parent] if parent else [], needs, seen)
            walk(needs[name], needs, seen)
            seen[name] = True
    return seen
