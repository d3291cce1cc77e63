"""List the interpreters that a plugin file tries, and check that an interpreter is the Python that the file was packed
for.

A file's code runs only in a Python with the same bytecode and the same extension modules. An upgrade of the
distribution can remove that Python, while the same Python exists at another path. So the file has a list of paths, and
the launcher executes the first path that exists. In a Python of another version or build, only REFUSE runs.
"""

from __future__ import annotations

import _imp
import os
import subprocess
import sys

DIRECTORIES = ("/usr/bin", "/usr/local/bin")
LIST_BYTES = 1024           # bytes of the launcher's field
CORE = "python_core.elf"    # see python_core.c

# Code that runs in a Python of any version. The code executes the next interpreter of the list, or prints the error
# document. f: a descriptor of the plugin file.
REFUSE = """\
import _imp, posix, sys
rest = {interpreters!r}
me = sys.orig_argv if hasattr(sys, "orig_argv") else [""]
rest = rest[rest.index(me[0]) + 1:] if me[0] in rest else ()
for path in rest:
    try:
        posix.execv(path, [path] + me[1:])
    except OSError:
        pass
try:
    directory = posix.readlink("/proc/self/fd/%d" % f).rsplit("/", 1)[0]
except OSError:
    directory = "DIR"
def quoted(text):
    return text.replace("\\\\", "\\\\\\\\").replace('"', '\\\\"')
build = _imp.extension_suffixes()[0]
is_now = "%d.%d.%d (%s)" % (sys.version_info[:3] + (build.strip(".").rsplit(".", 1)[0],))
posix.write(1, ('''{{
    "code": 999,
    "msg": "the Python interpreter %s is Python %s, this file was installed for Python {version} ({build})",
    "details": "install fastcni for a Python of this node, then run `fastcni install --bin-dir %s`"
}}''' % (quoted(sys.executable or ""), is_now, quoted(directory))).encode("utf-8", "replace"))
posix._exit(1)
"""


def version() -> str:
    """Return the version of this process's Python, for which it packs plugin files: "3.11" or "3.13t"."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}"


def suffix() -> str:
    """Return the first file name suffix of this Python's extension modules. The suffix names version, machine and C
    library (PEP 3149)."""
    return _imp.extension_suffixes()[0]


def alternatives(interpreter: str) -> list[str]:
    """Return paths at which the same Python may be found if `interpreter` no longer exists.

    The first path is the interpreter of this process: a virtual environment's link follows an upgrade of its base
    interpreter.
    """
    paths = [sys.executable, *(f"{directory}/python{version()}" for directory in DIRECTORIES)]
    return [path for path in dict.fromkeys(paths) if os.path.isabs(path or "") and path != interpreter]


def core_of(interpreter: str, directory: str = os.path.dirname(os.path.abspath(__file__))) -> str:
    """Return the path of python_core.elf in a directory; "" if the file does not exist or has another build than the
    interpreter. The interpreter's library may not fit the built-in modules of another build."""
    path = os.path.join(directory, CORE)
    if not os.access(path, os.X_OK):
        return ""
    return path if same_build(path, interpreter) else ""


def same_build(core: str, interpreter: str) -> bool:
    """Return whether this machine can run a python_core.elf, and whether it has the same build as the interpreter.
    Raises PermissionError if this user may not run one of them."""
    try:
        built, own = (subprocess.run(command, capture_output=True, timeout=60, check=True).stdout for command in
                      ([core, "--version"], [interpreter, "-ISB", "-c", "import sys; print(sys.version)"]))
    except PermissionError:
        raise
    except (OSError, subprocess.SubprocessError):   # the file is for another machine, or was just removed
        return False
    return built == own


def as_list(interpreter: str, others: list[str]) -> list[str]:
    """Return the list for the launcher's field: the interpreter, and as many of the other paths as fit."""
    chosen = [interpreter]
    for path in others:
        if len(os.fsencode("\0".join([*chosen, path]))) + 2 <= LIST_BYTES:
            chosen.append(path)
    return chosen


def refusal(interpreters: list[str]) -> bytes:
    """Return the source code for a Python of another version or build: REFUSE with the list of interpreters."""
    build = suffix().strip(".").rsplit(".", 1)[0]
    text = REFUSE.format(interpreters=tuple(interpreters), version=version(), build=build)
    return text.encode("utf-8", "backslashreplace")
