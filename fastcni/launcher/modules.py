"""Collect the modules of a plugin file: fastcni's modules, the modules of the library jeepney, and the extension
modules."""

from __future__ import annotations

import _imp
import ast
import functools
import importlib.util
import os
from collections.abc import Iterable
from importlib import metadata
from types import CodeType

import fastcni
from fastcni.clients.site_packages import NEEDED
from fastcni.launcher.strip import stripped, without_columns

PACKAGE = os.path.dirname(os.path.abspath(fastcni.__file__))
ROWS = ("spec", "kernel", "clients", "kit", "plugins")  # packages whose modules go into a plugin file
# Modules of the packages in ROWS that only the server, the agent, commands and type checkers import
NOT_PACKED = ("kernel/devices/vxlan.py", "kernel/devices/wireguard.py", "kernel/nft_trace.py",
              "kit/datapath/restrict.py", "kit/firewall/contract.py", "kit/firewall/doubled.py",
              "kit/ipam/cluster/stores/whereabouts_pools.py", "kit/ipam/cluster/upkeep.py")
# Modules of fastcni that only `dhcp daemon` imports. The daemon also imports modules of the standard library
DAEMON_DIRECTORY = "dhcp"
DAEMON_SINGLE = ("daemon/__init__.py", "daemon/listening.py", "daemon/stop_signals.py", "daemon/stream.py")
SINGLE = ("__init__.py", "handle.py", "plugin.py", "launcher/__init__.py", "launcher/netavark.py",
          "launcher/one_shot.py")
ENTRY = ("fastcni.handle", "fastcni.launcher.one_shot")  # modules that bootstrap.py calls
# The extension modules in leaves.so
LEAVES = ("_abandoned", "_ipam_bitmap", "_netlink", "_processes", "_rtnetlink", "_run_token", "_system")
# Modules of Python that python_core.elf needs to decode invalid UTF-8 before it finds the standard library
CODECS = ("encodings/__init__.py", "encodings/aliases.py", "encodings/utf_8.py")
LIBRARY = "jeepney"  # encodes D-Bus messages; imported only for pods behind firewalld


class PackError(Exception):
    """The plugin file cannot be made; the text names the part and the reason."""


class Module:
    """A module to be packed: its dotted name, whether it is a package, its source as bytes, its code, and the names
    that it imports, see imported()."""

    __slots__ = ("code", "imports", "is_package", "name", "source")

    def __init__(self, name: str, is_package: bool, source: bytes, code: CodeType, imports: tuple[str, ...]) -> None:
        self.name, self.is_package, self.source, self.code, self.imports = name, is_package, source, code, imports


def own(more: dict[str, str]) -> dict[str, Module]:
    """Return {name: Module} of fastcni's modules. more: {CNI type: module} of other distributions' plugins, which are
    added to the table of plugins."""
    found = ["fastcni/" + name for name in SINGLE]
    for row in ROWS:
        for directory, _, names in os.walk(os.path.join(PACKAGE, row)):
            directory = os.path.relpath(directory, os.path.dirname(PACKAGE))
            found += (os.path.join(directory, name) for name in names if name.endswith(".py"))
    found = [path for path in found if path.removeprefix("fastcni/") not in NOT_PACKED]
    modules: dict[str, Module] = {}
    for path in sorted(found):
        source = read(os.path.join(os.path.dirname(PACKAGE), path))
        if path == "fastcni/plugins/__init__.py" and more:
            source += f"\nTABLE.update({dict(sorted(more.items()))!r})\n".encode()
        if path == "fastcni/clients/site_packages.py":
            source += f"\nDIRECTORIES = {site_packages()!r}\n".encode()
        add_module(modules, path, source)
    return modules


def site_packages() -> tuple[str, ...]:
    """Return the directories of the packages that fastcni imports only if a configuration needs them. The plugin files
    run in the base interpreter, which does not find the packages of a virtual environment by itself."""
    specs = [importlib.util.find_spec(name) for name in NEEDED]
    directories = [os.path.dirname(os.path.dirname(spec.origin)) for spec in specs if spec and spec.origin]
    return tuple(dict.fromkeys(directories))


