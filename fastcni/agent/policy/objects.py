"""Read pods, namespaces and policies from documents of the Kubernetes API (JSON objects) into small records.

    read_policy({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"podSelector": {}, "ingress": [{}]}})

NetworkPolicy: https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/network-policy-v1/
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass, field
from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from fastcni.spec import address as addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    Item = TypeVar("Item")

PROTOCOLS = {"TCP": 6, "UDP": 17, "SCTP": 132}          # IPPROTO_*
MAX_PORT = 65535
MAPPED_PREFIX = 96              # bits before the IPv4 address in ::ffff:192.0.2.1
MAX_NAME, MAX_NAMESPACE = 253, 63
MAX_ERROR = 800                 # characters of an error's text
IN, NOT_IN, EXISTS, DOES_NOT_EXIST = "In", "NotIn", "Exists", "DoesNotExist"
DIRECTIONS = INGRESS, EGRESS = "Ingress", "Egress"
API_VERSION = "networking.k8s.io/v1"
CLUSTER_SCOPED = ("Namespace", "Node", "ClusterNetworkPolicy", "EgressAddress")          # kinds without a namespace
# Syntax of names, labels and port names, as the API server validates them: k8s.io/apimachinery/pkg/util/validation
LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
DNS_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
NAME = re.compile(rf"{DNS_LABEL}(?:\.{DNS_LABEL})*")
LABEL_KEY = re.compile(rf"(?:(?=[^/]{{1,{MAX_NAME}}}/){NAME.pattern}/)?"
                       r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
PORT_NAME = re.compile(r"(?=[a-z0-9-]{1,15}$)(?=.*[a-z])(?!.*--)[a-z0-9](?:.*[a-z0-9])?")
NAME_LABEL = "kubernetes.io/metadata.name"              # a label that the API server gives each namespace
ENDED = ("Succeeded", "Failed")                         # pod phases in which other pods may get the pod's addresses


class PolicyError(ValueError):
    """A document cannot be read. The error's text names the document and the key."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on the label `key`. values: the values for the operators In and NotIn."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        if self.operator == IN:
            return labels.get(self.key) in self.values
        if self.operator == NOT_IN:
            return labels.get(self.key) not in self.values
        return (self.key in labels) == (self.operator == EXISTS)


@dataclass(frozen=True, slots=True)
class Selector:
    """Conditions on labels, which must all hold. A selector without conditions matches everything. Selectors with the
    same conditions are equal."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(one.matches(labels) for one in self.requirements)

    def identity(self) -> list[tuple[str, str, list[str]]]:
        """Return a value that is the same in all processes. Names of sets contain a hash of this value."""
        return [(one.key, one.operator, sorted(one.values)) for one in self.requirements]


EVERYTHING = Selector()


@dataclass(frozen=True, slots=True)
class Group:
    """The pods that `pods` matches. namespace: a namespace's name, or a Selector of the namespaces.

    hash: computed once, because groups are keys of many dicts.
    """

    namespace: str | Selector
    pods: Selector
    hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hash", hash((self.namespace, self.pods)))

    def __hash__(self) -> int:
        return self.hash

    def matches(self, pod: Pod, namespaces: Mapping[str, Mapping[str, str]]) -> bool:
        """Return whether the pod is in the group. namespaces: {name: labels}. A namespace that `namespaces` does not
        list counts as one with only the label NAME_LABEL."""
        if isinstance(self.namespace, str):
            if self.namespace != pod.namespace:
                return False
        elif not self.namespace.matches(namespaces.get(pod.namespace) or {NAME_LABEL: pod.namespace}):
            return False
        return self.pods.matches(pod.labels)

    def identity(self) -> tuple[object, object]:
        return (self.namespace if isinstance(self.namespace, str) else self.namespace.identity()), self.pods.identity()


@dataclass(frozen=True, slots=True)
class Block:
    """A network without the networks `excepted` within it. A network is (packed address, prefix length)."""

    network: tuple[bytes, int]
    excepted: tuple[tuple[bytes, int], ...] = ()

    def matches(self, packed: bytes) -> bool:
        return within(packed, *self.network) and not any(within(packed, *one) for one in self.excepted)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes whose labels a selector matches."""

    labels: Selector


@dataclass(frozen=True, slots=True)
class Domain:
    """One DNS name, "a.b", or all names below it, "*.a.b". name: in lower case, without a dot at the end."""

    name: str

    def matches(self, name: str) -> bool:
        """Return whether this domain includes `name`, a DNS name in lower case without a dot at the end."""
        return name.endswith(self.name[1:]) if self.name.startswith("*.") else name == self.name


Peer = Group | Block | Nodes | Domain


