"""The structure of the project: allowed imports, allowed process state, and the length of files."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import fastcni
from fastcni.launcher.strip import stripped

ROOT = Path(fastcni.__file__).parent
# A module may import its own package, and the packages in the rows above its package's row.
ROWS = [
    {"_abandoned", "_acceptor", "_ipam_bitmap", "_netlink", "_processes", "_rtnetlink", "_run_token", "_steps",
     "_system", "spec"},
    {"kernel"},
    {"clients"},
    {"kit"},
    {"plugin"},                             # the public contract
    {"plugins"},
    {"handle", "third_party"},
    {"daemon"},                             # shared by the long-running processes
    {"launcher", "runtime"},                # the entry points
    {"server", "dhcp", "agent"},            # the daemons; no daemon imports another
    {"bench", "node", "testing"},           # call the daemons
    {"flows", "selftest"},
    {"why"},
    {"cli"},                                # the command line
    {"__main__"},
]
# A module of kit/ may import its own directory, and the directories in the rows above.
KIT_ROWS = [
    {"call"},
    {"ipam", "sysctls"},
    {"links"},
    {"firewall", "shaping", "dhcp", "datapath"},
    {"bridge", "networks", "ovs"},
    {"podman"},
]
KIT_ROW_OF = {directory: number for number, directories in enumerate(KIT_ROWS) for directory in directories}
ROW_OF = {package: number for number, packages in enumerate(ROWS) for package in packages}
ENTRY_POINTS = {package for packages in ROWS[7:] for package in packages}
ONE_SHOT = {"spec", "kernel", "clients", "kit", "plugin", "plugins", "handle"}
SOCKETS = {                             # modules that import socket
    "agent/policy/child", "agent/policy/http/access_log", "agent/policy/http/part", "agent/policy/http/process",
    "agent/policy/names/forwarder", "agent/policy/names/process", "agent/policy/requests",
    "agent/policy/sources/reader", "bench/echo", "bench/sides", "daemon/listening", "flows/requests",
    "daemon/systemd_notify", "dhcp/daemon", "node/server_process", "runtime/served", "selftest/icmp",
    "selftest/sockets", "server/control", "server/requests/acceptor", "server/requests/protocol",
    "server/web/address", "testing/namespaces", "why/echo", "why/probe",
}
LONGEST = 450
MOST = 30                               # the most modules directly in a directory
# Packages without a map. CONTRIBUTING.md lists the contents of "." and "kit"; the tables of "cli" and "plugins" list
# commands and plugins.
UNMAPPED = {".", "cli", "kit", "plugins"}
FORBIDDEN = {"orjson", "json", "re", "dataclasses", "typing", "ipaddress", "socket", "subprocess", "logging", "pathlib",
             "enum", "contextlib", "functools", "collections", "asyncio", "inspect"}

SOURCES = sorted(path for path in ROOT.rglob("*.py") if "__pycache__" not in path.parts)
PATHS = {path.relative_to(ROOT).with_suffix("").as_posix(): path for path in SOURCES}
MODULES = [name for name in PATHS if name != "__init__"]


@functools.cache
def tree_of(name):
    """Return the syntax tree of a module, without the imports and annotations that only type checkers read. A packed
    plugin does not contain these.

    Every process of pytest imports this file, but few run its tests. So modules are parsed by the tests, not by the
    import.
    """
    return stripped(PATHS[name].read_text(), PATHS[name])


def package_of(name):
    return name.split("/")[0]


def statements(node):
    """Yield the statements in a module or a statement. Expressions contain none, and are the largest part of a tree."""
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        for statement in getattr(node, block, ()):
            yield statement
            yield from statements(statement)


def imports(tree):
    """Yield (dotted name, node) of all imports in a module; for `from a import b` the name is a.b."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            yield from ((f"{node.module}.{alias.name}", node) for alias in node.names)


def own_imports(name, tree=None):
    """Yield (package, rest, node) of a module's imports of fastcni."""
    for dotted, node in imports(tree or tree_of(name)):
        first, _, rest = dotted.partition(".")
        package, _, rest = rest.partition(".")
        if first == "fastcni" and package in ROW_OF:
            yield package, rest, node


def inside_a_function(tree, node):
    return any(node in ast.walk(function) for function in ast.walk(tree) if isinstance(function, ast.FunctionDef))


def test_every_module_has_its_row():
    assert {package_of(name) for name in MODULES} <= set(ROW_OF)


