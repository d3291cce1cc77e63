"""Read a document of the Kubernetes API into an Entry: the document's records, or, if it is unreadable, records that
close its pods.

    entry = read_entry(encode({"kind": "NetworkPolicy", "metadata": {"name": "web"}, "spec": {"podSelector": {}}}))
    entry.records                               # {("NetworkPolicy", "default/web"): Policy(...)}
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from fastcni.agent.egress import objects as egress
from fastcni.agent.egress.objects import EgressAddress, closed_egress_address, read_egress_address
from fastcni.agent.policy import cluster_policies
from fastcni.agent.policy.cluster_policies import ClusterPolicy, read_cluster_policy, read_node
from fastcni.agent.policy.http import documents as http
from fastcni.agent.policy.objects import Node, Pod, Policy, PolicyError, read_namespace, read_pod, read_policy
from fastcni.agent.policy.sources import unreadable

if TYPE_CHECKING:
    Id = tuple[str, str]                        # (kind, "namespace/name"), or (kind, name) without a namespace
    Record = Pod | Policy | ClusterPolicy | EgressAddress | Node | dict[str, str]      # dict: a Namespace's labels

POD, NAMESPACE, POLICY, NODE, CLUSTER_POLICY = "Pod", "Namespace", "NetworkPolicy", "Node", "ClusterNetworkPolicy"
EGRESS_ADDRESS, CILIUM_POLICY = egress.KIND, http.KIND
KINDS = {kind.lower(): kind for kind in (POD, NAMESPACE, POLICY, NODE, CLUSTER_POLICY, EGRESS_ADDRESS, CILIUM_POLICY)}
POLICIES = (POLICY, CLUSTER_POLICY, EGRESS_ADDRESS, CILIUM_POLICY)
GROUPS = {                      # {API group of policies: kinds that exist in the group}
    "networking.k8s.io/": (POLICY, "Ingress", "IngressClass", "IPAddress", "ServiceCIDR"),
    cluster_policies.GROUP: (CLUSTER_POLICY, "AdminNetworkPolicy", "BaselineAdminNetworkPolicy"),
    egress.GROUP: (EGRESS_ADDRESS,), http.GROUP: (CILIUM_POLICY, "CiliumClusterwideNetworkPolicy")}
OTHERS = ("projectcalico.org", "antrea.io", "openshift.io", "ovn.org", "k8s.aws")       # groups with such kinds, too
MISSPELT = {kind.lower(): kind for kind in ("List", *KINDS.values())}
READERS: dict[str, Callable[[Any], Pod | Policy | ClusterPolicy | EgressAddress | Node]] = {
    POD: read_pod, POLICY: read_policy, CLUSTER_POLICY: read_cluster_policy, NODE: read_node,
    EGRESS_ADDRESS: read_egress_address, CILIUM_POLICY: http.read_cilium_policy}
FOREIGN = ""                    # the kind of an Entry for a policy of another program
FOREIGN_ENDING = "networkpolicy"
CONVERTED = ("projectcalico.org/", "crd.projectcalico.org/", f"{cluster_policies.GROUP}v1alpha1")    # `policy convert`
MAX_TEXT = 99                   # characters of a name
LIKENESS = 0.8                  # the minimum similarity of a misspelt kind to a known kind, see difflib
PORTS = [{"ports": True, "restartPolicy": True}]
# The keys that fastcni reads. reduced() drops all other keys, which are most of a pod's document.
KEYS: dict[str, Any] = {
    POD: {"metadata": {"name": True, "namespace": True, "labels": True, "uid": True},
          "spec": {"nodeName": True, "hostNetwork": True, "containers": PORTS, "initContainers": PORTS},
          "status": {"phase": True, "podIP": True, "podIPs": True}},
    NAMESPACE: {"metadata": {"name": True, "labels": True}},
    POLICY: {"apiVersion": True, "metadata": {"name": True, "namespace": True, "uid": True}, "spec": True},
    CLUSTER_POLICY: {"apiVersion": True, "metadata": {"name": True, "uid": True}, "spec": True},
    EGRESS_ADDRESS: {"apiVersion": True, "metadata": {"name": True, "uid": True}, "spec": True},
    CILIUM_POLICY: {"apiVersion": True, "metadata": {"name": True, "namespace": True, "uid": True}, "spec": True,
                    "specs": True},
    NODE: {"metadata": {"name": True, "labels": True}, "status": {"addresses": True}}}


@dataclass(frozen=True, slots=True)
class Entry:
    """The result of reading a document. kind: the document's kind, or FOREIGN. error: why the document cannot be read,
    or "". records: the document's records; with an error, records that close the document's pods, or {} if its pods are
    unknown. notes: texts about the parts of a readable document that this version ignores."""

    kind: str
    records: dict[Id, Record]
    error: str = ""
    notes: tuple[str, ...] = ()


def reduced(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return the document with only the keys that fastcni reads; None if fastcni does not read its kind."""
    kind = KINDS.get(str(document.get("kind")).lower())
    if kind is None or is_foreign(kind, document):
        return None
    return {"kind": document["kind"], **only(document, KEYS[kind])}


