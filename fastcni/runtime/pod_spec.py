"""Convert a Pod of the Kubernetes API (core/v1) to the record Pod, which PodNetworks takes."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from fastcni.runtime.pods import Bandwidth, Dns, HostPort, Pod
from fastcni.spec import errors
from fastcni.spec.config import shown
from fastcni.spec.errors import CniError

INGRESS, EGRESS = "kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"
SUFFIXES = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
            **{name: Decimal(1000) ** power for power, name in enumerate("kMGTPE", 1)},
            **{f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", 1)}}


def read_pod_spec(document: Mapping[str, Any], container_id: str, netns: str) -> Pod:
    """Return the Pod of a manifest. document: the manifest as `kubectl get pod -o json` prints it.

    The Pod has the name, namespace and uid of the metadata, the annotations, the host ports of all containers, the
    rates of the annotations kubernetes.io/ingress-bandwidth and egress-bandwidth, and the DNS of dnsConfig.

    container_id, netns: the id and the network namespace of the pod's sandbox, which the manifest does not have. Raises
    CniError 7 if the pod has hostNetwork, a value has the wrong type, or a rate is not a quantity.
    """
    metadata, spec = read(document, "metadata", dict), read(document, "spec", dict)
    if read(spec, "hostNetwork", bool):
        raise CniError(errors.INVALID_CONFIG, "the pod has hostNetwork: it uses the node's network namespace",
                       "do not set up a network for it")
    annotations = read(metadata, "annotations", dict)
    dns = read(spec, "dnsConfig", dict)
    containers = [*read(spec, "initContainers", list), *read(spec, "containers", list)]
    return Pod(
        container_id, netns, read(metadata, "name", str), read(metadata, "namespace", str) or "default",
        read(metadata, "uid", str),
        host_ports=tuple(read_port(port) for it in containers for port in read(it, "ports", list)
                         if read(port, "hostPort", int)),
        bandwidth=read_bandwidth(annotations),
        dns=read_dns(dns) if dns else None,
        annotations={key: read(annotations, key, str) for key in annotations},
    )


def read(values: Any, key: str, kind: type) -> Any:
    """Return values[key], or the empty value of the type `kind` if the key is absent or null. Raises CniError 7 for
    another type."""
    value = values.get(key) if isinstance(values, Mapping) else None
    if value is None:
        return kind()
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CniError(errors.INVALID_CONFIG, f"pod: {key}: expected {NAMES[kind]}, got {shown(value)}")
    return value


NAMES = {dict: "an object", list: "a list", str: "a string", int: "an integer", bool: "a boolean"}


def read_port(port: Mapping[str, Any]) -> HostPort:
    return HostPort(read(port, "hostPort", int), read(port, "containerPort", int),
                    (read(port, "protocol", str) or "TCP").lower(), read(port, "hostIP", str))


def read_bandwidth(annotations: Mapping[str, Any]) -> Bandwidth | None:
    ingress, egress = (read_quantity(key, read(annotations, key, str)) for key in (INGRESS, EGRESS))
    return Bandwidth(ingress, egress) if ingress or egress else None


def read_dns(config: Mapping[str, Any]) -> Dns:
    options = [(read(it, "name", str), read(it, "value", str)) for it in read(config, "options", list)]
    return Dns(tuple(read(config, "nameservers", list)), tuple(read(config, "searches", list)),
               tuple(f"{name}:{value}" if value else name for name, value in options))


def read_quantity(key: str, text: str) -> int:
    """Return a quantity of Kubernetes as an integer, rounded up: "10M" is 10,000,000; 0 for "". Raises CniError 7."""
    if not text:
        return 0
    found = re.fullmatch(r"([0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]{1,2})?)([a-zA-Z]*)", text)
    value = Decimal(found[1]) * SUFFIXES[found[2]] if found and found[2] in SUFFIXES else None
    if value is None or value >= 2**63:
        raise CniError(errors.INVALID_CONFIG, f"pod: {key}: {shown(text)} is not a quantity, such as 10M")
    return int(value.to_integral_value("ROUND_CEILING"))
