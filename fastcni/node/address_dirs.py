"""Attachments in the address files of host-local, in every dataDir that a configuration names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fastcni.kit.ipam.address_files import AddressFiles, address_of, is_attachment, is_torn
from fastcni.kit.ipam.host_local_conf import DATA_DIR
from fastcni.node.records import ADDRESS_FILE, Sighting
from fastcni.spec.errors import CniError


@dataclass(frozen=True, slots=True)
class Note:
    """An address file that no ADD wrote: torn, or with a text of an operator."""

    path: str
    why: str


def data_dirs(configurations: Iterable[Any]) -> list[str]:
    """The dataDir of each host-local section anywhere in the configurations, and the default; each once."""
    found = [DATA_DIR]
    for section in sections(list(configurations)):
        where = section.get("dataDir")
        if isinstance(where, str) and where.startswith("/"):
            found.append(os.path.normpath(where))
    return list(dict.fromkeys(found))


def sections(value: Any, kind: str = "host-local") -> Iterator[dict[str, Any]]:
    """Yield the objects of this CNI type inside a JSON value: also those of delegates."""
    if isinstance(value, dict):
        if value.get("type") == kind:
            yield value
        for inner in value.values():
            yield from sections(inner, kind)
    elif isinstance(value, list):
        for inner in value:
            yield from sections(inner, kind)


def networks(data_dir: str, unseen: list[str]) -> list[str]:
    """The names of the folders in a dataDir, which are networks."""
    try:
        with os.scandir(data_dir) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        unseen.append(f"address files in {data_dir}: {e.strerror}")
        return []


def read_folder(data_dir: str, network: str, unseen: list[str]) -> Iterator[Sighting | Note]:
    """Yield a Sighting for each address file of a network, a Note for one that names no attachment. Takes no lock."""
    files = AddressFiles(data_dir, network, lambda _: None)
    try:
        if not files.open(create=False):
            return
    except CniError as e:
        unseen.append(e.msg)
        return
    refused = 0
    try:
        for name in sorted(files.names()):
            packed, path = address_of(name), f"{files.path}/{name}"
            if packed is None:
                continue
            try:
                content = files.read(name)
                since = os.stat(name, dir_fd=files.fd, follow_symlinks=False).st_mtime
            except (CniError, OSError):
                refused += 1
                continue
            if content is not None:
                yield read(path, network, name, content, since)
    except CniError as e:
        unseen.append(e.msg)
    finally:
        os.close(files.fd)
    if refused:
        unseen.append(f"address files in {files.path}: {refused} cannot be read")


def read(path: str, network: str, ip: str, content: bytes, since: float) -> Sighting | Note:
    """Read an address file's trimmed content."""
    if is_torn(content):
        return Note(path, "it is empty or torn")
    if not is_attachment(content) or b"/" in content:
        return Note(path, "it names no attachment")
    container_id, _, ifname = content.decode("utf-8", "replace").partition("\r\n")
    return Sighting(ADDRESS_FILE, path, text=ip, network=network, container_id=container_id.strip(),
                    ifname=ifname.strip(), addresses=(ip,), since=since)