def daemon() -> dict[str, Module]:
    """Return {name: Module} of the dhcp plugin's daemon."""
    names = [f"{DAEMON_DIRECTORY}/{name}" for name in os.listdir(os.path.join(PACKAGE, DAEMON_DIRECTORY))]
    names = sorted([name for name in names if name.endswith(".py")] + list(DAEMON_SINGLE))
    return in_directory(os.path.dirname(PACKAGE), [f"fastcni/{name}" for name in names])


def library() -> dict[str, Module]:
    """Return {name: Module} of the library, without its subpackages, which fastcni does not use. Return {} if the
    library is not installed; then code that imports it raises an error."""
    spec = importlib.util.find_spec(LIBRARY)
    if not (spec and spec.origin):
        return {}
    directory = os.path.dirname(spec.origin)
    names = sorted(name for name in os.listdir(directory) if name.endswith(".py"))
    return in_directory(os.path.dirname(directory), [f"{LIBRARY}/{name}" for name in names])


def codecs() -> dict[str, Module]:
    """Return {name: Module} of Python's modules in CODECS."""
    return in_directory(os.path.dirname(os.__file__), CODECS)


def in_directory(directory: str, paths: Iterable[str]) -> dict[str, Module]:
    """Return {name: Module} of the sources at these paths, which are relative to the directory. Raises PackError."""
    modules: dict[str, Module] = {}
    for path in paths:
        add_module(modules, path, read(os.path.join(directory, path)))
    return modules


def extensions() -> str:
    """Return the directory of the interpreter's extension modules, "" if it has none."""
    spec = importlib.util.find_spec("_json")
    return os.path.dirname(spec.origin) if spec and spec.has_location and spec.origin else ""


def library_licences() -> list[bytes]:
    """Return the licence files of the library: [text]. Each copy of the library must contain its licence."""
    try:
        files = metadata.files(LIBRARY) or ()
    except metadata.PackageNotFoundError:
        return []
    return [file.read_binary() for file in files if file.name == "LICENSE"]


def add_module(modules: dict[str, Module], path: str, source: bytes) -> None:
    """Add the module at `path`, "fastcni/kit/__init__.py" as fastcni.kit."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    modules[name] = Module(name, path.endswith("/__init__.py"), source, *compiled(source, path))


def bootstrap() -> CodeType:
    """Return the code of bootstrap.py, which is not a module of the plugin file."""
    path = "launcher/bootstrap.py"
    return compiled(read(os.path.join(PACKAGE, path)), f"fastcni/{path}")[0]


@functools.cache
def compiled(source: bytes, name: str) -> tuple[CodeType, tuple[str, ...]]:
    """Compile a module without docstrings, assertions and annotations, which makes the code a third smaller. Return the
    code, and the names that the module imports. The result is cached in this process."""
    tree = stripped(source, name)
    return without_columns(compile(tree, name, "exec", dont_inherit=True, optimize=2)), imported(tree)


def imported(tree: ast.Module) -> tuple[str, ...]:
    """Return all names that a module imports when it is run; for `from a import b` both a.b and a. Imports inside
    functions are ignored, because they are intentionally late. tree: as stripped() returns it, without imports for type
    checkers."""
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{item.name}" for item in node.names] + [node.module or ""]
        elif isinstance(node, ast.Import):
            found += [item.name for item in node.names]
    return tuple(found)


def leaves() -> bytes:
    """Return the bytes of the shared object with all extension modules, for this Python."""
    return read(os.path.join(PACKAGE, "launcher", "leaves" + _imp.extension_suffixes()[0]))


def read(path: str) -> bytes:
    """Return the content of a file of this installation. Raises PackError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise PackError(
            f"{path}: {error.strerror}; not compiled? pip install . or python setup.py build_ext --inplace"
        ) from error
