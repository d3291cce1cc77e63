"""The result of a conversion, and functions that make its documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastcni.agent.policy import objects
from fastcni.agent.policy.cluster_policies import API_VERSION


@dataclass(slots=True)
class Conversion:
    """what: the kind and name of the document that was converted. errors: texts on the keys that are not converted,
    with kind, name and key of the document. notes: texts on converted keys that mean something else than before.
    is_calico: the document was a policy of Calico."""

    what: str = ""
    documents: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_calico: bool = False

    def add(self, other: Conversion, where: str) -> None:
        """Add the Conversion of the document at `where`."""
        self.documents += other.documents
        self.errors += [f"{where}: {text}" for text in other.errors]
        self.notes += [f"{where}: {text}" for text in other.notes]


def cluster_policy(name: str, tier: str, priority: int, subject: dict[str, Any], **rules: Any) -> dict[str, Any]:
    """Return a ClusterNetworkPolicy. rules: ingress, egress."""
    return {"apiVersion": API_VERSION, "kind": "ClusterNetworkPolicy", "metadata": {"name": name},
            "spec": {"tier": tier, "priority": priority, "subject": subject,
                     **{key: value for key, value in rules.items() if value}}}


def network_policy(namespace: str, name: str, pods: dict[str, Any], **rules: list[Any]) -> dict[str, Any]:
    """Return a NetworkPolicy that restricts the directions of `rules`: ingress, egress."""
    return {"apiVersion": objects.API_VERSION, "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"podSelector": pods, "policyTypes": [key.capitalize() for key in rules], **rules}}
