"""Read and write the result cache: one file for each attachment, in the Go library's place and format.

A new file is written under a temporary name and then renamed, so a crash leaves either the old file or the new file.
DEL works without the file, and with a damaged file (see cni.py).
"""

import os
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fastcni._system import open_regular
from fastcni.kit.call.files import make_directories
from fastcni.runtime.records import Attachment, RuntimeConf
from fastcni.spec import cached_result, errors, json, result
from fastcni.spec.cached_result import KIND, MAX_BYTES
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

DEFAULT_DIR = "/var/lib/cni"
TEMPORARY = ".fastcni-"         # prefix of temporary files; a network's name cannot begin with "."


class Cache:
    """The result cache below one directory. The files are in the subdirectory `results`, which the first write creates.

    directory: if "", the cache_dir of the RuntimeConf is used, otherwise /var/lib/cni.
    """

    def __init__(self, directory: str | os.PathLike[str] = ""):
        self.directory = os.fspath(directory)

    def results(self, rt: RuntimeConf | None = None) -> str:
        """Return the path of the directory that has the cache files."""
        return os.path.join(self.directory or (rt.cache_dir if rt else "") or DEFAULT_DIR, "results")

    def path(self, network: str, rt: RuntimeConf) -> str:
        """Return the path of an attachment's file, <results>/NETWORK-CONTAINERID-IFNAME. Raises CniError 7 if one of
        the three names is empty, or has a slash or NUL."""
        parts = (network, rt.container_id, rt.ifname)
        if not all(parts):
            name, container_id, ifname = map(json.quote, parts)
            raise CniError(errors.INVALID_CONFIG, f"cache file path requires network name ({name}), "
                           f"container ID ({container_id}), and interface name ({ifname})")
        for part in parts:
            if "/" in part or "\0" in part:
                raise CniError(errors.INVALID_CONFIG, f"no cache file can be named after {json.quote(part)}")
        return os.path.join(self.results(rt), "-".join(parts))

    def write(self, network: str, config: bytes, rt: RuntimeConf, outcome: dict[str, Any] | None) -> None:
        """Write the cache file of an attachment. config: the bytes of the network's configuration. outcome: the result
        of ADD; None: ADD printed no result. Raises OSError, and CniError 7 as path() does."""
        path = self.path(network, rt)
        document = cached_result.document(network, rt.container_id, rt.ifname, config, netns=rt.netns, args=rt.args,
                                          capability_args=rt.capability_args, outcome=outcome)
        write_file(path, json.write(document))

    def read(self, network: str, rt: RuntimeConf) -> bytes | None:
        """Return the bytes of an attachment's cache file; None if the file does not exist or cannot be read."""
        path = self.path(network, rt)
        try:
            return read_file(path)
        except OSError:
            return None

    def read_result(self, network: str, version: str, rt: RuntimeConf) -> dict[str, Any] | None:
        """Return an attachment's cached result, converted to the CNI version `version` ("" is 0.1.0); None without a
        readable file.

        Raises CniError if the file has no result, or the result cannot be converted to that version.
        """
        raw = self.read(network, rt)
        if raw is None:
            return None
        try:
            document = json.read(raw)
        except json.JsonError as e:
            raise CniError(errors.DECODING_FAILURE, f"decoding version from network config: {e}") from None
        if isinstance(document, dict) and Section(document).raw("kind") == KIND:
            document = Section(document).raw("result")
        outcome = result.create_any(document)
        version = version or "0.1.0"
        try:
            return result.to_version(outcome, version)
        except CniError as e:
            raise CniError(e.code, f"failed to convert cached result to config version "
                                   f"{json.quote(version)}: {e.msg}", e.details) from None

    def read_config(self, network: str, rt: RuntimeConf) -> tuple[bytes, RuntimeConf] | None:
        """Return (the bytes of the configuration that ADD used, `rt` with the args of ADD), None without a readable
        file. Raises CniError 6 if the file is damaged, 7 if it has another kind."""
        raw = self.read(network, rt)
        if raw is None:
            return None
        try:
            kind, it = read_document(raw)
        except ValueError as e:
            raise CniError(errors.DECODING_FAILURE, f"failed to unmarshal cached network "
                                                    f"{json.quote(network)} config: {e}") from None
        if kind != KIND:
            raise CniError(errors.INVALID_CONFIG, f"read cached network {json.quote(network)} config has "
                                                  f"wrong kind: {kind}")
        return it.config, replace(rt, args=it.args or rt.args, capability_args=it.capability_args)

    def remove(self, network: str, rt: RuntimeConf) -> None:
        """Remove the cache file of an attachment. A file that is missing or cannot be removed is no error."""
        try:
            os.unlink(self.path(network, rt))
        except (CniError, OSError):
            pass

    def attachments(self, container_id: str = "", *, without_config: bool = False,
                    unread: list[tuple[str, str]] | None = None) -> list[Attachment]:
        """Return the attachments of one container, or of all containers for "", sorted by file name. Other files are
        skipped.

        without_config: also return the attachments of files of libcni before 0.8. These files have only a result, which
        must name a network namespace. unread: a list, to which (path, why) of each unreadable file is appended. Raises
        OSError if the directory exists and cannot be listed.
        """
        found = []
        for name in self.file_names(container_id):
            path = os.path.join(self.results(), name)
            try:
                kind, it = read_document(read_file(path), name)
                since = os.stat(path).st_mtime
                if kind not in ("", KIND):
                    raise ValueError(f"unknown kind {kind}: a later version of libcni may have written it")
            except FileNotFoundError:
                continue                        # a DEL has just removed the file
            except (OSError, ValueError) as e:
                if unread is not None:
                    unread.append((path, getattr(e, "strerror", None) or str(e)))
                continue
            known = kind == KIND or (without_config and not kind and it.netns)
            if known and it.ifname and it.network and container_id in ("", it.container_id):
                found.append(replace(it, since=since))
        return found

    def damaged(self, container_id: str) -> list[Attachment]:
        """Return the attachments of a container's files that attachments() leaves out: damaged files, and files of
        other formats. The file's name, NETWORK-CONTAINERID-IFNAME, gives the network and the interface. Another file of
        the container gives the netns; "" without such a file. Raises OSError as attachments() does.
        """
        own = self.attachments(container_id)
        known = {f"{it.network}-{it.container_id}-{it.ifname}" for it in own}
        if not (names := [name for name in self.file_names(container_id) if name not in known]):
            return []
        # `container_id` may be a part of a longer container id: skip that container's files
        longer = {it.container_id for it in self.attachments() if container_id in it.container_id != container_id}
        netns = next((it.netns for it in own if it.netns), "")
        parts = [name.partition(f"-{container_id}-") for name in names if not any(f"-{it}-" in name for it in longer)]
        return [Attachment(container_id, network, ifname, netns=netns) for network, _, ifname in parts]

    def file_names(self, container_id: str = "") -> list[str]:
        """Return the sorted names of the cache files of one container, or of all containers for "". Raises OSError if
        the directory exists and cannot be listed."""
        try:
            names = os.listdir(self.results())
        except FileNotFoundError:
            return []
        return sorted((it for it in names if not it.startswith(TEMPORARY)
                       and (not container_id or f"-{container_id}-" in it[1:-1])), key=os.fsencode)


