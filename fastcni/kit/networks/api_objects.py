"""Read pods and NetworkAttachmentDefinitions from the Kubernetes API, and write a pod's network status.

Each method sends one request. A server gets pods and definitions from a watch (server/networks/watched.py), and
requests only objects that the watch lacks.
"""

from __future__ import annotations

from time import monotonic

from fastcni.clients.errors import Away
from fastcni.clients.kubernetes import Conflict, Missing, NoSuchKind, open_api
from fastcni.kit.networks.copies import Copies, Stored
from fastcni.kit.networks.selection import DEFAULT_NETWORK, NETWORKS, is_label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Object = dict[str, Any]

GROUP = "/apis/k8s.cni.cncf.io/v1"
DEFINITIONS, PODS = f"{GROUP}/network-attachment-definitions", "/api/v1/pods"
STATUS = "k8s.v1.cni.cncf.io/network-status"
RESOURCE = "k8s.v1.cni.cncf.io/resourceName"        # annotation of a definition: the resource of its devices
MIRROR = "kubernetes.io/config.mirror"              # annotation of the API's copy of a static pod
STATUS_TIMEOUT_S = 0.5                              # an ADD waits at most this time for the write of its pod's status
RETRY_S = 5.0                                       # time without requests after a failure


class Pod:
    """The parts of a Pod object that fastcni reads. annotations: the pod's values of NETWORKS and DEFAULT_NETWORK.
    mirror: the object is the API's copy of a static pod, whose uid differs from the uid that the kubelet gives the
    runtime."""

    __slots__ = ("uid", "annotations", "mirror")

    def __init__(self, document: Object) -> None:
        metadata = document["metadata"]
        found = metadata.get("annotations") or {}
        self.uid: str = metadata.get("uid") or ""
        self.annotations: dict[str, str] = {key: found[key] for key in (NETWORKS, DEFAULT_NETWORK) if found.get(key)}
        self.mirror = MIRROR in found

    def is_of(self, uid: str) -> bool:
        """Return whether this object is the pod that the runtime adds. uid: the uid from the runtime, "" if the runtime
        gives no uid."""
        return not uid or uid == self.uid or self.mirror


def read_definition(document: Object) -> Stored:
    """Return the parts of a NetworkAttachmentDefinition that fastcni reads."""
    config = (document.get("spec") or {}).get("config")
    resource = (document["metadata"].get("annotations") or {}).get(RESOURCE)
    return Stored(config if isinstance(config, str) else "", resource if isinstance(resource, str) else "")


class ApiObjects:
    """The API server of a kubeconfig. copies: the copies of definitions on disk, used if the API server does not
    answer.

    Methods raise Away if the API server does not answer.
    """

    def __init__(self, kubeconfig: str, copies: Copies) -> None:
        self.api, self.copies = open_api(kubeconfig), copies
        self.why, self.retry_at = "", 0.0           # the error of the last failure; time of the next try

    def close(self) -> None:
        self.api.close()

    def pod(self, namespace: str, name: str, uid: str) -> Pod | None:
        """Return a pod, None if it does not exist. uid: the uid from the runtime, a hint for a cache; the returned pod
        may have another uid."""
        document = self.api.get(path_of_pod(namespace, name))
        return Pod(document) if document else None

    def definition(self, namespace: str, name: str) -> Stored | None:
        """Return a definition, None if it does not exist. If the API server does not answer, return the copy on disk,
        whose `stale` is the reason."""
        if monotonic() >= self.retry_at:
            try:
                document = self._get_definition(namespace, name)
                self.why = ""
                return self.copies.keep(namespace, name, read_definition(document) if document else None)
            except Away as e:
                self.why, self.retry_at = str(e), monotonic() + RETRY_S
        found = self.copies.read(namespace, name)
        if found is None:
            raise Away(f"{self.why}; {self.copies.path(namespace, name)} has no copy of it")
        found.stale = self.why
        return found

    def _get_definition(self, namespace: str, name: str) -> Object | None:
        try:
            return self.api.get(f"{GROUP}/namespaces/{namespace}/network-attachment-definitions/{name}")
        except NoSuchKind:              # the cluster has no NetworkAttachmentDefinitions
            return None

    def write_status(self, namespace: str, name: str, uid: str, text: str, timeout_s: float = STATUS_TIMEOUT_S) -> None:
        """Write the annotation STATUS of a pod, by one request. uid: write only if the pod has this uid; "": any uid. A
        pod that no longer exists is no error."""
        changes: Object = {"metadata": {"annotations": {STATUS: text}}}
        if uid:
            changes["metadata"]["uid"] = uid
        try:
            self.api.patch_by_keys(f"{path_of_pod(namespace, name)}/status", changes, timeout_s)
        except (Missing, Conflict):
            return


def path_of_pod(namespace: str, name: str) -> str:
    """Return the API path of a pod. Raises Away for an invalid name or namespace."""
    if not (is_label(namespace) and is_label(name)):
        raise Away(f"no pod can have the name {namespace}/{name}")
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
