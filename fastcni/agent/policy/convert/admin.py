"""Convert AdminNetworkPolicy and BaselineAdminNetworkPolicy (v1alpha1) to ClusterNetworkPolicy (v1alpha2), which
replaces both.

The rules are the same under other names: Allow becomes Accept, `ports` becomes `protocols`.
API: https://github.com/kubernetes-sigs/network-policy-api, apis/v1alpha1, until v0.1.7.
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

from fastcni.agent.policy.cluster_policies import ACCEPT, ADMIN, BASELINE, DENY, GROUP, MAX_PRIORITY, PASS
from fastcni.agent.policy.convert.conversion import Conversion, cluster_policy
from fastcni.agent.policy.objects import open_document, read_protocol

if TYPE_CHECKING:
    from fastcni.agent.policy.objects import Reader

API_VERSION = f"{GROUP}v1alpha1"
ACTIONS = {"AdminNetworkPolicy": {"Allow": ACCEPT, "Deny": DENY, "Pass": PASS},
           "BaselineAdminNetworkPolicy": {"Allow": ACCEPT, "Deny": DENY}}
PRIORITY = {"AdminNetworkPolicy": ("priority",), "BaselineAdminNetworkPolicy": ()}


def convert(document: dict[str, Any]) -> Conversion:
    """Convert an AdminNetworkPolicy or BaselineAdminNetworkPolicy. Raises PolicyError."""
    kind = document["kind"]
    it, _, name, _ = open_document(kind, document)
    it.what = f"{kind} {name}"
    if (version := it.get("apiVersion", str, "")) != API_VERSION:
        it.wrong(f"expected {API_VERSION}, got {reprlib.repr(version)}", "apiVersion")
    spec = it.part("spec") or it.wrong("is missing", "spec")
    spec.only("subject", "ingress", "egress", *PRIORITY[kind])
    tier, priority = (ADMIN, spec.get("priority", int, -1)) if PRIORITY[kind] else (BASELINE, MAX_PRIORITY)
    rules = {key: list(spec.each(key, lambda one, peers=peers: convert_rule(one, peers, ACTIONS[kind])))     # type: ignore[misc]
             for key, peers in (("ingress", "from"), ("egress", "to"))}
    subject = spec.part("subject") or spec.wrong("is missing", "subject")
    return Conversion(it.what, [cluster_policy(name, tier, priority, subject.value, **rules)])


def convert_rule(reader: Reader, peers: str, actions: dict[str, str]) -> dict[str, Any]:
    reader.only("name", "action", peers, "ports")
    action = reader.get("action", str, "")
    found = {**reader.value, "action": actions.get(action) or reader.wrong(
        f"expected {', '.join(actions)}, got {reprlib.repr(action)}", "action")}
    if found.pop("ports", None) is not None:
        found["protocols"] = list(reader.each("ports", convert_port)) or reader.wrong("expected 1 to 25 items", "ports")
    return found


def convert_port(reader: Reader) -> dict[str, Any]:
    reader.only("portNumber", "portRange", "namedPort")
    if len(reader.value) != 1:
        reader.wrong("expected one of portNumber, portRange, namedPort")
    if name := reader.get("namedPort", str, ""):
        return {"destinationNamedPort": name}
    if number := reader.part("portNumber"):
        number.only("protocol", "port")
        port: dict[str, Any] = {"number": number.value.get("port")}
        return of_protocol(number, port)
    span = reader.part("portRange") or reader.wrong("is missing", next(iter(reader.value)))
    span.only("protocol", "start", "end")
    if (first := span.value.get("start")) == span.value.get("end"):
        return of_protocol(span, {"number": first})             # a ClusterNetworkPolicy rejects a range of one port
    return of_protocol(span, {"range": {key: span.value.get(key) for key in ("start", "end")}})


def of_protocol(reader: Reader, port: dict[str, Any]) -> dict[str, Any]:
    read_protocol(reader)           # raises PolicyError for an unknown protocol
    return {reader.get("protocol", str, "TCP").lower(): {"destinationPort": port}}
