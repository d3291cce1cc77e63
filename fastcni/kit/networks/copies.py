"""Keep copies of the Kubernetes API's network definitions on disk, for times when the API server does not answer.

    <cniDir>/definitions/<namespace>/<name>     {"config": ..., "resource": ...}
"""

from __future__ import annotations

import posix
from _thread import get_ident

from fastcni.kit.call import files
from fastcni.kit.networks.selection import is_label
from fastcni.spec import json
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

NEW = ".new-"                   # begins the name of a copy that is not complete
MAX_BYTES = 4 << 20             # of a copy; etcd allows an object 1.5 MiB by default, and JSON escapes make it longer


class Stored:
    """A definition of the API. config: its text, "" for none. resource: the resource of a device plugin, "" for none.
    stale: why this is a copy; "": the API server has just returned it."""

    __slots__ = ("config", "resource", "stale")

    def __init__(self, config: str, resource: str = "") -> None:
        self.config, self.resource, self.stale = config, resource, ""


class Copies:
    """The copies of one cniDir. Errors of writing and reading a copy are ignored, because no copy is needed while the
    API server answers."""

    def __init__(self, cni_dir: str) -> None:
        self.directory = f"{cni_dir}/definitions"

    def path(self, namespace: str, name: str) -> str:
        return f"{self.directory}/{namespace}/{name}"

    def keep(self, namespace: str, name: str, found: Stored | None) -> Stored | None:
        """Write the copy of a definition, or remove it for None. Return `found`."""
        path = self.path(namespace, name)
        if not (is_label(namespace) and is_label(name)):
            return found
        try:
            if found is None:
                files.remove(path)
                return found
            content = json.write({"config": found.config, "resource": found.resource})
            if files.read(path, MAX_BYTES) != content:
                new = f"{self.directory}/{NEW}{posix.getpid()}-{get_ident()}"
                files.write(new, content)
                files.make_directories(f"{self.directory}/{namespace}", 0o700)
                posix.rename(new, path)
        except (CniError, OSError):     # for instance a full disk
            return found
        return found

    def read(self, namespace: str, name: str) -> Stored | None:
        if not (is_label(namespace) and is_label(name)):
            return None
        try:
            document = json.read(files.read(self.path(namespace, name), MAX_BYTES) or b"null")
            return Stored(document["config"], document["resource"])
        except (CniError, json.JsonError, TypeError, KeyError):     # absent or damaged
            return None

    def remove_incomplete(self) -> None:
        """Remove the incomplete files of killed processes. If another process is just writing a copy, that copy is lost
        until its next write."""
        for name in files.names(self.directory):
            if name.startswith(NEW):
                files.remove(f"{self.directory}/{name}")

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield (namespace, name) of each copy."""
        for namespace in files.names(self.directory):
            if is_label(namespace):
                yield from ((namespace, name) for name in files.names(f"{self.directory}/{namespace}"))
