"""Fuse and unfuse a network list. Fusing replaces the list's plugins by one plugin, `chain`, which contains them.

The original stays next to the fused list as `<file>.unfused`. Runtimes do not load that file, because they load only
`.conflist`, `.conf` and `.json`. Files are replaced by rename(2), so a runtime sees either the old list or the new
list.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from fastcni.kit.call import delegate, search
from fastcni.plugins import chain
from fastcni.runtime.discover import parse_file, read_conf
from fastcni.runtime.errors import ConfError
from fastcni.runtime.parse import parse_list
from fastcni.runtime.records import NetworkList
from fastcni.spec import errors, json, version
from fastcni.spec.errors import CniError

SUFFIX = ".unfused"


@dataclass(frozen=True, slots=True)
class Fused:
    """The outcome of fuse() and unfuse(). path: the path of the list. kept: the path of the original, <path>.unfused.
    network: the network's name. plugins: the types of the network's plugins, without `chain`. document: the new bytes
    of the list, which a dry run does not write."""

    path: str
    kept: str
    network: str
    plugins: tuple[str, ...]
    document: bytes


def fuse(path: str, plugin_dirs: Sequence[str], *, dry_run: bool = False) -> Fused:
    """Fuse a `.conflist` file, and keep the original. With dry_run, write nothing.

    plugin_dirs: the directories in which each plugin of the list, and fastcni's `chain`, must be found. Raises
    ConfError or CniError if the list cannot be fused; no file has changed then.
    """
    path = real_path(path)
    net = parse_file(path, parse_list)
    check(path, net, plugin_dirs)
    done = Fused(path, path + SUFFIX, net.name, types(net), fused(net))
    if not dry_run:
        try:
            replace_list(done, net.raw)
        except OSError as e:
            raise failure("write", e, path) from e
    return done


def unfuse(path: str, *, force: bool = False, dry_run: bool = False) -> Fused:
    """Replace a fused list by its original, which has not changed by a byte. With dry_run, write nothing.

    force: unfuse even if the fused list was edited; the edit is lost. After a CniError, no file has changed.
    """
    path = real_path(path)
    kept = path + SUFFIX
    if not os.path.lexists(kept):
        raise CniError(errors.INVALID_CONFIG, f"{path} cannot be unfused: there is no {kept}",
                       "`fastcni fuse` writes both")
    net = parse_file(kept, parse_list)
    if not force and read_conf(path) != fused(net):
        raise CniError(errors.INVALID_CONFIG, f"{path} is not what `fastcni fuse` wrote: the file was changed since",
                       f"--force replaces it by {kept}; if that is outdated, remove it")
    if not dry_run:
        try:
            os.rename(kept, path)
            sync_directory(path)
        except OSError as e:
            raise failure("rename", e, kept) from e
    return Fused(path, kept, net.name, types(net), net.raw)


def fused(net: NetworkList) -> bytes:
    """Return the bytes of the fused list. The fused list's plugin `chain` declares each capability that a plugin of the
    network list declares."""
    values = json.read(net.raw)
    declared = {name: True for plugin in net.plugins for name, on in plugin.capabilities.items() if on}
    only = {"type": chain.KIND, **({"capabilities": declared} if declared else {}), "plugins": values["plugins"]}
    return json.write({**values, "plugins": [only]}, indent=2) + b"\n"


def check(path: str, net: NetworkList, plugin_dirs: Sequence[str]) -> None:
    """Raise CniError if the list cannot be fused, or has fewer than two plugins."""
    refused = f"{path} cannot be fused"
    kinds = types(net)
    if chain.KIND in kinds:
        raise ConfError(f"{refused}: the list already has the plugin chain")
    if len(kinds) < 2:
        raise ConfError(f"{refused}: with {len(kinds)} plugin there is nothing to gain")
    spoken = net.version or version.OLDEST
    if spoken not in version.ALL:
        raise ConfError(f"{refused}: fastcni does not know its cniVersion {json.quote(spoken)}",
                        errors.INCOMPATIBLE_VERSION)
    for kind in (*kinds, chain.KIND):
        try:
            found = search.find(kind, plugin_dirs)
            delegate.check_version(spoken, kind)
        except CniError as e:
            raise CniError(e.code, f"{refused}: plugin {kind}: {e.msg}", e.details) from None
    if not search.is_own(found):
        raise CniError(errors.INVALID_CONFIG, f"{refused}: {found} is not fastcni's", "another program has that name")


def types(net: NetworkList) -> tuple[str, ...]:
    return tuple(plugin.type for plugin in net.plugins)


def real_path(path: str) -> str:
    """Return `path` without symbolic links, because the original is kept in the directory of the file itself. Raises
    ConfError if the file's name does not end with .conflist."""
    path = os.path.realpath(path)
    if not path.endswith(".conflist"):
        raise ConfError(f"{path} is not a network list: its name does not end with .conflist")
    return path


def replace_list(done: Fused, raw: bytes) -> None:
    """Keep the original as `done.kept`, and replace the list `done.path` by the fused list. Raises OSError, and
    CniError if another program has changed the list since fuse() read it."""
    directory = os.path.dirname(done.path)
    fd, fresh = tempfile.mkstemp(prefix=".fastcni-", dir=directory)
    try:
        with open(fd, "wb") as file:
            like = os.stat(done.path)
            os.fchmod(fd, like.st_mode & 0o7777)
            os.fchown(fd, like.st_uid, like.st_gid)
            file.write(done.document)
            file.flush()
            os.fsync(fd)
        keep(done, raw, f"{fresh}.original")
        os.rename(fresh, done.path)
    except BaseException:
        with suppress(FileNotFoundError):       # a signal's handler may raise right after the rename
            os.unlink(fresh)
        raise
    sync_directory(done.path)


def keep(done: Fused, raw: bytes, link: str) -> None:
    """Make `done.kept` a hard link to the original, by way of the temporary name `link`. An existing file `done.kept`
    is from an earlier fuse() of a list that was replaced since; keep() replaces this file."""
    os.link(done.path, link)
    try:
        if read_conf(link) != raw:
            raise CniError(errors.TRY_AGAIN_LATER, f"{done.path} was changed while it was fused")
        os.rename(link, done.kept)
    finally:
        if os.path.lexists(link):       # rename(2) does nothing if both names are links to one file
            os.unlink(link)


def sync_directory(path: str) -> None:
    """Write the directory of the file `path` to disk by fsync(2)."""
    fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def failure(doing: str, error: OSError, path: str) -> CniError:
    return CniError(errors.IO_FAILURE, f"{doing} {path}: {str(error.strerror).lower()} (errno {error.errno})")