def faults(names, wrong):
    """Return {module: texts that wrong(module) yields} for the modules of `names` with faults."""
    return {name: found for name in names if (found := [*wrong(name)])}


def imports_above(name):
    own = package_of(name)
    for package, rest, node in own_imports(name):
        # An allowed exception: looks up the plugin in the table
        if (name, package) == ("kit/call/delegate", "plugins"):
            allowed = rest == ""
        elif (name, package) == ("launcher/bootstrap", "dhcp"):         # an allowed exception: starts `dhcp daemon`
            allowed = inside_a_function(tree_of(name), node)
        else:
            allowed = package == own or ROW_OF[package] < ROW_OF[own]
        if not allowed:
            yield f"line {node.lineno} imports {package}"


def test_a_module_imports_only_from_below_or_its_own_package():
    assert faults(MODULES, imports_above) == {}


def test_a_directory_of_kit_imports_only_directories_below_its_own():
    """The test also counts imports that only annotations need."""
    assert {path.parent.name for path in (ROOT / "kit").glob("*/__init__.py")} == set(KIT_ROW_OF)
    for name, path in PATHS.items():
        own = name.split("/")[1] if name.count("/") > 1 and package_of(name) == "kit" else ""
        for package, rest, node in own_imports(name, ast.parse(path.read_text())) if own else ():
            other = rest.partition(".")[0]
            if package == "kit" and other in KIT_ROW_OF and other != own:
                assert KIT_ROW_OF[other] < KIT_ROW_OF[own], f"{name}.py:{node.lineno} imports kit.{other}"


def test_annotations_name_no_layer_above_their_own_either():
    allowed = {("kit/call/delegate", "plugins"), ("launcher/bootstrap", "dhcp")}       # the exceptions above
    found = {(name, package) for name, path in PATHS.items() if name != "__init__"
             for package, _, _ in own_imports(name, ast.parse(path.read_text()))
             if package != package_of(name) and ROW_OF[package] >= ROW_OF[package_of(name)]}
    assert found == allowed


def test_a_plugin_knows_no_other_builds_no_message_and_runs_no_program():
    """A plugin module calls only the kit. From kernel/ it may import the kinds of links and the lock of a namespace."""
    for name in (name for name in MODULES if package_of(name) == "plugins"):
        for package, rest, node in own_imports(name):
            where = f"{name}.py:{node.lineno} imports {package}.{rest}"
            assert package != "plugins" and not package.startswith("_"), where
            assert package != "kernel" or rest.partition(".")[0] in ("kinds", "netns"), where


def test_spec_knows_nothing_of_linux():
    for name in (name for name in MODULES if package_of(name) == "spec"):
        for dotted, node in imports(tree_of(name)):
            first = dotted.split(".")[0]
            assert first not in {"os", "posix", "fcntl", "select"}, f"{name}.py:{node.lineno} imports {dotted}"
            assert not dotted.startswith("fastcni._"), f"{name}.py:{node.lineno} imports {dotted}"


def test_leaves_know_nothing_of_fastcni_but_other_leaves():
    for path in ROOT.glob("*.pyx"):
        for line in path.read_text().splitlines():
            tokens = line.split()
            if tokens[:1] in (["from"], ["import"], ["cimport"]):
                assert not tokens[1].startswith("fastcni") or tokens[1].startswith("fastcni._"), (path.name, line)


def touches(tree):
    """Return the process-wide state, such as os.environ, that a module uses. Only entry points may use process-wide
    state."""
    for dotted, _ in imports(tree):
        if dotted.split(".")[0] == "signal":
            yield dotted
        if dotted in ("os.environ", "posix.environ", "os.getenv", "sys.argv", "sys.stdout", "sys.stdin", "sys.stderr"):
            yield dotted
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            dotted = f"{node.value.id}.{node.attr}"
            if dotted in ("sys.stdout", "sys.stderr", "sys.stdin", "sys.argv", "sys.exit", "os.environ", "os.getenv",
                          "os.putenv", "os.chdir", "os.umask", "posix.environ", "posix._exit", "os._exit"):
                yield dotted
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("print", "input", "exit"):
            yield node.func.id


def test_only_entry_points_use_process_globals():
    names = [name for name in MODULES if package_of(name) not in ENTRY_POINTS]
    # In a pod, environment variables name the API server's address.
    assert faults(names, lambda name: touches(tree_of(name))) == {"clients/kubeconfig": ["posix.environ"]}