@dataclass(frozen=True, slots=True)
class RulePort:
    """Ports of a protocol (IPPROTO_*): the numbers `first` to `last`, or the ports that pods call `name`."""

    protocol: int
    first: int = 0
    last: int = MAX_PORT
    name: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a policy. Without `peers`, the rule allows any peer; without `ports`, all ports and all protocols."""

    peers: tuple[Peer, ...] = ()
    ports: tuple[RulePort, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """A NetworkPolicy. pods: the pods that it selects, in its namespace. ingress, egress: its rules; None if the policy
    does not restrict that direction."""

    namespace: str
    name: str
    pods: Group
    ingress: tuple[Rule, ...] | None
    egress: tuple[Rule, ...] | None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def rules(self, direction: str) -> tuple[Rule, ...] | None:
        """Return the rules of a direction. () denies all packets; None: the policy does not restrict the direction."""
        return self.ingress if direction == INGRESS else self.egress


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. addresses: packed; () on the host's network, where policies do not apply. node: the pod's node, "" if
    unknown. ports: the named ports, {(name, protocol): number}. uid: differs between pods with the same name. key:
    "namespace/name", computed once, because it is a key of many dicts.
    """

    namespace: str
    name: str
    labels: Mapping[str, str]
    addresses: tuple[bytes, ...] = ()
    node: str = ""
    ports: Mapping[tuple[str, int], int] = field(default_factory=dict)
    uid: str = field(default="", compare=False)
    key: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.namespace}/{self.name}")


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster. addresses: packed."""

    name: str
    labels: Mapping[str, str]
    addresses: tuple[bytes, ...] = ()


def within(packed: bytes, network: bytes, prefix: int) -> bool:
    return len(packed) == len(network) and addresses.network(packed, prefix) == network


# Documents -------------------------------------------------------------------------------------------------------

class Reader:
    """A mapping in a document. what, path: the document's name and the keys that lead to `value`, for errors."""

    __slots__ = ("path", "value", "what")

    def __init__(self, what: str, value: Any, path: str = "") -> None:
        self.what, self.value, self.path = what, value, path
        if not isinstance(value, dict):
            self.wrong("expected a mapping")

    def wrong(self, text: str, key: str = "") -> NoReturn:
        path = ".".join(filter(None, (self.path, key)))
        raise PolicyError(f"{self.what}: {path + ': ' if path else ''}{text}"[:MAX_ERROR])

    def get(self, key: str, kind: type[Item], default: Item) -> Item:
        """Return the value of `key`; `default` if the value is null or missing. Raises PolicyError for another type."""
        value = self.value.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or isinstance(value, bool):
            self.wrong(f"expected {kind.__name__}, got {reprlib.repr(value)}", key)
        return value

    def part(self, key: str) -> Reader | None:
        value = self.value.get(key)
        return None if value is None else Reader(self.what, value, ".".join(filter(None, (self.path, key))))

    def only(self, *keys: str) -> None:
        """Raise PolicyError for other keys than `keys`: a misspelt `from` would otherwise make a rule without peers."""
        for key in self.value:
            if key not in keys:
                self.wrong("is not known", str(key)[:MAX_NAME])

    def each(self, key: str, read: Callable[[Reader], Item]) -> tuple[Item, ...]:
        """Return the result of read() for each mapping in the list `key`; () if the key is missing."""
        path = ".".join(filter(None, (self.path, key)))
        return tuple(read(Reader(self.what, value, f"{path}[{number}]"))
                     for number, value in enumerate(self.get(key, list, [])))

    def texts(self, key: str) -> dict[str, str]:
        """Return the mapping `key`, whose keys and values must be strings; {} if the key is missing."""
        found = self.get(key, dict, {})
        for name, value in found.items():
            if not isinstance(name, str) or not isinstance(value, str):
                self.wrong(f"expected text for {reprlib.repr(name)}, got {reprlib.repr(value)}", key)
        return found


def open_document(kind: str, document: Any, version: str = "") -> tuple[Reader, Reader, str, str]:
    """Return (document, its metadata, name, namespace). version: the required apiVersion, or "". Raises PolicyError."""
    it = Reader(kind, document)
    if (said := document.get("kind", kind)) != kind:
        it.wrong(f"expected {kind}, got {reprlib.repr(said)}", "kind")
    metadata = it.part("metadata") or it.wrong("is missing", "metadata")
    name = metadata.get("name", str, "") or it.wrong("is missing", "metadata.name")
    namespace = metadata.get("namespace", str, "") or "default"
    for key, text, known in (("name", name, is_namespace if kind == "Namespace" else is_name),
                             ("namespace", namespace, is_namespace)):
        if not known(text):
            metadata.wrong(f"{reprlib.repr(text)} is no name, such as web-1", key)
    it.what = metadata.what = f"{kind} {name if kind in CLUSTER_SCOPED else f'{namespace}/{name}'}"
    if version and (said := it.get("apiVersion", str, version)) != version:
        it.wrong(f"expected {version}, got {reprlib.repr(said)}", "apiVersion")
    return it, metadata, name, namespace


