"""Read policies of the whole cluster from documents: ClusterNetworkPolicy of policy.networking.k8s.io/v1alpha2.

    read_cluster_policy({"metadata": {"name": "no-guests"}, "spec": {
        "tier": "Admin", "priority": 10, "subject": {"namespaces": {}},
        "ingress": [{"action": "Deny", "from": [{"namespaces": {"matchLabels": {"guest": "yes"}}}]}]}})

For each direction of a connection, the first rule that matches decides: first the rules of tier Admin in order, then
the NetworkPolicies, then the rules of tier Baseline. Policies with the same priority are sorted by name.

API: https://network-policy-api.sigs.k8s.io/reference/spec/, and the validation of its CRD.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastcni.agent.policy.objects import (
    EGRESS,
    EVERYTHING,
    INGRESS,
    MAX_PORT,
    PORT_NAME,
    PROTOCOLS,
    Block,
    Domain,
    Group,
    Node,
    Nodes,
    Reader,
    Rule,
    RulePort,
    open_document,
    read_labels,
    read_network,
    read_selector,
)
from fastcni.spec.address import read_ip

if TYPE_CHECKING:
    from typing import Any

    from fastcni.agent.policy.objects import Peer

GROUP = "policy.networking.k8s.io/"
API_VERSION = f"{GROUP}v1alpha2"
TIERS = ADMIN, BASELINE = "Admin", "Baseline"
ACTIONS = ACCEPT, DENY, PASS = "Accept", "Deny", "Pass"
MAX_PRIORITY = 1000
MAX_ITEMS = 25                # items in each list: a direction's rules, a rule's peers and protocols, a peer's networks
MAX_RULE_NAME = 100
MAX_DOMAIN_NAME = 253           # characters, without the last dot
LABEL = r"[A-Za-z0-9](?:[-A-Za-z0-9_]{0,61}[A-Za-z0-9])?"
DOMAIN_NAME = re.compile(rf"(?:\*\.)?{LABEL}(?:\.{LABEL})+\.?")
PEERS = {INGRESS: ("namespaces", "pods"), EGRESS: ("namespaces", "pods", "nodes", "networks")}
DOMAIN_NAMES = "domainNames"    # a kind of peer only in egress rules of tier Admin with action Accept
OF_NODE = ("InternalIP", "ExternalIP")          # types in a Node's status that are IP addresses, not names


@dataclass(frozen=True, slots=True)
class OrderedRule(Rule):
    """A rule of a cluster policy. action: ACCEPT, DENY or PASS. name: the rule's name, or "". void: the rule matches
    nothing. note: a text about a peer that this version does not know, and the effect; "" without such a peer."""

    action: str = ACCEPT
    name: str = ""
    void: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class ClusterPolicy:
    """A ClusterNetworkPolicy. tier: ADMIN or BASELINE. pods: the pods that the policy selects, in all namespaces.
    ingress, egress: its rules, in order."""

    name: str
    tier: str
    priority: int
    pods: Group
    ingress: tuple[OrderedRule, ...] = ()
    egress: tuple[OrderedRule, ...] = ()

    @property
    def key(self) -> str:
        """The policy's key: its name. Keys of NetworkPolicies differ, because they have a slash."""
        return self.name

    @property
    def order(self) -> tuple[int, str]:
        return self.priority, self.name

    @property
    def reaches_nodes(self) -> bool:
        """Whether a rule of egress may match an address of a node."""
        return any(not rule.void and (not rule.peers or any(not isinstance(peer, Group) for peer in rule.peers))
                   for rule in self.egress)

    def rules(self, direction: str) -> tuple[OrderedRule, ...] | None:
        """Return the rules of a direction; None if the policy has no rules for this direction."""
        return (self.ingress if direction == INGRESS else self.egress) or None

    def notes(self) -> list[str]:
        """Return a text for each rule with a peer that this version does not know, with the effect on the rule."""
        return [f"ClusterNetworkPolicy {self.name}: {rule.note}" for rule in (*self.ingress, *self.egress) if rule.note]


