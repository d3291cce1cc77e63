"""Make the JSON Schema of a plugin's configuration by recording which keys its read() asks for.

The code that reads a key is thus the only place that defines the key and its type, as for `netconf --strict`
(validate.py). read() asks for some keys only if other keys exist. EXAMPLES has configurations with these other keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from fastcni import plugins
from fastcni.kit.call.request import Request
from fastcni.runtime.key_recorder import KeyRecorder
from fastcni.runtime.mode import InProcessMode
from fastcni.spec import version
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NULLABLE = "null"               # null counts as absent (spec.config.Section)
# Keys of every plugin's configuration that libcni or the runtime writes or reads (CNI spec 1.1.0, sections 1 and 3)
COMMON = {
    "cniVersion": {"type": ["string", NULLABLE]},
    "name": {"type": "string"},
    "capabilities": {"type": ["object", NULLABLE]},
    "prevResult": {"type": ["object", NULLABLE]},
}
ROUTES = {"ipam": {"routes": [{"dst": "0.0.0.0/0", "mtu": 1, "advmss": 1, "priority": 1, "table": 1, "scope": 0}]}}
DNS = {"dns": {"domain": "example.org"}}
SUBNET = {"subnet": "10.0.0.0/24"}
ATTRIBUTES = {"mac": "c2:00:00:00:00:01", "mtu": 1500, "promisc": True, "allmulti": True, "txQLen": 100}
# {CNI type: configurations that make the plugin's read() ask for further keys}. The keys of the first configuration are
# added to the other configurations.
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "bandwidth": [{}, {"ingressRate": 1_000_000, "ingressBurst": 1_000_000}],
    "bridge": [DNS, {"vlanTrunk": [{"minID": 1, "maxID": 2, "id": 3}]}],
    "chain": [{"plugins": [{"type": "loopback"}]}],
    "cluster": [{"ipam": {"range": "10.0.0.0/24"}}, {"ipam": {"ipRanges": [{"range": "10.1.0.0/24"}]}}, ROUTES,
                *({"ipam": {"store": {"type": kind, "endpoints": ["http://x"]}}} for kind in ("etcd", "kubernetes"))],
    "dhcp": [{"ipam": {}}, {"ipam": {"provide": [{"option": "12"}], "request": [{"option": "3"}]}}],
    "dummy": [{"ipam": {"type": "static"}, **DNS}],
    "flannel": [{"ipam": {}}, {"delegate": {"type": "bridge"}}],
    "host-device": [{"device": "eth9", **DNS}],
    "host-local": [{"ipam": SUBNET}, {"ipam": {"ranges": [[{"subnet": "10.1.0.0/24"}]]}}, ROUTES,
                   {"runtimeConfig": {"ipRanges": [[{"subnet": "10.2.0.0/24"}]]}}],
    "ipvlan": [{"ipam": {"type": "static"}, **DNS}],
    "macvlan": [DNS],
    "multus": [{"delegates": [{"type": "loopback"}]}, {"delegates": [], "clusterNetwork": "/etc/cni/net.d"}],
    "ovs": [{"bridge": "br0", **DNS}, {"trunk": [{"minID": 1, "maxID": 2, "id": 3}]}],
    "policy": [{}, {"allowedAddressPairs": [{"ipAddress": "10.0.0.9"}]}],
    "portmap": [{}, {"runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "tcp"}]}}],
    "ptp": [DNS],
    "static": [{"ipam": {}}, ROUTES, {"ipam": {"addresses": [{"address": "10.0.0.2/24"}]}}],
    "tap": [DNS],
    "tuning": [{}, ATTRIBUTES, {"args": {"cni": ATTRIBUTES}}],
    "vlan": [{"master": "eth9", "ipam": {"type": "static"}, **DNS}],
    "vrf": [{"vrfname": "blue"}],
}
EXAMPLES["whereabouts"] = EXAMPLES["cluster"]
EXAMPLES["multus-shim"] = EXAMPLES["multus"]


class TypeRecorder(KeyRecorder):
    """A KeyRecorder that also records the type of each key.

    types    {key: its schema}
    probing  whether a reader gets a list of one empty object for an absent list of objects, so that the reader asks for
             the keys of the object
    """

    __slots__ = ("probing", "types")

    def __init__(self, values: dict[str, Any], where: str = "", top: KeyRecorder | None = None) -> None:
        super().__init__(values, where, top)
        self.types: dict[str, dict[str, Any]] = {}
        self.probing: bool = isinstance(top, TypeRecorder) and top.probing

    def below(self, values: dict[str, Any], where: str) -> Section:
        return self.journal.setdefault(where, TypeRecorder(values, where, self))

    def integer(self, key: str, default: Any = 0, low: int | None = None, high: int | None = None) -> Any:
        bounds = {name: bound for name, bound in (("minimum", low), ("maximum", high)) if bound is not None}
        self.note(key, {"type": ["integer", NULLABLE], **bounds}, default)
        return super().integer(key, default, low, high)

    def texts(self, key: str) -> list[str]:
        found = super().texts(key)
        self.types[key]["items"] = {"type": ["string", NULLABLE]}
        return found

    def sections(self, key: str) -> list[Section]:
        found = super().sections(key)
        self.types[key]["items"] = {"type": ["object", NULLABLE]}
        return found or ([self.below({}, self.path(f"{key}[0]"))] if self.probing else [])

    def _typed(self, key: str, kind: type, expected: str, default: Any) -> Any:
        self.note(key, {"type": [NAMES[kind], NULLABLE]}, default)
        return super()._typed(key, kind, expected, default)

    def note(self, key: str, schema: dict[str, Any], default: Any) -> None:
        """Record a type. The first recorded type stays, because a second read of a key may check less."""
        if default not in (None, "", 0, False) and not isinstance(default, list | dict):
            schema["default"] = default
        self.types.setdefault(key, schema)


NAMES = {str: "string", bool: "boolean", list: "array", dict: "object"}


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the configuration of one of fastcni's plugins.

    Like the plugin, the schema allows unknown keys, and rejects values of a type that ADD rejects. The schema has the
    keys in the spelling of the documentation; for ADD, keys are case-insensitive. Raises KeyError for an unknown type.
    """
    found: dict[str, Any] = {
        "$schema": DIALECT, "title": f"{kind}, a CNI plugin of fastcni", "type": "object", "required": ["type"],
        "properties": {"type": {"const": kind}, **deepcopy(COMMON)}}
    module = plugins.load(kind)
    first, *more = EXAMPLES.get(kind, [{}])
    for example in (first, *(merged(first, other) for other in more)):
        for probing in (False, True):
            add(found, recorded(module, kind, example, probing=probing))
    return found


