"""Read rules of Calico's policies into small records, and write the records as rules of Kubernetes' policies."""

from __future__ import annotations

import ipaddress
import itertools
import re
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastcni.agent.policy.cluster_policies import MAX_ITEMS
from fastcni.agent.policy.convert.selectors import SelectorError, alternatives, both, label_selector
from fastcni.agent.policy.objects import IN, INGRESS, MAX_PORT, NAME_LABEL, PORT_NAME, PROTOCOLS, Requirement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastcni.agent.policy.convert.selectors import Alternative
    from fastcni.agent.policy.objects import Reader

    Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ALLOW, DENY, LOG = "Allow", "Deny", "Log"
NAMESPACE_LABEL = "projectcalico.org/namespace"         # Calico's label of a pod, with the pod's namespace
NAMESPACE_NAME = "projectcalico.org/name"               # Calico's label of a namespace, with the namespace's name
KUBERNETES = Requirement("projectcalico.org/orchestrator", IN, frozenset(["k8s"]))      # all pods have this label
SPECIAL = ("projectcalico.org/", "pcns.", "pcsa.")      # prefixes of labels that only Calico sets
EVERYWHERE: tuple[Network, ...] = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
NUMBERS = {str(number): name for name, number in PROTOCOLS.items()}
PORT_NUMBER = re.compile("[0-9]{1,5}")
PORT_RANGE = 2                                          # a range has two numbers: "80:90"


@dataclass(frozen=True, slots=True)
class Pods:
    """A selection of pods, by requirements on the labels of their namespaces and on their own labels."""

    namespaces: Alternative
    pods: Alternative

    def cluster_peer(self) -> dict[str, Any]:
        """Return the pods as a subject or peer of a ClusterNetworkPolicy."""
        if not self.pods:
            return {"namespaces": label_selector(self.namespaces)}
        return {"pods": {"namespaceSelector": label_selector(self.namespaces),
                         "podSelector": label_selector(self.pods)}}

    def policy_peer(self, own: str) -> dict[str, Any]:
        """Return the pods as a peer of a NetworkPolicy in the namespace `own`."""
        pods = {"podSelector": label_selector(self.pods)}
        if self.namespaces == in_namespace(own):
            return pods
        return {"namespaceSelector": label_selector(self.namespaces), **(pods if self.pods else {})}


@dataclass(frozen=True, slots=True)
class Block:
    """A network without the networks `excepted` within it."""

    network: Network
    excepted: tuple[Network, ...] = ()

    def policy_peer(self, own: str) -> dict[str, Any]:
        excepted = {"except": list(map(str, self.excepted))} if self.excepted else {}
        return {"ipBlock": {"cidr": str(self.network), **excepted}}

    def networks(self) -> list[str]:
        """Return the CIDRs that together cover the network without the excepted networks."""
        left: list[Any] = [self.network]
        for gone in self.excepted:
            left = [part for each in left for part in (
                each.address_exclude(gone) if gone.subnet_of(each) else () if each.subnet_of(gone) else (each,))]
        return list(map(str, sorted(left)))


@dataclass(frozen=True, slots=True)
class Port:
    """Ports of a protocol, such as "TCP": the numbers `first` to `last`, or the ports that pods call `name`. With first
    and last 0 and no name: all ports."""

    protocol: str
    first: int = 0
    last: int = 0
    name: str = ""

    def policy_port(self) -> dict[str, Any]:
        port = {"port": self.name or self.first} if self.name or self.first else {}
        return {"protocol": self.protocol, **port, **({"endPort": self.last} if self.last > self.first else {})}

    def cluster_protocol(self) -> dict[str, Any]:
        first, last = (self.first, self.last) if self.first else (1, MAX_PORT)
        port = {"number": first} if first == last else {"range": {"start": first, "end": last}}
        return {self.protocol.lower(): {"destinationPort": port}}