def opens_sockets(name):
    for dotted, node in imports(tree_of(name)):
        # spec/address.py imports inet_pton and inet_ntop of _socket, which open no socket. The server, its model in
        # bench and the agent listen on a unix socket and send to systemd's socket. The runtime connects to the server.
        # The self-test's pods send packets. The agent passes descriptors to the process that reads policy files, and
        # listening sockets to the HTTP proxy, which reports requests by a socket. The test kit sets lo up by a socket.
        # No module of SOCKETS opens netlink sockets.
        first = dotted.split(".")[0]
        if ((first == "socket" and name not in SOCKETS) or dotted.endswith("setns")
                or (first == "_socket" and (name != "spec/address" or dotted not in (
                    "_socket.inet_pton", "_socket.inet_ntop", "_socket.AF_INET", "_socket.AF_INET6")))):
            yield f"line {node.lineno} imports {dotted}"


def test_only_the_kernel_package_opens_sockets_and_changes_namespaces():
    assert faults([name for name in MODULES if package_of(name) != "kernel"], opens_sockets) == {}


ONE_SHOT_MODULES = [name for name in MODULES if package_of(name) in ONE_SHOT]


def expensive_imports(name):
    for dotted, node in imports(tree_of(name)):
        if (name, dotted) == ("kit/sysctls/allowlist", "re") and inside_a_function(tree_of(name), node):
            continue                    # imported only on a node that has an allowlist of sysctls
        if dotted.split(".")[0] in FORBIDDEN | {"__future__", "hashlib", "struct", "tempfile", "shutil"}:
            yield f"line {node.lineno} imports {dotted}"


def test_a_one_shot_plugin_imports_nothing_expensive_not_even_late():
    assert faults(ONE_SHOT_MODULES, expensive_imports) == {}


DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Expr)


def done_by_importing(name):
    for node in tree_of(name).body:
        if isinstance(node, ast.Try):
            fine = all(isinstance(step, ast.Import | ast.ImportFrom) for step in node.body)
        else:
            fine = isinstance(node.value, ast.Constant) if isinstance(node, ast.Expr) else isinstance(node, DEFINITIONS)
        if not fine:
            yield f"line {node.lineno}"


def test_importing_does_nothing():
    """A module has only definitions, constants, imports (also in try) and docstrings. It has no loops, and no calls
    whose result it drops."""
    assert faults(ONE_SHOT_MODULES, done_by_importing) == {}


def test_a_module_opens_with_a_docstring():
    assert [name for name in PATHS if not (ast.get_docstring(tree_of(name)) or "").strip()] == []


def test_no_file_is_too_long():
    code = [path for directory in ("fastcni", "tests", "benchmarks", "examples")
            for path in (ROOT.parent / directory).rglob("*.*")
            if path.suffix in (".py", ".pyx", ".pyi", ".pxd", ".h", ".sh") or path.match("launcher/*.c")]
    assert len(code) > len(SOURCES)
    lines = {path.relative_to(ROOT.parent).as_posix(): len(path.read_text().splitlines()) for path in code}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}, "too long: move a subject elsewhere"


def test_a_directory_is_small_and_its_map_complete():
    """A map lists the modules of a package in the docstring of __init__.py, or in comments. Each name has four spaces
    before it and two spaces after it. A package without a map hid its modules from readers."""
    for package in {path.parent.relative_to(ROOT).as_posix() for path in SOURCES}:
        modules = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"}
        assert len(modules) <= MOST, package
        packages = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        mapped = set(re.findall(r"^#?    (\w+)  ", (ROOT / package / "__init__.py").read_text(), re.M))
        assert mapped == (set() if package in UNMAPPED else modules | packages), package


def test_the_server_imports_at_its_start_what_requests_import_late():
    """The server imported bridge_checks at the first CHECK of a bridge. If stat(2) then failed, the CHECK failed with
    an import error."""
    code = f"import sys; sys.path.append({str(ROOT.parent)!r})\n" \
           "from fastcni.server.requests import workers\nworkers.preload()\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    below = {f"fastcni.{name.replace('/', '.')}" for name in MODULES if package_of(name) in ONE_SHOT}
    below -= {"fastcni.plugin"}             # for plugins of other distributions
    assert {name.removesuffix(".__init__") for name in below} - set(done.stdout.split()) == set()
