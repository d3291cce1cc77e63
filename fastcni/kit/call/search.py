"""Find the executable of a plugin in CNI_PATH, by the rules and with the error texts of the Go library.

This module is separate from invoke.py, because fastcni searches CNI_PATH for its own plugins without executing them.
"""

from __future__ import annotations

import posix

from fastcni._system import read_file
from fastcni.spec import errors, json
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NOTE = b"\x08\0\0\0" b"\0\0\0\0" b"\x01\0\0\0" b"fastcni\0"      # launcher.c's ELF note, little-endian
HEAD_BYTES = 512                # bytes of a launcher's ELF header, program headers and note
FORMER_MARK, EI_PAD, EI_NIDENT = b"fastcni", 9, 16      # launchers until 0.1.0: mark in e_ident's padding, elf(5)
S_IFMT, S_IFREG = 0o170000, 0o100000        # stat(2)


def find(name: str, dirs: Sequence[str]) -> str:
    """Return the path of the plugin `name` in the first of `dirs` that has it as a regular file.

    Raises CniError 4, 7 or 999. find() does not check whether the file is executable, because the error of exec says
    more than "not found".
    """
    if not name:
        raise errors.bad_config("no plugin name provided")
    if "/" in name:
        raise errors.bad_config(f"invalid plugin name: {name}")
    if not dirs:
        raise CniError(errors.INVALID_ENVIRONMENT, "no paths provided")
    for where in dirs:
        # An empty entry means the current directory; with "./" exec does not search PATH.
        path = clean(f"{where}/{name}") if where else f"./{name}"
        if is_file(path):
            return path
    from fastcni.kit.call.similar import meant

    raise CniError(errors.INTERNAL, f"failed to find plugin {json.quote(name)} in path [{' '.join(dirs)}]",
                   meant(name, [file for where in dirs for file in names_in(where)]))


def names_in(where: str) -> list[str]:
    """Return the names of the regular files in a directory; [] if the directory cannot be read."""
    try:
        return [name for name in posix.listdir(where or ".") if is_file(f"{where or '.'}/{name}")]
    except (OSError, ValueError):
        return []


def clean(path: str) -> str:
    """Return the path, cleaned as Go's filepath.Join does. Import os.path (0.9 ms) only for a path that needs a
    change, which is rare."""
    if "//" not in path and "/." not in path:
        return path
    from posixpath import normpath

    return normpath(path)


def is_file(path: str) -> bool:
    try:
        return posix.stat(path).st_mode & S_IFMT == S_IFREG
    except (OSError, ValueError):
        return False


def is_own(path: str) -> bool:
    """Return whether the file is one of fastcni's launchers. Return False for a missing file, a directory, or a file
    that this process may not read. Raises CniError 5 or 11 if the read fails for another reason: the file may be a
    launcher of fastcni, which must not run as another project's plugin."""
    try:
        head = read_file(path, posix.O_RDONLY | posix.O_NONBLOCK, HEAD_BYTES)
        return head.startswith(b"\x7fELF") and (NOTE in head or head[EI_PAD:EI_NIDENT] == FORMER_MARK)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
        return False
    except OSError as e:
        raise CniError(errors.of_errno(e.errno or 0),
                       f"read plugin {path}: {posix.strerror(e.errno or 0)} (errno {e.errno})") from None
