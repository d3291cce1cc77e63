"""Make policies that stand in for an unreadable document and close the pods that the document is about.

A policy without rules closes its pods: they have only the connections that other policies allow. If the unreadable
document does not say which pods it selects, the policy selects all pods of the namespace. If the document does not name
the directions, the policy closes both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastcni.agent.policy import cluster_policies
from fastcni.agent.policy.cluster_policies import ClusterPolicy, OrderedRule
from fastcni.agent.policy.http import documents as http
from fastcni.agent.policy.objects import (
    DIRECTIONS,
    EGRESS,
    EVERYTHING,
    EXISTS,
    INGRESS,
    Group,
    Pod,
    Policy,
    PolicyError,
    Reader,
    Requirement,
    Selector,
    is_name,
    is_namespace,
    read_addresses,
    read_selector,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Found = TypeVar("Found")

LABEL = "fastcni.dev/unreadable"                # the label of a pod whose own labels are unknown
SUFFIX = " (unreadable)"                        # ends the name of a policy that stands in for an unreadable document


def close(kind: str, document: dict[str, Any], unnamed: str) -> list[Pod | Policy | ClusterPolicy]:
    """Return the records that close the pods of an unreadable document; [] if its namespace cannot be read. unnamed:
    the name for a policy whose own name cannot be read."""
    metadata = {} if document.get("metadata") is None else document["metadata"]
    if not isinstance(metadata, dict):
        return []
    if kind == "ClusterNetworkPolicy":
        name = metadata.get("name")
        return [closed_cluster_policy(name if is_name(name) else "", document.get("spec"), unnamed)]
    namespace, name = metadata.get("namespace") or "default", metadata.get("name")
    if not is_namespace(namespace):
        return []
    if kind == "NetworkPolicy":
        return [closed_policy(namespace, name if is_name(name) else "", document.get("spec"), unnamed)]
    if kind == http.KIND:
        return [http.closed(namespace, name if is_name(name) else "", document.get("spec"), unnamed, SUFFIX, attempt)]
    return closed_pod(namespace, name, document.get("status")) if kind == "Pod" and is_name(name) else []


def closed_policy(namespace: str, name: str, spec: Any, unnamed: str) -> Policy:
    """Return a policy without rules for the pods and directions of `spec`. The policy has the name `name` if the name
    and the pods are readable. Otherwise the policy has another name, because the last readable version also stays in
    force."""
    selector = attempt(lambda: read_selector(Reader("", spec).part("podSelector")))
    directions = named_directions(spec)
    if not name or selector is None:
        name = f"{name or unnamed}{SUFFIX}"
    return Policy(namespace, name, Group(namespace, EVERYTHING if selector is None else selector),
                  () if INGRESS in directions else None, () if EGRESS in directions else None)


def closed_cluster_policy(name: str, spec: Any, unnamed: str) -> ClusterPolicy:
    """Return a cluster policy that denies everything to the pods of `spec`, in the directions that have rules, with the
    tier and priority of `spec`. The strictest value replaces an unreadable value: all pods, both directions, tier
    Admin, priority 0. See closed_policy() for the name."""
    known = [attempt(lambda read=read: read(Reader("", spec))) for read in (        # type: ignore[misc]
        cluster_policies.read_tier, cluster_policies.read_priority, cluster_policies.read_subject)]
    tier, priority, pods = known
    if not name or None in known:
        name = f"{name or unnamed}{SUFFIX}"
    denied = (OrderedRule(action=cluster_policies.DENY),)
    named = isinstance(spec, dict) and (spec.get("ingress"), spec.get("egress"))
    ingress, egress = (denied if one else () for one in (named if named and any(named) else (True, True)))
    return ClusterPolicy(name, tier or cluster_policies.ADMIN, priority or 0,
                         pods or Group(EVERYTHING, EVERYTHING), ingress, egress)


def named_directions(spec: Any) -> list[str] | tuple[str, ...]:
    """Return the `policyTypes` of a spec; both directions if `policyTypes` is missing or unreadable."""
    kinds = spec.get("policyTypes") if isinstance(spec, dict) else None
    known = isinstance(kinds, list) and kinds and all(kind in DIRECTIONS for kind in kinds)
    return kinds if known else DIRECTIONS       # type: ignore[return-value]


def closed_pod(namespace: str, name: str, status: Any) -> list[Pod | Policy | ClusterPolicy]:
    """Return a pod whose only label is LABEL, and a policy without rules that selects this label."""
    addresses = attempt(lambda: read_addresses(Reader("", status))) or ()
    label = Selector((Requirement(LABEL, EXISTS),))
    return [Pod(namespace, name, {LABEL: ""}, addresses),
            Policy(namespace, f"pods{SUFFIX}", Group(namespace, label), (), ())]


def attempt(read: Callable[[], Found]) -> Found | None:
    try:
        return read()
    except PolicyError:
        return None
