"""Find the configuration of a network that a pod or the multus plugin's configuration names, in files.

    /etc/cni/multus/net.d/storage/mynet.conf    a network of the namespace "storage", by the `name` in the file
    /etc/cni/multus/net.d/mynet.conflist        a network of every namespace
"""

from __future__ import annotations

import posix

from fastcni.kit.call import files
from fastcni.kit.networks.network import Definition, define
from fastcni.spec import errors, json
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from fastcni.kit.networks.keys import Keys

ENDINGS = (".conf", ".conflist", ".json")
S_IFMT, S_IFDIR = 0o170000, 0o040000        # stat(2)
OF_DAEMON = "/host"             # where the daemon of Multus sees the host's files


def by_name(keys: Keys, namespace: str, name: str, version: str) -> Definition:
    """The network `namespace/name` in confDir. Raises CniError 7 if no file has that name."""
    broken: list[str] = []
    for folder in (f"{keys.conf_dir}/{namespace}", keys.conf_dir):
        for path, document in configurations(folder, broken):
            if document.get("name") == name:
                return define(document, name, version, path, f"{namespace}/{name}")
    raise CniError(errors.INVALID_CONFIG, f'no network "{namespace}/{name}"', f"no file in {keys.conf_dir}/{namespace} "
                   f'or {keys.conf_dir} has the name "{name}"' + "".join(f"; {text}" for text in broken))


def of_cluster(keys: Keys, name: str, version: str) -> Definition:
    """The network that `clusterNetwork` or `defaultNetworks` names: by its name, or by the path of a file or of a
    directory, whose first file it is. Raises CniError 7."""
    if not name.startswith("/"):
        return by_name(keys, keys.namespace, name, version)
    broken: list[str] = []
    for place in (name, name.removeprefix(OF_DAEMON)):
        kind = kind_of(place)
        if kind is None:
            continue
        found = configurations(place, broken) if kind == S_IFDIR else read(place, broken)
        for path, document in found:
            return define(document, "", version, path)
    raise CniError(errors.INVALID_CONFIG, f'no network in "{name}"', "; ".join(broken) or
                   "no such file, or a directory without *.conf, *.conflist and *.json")


def kind_of(path: str) -> int | None:
    try:
        return posix.stat(path).st_mode & S_IFMT
    except (OSError, ValueError):
        return None


def configurations(folder: str, broken: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each (path, document) of a directory, in the order of names. broken: gets a text for each unreadable file."""
    for name in sorted(files.names(folder)):
        if name.endswith(ENDINGS):
            yield from read(f"{folder}/{name}", broken)


def read(path: str, broken: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        content = files.read(path)
        document = json.read(content or b"")
        if isinstance(document, dict):
            if Section(document).has("name"):
                document = {**document, "name": Section(document).text("name")}
            yield path, document
        else:
            broken.append(f"{path} has no object")
    except CniError as e:
        broken.append(e.msg)
    except json.JsonError as e:
        broken.append(f"{path}: {e}")
