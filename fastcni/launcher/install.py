"""Write the plugin files into a CNI bin dir: one file, one hard link for each name, renamed into place."""

from __future__ import annotations

import _frozen_importlib_external
import _imp
import ast
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from os import PathLike

from fastcni import third_party
from fastcni.kit.call.files import make_folders
from fastcni.launcher import files, pack
from fastcni.launcher.modules import PackError
from fastcni.plugins import BUILT_IN
from fastcni.third_party import ThirdParty

StrPath = str | PathLike[str]

PROBE = """
import sys, os, _imp, _frozen_importlib_external as e
print(repr((os.path.realpath(sys._base_executable), e.MAGIC_NUMBER, _imp.extension_suffixes()[0])))
"""


class InstallError(Exception):
    """Nothing was installed, or not everything; the text is for the operator."""


def install(bin_dir: StrPath, interpreter: str | None = None, names: Iterable[str] | None = None) -> list[str]:
    """Write the plugin files and return their paths.

    bin_dir: made if it is not there. interpreter: the Python that is to run the plugins, of the same version
    and build as this one. By default it is the base interpreter of this process: if that is of a virtual environment,
    the one that the environment was made with, so the environment may go. names: CNI types, by default fastcni's
    plugins and those of other distributions (fastcni/third_party.py). An existing file, running or not, is replaced
    by rename(2): each name is a complete plugin at any moment.

    Raises InstallError, before anything is written if one of the plugins cannot be packed.
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
        image = pack.pack(interpreter, third_party=others)
    except PackError as error:
        raise InstallError(str(error)) from error
    bin_dir = os.path.abspath(bin_dir)
    try:
        make_folders(bin_dir, 0o755)
        return files.replace(bin_dir, wanted, plugin_files(image))
    except OSError as error:
        raise InstallError(f"install into {bin_dir}: {error}") from error


def check(others: list[ThirdParty]) -> None:
    """Import the plugins of other distributions. Raises InstallError for one that cannot be used."""
    third_party.load(others)
    for plugin in others:
        if plugin.problem:
            raise InstallError(f"{plugin}: {plugin.problem}; nothing was written, and `--plugin TYPE` leaves it out")


def base_interpreter() -> str:
    """The interpreter behind this process: no virtual environment's link, no shim."""
    base: str = sys._base_executable      # type: ignore[attr-defined]
    return base or sys.executable


def checked_interpreter(path: str) -> str:
    """The real path of an interpreter that can run what this one packs. The interpreter is run to find out.

    A version manager's shim or a virtual environment's link answers with the path of the interpreter behind it.
    Raises InstallError.
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
    ours = [_frozen_importlib_external.MAGIC_NUMBER, _imp.extension_suffixes()[0]]
    if build != ours:
        raise InstallError(
            f"the interpreter {path} is another Python ({build[1]}) than fastcni is built for ({ours[1]}); "
            f"install fastcni for it, then run its `fastcni install`"
        )
    return str(real)


def plugin_files(image: bytes) -> Callable[[str, str], None]:
    """A function for files.replace(): it writes the first file, and makes the others hard links to it, where the file
    system has them."""
    first = None

    def write(_: str, path: str) -> None:
        nonlocal first
        if first:
            try:
                os.link(first, path)
                return
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
        files.write(path, image, 0o755)
        first = first or path

    return write