def is_name(text: object) -> TypeGuard[str]:
    """Return whether the API server accepts `text` as an object's name: a DNS name in lower case (RFC 1123). Such a
    name may stand in a key "namespace/name" and in a rule's comment in the kernel."""
    return isinstance(text, str) and len(text) <= MAX_NAME and NAME.fullmatch(text) is not None


def is_namespace(text: object) -> TypeGuard[str]:
    """Return whether the API server accepts `text` as the name of a namespace."""
    return is_name(text) and len(text) <= MAX_NAMESPACE and "." not in text


def read_labels(reader: Reader, key: str = "labels") -> dict[str, str]:
    """Read the labels at `key`: {name: value}. Raises PolicyError."""
    found = reader.texts(key)
    for name, value in found.items():
        if not LABEL_KEY.fullmatch(name) or not LABEL_VALUE.fullmatch(value):
            reader.wrong(f"{reprlib.repr(name)}: {reprlib.repr(value)} is no label", key)
    return found


def read_namespace(document: Any) -> tuple[str, dict[str, str]]:
    """Read a Namespace: return (name, labels). The labels always include the label of the namespace's name."""
    _, metadata, name, _ = open_document("Namespace", document)
    return name, {**read_labels(metadata), NAME_LABEL: name}


def read_pod(document: Any) -> Pod:
    """Read a Pod. Raises PolicyError."""
    it, metadata, name, namespace = open_document("Pod", document)
    spec, status = it.part("spec"), it.part("status")
    return Pod(intern(namespace), name, shared(tuple(read_labels(metadata).items())),
               read_addresses(status) if status and not is_outside(spec, status) else (),
               intern(spec.get("nodeName", str, "")) if spec else "",
               shared(tuple(read_named_ports(spec).items())) if spec else {}, metadata.get("uid", str, ""))


shared: Callable[[tuple[tuple[Any, Any], ...]], Mapping[Any, Any]] = lru_cache(4096)(dict)  # equal items share a dict


def is_outside(spec: Reader | None, status: Reader | None) -> bool:
    """Return whether policies do not apply to a pod: it is on the host's network, or has ended."""
    return (spec is not None and spec.value.get("hostNetwork") is True) or (
        status is not None and status.get("phase", str, "") in ENDED)


def read_addresses(status: Reader) -> tuple[bytes, ...]:
    texts = [*status.each("podIPs", lambda one: one.get("ip", str, "")), status.get("podIP", str, "")]
    try:
        return tuple(dict.fromkeys(addresses.read_ip(text) for text in texts if text))
    except ValueError as e:
        status.wrong(str(e), "podIPs")


def read_named_ports(spec: Reader) -> dict[tuple[str, int], int]:
    """Return {(name, protocol): number}. If several containers use a name, the first number counts, as in a Service."""
    found: dict[tuple[str, int], int] = {}
    sidecars = [container for container in spec.each("initContainers", lambda one: one)
                if container.get("restartPolicy", str, "") == "Always"]
    for container in (*spec.each("containers", lambda one: one), *sidecars):
        for name, protocol, number in container.each("ports", lambda one: (
                one.get("name", str, ""), read_protocol(one), one.get("containerPort", int, 0))):
            if name and number:
                found.setdefault((name, protocol), number)
    return found


def read_policy(document: Any) -> Policy:
    """Read a NetworkPolicy. Raises PolicyError."""
    it, _, name, namespace = open_document("NetworkPolicy", document, API_VERSION)
    spec = it.part("spec") or it.wrong("is missing", "spec")
    spec.only("podSelector", "policyTypes", "ingress", "egress")
    kinds = spec.get("policyTypes", list, [])
    for kind in kinds:
        if kind not in DIRECTIONS:
            spec.wrong(f"expected {INGRESS} or {EGRESS}, got {reprlib.repr(kind)}", "policyTypes")
    ingress, egress = (spec.each(key, lambda one, peers=peers: read_rule(one, peers, namespace))    # type: ignore[misc]
                       for key, peers in (("ingress", "from"), ("egress", "to")))
    # Without policyTypes: Ingress always, Egress only if there are egress rules.
    return Policy(namespace, name, Group(namespace, read_selector(spec.part("podSelector"))),
                  ingress if INGRESS in kinds or not kinds else None,
                  egress if EGRESS in kinds or (not kinds and egress) else None)


