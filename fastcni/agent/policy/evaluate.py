"""Decide from the policies, without the kernel's rules, whether a connection is allowed; `fastcni policy test` prints
the decision.

The module neither compiles nor caches, so the tests can compare the kernel's rules with the module's answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastcni.agent.policy.cluster_policies import ACCEPT, PASS, TIERS, ClusterPolicy, OrderedRule
from fastcni.agent.policy.http.documents import HttpRule
from fastcni.agent.policy.objects import EGRESS, INGRESS, Block, Domain, Nodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni.agent.policy.objects import Group, Node, Pod, Policy, Rule, RulePort

QUOTE = '"'                     # ends a comment in nft's output, so no comment may contain this character


@dataclass(slots=True)
class Cluster:
    """All objects that policies depend on. pods: {"namespace/name": pod}. policies: {"namespace/name": policy}, and
    {"name": cluster policy}. namespaces: {name: labels}. nodes: {name: node}. resolved: {name of a Domain: {(pod's
    address, address in an answer to the pod)}}."""

    pods: dict[str, Pod] = field(default_factory=dict)
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    policies: dict[str, Policy | ClusterPolicy] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    resolved: dict[str, set[tuple[bytes, bytes]]] = field(default_factory=dict)

    def pods_at(self, packed: bytes) -> list[Pod]:
        """Return the pods with this address: one pod, or two while the record of an earlier pod still exists."""
        return [pod for pod in self.pods.values() if packed in pod.addresses]


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection, after translation of its destination (DNAT) and before translation of its source (SNAT). source,
    destination: packed addresses. protocol: IPPROTO_*. port: the destination port; 0 if the protocol has no ports."""

    source: bytes
    destination: bytes
    protocol: int
    port: int


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one direction is allowed or denied. rule: the name of the rule that decides, "shop/web ingress[0]"; "" if no
    rule matches. isolating: the policies that select the pod in this direction. own: whether the destination is the
    pod's own node. by_request: whether only the HTTP requests that the rules name are allowed."""

    allowed: bool
    rule: str = ""
    isolating: tuple[str, ...] = ()
    own: bool = False
    by_request: bool = False

    def __str__(self) -> str:
        if self.rule:
            requests = ", for its HTTP requests" if self.by_request else ""
            return f"{'allowed' if self.allowed else 'denied'} by {self.rule}{requests}"
        if self.own:
            return "allowed: the destination is the pod's own node"
        if self.allowed:
            return (f"allowed: no rule of {', '.join(self.isolating)} denies it" if self.isolating else
                    "allowed: no policy selects the pod")
        return f"denied: no rule of {', '.join(self.isolating)} allows it"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decisions on a connection. egress: for the source; ingress: for the destination. None means that no policy
    applies: no pod has the address, or the pod connects to itself."""

    egress: Reason | None
    ingress: Reason | None

    @property
    def allowed(self) -> bool:
        return all(reason is None or reason.allowed for reason in (self.egress, self.ingress))


def evaluate(cluster: Cluster, connection: Connection, to_node: bool = False) -> Verdict:
    """Decide on a connection. to_node: the destination is the pod's own node. Connections from the pod's own node are
    always allowed, so callers do not ask about them."""
    if connection.source == connection.destination:
        return Verdict(None, None)
    if to_node:
        return Verdict(one_direction(cluster, connection, EGRESS, True), None)
    return Verdict(one_direction(cluster, connection, EGRESS), one_direction(cluster, connection, INGRESS))


def one_direction(cluster: Cluster, connection: Connection, direction: str, to_node: bool = False) -> Reason | None:
    """Decide on one direction: first by tier Admin, then by the NetworkPolicies, then by tier Baseline. Return None if
    no pod has the address."""
    pods = cluster.pods_at(connection.source if direction == EGRESS else connection.destination)
    if not pods:
        return None
    admin, baseline = (in_tier(cluster, pods, direction, tier) for tier in TIERS)
    if decided := by_tier(cluster, admin, connection, direction):
        return decided
    if isolating := selecting(cluster, pods, direction):
        return Reason(True, own=True) if to_node else by_policies(cluster, isolating, connection, direction)
    return by_tier(cluster, baseline, connection, direction) or Reason(
        True, isolating=tuple(policy.key for policy in (*admin, *baseline)), own=to_node)


def by_policies(cluster: Cluster, isolating: Iterable[Policy], connection: Connection, direction: str) -> Reason:
    """Return the decision of `isolating`, the NetworkPolicies that select the pod."""
    by_request = ""
    for policy in isolating:
        for number, rule in enumerate(policy.rules(direction) or ()):
            if allows(cluster, rule, connection, direction):
                if not isinstance(rule, HttpRule):
                    return Reason(True, rule_name(policy, direction, number))
                by_request = by_request or rule_name(policy, direction, number)
    if by_request:
        return Reason(True, by_request, by_request=True)
    return Reason(False, isolating=tuple(policy.key for policy in isolating))


def by_tier(cluster: Cluster, policies: Iterable[ClusterPolicy], connection: Connection,
            direction: str) -> Reason | None:
    """Return the decision of the cluster policies of a tier; None if no rule matches or the rule's action is Pass."""
    for policy in policies:
        for number, rule in enumerate(policy.rules(direction) or ()):
            if not rule.void and allows(cluster, rule, connection, direction):
                return None if rule.action == PASS else Reason(rule.action == ACCEPT,
                                                               rule_name(policy, direction, number))
    return None


