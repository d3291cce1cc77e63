"""Whether a connection is allowed, by the policies themselves: what `fastcni policy test` prints.

Nothing here is compiled or kept, so the tests compare the kernel's rules with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastcni.agent.policy.objects import EGRESS, INGRESS, Block, Group

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni.agent.policy.objects import Pod, Policy, Port, Rule


@dataclass(slots=True)
class Cluster:
    """All that policies depend on. pods, policies: by "namespace/name". namespaces: {name: labels}."""

    pods: dict[str, Pod] = field(default_factory=dict)
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    policies: dict[str, Policy] = field(default_factory=dict)

    def pods_at(self, packed: bytes) -> list[Pod]:
        """The pods with an address: one, or two while the former one's record is still there."""
        return [pod for pod in self.pods.values() if packed in pod.addresses]


@dataclass(frozen=True, slots=True)
class Connection:
    """source, destination: packed addresses, after translation of the destination (DNAT) and before that of the source.
    protocol: IPPROTO_*. port: of the destination; 0 if the protocol has none."""

    source: bytes
    destination: bytes
    protocol: int
    port: int


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one direction is allowed or denied. rule: "shop/web ingress[0]", of the rule that allows; "" without one.
    isolating: the policies that select the pod in this direction."""

    allowed: bool
    rule: str = ""
    isolating: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.rule:
            return f"allowed by {self.rule}"
        if self.allowed:
            return "allowed: no policy selects the pod"
        return f"denied: no rule of {', '.join(self.isolating)} allows it"


@dataclass(frozen=True, slots=True)
class Verdict:
    """egress, ingress: of the source, of the destination; None of an address that no pod has, and of a connection of a
    pod to itself."""

    egress: Reason | None
    ingress: Reason | None

    @property
    def allowed(self) -> bool:
        return all(reason is None or reason.allowed for reason in (self.egress, self.ingress))


def evaluate(cluster: Cluster, it: Connection) -> Verdict:
    """Decide on a connection that is not from or to the pod's own node; that one is always allowed."""
    if it.source == it.destination:
        return Verdict(None, None)
    return Verdict(one_direction(cluster, it, EGRESS), one_direction(cluster, it, INGRESS))


def one_direction(cluster: Cluster, it: Connection, direction: str) -> Reason | None:
    pods = cluster.pods_at(it.source if direction == EGRESS else it.destination)
    if not pods:
        return None
    isolating = selecting(cluster, pods, direction)
    if not isolating:
        return Reason(True)
    for policy in isolating:
        for number, rule in enumerate(policy.rules(direction) or ()):
            if allows(cluster, rule, it, direction):
                return Reason(True, rule_name(policy, direction, number))
    return Reason(False, isolating=tuple(policy.key for policy in isolating))


def selecting(cluster: Cluster, pods: Iterable[Pod], direction: str) -> list[Policy]:
    """The policies that restrict one of the pods in a direction."""
    return [policy for _, policy in sorted(cluster.policies.items()) if policy.rules(direction) is not None
            and any(policy.pods.matches(pod, cluster.namespaces) for pod in pods)]


def rule_name(policy: Policy, direction: str, number: int) -> str:
    return f"{policy.key} {direction.lower()}[{number}]"


def allows(cluster: Cluster, rule: Rule, it: Connection, direction: str) -> bool:
    peer = it.destination if direction == EGRESS else it.source
    return (not rule.peers or any(is_peer(cluster, one, peer) for one in rule.peers)) and (
        not rule.ports or any(is_port(one, it, cluster.pods_at(it.destination)) for one in rule.ports))


def is_peer(cluster: Cluster, peer: Group | Block, packed: bytes) -> bool:
    if isinstance(peer, Block):
        return peer.matches(packed)
    return any(peer.matches(pod, cluster.namespaces) for pod in cluster.pods_at(packed))


def is_port(port: Port, it: Connection, destinations: Iterable[Pod]) -> bool:
    """A name stands for the number that the destination pod gives it."""
    if it.protocol != port.protocol:
        return False
    if port.name:
        return any(pod.ports.get((port.name, port.protocol)) == it.port for pod in destinations)
    return port.first <= it.port <= port.last
