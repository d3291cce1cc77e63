"""Build the annotation k8s.v1.cni.cncf.io/network-status, which lists a pod's networks.

Source: Network Plumbing Working Group, Kubernetes Network Custom Resource Definition De-facto Standard 1.3, 4.2.
"""

from __future__ import annotations

from fastcni.kit.networks import device_info
from fastcni.spec import json
from fastcni.spec import result as results

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from fastcni.kit.networks.network import Network


def text_of(added: Iterable[tuple[Network, dict[str, Any]]]) -> str:
    """Return the annotation's text: a JSON list with an object for each interface. added: [(network, result)] in the
    pod's order."""
    found = [it for place, (network, result) in enumerate(added) for it in elements(network, result, place == 0)]
    return json.write([it for it in found if "default" in it or "interface" in it or "ips" in it]).decode()


def elements(network: Network, result: dict[str, Any], first: bool) -> Iterator[dict[str, Any]]:
    """Yield an object for each of the network's interfaces in the pod. Omit a network without interfaces and addresses,
    unless the network is the pod's first.

    If the first network has several interfaces, the first interface whose address has a gateway gets "default": true.
    An address that names no interface belongs to the last interface. Source: CreateNetworkStatuses() of the Network
    Plumbing Working Group's network-attachment-definition-client.
    """
    shaped = results.printed(results.to_version({"cniVersion": "1.1.0", **result}, "1.1.0"))
    inside = {index: it for index, it in enumerate(shaped.get("interfaces", ())) if it.get("sandbox")} or {-1: {}}
    last = [*inside][-1]
    ips = [(it.get("interface", last) if len(inside) > 1 else last, it) for it in shaped.get("ips", ())]
    default = next((index for index, it in ips if it.get("gateway") and index in inside), next(iter(inside)))
    gateways = [it["gw"] for it in shaped.get("routes", ()) if it["dst"].endswith("/0") and it.get("gw")]
    info = device_info.read(network) if "CNIDeviceInfoFile" in network.capabilities else None
    for index, link in inside.items():
        found: dict[str, Any] = {"name": network.definition.title}
        if link:
            found["interface"] = link["name"]
        if mine := [it["address"].partition("/")[0] for place, it in ips if place == index]:
            found["ips"] = mine
        found |= {key: link[key] for key in ("mac", "mtu") if link.get(key)}
        if first and index == default:
            found["default"] = True
        found["dns"] = shaped.get("dns") or {}
        if info:
            found["device-info"] = info
        if gateways:
            found["gateway"] = gateways
        yield found
