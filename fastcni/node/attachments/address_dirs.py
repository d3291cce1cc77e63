"""Read attachments from the address files of host-local and cluster, in each dataDir that a configuration names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fastcni.kit.ipam.address_files import AddressFiles, address_of, is_attachment, is_torn
from fastcni.kit.ipam.cluster.conf import DATA_DIR as CLUSTER_DIR
from fastcni.kit.ipam.cluster.contract import IMPORTED
from fastcni.kit.ipam.cluster.node_state import KEPT_OWNER
from fastcni.kit.ipam.host_local_conf import DATA_DIR
from fastcni.node.attachments.attachment import ADDRESS_FILE, Sighting
from fastcni.spec.errors import CniError

CLUSTER_KINDS = ("cluster", "whereabouts")          # CNI types of the plugin for cluster-wide addresses


@dataclass(frozen=True, slots=True)
class Note:
    """An address file that no ADD wrote: a torn file, or a file with an operator's text. why: a sentence that says
    which."""

    path: str
    why: str


# Arguments: path, name of the directory, address, content, time of the last change
Reader = Callable[[str, str, str, bytes, float], "Sighting | Note | None"]


def data_dirs(configurations: Iterable[Any]) -> list[str]:
    """Return the dataDir of each host-local section anywhere in the configurations, and the default dataDir; each once.
    """
    return named_dirs(configurations, ("host-local",), DATA_DIR)


def cluster_dirs(configurations: Iterable[Any]) -> list[str]:
    """Return data_dirs() for cluster-wide addresses: directories with a subdirectory for each address space."""
    return named_dirs(configurations, CLUSTER_KINDS, CLUSTER_DIR)


def named_dirs(configurations: Iterable[Any], kinds: Iterable[str], default: str) -> list[str]:
    """Return the dataDir of each section of these CNI types, and the default directory; each directory once."""
    found, values = [default], list(configurations)
    for section in (one for kind in kinds for one in sections(values, kind)):
        where = section.get("dataDir")
        if isinstance(where, str) and where.startswith("/"):
            found.append(os.path.normpath(where))
    return list(dict.fromkeys(found))


def sections(value: Any, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of CNI type `kind` inside a JSON value, also those in the configurations of delegates."""
    if isinstance(value, dict):
        if value.get("type") == kind:
            yield value
        for inner in value.values():
            yield from sections(inner, kind)
    elif isinstance(value, list):
        for inner in value:
            yield from sections(inner, kind)


def networks(data_dir: str, unseen: list[str]) -> list[str]:
    """Return the names of the subdirectories of a dataDir: each subdirectory is a network or an address space."""
    try:
        with os.scandir(data_dir) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        unseen.append(f"address files in {data_dir}: {e.strerror}")
        return []


def read_directory(data_dir: str, network: str, unseen: list[str],
                read: Reader) -> Iterator[Sighting | Note]:
    """Yield a Sighting for each address file of a network, or a Note for a file that names no attachment. Takes no
    lock.

    read: read_owner(), or read_space_owner() for the directory of an address space.
    """
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
            if content is not None and (found := read(path, network, name, content, since)):
                yield found
    except CniError as e:
        unseen.append(e.msg)
    finally:
        os.close(files.fd)
    if refused:
        unseen.append(f"address files in {files.path}: {refused} cannot be read")


def read_owner(path: str, network: str, ip: str, content: bytes, since: float) -> Sighting | Note:
    """Return the Sighting or Note for the trimmed content of an address file of host-local."""
    if is_torn(content):
        return Note(path, "it is empty or torn")
    if not is_attachment(content) or b"/" in content:
        return Note(path, "it names no attachment")
    container_id, _, ifname = content.decode("utf-8", "replace").partition("\r\n")
    return Sighting(ADDRESS_FILE, path, text=ip, network=network, container_id=container_id.strip(),
                    ifname=ifname.strip(), addresses=(ip,), since=since)


def read_space_owner(path: str, space: str, ip: str, content: bytes, since: float) -> Sighting | Note | None:
    """Return the Sighting or Note for the trimmed content of an address space's file, see
    kit/ipam/cluster/node_state.py. None: the address is kept for a pod, or belongs to another node."""
    if content.startswith(KEPT_OWNER.encode()):
        return None
    lines = content.split(b"\r\n")
    network = lines[2].decode("utf-8", "replace") if len(lines) > 2 and lines[2] != IMPORTED.encode() else ""
    return read_owner(path, network, ip, b"\r\n".join(lines[:2]).strip(), since)
