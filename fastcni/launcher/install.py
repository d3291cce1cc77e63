"""Write the plugin files into a CNI bin dir: one file, with a hard link for each name, renamed into place.

launcher/replaced.py keeps the programs of other projects that the plugin files replace.
"""

from __future__ import annotations

import _frozen_importlib_external
import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from os import PathLike

from fastcni import third_party
from fastcni.kit.call.files import make_directories
from fastcni.launcher import files, interpreters, pack, replaced
from fastcni.launcher.identify import Program, identify
from fastcni.launcher.modules import PackError
from fastcni.plugins import BUILT_IN
from fastcni.third_party import ThirdParty

StrPath = str | PathLike[str]
NETAVARK = "fastcni"            # the name of podman's network driver

PROBE = """
import sys, os, _imp, _frozen_importlib_external as e
print(repr((os.path.realpath(sys._base_executable), e.MAGIC_NUMBER, _imp.extension_suffixes()[0])))
"""


class InstallError(Exception):
    """The install failed, completely or in part; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The outcome of an install, or of its dry run.

    interpreter: the Python that runs the plugins. plugins: {CNI type: the program that it replaces, None for a new
    name}. kept: the names whose replaced program is kept for uninstall. server, netavark_dir: see install_plugins().
    """

    bin_dir: str
    interpreter: str
    plugins: dict[str, Program | None]
    kept: list[str]
    server: Sequence[str] = ()
    netavark_dir: str = ""

    @property
    def paths(self) -> list[str]:
        return [os.path.join(self.bin_dir, name) for name in self.plugins]


def install(bin_dir: StrPath, interpreter: str | None = None, names: Iterable[str] | None = None) -> list[str]:
    """Write the plugin files and return their paths; see install_plugins()."""
    return install_plugins(bin_dir, interpreter, names).paths


def install_plugins(bin_dir: StrPath, interpreter: str | None = None, names: Iterable[str] | None = None, *,
                    server: Sequence[str] = (), dry_run: bool = False, core: str | None = None,
                    core_path: str = "", netavark_dir: StrPath = "") -> Installed:
    """Write the plugin files. With dry_run, write nothing.

    bin_dir: created if it is missing. interpreter: the Python that runs the plugins, of the same version and build as
    the Python of this process. The default is the base interpreter of this process: in a virtual environment, the
    interpreter with which the environment was made, so that the environment may be removed. names: CNI types, by
    default fastcni's plugins and the plugins of other distributions (fastcni/third_party.py). rename(2) replaces an
    existing file, running or not: each name is a complete plugin at any time. Replaced files of other projects are
    kept. server: the command line with which a plugin that finds no server starts the server, see autostart.h; by
    default none. core: the path of python_core.elf, "" for none; by default the python_core.elf of this package, if it
    is of the interpreter's build. core_path: see pack.pack(). netavark_dir: also write the file NETAVARK there,
    podman's network driver.

    Raises InstallError. If a plugin cannot be packed, install_plugins() has written no file.
    """
    others = third_party.find()
    known = BUILT_IN.keys() | {plugin.kind for plugin in others}
    wanted = sorted(known if names is None else set(names))
    for name in wanted:
        if name not in known:
            raise InstallError(f"no plugin named {name!r}; there are {', '.join(sorted(known))}")
    others = [plugin for plugin in others if names is None or (plugin.kind in wanted and plugin.kind not in BUILT_IN)]
    check(others)
    interpreter = checked_interpreter(interpreter or base_interpreter())
    try:
        image = pack.pack(interpreter, third_party=others, alternatives=interpreters.alternatives(interpreter),
                          server=server, core=interpreters.core_of(interpreter) if core is None else core,
                          core_path=core_path)
    except (PackError, OSError) as error:
        raise InstallError(str(error)) from error
    bin_dir = os.path.abspath(bin_dir)
    driver_dir = os.path.abspath(netavark_dir) if netavark_dir else ""
    check_netavark(driver_dir)
    try:
        if dry_run:
            return plan(bin_dir, interpreter, wanted, server, driver_dir)
        make_directories(bin_dir, 0o755)
        with replaced.locked(bin_dir):
            planned = plan(bin_dir, interpreter, wanted, server, driver_dir)
            write_files(planned, image)
        if driver_dir:
            make_directories(driver_dir, 0o755)
            files.replace(driver_dir, [NETAVARK], plugin_files(image))
        return planned
    except OSError as error:
        raise InstallError(f"install into {bin_dir}: {error}") from error


