"""Keep copies of the Kubernetes API's network definitions on disk, which fastcni uses while the API server does not
answer.

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

NEW = ".new-"                   # prefix of the name of an incomplete copy
MAX_BYTES = 4 << 20             # limit of a copy: an object in etcd has at most 1.5 MiB, and JSON escapes add bytes


class Stored:
    """A NetworkAttachmentDefinition. config: the text of its configuration, or "". resource: the device plugin's
    resource that the definition names, or "". stale: "" if the API server has just returned the definition; for a copy,
    why fastcni uses the copy."""

    __slots__ = ("config", "resource", "stale")

    def __init__(self, config: str, resource: str = "") -> None:
        self.config, self.resource, self.stale = config, resource, ""


class Copies:
    """The copies in a cniDir. Methods ignore errors of writing and reading a copy, because fastcni needs no copy while
    the API server answers."""

    def __init__(self, cni_dir: str) -> None:
        self.directory = f"{cni_dir}/definitions"

    def path(self, namespace: str, name: str) -> str:
        return f"{self.directory}/{namespace}/{name}"

    def keep(self, namespace: str, name: str, found: Stored | None) -> Stored | None:
        """Write the copy of a definition. If `found` is None, remove the copy. Return `found`."""
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
        except (CniError, json.JsonError, TypeError, KeyError):     # the copy is absent or damaged
            return None

    def remove_incomplete(self) -> None:
        """Remove the incomplete files of killed processes. If a running process is writing a copy at that moment, that
        copy is lost until the next write."""
        for name in files.names(self.directory):
            if name.startswith(NEW):
                files.remove(f"{self.directory}/{name}")

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield (namespace, name) of each copy."""
        for namespace in files.names(self.directory):
            if is_label(namespace):
                yield from ((namespace, name) for name in files.names(f"{self.directory}/{namespace}"))
