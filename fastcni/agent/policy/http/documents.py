"""Read documents of kind CiliumNetworkPolicy (cilium.io/v2) as policies of their namespace.

    read_cilium_policy({"metadata": {"name": "web", "namespace": "shop"}, "spec": {
        "endpointSelector": {"matchLabels": {"app": "web"}},
        "ingress": [{"toPorts": [{"ports": [{"port": "80"}], "rules": {"http": [{"method": "GET"}]}}]}]}})

The module reads endpointSelector, fromEndpoints, toEndpoints, toCIDR and toPorts with rules.http. Any other key is an
error; the agent then closes the pods that the document selects. An item of `ingress` or `egress` becomes a Rule for
each item of its `toPorts`.

Keys: https://docs.cilium.io/en/stable/security/policy/language/
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastcni.agent.policy.http.patterns import PatternError, of_request, read_pattern, word
from fastcni.agent.policy.objects import (
    EGRESS,
    EVERYTHING,
    INGRESS,
    MAX_PORT,
    PORT_NAME,
    PROTOCOLS,
    Block,
    Group,
    Policy,
    Reader,
    Rule,
    RulePort,
    open_document,
    read_network,
    read_selector,
)

if TYPE_CHECKING:
    from fastcni.agent.policy.objects import Peer

KIND, GROUP = "CiliumNetworkPolicy", "cilium.io/"
API_VERSION = f"{GROUP}v2"
SUFFIX = " (Cilium)"            # ends the policy's name, because a NetworkPolicy may have the same name
NAMESPACE_LABEL = "io.kubernetes.pod.namespace"
SOURCES = ("k8s:", "any:")      # the prefixes with which Cilium writes keys of Kubernetes labels
KEYS = {INGRESS: ("ingress", ("fromEndpoints",)), EGRESS: ("egress", ("toEndpoints", "toCIDR"))}
IPPROTO_TCP = 6
MAX_DIGITS = 5                  # digits of a port number
MAX_ITEMS = 64                  # http rules of an item of toPorts; headers of an http rule
MAX_PORTS = 40                  # ports of an item of toPorts with http rules; Cilium's CRD has the same limit
MAX_PATTERN = 7000              # characters of a request's joined conditions: HAProxy reads lines of 16 KiB
HEADER_NAME = re.compile(r"[0-9A-Za-z_-]{1,128}")
HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,510}[\x21-\x7e])?")


@dataclass(frozen=True, slots=True)
class Request:
    """The conditions on an HTTP request. method, path, host: regular expressions that match the complete value; "":
    any value. headers: (name in lower case, value) of each required header; value "": any."""

    method: str = ""
    path: str = ""
    host: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def by_host_only(self) -> bool:
        """Return whether the host is the only condition, so that the name in a TLS handshake is enough to decide."""
        return bool(self.host) and not (self.method or self.path or self.headers)


@dataclass(frozen=True, slots=True)
class HttpRule(Rule):
    """A rule that allows connections only through the proxy. The proxy allows a request that matches an item of
    `requests`."""

    requests: tuple[Request, ...] = ()


def read_cilium_policy(document: Any) -> Policy:
    """Read a CiliumNetworkPolicy. Raises PolicyError."""
    it, _, name, namespace = open_document(KIND, document, API_VERSION)
    if it.value.get("specs") is not None:
        it.wrong("is not known", "specs")
    spec = it.part("spec") or it.wrong("is missing", "spec")
    spec.only("endpointSelector", "ingress", "egress")
    if not {"ingress", "egress"} & {key for key, value in spec.value.items() if value is not None}:
        spec.wrong("expected ingress or egress")
    group = read_subject(spec, namespace)
    ingress, egress = (tuple(rule for found in spec.each(key, lambda one, peers=peers: read_rules(  # type: ignore[misc]
        one, peers, namespace)) for rule in found) if spec.value.get(key) is not None else None
        for key, peers in KEYS.values())
    return Policy(namespace, name + SUFFIX, group, ingress, egress)


def read_subject(spec: Reader, namespace: str) -> Group:
    """Read the key `endpointSelector`, which selects pods of the document's namespace. Raises PolicyError."""
    selector = spec.part("endpointSelector") or spec.wrong("is missing", "endpointSelector")
    group = read_endpoints(selector, namespace)
    if group.namespace != namespace:
        selector.wrong("expected pods of the policy's namespace")
    return group


def read_rules(reader: Reader, peer_keys: tuple[str, ...], namespace: str) -> tuple[Rule, ...]:
    """Read an item of `ingress` or `egress`; peer_keys: the keys of peers that the item may have. An item without peers
    and ports allows nothing. An item with `toPorts` alone allows these ports for all peers. Raises PolicyError."""
    reader.only(*peer_keys, "toPorts")
    there = [key for key in peer_keys if reader.value.get(key) is not None]
    if len(there) > 1:
        reader.wrong(f"{' and '.join(there)} cannot be combined")
    peers: tuple[Peer, ...] = ()
    if "toCIDR" in there:
        peers = tuple(Block(read_network(reader, "toCIDR", text)) for text in reader.get("toCIDR", list, []))
    elif there:
        peers = reader.each(there[0], lambda one: read_endpoints(one, namespace))
    if there and not peers:
        return ()
    if reader.value.get("toPorts") is None:
        return (Rule(peers),) if there else ()
    return reader.each("toPorts", lambda one: read_ports(one, peers))