def selecting(cluster: Cluster, pods: Iterable[Pod], direction: str) -> list[Policy]:
    """Return the NetworkPolicies that restrict one of the pods in a direction."""
    return [policy for _, policy in sorted(cluster.policies.items())
            if not isinstance(policy, ClusterPolicy) and selects(cluster, policy, pods, direction)]


def in_tier(cluster: Cluster, pods: Iterable[Pod], direction: str, tier: str) -> list[ClusterPolicy]:
    """Return the cluster policies of a tier that have rules for one of the pods in a direction, sorted by `order`."""
    return sorted([policy for policy in cluster.policies.values() if isinstance(policy, ClusterPolicy)
                   and policy.tier == tier and selects(cluster, policy, pods, direction)],
                  key=lambda policy: policy.order)


def selects(cluster: Cluster, policy: Policy | ClusterPolicy, pods: Iterable[Pod], direction: str) -> bool:
    return policy.rules(direction) is not None and any(policy.pods.matches(pod, cluster.namespaces) for pod in pods)


def rule_name(policy: Policy | ClusterPolicy, direction: str, number: int) -> str:
    """Return a rule's name, "shop/web ingress[0]"; in a cluster policy "no-guests ingress[0] (name of the rule)"."""
    text, rule = f"{policy.key} {direction.lower()}[{number}]", (policy.rules(direction) or ())[number]
    if not isinstance(rule, OrderedRule) or not rule.name:
        return text
    return f"{text} ({''.join(each if each.isprintable() and each != QUOTE else '?' for each in rule.name)})"


def allows(cluster: Cluster, rule: Rule, connection: Connection, direction: str) -> bool:
    peer = connection.destination if direction == EGRESS else connection.source
    return (not rule.peers or any(is_resolved(cluster, one, connection) if isinstance(one, Domain) else
                                  is_peer(cluster, one, peer) for one in rule.peers)) and (
        not rule.ports or any(is_port(one, connection, cluster.pods_at(connection.destination)) for one in rule.ports))


def is_resolved(cluster: Cluster, peer: Domain, connection: Connection) -> bool:
    """Return whether a DNS answer to the source said that a name of `peer` has the destination's address."""
    return (connection.source, connection.destination) in cluster.resolved.get(peer.name, ())


def is_peer(cluster: Cluster, peer: Group | Block | Nodes, packed: bytes) -> bool:
    if isinstance(peer, Block):
        return peer.matches(packed)
    if isinstance(peer, Nodes):
        return any(packed in node.addresses and peer.labels.matches(node.labels) for node in cluster.nodes.values())
    return any(peer.matches(pod, cluster.namespaces) for pod in cluster.pods_at(packed))


def is_port(port: RulePort, connection: Connection, destinations: Iterable[Pod]) -> bool:
    """Return whether the connection goes to `port`, a port of a rule. The destination pods give a named port its
    number."""
    if connection.protocol != port.protocol:
        return False
    if port.name:
        return any(pod.ports.get((port.name, port.protocol)) == connection.port for pod in destinations)
    return port.first <= connection.port <= port.last