def read_document(raw: bytes, name: str = "") -> tuple[str, Attachment]:
    """Return (kind, attachment) of `raw`, the bytes of the cache file `name`. The kind is "" if the file has only a
    result. Raises ValueError if `raw` is not a JSON object, or a value has the wrong type.

    libcni 0.7 wrote only the result. Later versions write an object of KIND. The first of these versions wrote no
    containerId; the file's name then gives the container id. Versions before 1.2 wrote no netns; the result's sandbox
    is then the netns.
    """
    values = json.read(raw)
    if values is not None and not isinstance(values, dict):
        raise ValueError("expected an object")
    section = Section(values or {})
    texts = {}
    for key in ("kind", "containerId", "config", "ifName", "networkName", "netns"):
        texts[key] = section.raw(key, "")
        if not isinstance(texts[key], str):
            raise ValueError(f"{key}: expected a string")
    pairs = section.raw("cniArgs", [])
    if not isinstance(pairs, list) or not all(is_pair(pair) for pair in pairs):
        raise ValueError("cniArgs: expected pairs of strings")
    capability_args = section.raw("capabilityArgs", {})
    if not isinstance(capability_args, dict):
        raise ValueError("capabilityArgs: expected an object")
    interfaces = read_interfaces(section.raw("result") if texts["kind"] else values)
    network, container_id, ifname = read_names(name, texts)
    return texts["kind"], Attachment(
        container_id, network, ifname, config=b64decode(texts["config"], validate=True),
        netns=texts["netns"] or sandbox_of(interfaces, ifname),
        args=tuple((pair[0], pair[1]) for pair in pairs), capability_args=capability_args,
        host_links=tuple(it["name"] for it in interfaces if not it["sandbox"] and it["name"] not in ("", ifname)),
    )


