"""Find the devices that the kubelet has given to a pod, for networks whose definition names a resource.

A device plugin offers resources such as intel.com/sriov. The kubelet assigns devices to a pod before the runtime
creates the pod. fastcni reads the pod's devices from the kubelet's pod-resources API; if this API does not answer, from
the file CHECKPOINT.
"""

from __future__ import annotations

from fastcni.clients import pod_resources
from fastcni.clients.errors import Away
from fastcni.kit.call import files
from fastcni.kit.networks.ready import exists
from fastcni.spec import json
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
MAX_BYTES = 16 << 20


class Devices:
    """The devices of a pod; each device is for one network. uid: the uid that the kubelet uses. used: the ids of
    devices that networks already have."""

    def __init__(self, namespace: str, name: str, uid: str, warn: Callable[[str], object],
                 used: Iterable[str] = ()) -> None:
        self.namespace, self.name, self.uid = namespace, name, uid
        self.warn, self.used = warn, frozenset(used)
        self.left: dict[str, list[str]] | None = None       # {resource: ids}; None: not read yet

    def take(self, resource: str) -> str:
        """Return the id of the next unused device of a resource, in sorted order. If no device is left, add a warning
        and return ""."""
        if self.left is None:
            self.left = {name: sorted(devices - self.used) for name, devices in self._read().items()}
        found = self.left.get(resource)
        if not found:
            self.warn(f"multus: the kubelet has no further device of {resource} for the pod "
                      f"{self.namespace}/{self.name or '(no name)'} {self.uid or '(no uid)'}")
            return ""
        return found.pop(0)

    def _read(self) -> dict[str, set[str]]:
        if exists(pod_resources.SOCKET):
            try:
                return pod_resources.devices_of(self.namespace, self.name, pod_resources.SOCKET)
            except Away as e:
                self.warn(f"multus: devices are read from {CHECKPOINT}: {e}")
        return self._read_checkpoint()

    def _read_checkpoint(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        try:
            document = json.read(files.read(CHECKPOINT, MAX_BYTES) or b"{}")
            for entry in document.get("Data", {}).get("PodDeviceEntries") or ():
                if self.uid and entry["PodUID"] == self.uid:
                    found.setdefault(entry["ResourceName"], set()).update(ids_of(entry["DeviceIDs"]))
        except (CniError, json.JsonError, AttributeError, TypeError, KeyError) as e:
            self.warn(f"multus: {CHECKPOINT} cannot be read: {e!r}")
        return found


def ids_of(value: Any) -> Iterator[str]:
    """Yield the device ids of an entry of CHECKPOINT: {NUMA node: ids}, or a list of ids from a kubelet before 1.20."""
    for ids in value.values() if isinstance(value, dict) else [value]:
        yield from (it for it in ids or () if isinstance(it, str))
