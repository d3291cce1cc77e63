"""Pods, namespaces and policies from a folder of JSON and YAML files, as `kubectl get -o yaml` prints them."""

from __future__ import annotations

import json
import os
from time import monotonic
from typing import TYPE_CHECKING, Any

from fastcni.agent.policy.evaluate import Cluster
from fastcni.agent.policy.objects import PolicyError, read_closed, read_namespace, read_pod, read_policy
from fastcni.runtime.folder_changes import FolderChanges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastcni.agent.policy.compile import Compiler

GROUP = "networking.k8s.io/"
ENDINGS = (".json", ".yaml", ".yml")
RETRY_S = 1.0                   # while the folder is away


def read_cluster(folder: str) -> Cluster:
    """All documents of a folder. Raises PolicyError, which names the file, and OSError."""
    found = Cluster()
    for path in paths(folder):
        add(found, read_file(path))
    return found


def paths(folder: str) -> list[str]:
    return sorted(os.path.join(folder, name) for name in os.listdir(folder)
                  if name.endswith(ENDINGS) and not name.startswith("."))


def read_file(path: str, partly: Cluster | None = None) -> Cluster:
    """The documents of one file; those of other kinds are passed over. Raises PolicyError and OSError.

    partly: is given what can be read, also if another document cannot; a policy that cannot allows nothing.
    """
    with open(path, "rb") as file:
        data = file.read()
    found, errors = Cluster() if partly is None else partly, []
    try:
        for document in documents(path, data):
            try:
                read_document(found, document)
            except PolicyError as e:
                errors.append(str(e))
                if is_policy(document) and (closed := read_closed(document)):
                    found.policies.setdefault(closed.key, closed)
    except ValueError as e:                     # PolicyError too
        errors.append(str(e))
    except RecursionError:
        errors.append("nested too deep")
    if errors:
        raise PolicyError(f"{path}: {' '.join('; '.join(errors).split())}")
    return found


def documents(path: str, data: bytes) -> Iterator[Any]:
    """Each document, those of a List one by one. Raises ValueError, PolicyError."""
    if path.endswith(".json"):
        every = [json.loads(data)]
    else:
        try:
            import yaml
        except ImportError:
            raise PolicyError("reading YAML needs PyYAML: install fastcni[cluster], or Debian's python3-yaml") from None
        try:
            every = list(yaml.safe_load_all(data))
        except yaml.YAMLError as e:
            raise PolicyError(str(e)) from None
    for document in every:
        if document is None:
            continue
        if not isinstance(document, dict):
            raise PolicyError("expected a mapping")
        if str(document.get("kind", "")).endswith("List"):
            if not isinstance(items := document.get("items") or [], list):
                raise PolicyError("items: expected a list")
            yield from items
        else:
            yield document


def read_document(found: Cluster, document: Any) -> None:
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind == "Pod":
        pod = read_pod(document)
        found.pods[pod.key] = pod
    elif kind == "Namespace":
        name, labels = read_namespace(document)
        found.namespaces[name] = labels
    elif is_policy(document):
        policy = read_policy(document)
        found.policies[policy.key] = policy


def is_policy(document: Any) -> bool:
    """Whether a document is a NetworkPolicy of Kubernetes: other programs have kinds of this name too."""
    return (isinstance(document, dict) and document.get("kind") == "NetworkPolicy"
            and str(document.get("apiVersion") or GROUP).startswith(GROUP))


def add(found: Cluster, more: Cluster) -> None:
    found.pods.update(more.pods)
    found.namespaces.update(more.namespaces)
    found.policies.update(more.policies)


class Files:
    """Keeps a Compiler as the files say. Pods from elsewhere, as those of ADDs, stay. complete: see Kubernetes.

    A file that cannot be read is as it was before: a mistake opens no pod. If it was never read, the documents without
    a mistake count, and a policy with one allows nothing. While the folder is away all stays as it was. errors: {path:
    text} of these. due: when to call attend() without a change, in monotonic seconds.
    """

    complete = True

    def __init__(self, folder: str, compiler: Compiler) -> None:
        self.folder, self.compiler, self.errors = folder, compiler, dict[str, str]()
        self._files: dict[str, Cluster] = {}    # as they were last read without an error
        self._own = Cluster()
        self._changes = FolderChanges()
        self.due = float("inf")
        try:
            self._read()
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """The descriptor to wait on for attend()."""
        return self._changes.descriptor

    def close(self) -> None:
        self._changes.close()

    def attend(self) -> None:
        """Read the files, and change the Compiler by what differs. If the folder cannot be read, nothing changes."""
        self.due = float("inf")
        try:
            self._read()
        except OSError as e:            # without the folder there are no notifications of it
            self.errors = {self.folder: f"{self.folder}: {e.strerror}; the policies stay as they were"}
            self.due = monotonic() + RETRY_S

    def _read(self):
        self._changes.discard()
        self._changes.add(self.folder)          # it may have been made again; before the files are read
        new, good, self.errors = Cluster(), {}, {}
        for path in paths(self.folder):
            partly = Cluster()
            try:
                good[path] = read_file(path, partly)
            except FileNotFoundError:
                continue                        # it went meanwhile, which is another change
            except (PolicyError, OSError) as e:
                self.errors[path] = str(e)
                if path in self._files:
                    good[path] = self._files[path]
            add(new, good.get(path, partly))
        self._files = good
        update(self.compiler, self._own, new)
        self._own = new


def update(compiler: Compiler, old: Cluster, new: Cluster) -> None:
    """Put what is in `new`, delete what was in `old` only."""
    compiler.put_all(new)
    for key in old.policies.keys() - new.policies.keys():
        compiler.delete_policy(key)
    for key in old.pods.keys() - new.pods.keys():
        compiler.delete_pod(key)
    for name in old.namespaces.keys() - new.namespaces.keys():
        compiler.put_namespace(name, None)