def read_node(document: Any) -> Node:
    """Read a Node. Raises PolicyError."""
    it, metadata, name, _ = open_document("Node", document)
    status = it.part("status")
    texts = status.each("addresses", lambda one: one.get("address", str, "") if one.get(
        "type", str, "") in OF_NODE else "") if status else ()
    try:
        packed = tuple(dict.fromkeys(read_ip(text) for text in texts if text))
    except ValueError as e:
        it.wrong(str(e), "status.addresses")
    return Node(name, read_labels(metadata), packed)


def read_cluster_policy(document: Any) -> ClusterPolicy:
    """Read a ClusterNetworkPolicy. Raises PolicyError."""
    it, _, name, _ = open_document("ClusterNetworkPolicy", document, API_VERSION)
    spec = it.part("spec") or it.wrong("is missing", "spec")
    spec.only("tier", "priority", "subject", "ingress", "egress")
    tier = read_tier(spec)
    return ClusterPolicy(name, tier, read_priority(spec), read_subject(spec),
                         *(limited(spec, key, lambda one, direction=direction: read_rule(one, direction, tier))
                           for key, direction in (("ingress", INGRESS), ("egress", EGRESS))))


def read_tier(spec: Reader) -> str:
    """Read the key `tier`. Raises PolicyError."""
    tier = spec.get("tier", str, "")
    return tier if tier in TIERS else spec.wrong(f"expected Admin or Baseline, got {reprlib.repr(tier)}", "tier")


def read_priority(spec: Reader) -> int:
    """Read the key `priority`. Raises PolicyError."""
    priority = spec.get("priority", int, -1)
    return priority if 0 <= priority <= MAX_PRIORITY else spec.wrong(f"expected 0 to {MAX_PRIORITY}", "priority")


def read_subject(spec: Reader) -> Group:
    """Read the key `subject`. Raises PolicyError."""
    it = spec.part("subject") or spec.wrong("is missing", "subject")
    it.only("namespaces", "pods")
    if len(it.value) != 1:
        it.wrong("expected namespaces or pods")
    return read_group(it)


def read_group(reader: Reader) -> Group:
    """Read the group of pods of a subject or peer, by its key `namespaces` or `pods`. Raises PolicyError."""
    if namespaces := reader.part("namespaces"):
        return Group(read_selector(namespaces), EVERYTHING)
    pods = reader.part("pods") or reader.wrong("is missing", "pods")
    pods.only("namespaceSelector", "podSelector")
    selectors = [pods.part(key) or pods.wrong("is missing", key) for key in ("namespaceSelector", "podSelector")]
    return Group(*map(read_selector, selectors))


def limited(reader: Reader, key: str, read: Any, least: int = 0) -> tuple[Any, ...]:
    """Return read(item) of each item of the list at `key`, see Reader.each(). Raises PolicyError, also as items()."""
    items(reader, key, least)
    return reader.each(key, read)


def items(reader: Reader, key: str, least: int = 1) -> list[Any]:
    """Return the list at `key`. Raises PolicyError if the list has fewer than `least` or more than MAX_ITEMS items."""
    found = reader.get(key, list, [])
    if not least <= len(found) <= MAX_ITEMS:
        reader.wrong(f"expected {least} to {MAX_ITEMS} items, got {len(found)}", key)
    return found


def read_rule(reader: Reader, direction: str, tier: str) -> OrderedRule:
    """Read a rule. If this version does not know a peer's kind, a rule with Accept matches nothing, and a rule with
    Deny or Pass denies everything, as the API requires."""
    key = "from" if direction == INGRESS else "to"
    reader.only("name", "action", key, "protocols")
    name, action = reader.get("name", str, ""), reader.get("action", str, "")
    if len(name) > MAX_RULE_NAME:
        reader.wrong(f"has more than {MAX_RULE_NAME} characters", "name")
    if action not in ACTIONS:
        reader.wrong(f"expected Accept, Deny or Pass, got {reprlib.repr(action)}", "action")
    named = (DOMAIN_NAMES,) if (direction, tier, action) == (EGRESS, ADMIN, ACCEPT) else ()
    peers = limited(reader, key, lambda one: read_peer(one, (*PEERS[direction], *named)), 1)
    protocols = limited(reader, "protocols", read_protocol, int(reader.value.get("protocols") is not None))
    ports = [port for found in protocols for port in found]
    unknown = [peer for peer in peers if isinstance(peer, str)]
    if not unknown and any(port.name for port in ports) and not all(isinstance(peer[0], Group) for peer in peers):
        reader.wrong("destinationNamedPort goes with namespaces and pods only", "protocols")
    if unknown and action == ACCEPT:
        return OrderedRule(action=action, name=name, void=True, note=f"{unknown[0]}; the rule allows nothing")
    if unknown:
        return OrderedRule(action=DENY, name=name, note=f"{unknown[0]}; the rule denies everything")
    return OrderedRule(tuple(peer for found in peers for peer in found), tuple(ports), action, name)