def read_endpoints(reader: Reader, namespace: str) -> Group:
    """Read an EndpointSelector. It selects pods of `namespace`, or of the namespace that its label
    io.kubernetes.pod.namespace names. Raises PolicyError."""
    reader.only("matchLabels", "matchExpressions")
    labels = {without_source(key): value for key, value in reader.texts("matchLabels").items()}
    namespace = labels.pop(NAMESPACE_LABEL, namespace)
    expressions = [{**each, "key": without_source(each["key"])} if isinstance(each, dict) and isinstance(
        each.get("key"), str) else each for each in reader.get("matchExpressions", list, [])]
    selector = read_selector(Reader(reader.what, {"matchLabels": labels, "matchExpressions": expressions}, reader.path))
    if any(one.key == NAMESPACE_LABEL for one in selector.requirements):
        reader.wrong(f"expected {NAMESPACE_LABEL} in matchLabels", "matchExpressions")
    return Group(namespace, selector)


def without_source(key: str) -> str:
    return next((key.removeprefix(source) for source in SOURCES if key.startswith(source)), key)


def read_ports(reader: Reader, peers: tuple[Peer, ...]) -> Rule:
    """Read an item of `toPorts` as a rule for `peers`. Raises PolicyError."""
    reader.only("ports", "rules")
    rules = reader.part("rules")
    found = reader.each("ports", lambda one: read_port(one, with_http=rules is not None))
    ports = tuple(port for each in found for port in each) or reader.wrong("is missing", "ports")
    if rules is None:
        return Rule(peers, ports)
    rules.only("http")
    if len(reader.get("ports", list, [])) > MAX_PORTS:
        reader.wrong(f"expected at most {MAX_PORTS} items, because there are rules.http", "ports")
    if not 1 <= len(rules.get("http", list, [])) <= MAX_ITEMS:
        rules.wrong(f"expected 1 to {MAX_ITEMS} items", "http")
    return HttpRule(peers, ports, rules.each("http", read_request))


def read_port(reader: Reader, with_http: bool) -> tuple[RulePort, ...]:
    """Read an item of `ports`. Return a RulePort for each of its protocols. with_http: the ports have rules.http, so
    return only the TCP port. Raises PolicyError."""
    reader.only("port", "endPort", "protocol")
    text, name = reader.get("port", str, ""), reader.get("protocol", str, "ANY")
    protocols = tuple(PROTOCOLS.values()) if name == "ANY" else (
        PROTOCOLS.get(name) or reader.wrong(f"expected TCP, UDP, SCTP or ANY, got {reprlib.repr(name)}", "protocol"),)
    if with_http:
        if IPPROTO_TCP not in protocols:
            reader.wrong("expected TCP, because there are rules.http", "protocol")
        protocols = (IPPROTO_TCP,)
    if not (text.isascii() and text.isdigit()):
        if reader.value.get("endPort") is not None or not PORT_NAME.fullmatch(text):
            reader.wrong(f"expected a port's number or name, got {reprlib.repr(text)}", "port")
        return tuple(RulePort(protocol, name=text) for protocol in protocols)
    first = int(text[:MAX_DIGITS])
    last = reader.get("endPort", int, first)
    if not 1 <= first <= last <= MAX_PORT or len(text) > MAX_DIGITS:
        reader.wrong(f"expected 1 to {MAX_PORT}", "port")
    return tuple(RulePort(protocol, first, last) for protocol in protocols)


def read_request(reader: Reader) -> Request:
    """Read an item of `rules.http`. Raises PolicyError."""
    reader.only("method", "path", "host", "headers")
    found = {}
    for key in ("method", "path", "host"):
        if text := reader.get(key, str, ""):
            try:
                found[key] = read_pattern(text)
            except PatternError as e:
                reader.wrong(f"{reprlib.repr(text)}: {e}", key)
    headers = reader.get("headers", list, [])
    if len(headers) > MAX_ITEMS:
        reader.wrong(f"expected at most {MAX_ITEMS} items", "headers")
    request = Request(**found, headers=tuple(read_header(reader, text) for text in headers))
    if len(word(of_request(request))) > MAX_PATTERN:
        reader.wrong("the conditions are too long")
    return request


def read_header(reader: Reader, text: Any) -> tuple[str, str]:
    """Return (name in lower case, value) of "Name: value"; value is "" for "Name" alone. Raises PolicyError."""
    name, colon, value = (text if isinstance(text, str) else "").partition(":")
    value = value.strip(" ")
    if not HEADER_NAME.fullmatch(name) or (colon and not HEADER_VALUE.fullmatch(value)):
        reader.wrong(f"expected a header's name, or its name and value, got {reprlib.repr(text)}", "headers")
    return name.lower(), value


def closed(namespace: str, name: str, spec: Any, unnamed: str, suffix: str, attempt: Any) -> Policy:
    """Return the policy that replaces an unreadable document. The policy closes the pods of `endpointSelector`, in the
    directions of the keys `ingress` and `egress`. If the selector or the directions are unreadable, the policy closes
    all pods of the namespace, or both directions.

    unnamed: the policy's name if the document has none. suffix: ends the name if the name or the selector is
    unreadable. attempt(read): returns read(), or None if read() raises PolicyError."""
    group = attempt(lambda: read_subject(Reader("", spec), namespace))
    named = [isinstance(spec, dict) and spec.get(key) is not None for key, _ in KEYS.values()]
    ingress, egress = (() if one or not any(named) else None for one in named)
    known = f"{name}{SUFFIX}" if name else unnamed
    return Policy(namespace, known if name and group else f"{known}{suffix}", group or Group(namespace, EVERYTHING),
                  ingress, egress)