@dataclass(frozen=True, slots=True)
class CalicoRule:
    """A rule of a Calico policy. path: the rule's place in the document. action: ALLOW or DENY. peers: None: any peer;
    (): the rule matches nothing. ports: (): all ports and protocols."""

    path: str
    action: str
    peers: tuple[Pods | Block, ...] | None
    ports: tuple[Port, ...]

    @property
    def is_all(self) -> bool:
        return self.peers is None and not self.ports

    @property
    def selects(self) -> bool:
        """Whether the rule has peers by selectors of pods."""
        return any(isinstance(peer, Pods) for peer in self.peers or ())

    def inexpressible(self, direction: str) -> str:
        """Return why no rule of a ClusterNetworkPolicy can match the same connections as this rule; "" if a rule
        can."""
        if any(port.name for port in self.ports):
            return "a ClusterNetworkPolicy has no names of ports of one protocol"
        if direction == INGRESS and (self.peers is None or any(isinstance(peer, Block) for peer in self.peers)):
            return "a ClusterNetworkPolicy has no sources outside of the cluster"
        return ""

    def cluster_rules(self, direction: str, action: str) -> Iterator[dict[str, Any]]:
        """Yield the rules of a ClusterNetworkPolicy that match the same connections as this rule. A rule with more than
        MAX_ITEMS peers or ports becomes several rules."""
        key = "from" if direction == INGRESS else "to"
        found = [peer.cluster_peer() if isinstance(peer, Pods) else {"networks": peer.networks()}
                 for peer in (self.peers if self.peers is not None else map(Block, EVERYWHERE))]
        for peers, ports in itertools.product(batched(merged(found)), list(batched(self.ports)) or [[]]):
            protocols = {"protocols": [port.cluster_protocol() for port in ports]} if ports else {}
            yield {"action": action, key: peers, **protocols}

    def policy_rule(self, direction: str, own: str) -> dict[str, Any]:
        """Return the rule of a NetworkPolicy that allows the same connections as this rule."""
        peers = [peer.policy_peer(own) for peer in self.peers or ()]
        ports = [port.policy_port() for port in self.ports]
        key = "from" if direction == INGRESS else "to"
        return {**({key: peers} if peers else {}), **({"ports": ports} if ports else {})}