def read_selector(reader: Reader | None) -> Selector:
    """Read a LabelSelector. A missing or empty selector matches everything."""
    if reader is None:
        return EVERYTHING
    reader.only("matchLabels", "matchExpressions")
    found = [Requirement(key, IN, frozenset([value])) for key, value in read_labels(reader, "matchLabels").items()]
    found += reader.each("matchExpressions", read_requirement)
    return Selector(tuple(sorted(dict.fromkeys(found), key=lambda one: (one.key, one.operator, sorted(one.values)))))


def read_requirement(reader: Reader) -> Requirement:
    reader.only("key", "operator", "values")
    key, operator, values = reader.get("key", str, ""), reader.get("operator", str, ""), reader.get("values", list, [])
    if not LABEL_KEY.fullmatch(key):
        reader.wrong(f"{reprlib.repr(key)} is no key of a label" if key else "is missing", "key")
    if operator not in (IN, NOT_IN, EXISTS, DOES_NOT_EXIST):
        reader.wrong(f"expected In, NotIn, Exists or DoesNotExist, got {reprlib.repr(operator)}", "operator")
    if bool(values) != (operator in (IN, NOT_IN)) or not all(
            isinstance(value, str) and LABEL_VALUE.fullmatch(value) for value in values):
        reader.wrong(f"{operator} with values {reprlib.repr(values)}", "values")
    return Requirement(key, operator, frozenset(values))


def read_rule(reader: Reader, peers: str, namespace: str) -> Rule:
    reader.only(peers, "ports")
    return Rule(reader.each(peers, lambda one: read_peer(one, namespace)), reader.each("ports", read_port))


def read_peer(reader: Reader, namespace: str) -> Group | Block:
    reader.only("ipBlock", "namespaceSelector", "podSelector")
    block, namespaces, pods = reader.part("ipBlock"), reader.part("namespaceSelector"), reader.part("podSelector")
    if block and (namespaces or pods):
        reader.wrong("ipBlock stands alone, without selectors")
    if block:
        return read_block(block)
    if not (namespaces or pods):
        reader.wrong("expected ipBlock, namespaceSelector or podSelector")
    return Group(read_selector(namespaces) if namespaces else namespace, read_selector(pods))


def read_block(reader: Reader) -> Block:
    reader.only("cidr", "except")
    network = read_network(reader, "cidr", reader.get("cidr", str, ""))
    excepted = tuple(read_network(reader, "except", text) for text in reader.get("except", list, []))
    for one in excepted:
        if one[1] < network[1] or not within(one[0], *network):
            reader.wrong(f"{addresses.cidr_text(*one)} is not within {addresses.cidr_text(*network)}", "except")
    return Block(network, excepted)


def read_network(reader: Reader, key: str, text: Any) -> tuple[bytes, int]:
    if not isinstance(text, str):
        reader.wrong(f"expected text, got {reprlib.repr(text)}", key)
    try:
        packed, prefix = addresses.read_cidr(text)
    except ValueError as e:
        reader.wrong(str(e), key)
    if ":" in text and len(packed) == 4 and int(text.rpartition("/")[2]) < MAPPED_PREFIX:
        reader.wrong(f"{text} is wider than the IPv4 addresses in IPv6", key)      # this block has all of IPv4
    return addresses.network(packed, prefix), prefix


def read_port(reader: Reader) -> RulePort:
    reader.only("protocol", "port", "endPort")
    protocol, port, last = read_protocol(reader), reader.value.get("port"), reader.value.get("endPort")
    if port is None:
        return RulePort(protocol) if last is None else reader.wrong("expected 1 to 65535", "port")
    if isinstance(port, str):
        if last is not None:
            reader.wrong("needs a port number in `port`", "endPort")
        if not PORT_NAME.fullmatch(port):
            reader.wrong(f"{reprlib.repr(port)} is no name of a port", "port")
        return RulePort(protocol, name=port)
    first = reader.get("port", int, 0)
    for key, number in (("port", first), ("endPort", reader.get("endPort", int, first))):
        if not max(first, 1) <= number <= MAX_PORT:
            reader.wrong(f"{number} is not between {max(first, 1)} and {MAX_PORT}", key)
    return RulePort(protocol, first, number)


def read_protocol(reader: Reader) -> int:
    text = reader.get("protocol", str, "TCP")
    return PROTOCOLS.get(text) or reader.wrong(f"expected TCP, UDP or SCTP, got {reprlib.repr(text)}", "protocol")
