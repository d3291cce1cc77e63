"""Read the files of a configuration directory, valid and broken, in the order in which runtimes read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fastcni.node.checks.denied import denied
from fastcni.runtime import discover
from fastcni.runtime.errors import ConfError
from fastcni.runtime.records import NetworkList
from fastcni.spec.errors import CniError


@dataclass(frozen=True, slots=True)
class ConfFile:
    """A configuration file. net: None if the file is broken; `error` then says why. unreadable: whether this user may
    not read the file."""

    path: str
    net: NetworkList | None
    error: str = ""
    unreadable: bool = False


def read_directory(conf_dir: str) -> list[ConfFile]:
    """Return the files, sorted by name as in containerd and CRI-O. Raises ConfError if the directory cannot be
    listed."""
    return [read(path) for path in discover.list_files(conf_dir, (".conflist", ".conf", ".json"))]


def read(path: str) -> ConfFile:
    """Read one configuration file."""
    try:
        return ConfFile(path, discover.load_file(path))
    except CniError as e:
        error = e.msg.removeprefix(f"{path}: ").removeprefix(f"error reading {path}: ")
        return ConfFile(path, None, error, denied(e))


def networks(files: Iterable[ConfFile]) -> list[NetworkList]:
    """Return the valid networks. If two files have the same network name, the first file counts."""
    found: dict[str, NetworkList] = {}
    for file in files:
        if file.net:
            found.setdefault(file.net.name, file.net)
    return list(found.values())


def values_of(nets: Iterable[NetworkList]) -> list[Any]:
    """Return the decoded configurations of all plugins."""
    return [plugin.values for net in nets for plugin in net.plugins]


def read_quietly(conf_dir: str, unseen: list[str]) -> list[ConfFile]:
    """Return read_directory(). If the directory cannot be listed, add a text about that to `unseen`, and return []."""
    try:
        found = read_directory(conf_dir)
        unseen += [f"network configuration {file.path}: {file.error}" for file in found if file.unreadable]
        return found
    except ConfError as e:
        unseen.append(f"network configurations: {e.msg}")
        return []
