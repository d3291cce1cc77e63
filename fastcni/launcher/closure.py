"""Find, read and check the modules that a plugin of another distribution adds to a plugin file, without importing the
modules.

A module may import the standard library, the modules of fastcni that a plugin file has, and the Python modules of the
plugin's distribution. In a `try:` that catches ImportError it may import any module. Imports under `if TYPE_CHECKING:`
are ignored. Imports by a computed name, for example by importlib.import_module(), are not found.
"""

from __future__ import annotations
import __future__

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from types import CodeType

from fastcni.launcher.modules import LEAVES, Module, PackError, imported
from fastcni.launcher.strip import strip
from fastcni.third_party import ThirdParty

GUARDS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
ALLOWED = "a plugin file has the standard library, fastcni.plugin, and the distribution's own modules"


class Refused(Exception):
    """A module cannot be packed; the text says why."""


def modules_of(plugin: ThirdParty, packed: Iterable[str]) -> dict[str, Module]:
    """Return {name: Module} of all modules of the plugin's distribution that the plugin imports. packed: names of
    fastcni's modules in the file.

    Raises PackError, which names the distribution.
    """
    known = {*packed, *(f"fastcni.{leaf}" for leaf in LEAVES)}
    found: dict[str, Module] = {}
    waiting = [plugin.module]
    try:
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            found[name], tree = read_module(name)
            waiting += [name.rpartition(".")[0]] if "." in name else []
            for node, guarded in imports(tree):
                try:
                    waiting += own_modules(node, found[name], plugin, known)
                except Refused:
                    if not guarded:
                        raise
    except Refused as error:
        raise PackError(f"{plugin}: cannot be packed: {error}") from None
    return found


def read_module(name: str) -> tuple[Module, ast.Module]:
    """Return a module and its stripped syntax tree. Raises Refused."""
    spec = find_spec(name)
    if spec is None:
        raise Refused(f"there is no module {name}")
    is_package = spec.submodule_search_locations is not None
    source = b""                                                # a namespace package has no source
    if spec.origin:
        if not spec.origin.endswith(".py"):
            raise Refused(f"{name} is compiled ({spec.origin}), and not in Python")
        try:
            with open(spec.origin, "rb") as opened:
                source = opened.read()
        except OSError as error:
            raise Refused(f"{name} cannot be read: {error}") from None
    file = name.replace(".", "/") + ("/__init__.py" if is_package else ".py")
    try:
        tree = ast.parse(source, file)
        if any(isinstance(node, ast.Name) and node.id == "__file__" for node in ast.walk(tree)):
            raise Refused(f"{name} uses __file__, and a packed module has no file")
        code = compiled(tree, file)         # before strip(): this code keeps its annotations
        return Module(name, is_package, source, code, imported(strip(tree))), tree
    except SyntaxError as error:
        raise Refused(f"{name}: {error}") from None


def find_spec(name: str) -> ModuleSpec | None:
    """Find a module as importlib.util.find_spec() does, but without importing its packages."""
    path: list[str] | None = None
    spec, prefix = None, ""
    for part in name.split("."):
        prefix = f"{prefix}.{part}" if prefix else part
        found = (finder.find_spec(prefix, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((one for one in found if one), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations or []
    return spec


def compiled(tree: ast.Module, file: str) -> CodeType:
    """Compile the module as Python does, but remove the import of __future__, which would take a one-shot plugin 0.2
    ms."""
    flags, body = 0, []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            flags |= sum(getattr(__future__, item.name).compiler_flag for item in node.names)
        else:
            body.append(node)
    code: CodeType = compile(ast.Module(body, []), file, "exec", flags=flags, dont_inherit=True, optimize=0)
    return code


def imports(tree: ast.AST, guarded: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Yield each import of a module, and whether `try:` guards it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, guarded
        elif isinstance(node, ast.If) and names_in(node.test) == {"TYPE_CHECKING"}:
            yield from (found for branch in node.orelse for found in imports(ast.Module([branch], []), guarded))
        elif isinstance(node, ast.Try):
            caught = any(not it.type or names_in(it.type) & GUARDS for it in node.handlers)
            yield from imports(ast.Module(node.body, []), guarded or caught)
            rest = [*node.handlers, *node.orelse, *node.finalbody]
            yield from (found for branch in rest for found in imports(branch, guarded))
        else:
            yield from imports(node, guarded)


def names_in(node: ast.AST) -> set[str]:
    """Return the names in an expression: {"TYPE_CHECKING"} for `TYPE_CHECKING` and `typing.TYPE_CHECKING`. For a tuple,
    return the names in all items."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return {it.attr if isinstance(it, ast.Attribute) else getattr(it, "id", "") for it in parts}


def own_modules(node: ast.Import | ast.ImportFrom, importer: Module, plugin: ThirdParty, known: set[str]) -> list[str]:
    """Return the distribution's modules that an import names. Raises Refused for modules that a plugin file does not
    have."""
    if isinstance(node, ast.Import):
        wanted = [(item.name, True) for item in node.names]
    else:
        base = absolute(node, importer)
        wanted = [(base, True), *((f"{base}.{item.name}", False) for item in node.names)]
    found = []
    for name, is_module in wanted:
        top = name.partition(".")[0]
        if top in plugin.packages:
            if is_module or find_spec(name):                # otherwise the import names an object in the module
                found.append(name)
        elif top == "fastcni":
            if name not in known and (is_module or find_spec(name)):
                raise Refused(f"{importer.name} imports {name}; {ALLOWED}")
        elif top not in sys.stdlib_module_names:
            raise Refused(f"{importer.name} imports {name}; {ALLOWED}")
    return found


def absolute(node: ast.ImportFrom, importer: Module) -> str:
    """Return the absolute name of the module in `from ... import`: "acme.cni" for `from .` in acme.cni.hello. Raises
    Refused."""
    if not node.level:
        return node.module or ""
    parts = importer.name.split(".")
    parts = parts[:len(parts) - node.level + importer.is_package]
    if not parts:
        raise Refused(f"{importer.name} imports from beyond its top-level package")
    return ".".join([*parts, *([node.module] if node.module else [])])