def merged(first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration `first` with the keys of `other` added, also inside nested objects."""
    return first | {key: merged(first[key], value) if isinstance(first.get(key), dict) else value
                    for key, value in other.items()}


def recorded(module: Any, kind: str, example: dict[str, Any], *, probing: bool) -> Iterable[KeyRecorder]:
    """Let the plugin's read() read the configuration `example`. Return a recorder for each object of which read() has
    asked for keys, up to the first error."""
    top = TypeRecorder({"cniVersion": version.CURRENT, "name": "net", "type": kind, **example})
    top.probing = probing
    req = Request(InProcessMode(), plugin=kind, command="ADD", container_id="schema", netns="/nonexistent",
                  ifname="eth0", conf=top, name="net", version=version.CURRENT)
    try:
        module.read(req)
    except CniError:
        pass                    # keep the keys that were read before the error; another example has further keys
    finally:
        req.close()
    return top.journal.values()


def add(found: dict[str, Any], recorders: Iterable[KeyRecorder]) -> None:
    """Add the keys of `recorders` to the schema `found`. The path of an object, "ipam.ranges[0][0]", says where to add
    the object's keys."""
    for recorder in recorders:
        if not isinstance(recorder, TypeRecorder) or not recorder.types:
            continue
        place = found
        for step in re.findall(r"[^.\[\]]+|\[\d+\]", recorder.where):
            if step.startswith("["):
                place.setdefault("type", ["array", NULLABLE])
                place = place.setdefault("items", {})
            else:
                place = place.setdefault("properties", {}).setdefault(step, {})
        place.setdefault("type", ["object", NULLABLE])
        properties = place.setdefault("properties", {})
        for key, types in recorder.types.items():
            properties[key] = types | properties.get(key, {})
