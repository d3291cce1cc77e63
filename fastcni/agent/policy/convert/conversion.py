"""Hold the result of a conversion, and build the documents in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastcni.agent.policy import objects
from fastcni.agent.policy.cluster_policies import API_VERSION


@dataclass(slots=True)
class Conversion:
    """The result of a conversion. what: the kind and name of the old document. documents: the new documents. errors:
    texts about keys that are not converted, with the document's kind and name and the key. notes: texts about keys
    whose effect changes. is_calico: whether the old document was a policy of Calico."""

    what: str = ""
    documents: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_calico: bool = False

    def add(self, other: Conversion, where: str) -> None:
        """Add another Conversion. where: the place of its old document, with which each added text begins."""
        self.documents += other.documents
        self.errors += [f"{where}: {text}" for text in other.errors]
        self.notes += [f"{where}: {text}" for text in other.notes]


def cluster_policy(name: str, tier: str, priority: int, subject: dict[str, Any], **rules: Any) -> dict[str, Any]:
    """Return the document of a ClusterNetworkPolicy. rules: ingress=[...], egress=[...]; an empty list is left out."""
    return {"apiVersion": API_VERSION, "kind": "ClusterNetworkPolicy", "metadata": {"name": name},
            "spec": {"tier": tier, "priority": priority, "subject": subject,
                     **{key: value for key, value in rules.items() if value}}}


def network_policy(namespace: str, name: str, pods: dict[str, Any], **rules: list[Any]) -> dict[str, Any]:
    """Return the document of a NetworkPolicy that restricts the directions in `rules`: ingress=[...], egress=[...].
    pods: its podSelector."""
    return {"apiVersion": objects.API_VERSION, "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"podSelector": pods, "policyTypes": [key.capitalize() for key in rules], **rules}}