def is_foreign(kind: str, document: dict[str, Any]) -> bool:
    """Return whether a document whose kind has the name of a policy belongs to another program, such as Calico."""
    return kind in POLICIES and str(document.get("apiVersion")).partition("/")[0].endswith(OTHERS)


def foreign(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return kind, apiVersion and name of a policy that fastcni does not enforce, such as an AdminNetworkPolicy, as a
    small document. Return None for a document that is no policy."""
    kind, version, metadata = document.get("kind"), document.get("apiVersion"), document.get("metadata")
    if not str(kind).lower().endswith(FOREIGN_ENDING):
        return None
    names = metadata if isinstance(metadata, dict) else {}
    return {"kind": str(kind)[:MAX_TEXT], "apiVersion": str(version)[:MAX_TEXT],
            "metadata": {key: str(names[key])[:MAX_TEXT] for key in ("namespace", "name") if key in names}}


def read_foreign(document: dict[str, Any]) -> Entry:
    """Return an Entry whose note says that the policy is not enforced. document: see foreign()."""
    version, names = document["apiVersion"], document["metadata"]
    name = "/".join(names[key] for key in ("namespace", "name") if key in names)
    advice = "; fastcni policy convert makes policies of it that are" if version.startswith(CONVERTED) else ""
    return Entry(FOREIGN, {}, notes=(f"{document['kind']} {name} of {version} is not enforced{advice}",))


def misspelled(document: dict[str, Any]) -> str:
    """Return an error if the kind of a document looks misspelt, else "". In an API group of policies, each unknown kind
    is an error. In another group of Kubernetes, or without a group, only a kind that resembles a known kind, or is the
    beginning of a known kind, is an error."""
    kind, group = str(document.get("kind")), str(document.get("apiVersion")).partition("/")[0]
    known = GROUPS.get(f"{group}/", ())
    if kind in known or ("." in group and not known):
        return ""
    text = kind.lower()[:MAX_TEXT]
    close = [each for each in MISSPELT if each.startswith(text)] or get_close_matches(text, MISSPELT, 1, LIKENESS)
    expected = [MISSPELT[each] for each in close if not known or MISSPELT[each] in known]
    if not expected and CILIUM_POLICY not in known:
        expected = [*known[:1]]
    return f"kind: expected {' or '.join(expected)}, got {kind[:MAX_TEXT]!r}" if expected else ""


def only(value: Any, keys: Any) -> Any:
    """Return the parts of a value that KEYS names. A part with an unexpected type stays, so that its reader reports the
    error."""
    if isinstance(keys, dict) and isinstance(value, dict):
        return {key: only(value[key], inner) for key, inner in keys.items() if key in value}
    if isinstance(keys, list) and isinstance(value, list):
        return [only(each, keys[0]) for each in value]
    return value


def encode(document: dict[str, Any]) -> bytes:
    """Return a document as one line of JSON, without the newline. Equal documents give equal lines."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def read_entry(line: bytes) -> Entry:
    """Read a line of encode() into an Entry."""
    document = json.loads(line)
    kind = KINDS.get(document["kind"].lower(), FOREIGN)
    if kind == FOREIGN or is_foreign(kind, document):
        return read_foreign(document)
    try:
        id, record = read_record(kind, document)
        return Entry(kind, {id: record}, notes=tuple(record.notes()) if isinstance(record, ClusterPolicy) else ())
    except PolicyError as e:
        if kind == EGRESS_ADDRESS:
            shut = closed_egress_address(document)
            return Entry(kind, {(kind, shut.name): shut} if shut else {}, str(e))
        unnamed = f"unnamed-{blake2b(line, digest_size=4).hexdigest()}"
        closed = unreadable.close(kind, document, unnamed)
        return Entry(kind, {(POD if isinstance(each, Pod) else POLICY if kind == POD else kind,
                             each.key): each for each in closed}, str(e))


def read_record(kind: str, document: dict[str, Any]) -> tuple[Id, Record]:
    """Return (id, record) of a document of this kind. Raises PolicyError."""
    if kind == NAMESPACE:
        name, labels = read_namespace(document)
        return (kind, name), labels
    record = READERS[kind](document)
    return (kind, record.key if isinstance(record, Pod | Policy) else record.name), record