def read_names(file_name: str, texts: Mapping[str, str]) -> tuple[str, str, str]:
    """Return (network, container id, ifname) of a cache file. texts: the values in the file; the file's name,
    NETWORK-CONTAINERID-IFNAME, gives the missing values."""
    network, container_id, ifname = (texts[key] for key in ("networkName", "containerId", "ifName"))
    if not texts["kind"]:
        rest, _, ifname = file_name.rpartition("-")
        network, _, container_id = rest.rpartition("-")
    elif not container_id:
        container_id = file_name.removeprefix(f"{network}-").removesuffix(f"-{ifname}")
    return network, container_id, ifname


def read_interfaces(outcome: Any) -> list[dict[str, str]]:
    """Return [{"name": ..., "sandbox": ...}] of a result's interfaces; sandbox is "" for a link on the host. A result
    before 0.3.0 has no interfaces: []."""
    found = outcome.get("interfaces") if isinstance(outcome, dict) else None
    return [{key: it[key] if isinstance(it.get(key), str) else "" for key in ("name", "sandbox")}
            for it in (found if isinstance(found, list) else ()) if isinstance(it, dict)]


def sandbox_of(interfaces: list[dict[str, str]], ifname: str) -> str:
    """Return the sandbox of the interface `ifname`, otherwise of any interface; "" if no interface has a sandbox."""
    inside = sorted((it for it in interfaces if it["sandbox"]), key=lambda it: it["name"] != ifname)
    return inside[0]["sandbox"] if inside else ""


def is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)


def read_file(path: str) -> bytes:
    """Return the bytes of a regular file. Raises OSError, also for a pipe, a device, or a file of more than MAX_BYTES
    bytes. A pipe does not block the call."""
    with open(path, "rb", opener=open_regular) as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise OSError(f"{path}: more than {MAX_BYTES} bytes")
    return raw


def write_file(path: str, data: bytes) -> None:
    """Replace a file atomically, with mode 0600. Raises OSError.

    The temporary file is created in the parent directory, because other programs take every file in the cache directory
    for an attachment. The rename fails if the cache directory is on another file system. The temporary file is then
    created in the cache directory, under a name that this module's readers skip.
    """
    directory = os.path.dirname(path)
    make_directories(directory, 0o700, above=0o700)
    try:
        write_by(os.path.dirname(directory), path, data)
    except OSError:
        write_by(directory, path, data)


def write_by(directory: str, path: str, data: bytes) -> None:
    """Write `data` to a temporary file in `directory`, and rename that file to `path`. Raises OSError.

    A signal handler may raise after each step. With tempfile.mkstemp(), the name of a new file could be lost.
    """
    fresh = os.path.join(directory, f"{TEMPORARY}{os.urandom(8).hex()}")
    try:
        with open(fresh, "xb", opener=open_private) as file:
            file.write(data)
        os.rename(fresh, path)
    except BaseException:
        with suppress(FileNotFoundError):       # not yet made, or already renamed
            os.unlink(fresh)
        raise


def open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
