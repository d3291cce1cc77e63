"""Copy and read the device-information files. A device plugin writes a file for each device; the annotation
network-status shows the file's content.

    ROOT/dp/<resource>-<device>-device.json             the device plugin's file
    ROOT/cni/<network>-<container id>_<interface>       a copy of that file, or the CNI plugin's own file

Source: Network Plumbing Working Group, Device Information Specification 1.1.
"""

from __future__ import annotations

from fastcni.kit.call import files
from fastcni.spec import json
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.networks.network import Network

ROOT = "/var/run/k8s.cni.cncf.io/devinfo"
FILE = "CNIDeviceInfoFile"      # capability whose value is the path of the copy


def path_of(network: Network, container_id: str) -> str:
    """Return the path of the copy for a network of a container."""
    return f"{ROOT}/cni/" + f"{network.definition.title}-{container_id}_{network.ifname}".replace("/", "-")


def prepare(req: Request, network: Network, undo: Undo) -> None:
    """Copy the device plugin's file before the ADD of a network with a device. A failure is a warning."""
    path, device = copy_of(network), str(network.capabilities.get("deviceID", ""))
    if not path:
        return
    undo(files.remove, path)
    name = f"{network.definition.resource}-{device}-device.json".replace("/", "-")
    try:
        files.remove(path)              # a killed ADD may have left a copy
        if content := files.read(f"{ROOT}/dp/{name}"):
            files.write(path, content)
    except CniError as e:
        req.warn(f"multus: no information of device {device}: {e.msg}")


def read(network: Network) -> dict[str, Any]:
    """Return the information of a network's device; {} if the file is missing or has no JSON object."""
    try:
        found = json.read(((path := copy_of(network)) and files.read(path)) or b"{}")
    except (CniError, json.JsonError):
        return {}
    return found if isinstance(found, dict) else {}


def remove(network: Network) -> None:
    if path := copy_of(network):
        files.remove(path)


def copy_of(network: Network) -> str:
    """Return the path of the copy, "" for a network without a device."""
    path = str(network.capabilities.get(FILE, ""))
    return path if path.startswith(f"{ROOT}/cni/") and "/.." not in path else ""
