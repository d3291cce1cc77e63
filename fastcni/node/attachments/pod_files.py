"""Read attachments from the files that plugins other than host-local keep for pods: attributes of a link before ADD
(tuning, host-device), and the configuration of flannel's delegate."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from fastcni.kit.links.attribute_backup import DIRECTORY as TUNING
from fastcni.node.attachments.address_dirs import sections
from fastcni.node.attachments.attachment import FASTCNI, FILE, Sighting
from fastcni.plugins.flannel import DATA_DIR as FLANNEL
from fastcni.plugins.host_device import DIRECTORY as HOST_DEVICE
from fastcni.spec.config import is_name

DEFAULTS = {"tuning": TUNING, "host-device": HOST_DEVICE, "flannel": FLANNEL}
TEXTS = {"tuning": "attributes of the link before ADD", "host-device": "attributes of the link before ADD",
         "flannel": "configuration of the delegate"}
MARKS = ".fastcni"              # attribute_backup.py: <dataDir>/.fastcni/<network>/<container id>_<ifname>.json


def directories(configurations: Iterable[Any]) -> list[tuple[str, str]]:
    """Return (CNI type, directory) of the directories in which plugins keep files of pods: the defaults, and those that
    configurations name; each once."""
    configurations = list(configurations)
    found = [*DEFAULTS.items()]
    for kind, default in DEFAULTS.items():
        for section in sections(configurations, kind):
            where = section.get("dataDir")
            found.append((kind, os.path.normpath(where) if isinstance(where, str) and where[:1] == "/" else default))
    return list(dict.fromkeys(found))


def read_directory(kind: str, directory: str, unseen: list[str]) -> Iterator[Sighting]:
    """Yield a Sighting for each file of an attachment in a directory of a plugin. kind: the plugin's CNI type."""
    networks: dict[str, str] = {}
    if kind != "flannel":
        with suppress(OSError):
            networks = {name: network for network, name in marks(directory)}
    try:
        names = listed(directory)
    except OSError as e:
        unseen.append(f"files in {directory}: {e.strerror}")
        return
    for name in names:
        path = os.path.join(directory, name)
        container_id, ifname = (name, "") if kind == "flannel" else split(name)
        if not is_name(container_id):
            continue
        try:
            since = os.lstat(path).st_mtime
        except FileNotFoundError:
            continue
        network = networks.get(name, "")
        yield Sighting(FILE, path, TEXTS[kind], network, container_id, ifname, since=since,
                       author=FASTCNI if network else "")


def split(name: str) -> tuple[str, str]:
    """Return (container id, ifname) from a file name ID_IFNAME.json; ("", "") for other names."""
    container_id, _, ifname = name.removesuffix(".json").rpartition("_")
    return (container_id, ifname) if name.endswith(".json") and container_id else ("", "")


def marks(directory: str) -> Iterator[tuple[str, str]]:
    """Yield (network, file name) of the marks that fastcni keeps next to the files in a directory. Raises OSError."""
    top = os.path.join(directory, MARKS)
    for network in listed(top):
        for name in listed(os.path.join(top, network)):
            yield network, name


def listed(directory: str) -> list[str]:
    """Return the names in a directory, sorted; [] if the directory does not exist. Raises OSError."""
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
