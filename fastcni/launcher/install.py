"""Writes the plugin files into a CNI bin dir: one file, one hard link for each name, renamed into place."""

import _frozen_importlib_external
import _imp
import ast
import errno
import os
import subprocess
import sys

from fastcni.kit.call.files import make_folders
from fastcni.launcher import files, pack
from fastcni.plugins import TABLE

PROBE = """
import sys, os, _imp, _frozen_importlib_external as e
print(repr((os.path.realpath(sys._base_executable), e.MAGIC_NUMBER, _imp.extension_suffixes()[0])))
"""


class InstallError(Exception):
    """Nothing was installed, or not all of it; the text is for the operator."""


def install(bin_dir, interpreter=None, names=None):
    """Write the plugin files and return their paths.

    bin_dir: made if it is not there. interpreter: the Python that is to run the plugins, of the same version
    and build as this one; by default the base interpreter that runs this process (of a virtual environment:
    the one it was made with, so the environment may go). names: plugin types, by default all. A file of the
    same name, running or not, is replaced by rename(2): at any moment a whole plugin stands under each name.
    Raises InstallError.
    """
    names = sorted(set(TABLE if names is None else names))
    for name in names:
        if name not in TABLE:
            raise InstallError(f"no plugin named {name!r}; there are {', '.join(sorted(TABLE))}")
    interpreter = checked_interpreter(interpreter or base_interpreter())
    try:
        image = pack.pack(interpreter)
    except pack.PackError as error:
        raise InstallError(str(error)) from error
    bin_dir = os.path.abspath(bin_dir)
    try:
        make_folders(bin_dir, 0o755)
        return files.replace(bin_dir, names, plugin_files(image))
    except OSError as error:
        raise InstallError(f"install into {bin_dir}: {error}") from error


def base_interpreter():
    """The interpreter behind this process: no virtual environment's link, no shim."""
    return sys._base_executable or sys.executable


def checked_interpreter(path):
    """The real path of an interpreter that can run what this one packs; it is asked, not believed.

    A version manager's shim or a virtual environment's link answers with what is behind it: that is returned.
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
    return real


def plugin_files(image):
    """A function for files.replace(): the first file is written, the others are hard links to it, where the file
    system has them."""
    first = None

    def write(_, path):
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
