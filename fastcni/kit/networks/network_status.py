"""Write which networks a pod has into its annotation k8s.v1.cni.cncf.io/network-status.

Source: Network Plumbing Working Group, Kubernetes Network Custom Resource Definition De-facto Standard 1.3, 4.2.
"""

from __future__ import annotations

from fastcni.kit.networks import device_info
from fastcni.spec import json
from fastcni.spec import result as results

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from fastcni.kit.networks.network import Network


def text_of(added: Iterable[tuple[Network, dict[str, Any]]]) -> str:
    """Return the annotation's text: a list, one object for each network. added: [(network, result)] in the pod's
    order."""
    found = [element(network, result, place == 0) for place, (network, result) in enumerate(added)]
    return json.write([it for it in found if "default" in it or "interface" in it or "ips" in it]).decode()


def element(network: Network, result: dict[str, Any], first: bool) -> dict[str, Any]:
    """Return the object of a network. A network without an interface and addresses is omitted, unless it is the
    first."""
    shaped = results.printed(results.to_version({"cniVersion": "1.1.0", **result}, "1.1.0"))
    inside = [it for it in shaped.get("interfaces", ()) if it.get("sandbox")]
    link = next((it for it in inside if it["name"] == network.ifname), inside[-1] if inside else {})
    found: dict[str, Any] = {"name": network.definition.title}
    if link:
        found["interface"] = link["name"]
    if ips := [it["address"].partition("/")[0] for it in shaped.get("ips", ())]:
        found["ips"] = ips
    found |= {key: link[key] for key in ("mac", "mtu") if link.get(key)}
    if first:
        found["default"] = True
    found["dns"] = shaped.get("dns") or {}
    if "CNIDeviceInfoFile" in network.capabilities and (info := device_info.read(network)):
        found["device-info"] = info
    if gateways := [it["gw"] for it in shaped.get("routes", ()) if it["dst"].endswith("/0") and it.get("gw")]:
        found["gateway"] = gateways
    return found
