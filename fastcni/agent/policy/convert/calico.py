"""Convert policies of Calico in its tier `default`: GlobalNetworkPolicy and NetworkPolicy.

Calico applies the policies of the tier sorted by `order`; NetworkPolicies of Kubernetes have the order 1000. The first
rule that matches decides. If no rule matches, and a policy of the tier selects the pod, Calico denies the connection.
So a policy becomes

- a NetworkPolicy, if the policy is in a namespace and has only allowing rules;
- otherwise a ClusterNetworkPolicy of tier Admin with the rules, and a document that denies all other connections: for
  a policy in a namespace a NetworkPolicy without rules, for a global policy a ClusterNetworkPolicy of tier Baseline.

A policy without `order` comes after Kubernetes' NetworkPolicies. Its `Deny` becomes `Pass`: connections that a
NetworkPolicy allows stay allowed, and the NetworkPolicy without rules, or the policy of tier Baseline, denies all other
connections.
Source: https://docs.tigera.io/calico/latest/reference/resources/globalnetworkpolicy
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

from fastcni.agent.policy.cluster_policies import ACCEPT, ADMIN, BASELINE, MAX_PRIORITY, PASS
from fastcni.agent.policy.cluster_policies import DENY as DENIED
from fastcni.agent.policy.convert.calico_rules import ALLOW, DENY, LOG, CalicoRule, in_namespace, read_pods, read_rule
from fastcni.agent.policy.convert.conversion import Conversion, cluster_policy, network_policy
from fastcni.agent.policy.convert.selectors import label_selector
from fastcni.agent.policy.objects import DIRECTIONS, INGRESS, PolicyError, open_document

if TYPE_CHECKING:
    from fastcni.agent.policy.convert.calico_rules import Pods
    from fastcni.agent.policy.objects import Reader

VERSIONS = ("projectcalico.org/v3", "crd.projectcalico.org/v1")
KEYS = ("tier", "order", "ingress", "egress", "selector", "types", "serviceAccountSelector", "performanceHints")
GLOBAL_KEYS = ("namespaceSelector", "doNotTrack", "preDNAT", "applyOnForward")
PODS_ONLY = "selectors match pods only; in Calico they also match host endpoints and network sets with such labels"


class Policy:
    """A policy of Calico, and the documents into which convert() converts the policy."""

    def __init__(self, document: dict[str, Any]) -> None:
        """Read the policy without its rules. Raises PolicyError."""
        it, _, self.name, namespace = open_document(document["kind"], document)
        self.own = "" if document["kind"] == "GlobalNetworkPolicy" else namespace
        it.what = f"{document['kind']} {f'{self.own}/' if self.own else ''}{self.name} of Calico"
        if (version := it.get("apiVersion", str, "")) not in VERSIONS:
            it.wrong(f"expected {' or '.join(VERSIONS)}, got {reprlib.repr(version)}", "apiVersion")
        self.spec = it.part("spec") or it.wrong("is missing", "spec")
        self.spec.only(*KEYS, *(() if self.own else GLOBAL_KEYS))
        self.found = Conversion(it.what, is_calico=True)
        for key in ("serviceAccountSelector", *GLOBAL_KEYS[1:]):
            if self.spec.value.get(key):
                self.spec.wrong("cannot be expressed", key)
        if (tier := self.spec.get("tier", str, "default")) != "default":
            self.spec.wrong(f"only the tier default is converted, not {reprlib.repr(tier)}", "tier")
        self.priority = read_order(self.spec)
        self.pods = read_subject(self.spec, self.own)
        self.directions = read_types(self.spec)

    def deny(self) -> str:
        """Return the action of a ClusterNetworkPolicy for Calico's Deny: Deny; Pass for a policy without an order."""
        return DENIED if self.priority < MAX_PRIORITY else PASS

    def rules(self, direction: str) -> list[CalicoRule] | None:
        """Return the rules of a direction; None if the direction cannot be converted. rules() leaves out allowing rules
        that cannot be converted, and adds an error for each such case."""
        try:
            found = self.spec.each(direction.lower(), lambda it: self.rule(it, direction))
            rules = [rule for rule in found if rule and rule.peers != ()]
            return self.without_passed(rules, direction) if self.own else self.without_outside(rules, direction)
        except PolicyError as e:
            self.found.errors.append(f"{e}; the direction {direction} is not converted")
            return None

    def rule(self, reader: Reader, direction: str) -> CalicoRule | None:
        """Return the rule; None: the rule is left out, and an error or a note says why."""
        action = reader.get("action", str, "")
        if action == LOG:
            self.note(f"{reader.path}: Log is left out")
            return None
        if action not in (ALLOW, DENY):
            reader.wrong(f"{reprlib.repr(action)} cannot be expressed", "action")
        try:
            rule = read_rule(reader, direction, self.own)
            if not (self.own and action == ALLOW) and (why := rule.inexpressible(direction)) and not (
                    direction == INGRESS and rule.is_all and action == ALLOW):
                reader.wrong(why)
        except PolicyError as e:
            if action == DENY:
                raise
            self.found.errors.append(f"{e}; the rule allows nothing")
            return None
        if action == DENY and any(not (port.first or port.name) for port in rule.ports):
            self.note(f"{reader.path}: port 0 stays open; a ClusterNetworkPolicy has the ports 1 to 65535")
        return rule

    def without_passed(self, rules: list[CalicoRule], direction: str) -> list[CalicoRule]:
        """Return the rules of a policy in a namespace without the rules that would allow too much. Such a rule comes
        after a Deny that becomes Pass, and only a NetworkPolicy can express the rule. This NetworkPolicy would also
        allow connections that the Deny matches."""
        passes = False
        left = []
        for rule in rules:
            passes = passes or (rule.action == DENY and self.deny() == PASS)
            if passes and rule.action == ALLOW and (why := rule.inexpressible(direction)):
                self.found.errors.append(f"{self.found.what}: {rule.path}: {why}, and a NetworkPolicy has no Deny; "
                                         "give the policy an order; the rule allows nothing")
            else:
                left.append(rule)
        return left

    def without_outside(self, rules: list[CalicoRule], direction: str) -> list[CalicoRule]:
        """Return the rules of a global policy. Raises PolicyError if the ingress rules do not end with a rule for all
        connections: a ClusterNetworkPolicy cannot deny connections from outside the cluster."""
        if direction != INGRESS:
            return rules
        if not rules or not rules[-1].is_all:
            self.spec.wrong("denies connections from outside the cluster, which a ClusterNetworkPolicy cannot do; "
                            "write a NetworkPolicy for each namespace", "ingress")
        self.note(f"{rules[-1].path}: allows connections from pods; on other connections the NetworkPolicies decide")
        return rules

    def note(self, text: str) -> None:
        self.found.notes.append(f"{self.found.what}: {text}")

    # -- documents -----------------------------------------------------------------------------------------------------

    def convert(self) -> Conversion:
        rules = {direction: found for direction in self.directions if (found := self.rules(direction)) is not None}
        if not rules:
            return self.found
        every = [rule for each in rules.values() for rule in each]
        if any(rule.selects for rule in every) or not (self.own or "namespaceSelector" in self.spec.value):
            self.note(PODS_ONLY)
        if self.priority == MAX_PRIORITY and any(rule.action == DENY for rule in every):
            self.note("spec.order: without an order, Deny does not close what a NetworkPolicy of Kubernetes allows")
        if self.own and all(rule.action == ALLOW for rule in every):
            if self.priority < MAX_PRIORITY:
                self.note("spec.order: a NetworkPolicy has none; Deny of the ClusterNetworkPolicies of tier Admin "
                          "comes before it")
            self.put_policy(rules)
        else:
            self.put_admin(rules)
            self.put_policy({direction: [rule for rule in each if rule.inexpressible(direction)]
                             for direction, each in rules.items()}) if self.own else self.put_baseline(rules)
        return self.found

    def put_policy(self, rules: dict[str, list[CalicoRule]]) -> None:
        """Add a NetworkPolicy with these rules. It denies all other connections of these directions."""
        self.found.documents.append(network_policy(
            self.own, self.name, label_selector(self.pods.pods),
            **{direction.lower(): [rule.policy_rule(direction, self.own) for rule in each]
               for direction, each in rules.items()}))

    def put_admin(self, rules: dict[str, list[CalicoRule]]) -> None:
        """Add a ClusterNetworkPolicy of tier Admin with these rules, without the rules that it cannot express. For a
        policy in a namespace, put_policy() writes the missing rules, which all allow connections."""
        found: dict[str, list[dict[str, Any]]] = {}
        for direction, each in rules.items():
            written = found[direction.lower()] = []
            for rule in each:
                if not rule.inexpressible(direction):
                    written += rule.cluster_rules(direction, self.deny() if rule.action == DENY else ACCEPT)
                elif not self.own:              # the last rule: Allow from anywhere
                    written.append({"action": ACCEPT, "from": [{"namespaces": {}}]})
                elif any(later.action == DENY for later in each[each.index(rule):]):
                    self.note(f"{rule.path}: a NetworkPolicy allows this; the Deny rules of the policy come before it")
        if any(found.values()):
            name = f"{self.own}.{self.name}" if self.own else self.name
            self.found.documents.append(cluster_policy(name, ADMIN, self.priority, self.pods.cluster_peer(), **found))

    def put_baseline(self, rules: dict[str, list[CalicoRule]]) -> None:
        """Add a ClusterNetworkPolicy of tier Baseline that denies the other egress connections, and the ingress
        connections of Deny rules that became Pass."""
        everything = CalicoRule("", DENY, None, ())
        closed = {}
        for direction, each in rules.items():
            denied = [rule for rule in each if rule.action == DENY and self.deny() == PASS]
            if direction != INGRESS:
                denied = [everything] if denied or not each or not each[-1].is_all else []
            closed[direction.lower()] = [one for rule in denied for one in rule.cluster_rules(direction, DENIED)]
        if any(closed.values()):
            self.found.documents.append(
                cluster_policy(f"{self.name}-end", BASELINE, 0, self.pods.cluster_peer(), **closed))


