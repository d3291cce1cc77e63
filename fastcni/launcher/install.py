"""Writes the plugin files into a CNI bin dir: one file, one hard link for each name, renamed into place."""

import _frozen_importlib_external
import _imp
import ast
import errno
import os
import secrets
import subprocess
import sys

from fastcni.launcher import pack
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
        os.makedirs(bin_dir, exist_ok=True)
        return replace_all(bin_dir, names, image)
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


def replace_all(bin_dir, names, image):
    """Every name becomes the new file, or, when a step before the renames fails, none. Raises OSError."""
    staged = {}  # final path: temporary path, in the same directory, under a name that no CNI type has
    token = secrets.token_hex(8)
    try:
        first = None
        for name in names:
            path, temporary = os.path.join(bin_dir, name), os.path.join(bin_dir, f".fastcni-{token}-{name}")
            staged[path] = temporary
            first = link_or_write(first, temporary, image)
        for path, temporary in staged.items():
            os.rename(temporary, path)
        sync(bin_dir)
        return list(staged)
    finally:
        for temporary in staged.values():
            try:
                os.unlink(temporary)
            except FileNotFoundError:
                pass  # renamed, as it should be


def link_or_write(first, path, image):
    """A hard link to the first file; a whole file when there is none yet, or the file system has no links."""
    if first:
        try:
            os.link(first, path)
            return first
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "wb") as file:
        file.write(image)
        os.fchmod(file.fileno(), 0o755)  # whatever the umask
        file.flush()
        os.fsync(file.fileno())  # a plugin that is empty after a power cut takes the node with it
    return first or path


def sync(folder):
    """The renames are on disk when this returns."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
