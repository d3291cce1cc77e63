"""The policies that stand in for a document that cannot be read, and close the pods of the document.

A policy without rules closes its pods: only connections that further policies allow pass. If the document does
not say which pods it selects, it selects all pods of its namespace; if not in which directions, in both.
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

LABEL = "fastcni.dev/unreadable"                # of a pod whose own labels are not known
SUFFIX = " (unreadable)"                        # of the name of a policy that stands in for an unreadable policy


def close(kind: str, document: dict[str, Any], unnamed: str) -> list[Pod | Policy | ClusterPolicy]:
    """The records that close the pods of a document of this kind; none if its namespace cannot be read. unnamed: a
    name for a policy without one."""
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
    """Return a policy with the pods and directions of `spec`. Its name is `name` if both are known; otherwise another
    name, because the last readable version of the policy also stays in force."""
    selector = attempt(lambda: read_selector(Reader("", spec).part("podSelector")))
    directions = named_directions(spec)
    if not name or selector is None:
        name = f"{name or unnamed}{SUFFIX}"
    return Policy(namespace, name, Group(namespace, EVERYTHING if selector is None else selector),
                  () if INGRESS in directions else None, () if EGRESS in directions else None)


def closed_cluster_policy(name: str, spec: Any, unnamed: str) -> ClusterPolicy:
    """A policy that denies everything to the pods of `spec`, in the directions that have rules, at its place in its
    tier. An unreadable value becomes the strictest value: all pods, both directions, tier Admin, priority 0. See
    closed_policy() for the name."""
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
    """The policyTypes of a spec; both if it has none that can be read."""
    kinds = spec.get("policyTypes") if isinstance(spec, dict) else None
    known = isinstance(kinds, list) and kinds and all(kind in DIRECTIONS for kind in kinds)
    return kinds if known else DIRECTIONS       # type: ignore[return-value]


def closed_pod(namespace: str, name: str, status: Any) -> list[Pod | Policy | ClusterPolicy]:
    """A pod with a label of its own, and a policy that selects this label."""
    addresses = attempt(lambda: read_addresses(Reader("", status))) or ()
    label = Selector((Requirement(LABEL, EXISTS),))
    return [Pod(namespace, name, {LABEL: ""}, addresses),
            Policy(namespace, f"pods{SUFFIX}", Group(namespace, label), (), ())]


def attempt(read: Callable[[], Found]) -> Found | None:
    try:
        return read()
    except PolicyError:
        return None