def convert(document: dict[str, Any]) -> Conversion:
    """Convert a GlobalNetworkPolicy or NetworkPolicy of Calico. Raises PolicyError."""
    return Policy(document).convert()


def read_order(spec: Reader) -> int:
    """Return the priority for the key `order`; for a policy without an order, MAX_PRIORITY, which comes last."""
    order = spec.value.get("order")
    if order is None:
        return MAX_PRIORITY
    if isinstance(order, bool) or not isinstance(order, int | float) or order not in range(MAX_PRIORITY):
        spec.wrong(f"expected a whole number from 0 to {MAX_PRIORITY - 1} or none, got {reprlib.repr(order)}", "order")
    return int(order)


def read_subject(spec: Reader, own: str) -> Pods:
    """Return the pods that the policy selects. own: the policy's namespace; "" for a global policy."""
    if len(found := read_pods(spec, own)) != 1:
        spec.wrong("has alternatives (||): write a policy for each" if found else "selects nothing", "selector")
    if own and found[0].namespaces != in_namespace(own):
        spec.wrong("a label of the namespace cannot be expressed here", "selector")
    return found[0]


def read_types(spec: Reader) -> list[str]:
    """Return the directions that the policy restricts: the directions in `types`; without the key, the directions with
    rules; without rules, Ingress."""
    kinds = spec.get("types", list, [])
    for kind in kinds:
        if kind not in DIRECTIONS:
            spec.wrong(f"expected Ingress or Egress, got {reprlib.repr(kind)}", "types")
    return [kind for kind in DIRECTIONS if kind in kinds] or [
        kind for kind in DIRECTIONS if spec.value.get(kind.lower())] or [INGRESS]