def read_peer(reader: Reader, known: tuple[str, ...]) -> tuple[Peer, ...] | str:
    """Read a peer of a rule. Return an error text instead if the peer's kind is not in `known`."""
    if foreign := [str(key) for key in reader.value if key not in known]:
        return f"{reader.path}: peers by {reprlib.repr(foreign[0])} are not known here"
    if not reader.value:
        return f"{reader.path}: the peer has no kind that is known here"
    if len(reader.value) != 1:
        reader.wrong(f"expected one of {', '.join(known)}")
    if nodes := reader.part("nodes"):
        return (Nodes(read_selector(nodes)),)
    if DOMAIN_NAMES in reader.value:
        return read_domain_names(reader)
    return read_networks(reader) if "networks" in reader.value else (read_group(reader),)


def read_domain_names(reader: Reader) -> tuple[Domain, ...]:
    """Read a peer's `domainNames`."""
    texts = items(reader, DOMAIN_NAMES)
    for text in texts:
        if not isinstance(text, str) or len(text.rstrip(".")) > MAX_DOMAIN_NAME or not DOMAIN_NAME.fullmatch(text):
            reader.wrong(f"{reprlib.repr(text)} is no domain name: expected a.b or *.a.b", DOMAIN_NAMES)
    return tuple(dict.fromkeys(Domain(text.lower().rstrip(".")) for text in texts))


def read_networks(reader: Reader) -> tuple[Block, ...]:
    """Read a peer's `networks`."""
    return tuple(Block(read_network(reader, "networks", text)) for text in items(reader, "networks"))


def read_protocol(reader: Reader) -> tuple[RulePort, ...]:
    """Read an item of `protocols`. A named port stands for each protocol in which a pod has a port with the name."""
    reader.only(*map(str.lower, PROTOCOLS), "destinationNamedPort")
    if len(reader.value) != 1:
        reader.wrong("expected one of tcp, udp, sctp, destinationNamedPort")
    if name := reader.get("destinationNamedPort", str, ""):
        if not PORT_NAME.fullmatch(name):
            reader.wrong(f"{reprlib.repr(name)} is no name of a port", "destinationNamedPort")
        return tuple(RulePort(protocol, name=name) for protocol in PROTOCOLS.values())
    for key, protocol in PROTOCOLS.items():
        if one := reader.part(key.lower()):
            one.only("destinationPort")
            port = one.part("destinationPort") or one.wrong("is missing", "destinationPort")
            return (RulePort(protocol, *read_range(port)),)
    return reader.wrong("is missing", next(iter(reader.value)))


def read_range(reader: Reader) -> tuple[int, int]:
    """Read a `destinationPort`: (first, last)."""
    reader.only("number", "range")
    if len(reader.value) != 1:
        reader.wrong("expected number or range")
    if span := reader.part("range"):
        span.only("start", "end")
        first, last = (read_number(span, key) for key in ("start", "end"))
        return (first, last) if first < last else span.wrong(f"{first} is not less than {last}", "start")
    number = read_number(reader, "number")
    return number, number


def read_number(reader: Reader, key: str) -> int:
    number = reader.get(key, int, 0)
    return number if 1 <= number <= MAX_PORT else reader.wrong(f"expected 1 to {MAX_PORT}", key)