def merged(peers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the same peers, but with all networks in as few peers as possible."""
    networks = [text for peer in peers for text in peer.get("networks", ())]
    return [*(peer for peer in peers if "networks" not in peer), *({"networks": part} for part in batched(networks))]


def batched(items: Any) -> Iterator[list[Any]]:
    left = iter(items)
    while part := list(itertools.islice(left, MAX_ITEMS)):
        yield part


def in_namespace(name: str) -> Alternative:
    return (Requirement(NAME_LABEL, IN, frozenset([name])),)


# Documents -------------------------------------------------------------------------------------------------------

def read_rule(reader: Reader, direction: str, own: str) -> CalicoRule:
    """Read a rule of a Calico policy. own: the policy's namespace; "" in a GlobalNetworkPolicy. Raises PolicyError."""
    reader.only("action", "metadata", "protocol", "ipVersion", "source", "destination")
    peer, here = ("source", "destination") if direction == INGRESS else ("destination", "source")
    if (end := reader.part(here)) and (foreign := [key for key in end.value
                                                   if (here, key) != ("destination", "ports")]):
        end.wrong("only the policy's selector can select the pod's own end", str(foreign[0]))
    if (end := reader.part("source")) and "ports" in end.value:
        end.wrong("ports of sources cannot be expressed", "ports")
    version = reader.get("ipVersion", int, 0)
    if version not in (0, 4, 6):
        reader.wrong(f"expected 4 or 6, got {version}", "ipVersion")
    if not (end := reader.part(peer)) or not {*end.value} - {"ports"}:
        peers: tuple[Pods | Block, ...] | None = blocks_of((), (), version) if version else None
    else:
        peers = read_peers(end, own, version)
    return CalicoRule(reader.path, reader.get("action", str, ""), peers, read_ports(reader))


def read_peers(reader: Reader, own: str, version: int) -> tuple[Pods | Block, ...]:
    """Read the peers of a rule from its key `source` or `destination`. own: see read_rule(). version: the rule's
    ipVersion, or 0."""
    reader.only("nets", "notNets", "selector", "notSelector", "namespaceSelector", "ports")
    nets, excepted = ([read_net(reader, key, text) for text in reader.get(key, list, [])]
                      for key in ("nets", "notNets"))
    there = {key for key in ("selector", "notSelector", "namespaceSelector") if reader.value.get(key) not in (None, "")}
    if not there:
        return blocks_of(nets, excepted, version)
    if nets or excepted or version:
        reader.wrong("networks or an IP version together with a selector cannot be expressed")
    if there == {"notSelector"}:
        reader.wrong("matches addresses outside of the cluster, too, which cannot be expressed", "notSelector")
    return read_pods(reader, own)


def read_net(reader: Reader, key: str, text: Any) -> Network:
    try:
        return ipaddress.ip_network(text if isinstance(text, str) else "", strict=False)
    except ValueError:
        reader.wrong(f"{reprlib.repr(text)} is no network", key)


def blocks_of(nets: Any, excepted: Any, version: int) -> tuple[Block, ...]:
    """Return the blocks of `nets` without the networks `excepted`. version: 4 or 6 for one IP version, 0 for both. With
    excepted networks, Calico makes rules only for the IP versions of these networks."""
    found = []
    for net in nets or EVERYWHERE:
        within = [each for each in excepted if each.version == net.version]
        if version in (0, net.version) and bool(within) == bool(excepted) and not any(map(net.subnet_of, within)):
            found.append(Block(net, tuple(each for each in within if each.subnet_of(net))))
    return tuple(found)


def read_pods(reader: Reader, own: str) -> tuple[Pods, ...]:
    """Read the pods that the selectors of a policy, source or destination match. own: the namespace for a missing
    namespaceSelector; "": all namespaces."""
    found = [namespaced(namespaces, pods, reader) for namespaces in read_namespaces(reader, own)
             for pods in both(read_selector(reader, "selector"), read_selector(reader, "notSelector", negated=True))]
    return tuple(dict.fromkeys(found))


def read_namespaces(reader: Reader, own: str) -> list[Alternative]:
    if reader.value.get("namespaceSelector") in (None, ""):
        return [in_namespace(own) if own else ()]
    found = read_selector(reader, "namespaceSelector")
    return [tuple(checked(Requirement(NAME_LABEL, one.operator, one.values) if one.key == NAMESPACE_NAME else one,
                          reader, "namespaceSelector") for one in alternative) for alternative in found]


def read_selector(reader: Reader, key: str, *, negated: bool = False) -> list[Alternative]:
    """Read the alternatives of the selector `key`. A missing selector matches everything; if `negated`, it excludes
    nothing."""
    if negated and reader.value.get(key) is None:
        return [()]
    try:
        return alternatives(reader.get(key, str, ""), negated=negated)
    except SelectorError as e:
        reader.wrong(str(e), key)


def namespaced(namespaces: Alternative, pods: Alternative, reader: Reader) -> Pods:
    """Return the Pods of two alternatives. A requirement on NAMESPACE_LABEL, a label of pods, becomes a requirement on
    the namespace's label NAME_LABEL."""
    moved = tuple(Requirement(NAME_LABEL, one.operator, one.values) for one in pods if one.key == NAMESPACE_LABEL)
    left = tuple(checked(one, reader, "selector") for one in pods if one.key != NAMESPACE_LABEL and one != KUBERNETES)
    return Pods(tuple(dict.fromkeys((*namespaces, *moved))), left)


def checked(requirement: Requirement, reader: Reader, key: str) -> Requirement:
    if requirement.key.startswith(SPECIAL):
        reader.wrong(f"the label {requirement.key} is Calico's own", key)
    return requirement


def read_ports(reader: Reader) -> tuple[Port, ...]:
    """Read the ports of a rule from its keys `protocol` and `destination.ports`; () for all ports and protocols."""
    text = reader.value.get("protocol")
    protocol = NUMBERS.get(str(text), str(text).upper())
    destination = reader.part("destination")
    ports = destination.get("ports", list, []) if destination else []
    if text is None and not ports:
        return ()
    if protocol not in PROTOCOLS or isinstance(text, bool):
        reader.wrong(f"expected TCP, UDP or SCTP, got {reprlib.repr(text)}", "protocol")
    return tuple(read_port(reader, protocol, port) for port in ports) or (Port(protocol),)


def read_port(reader: Reader, protocol: str, port: Any) -> Port:
    """Read an item of `ports`: 80, "80", "80:90" or the name of a port."""
    text = str(port) if isinstance(port, int | str) and not isinstance(port, bool) else ""
    ends = [int(end) if PORT_NUMBER.fullmatch(end) else -1 for end in text.split(":")]
    if len(ends) <= PORT_RANGE and 0 < ends[0] <= ends[-1] <= MAX_PORT:
        return Port(protocol, ends[0], ends[-1])
    if not PORT_NAME.fullmatch(text):
        reader.wrong(f"{reprlib.repr(port)} is no port", "destination.ports")
    return Port(protocol, name=text)