def check_netavark(directory: str) -> None:
    """Raise InstallError if podman's network driver NETAVARK in `directory` is another program."""
    path = os.path.join(directory, NETAVARK)
    program = identify(path) if directory else None
    if program and not program.is_own:
        raise InstallError(f"{path} is {program}, and not fastcni's; nothing was written")


def plan(bin_dir: str, interpreter: str, names: list[str], server: Sequence[str], netavark_dir: str = "") -> Installed:
    """Return what an install would do. Raises InstallError if a directory is in the place of a plugin, OSError."""
    found = {name: identify(os.path.join(bin_dir, name)) for name in names}
    for name in names:
        if os.path.isdir(os.path.join(bin_dir, name)) and not os.path.islink(os.path.join(bin_dir, name)):
            raise InstallError(f"install into {bin_dir}: {name} is a directory; nothing was written")
    return Installed(bin_dir, interpreter, found,
                     [name for name, program in found.items() if program and not program.is_own], server, netavark_dir)


def write_files(planned: Installed, image: bytes) -> None:
    """Keep the programs of other projects, then replace all names. Raises OSError; then each name is either unchanged
    or a plugin of fastcni.
    """
    bin_dir = planned.bin_dir
    try:
        for name in planned.kept:
            replaced.keep(bin_dir, name)
        files.replace(bin_dir, planned.plugins, plugin_files(image))
    except OSError:
        for name in planned.kept:
            if replaced.is_in_place(bin_dir, name):
                replaced.forget(bin_dir, name)
        replaced.remove_directory(bin_dir)
        raise


def check(others: list[ThirdParty]) -> None:
    """Import the plugins of other distributions as a check. Raises InstallError for a plugin that cannot be used."""
    with redirect_stdout(sys.stderr):               # a module may print during its import
        third_party.load(others)
    for plugin in others:
        if plugin.problem:
            raise InstallError(f"{plugin}: {plugin.problem}; nothing was written. "
                               "To install others, name each: --plugin TYPE")


def base_interpreter() -> str:
    """Return the path of this process's base interpreter, which is neither a virtual environment's link nor a version
    manager's shim."""
    base: str = sys._base_executable      # type: ignore[attr-defined]
    return base or sys.executable


def checked_interpreter(path: str) -> str:
    """Return the real path of an interpreter that can run the code that this interpreter packs. Runs the interpreter to
    check this.

    For a version manager's shim or a virtual environment's link, return the path of the interpreter that the shim or
    link starts. Raises InstallError.
    """
    try:
        ran = subprocess.run(
            [path, "-ISB", "-X", "utf8", "-c", PROBE], capture_output=True, text=True, timeout=60, check=True
        )
        real, *build = ast.literal_eval(ran.stdout)
    except subprocess.CalledProcessError as error:
        raise InstallError(f"{path} does not run with -I -S: {error.stderr.strip()}") from error
    except (OSError, subprocess.SubprocessError, ValueError, SyntaxError) as error:
        raise InstallError(f"{path} does not run with -I -S: {error}") from error
    ours = [_frozen_importlib_external.MAGIC_NUMBER, interpreters.suffix()]
    if build != ours:
        raise InstallError(
            f"the interpreter {path} is another Python ({build[1]}) than fastcni is built for ({ours[1]}); "
            f"install fastcni for it, then run its `fastcni install`"
        )
    return str(real)


def plugin_files(image: bytes) -> Callable[[str, str], None]:
    """Return a function for files.replace(). It writes the first file, and makes the other files hard links to it if
    the file system supports hard links."""
    first = None

    def write(_: str, path: str) -> None:
        nonlocal first
        if not (first and files.link(first, path)):
            files.write(path, image, 0o755)
            first = first or path

    return write
