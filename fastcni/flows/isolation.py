"""Drops between ports with portIsolation of the plugin bridge, which no rule decides and no hook sees.

A bridge forwards nothing between isolated ports: the request of one pod for the MAC of the other is the first packet
that is lost, and mostly the last one that the pod sends.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from fastcni.kernel import wire
from fastcni.kit.links import find

if TYPE_CHECKING:
    from fastcni.flows.pods import Pods
    from fastcni.flows.traces import Asking
    from fastcni.kernel.rtnl import Link

KEPT_S = 1.0                    # how long the read ports are used


class Isolation:
    """The isolated ports of the node. A call reads them again if the last reading is older than KEPT_S. sock: of
    rtnetlink."""

    def __init__(self, pods: Pods) -> None:
        self.pods, self.until, self.sock = pods, 0.0, wire.open_socket()
        self.ports: dict[int, Link] = {}
        self.indexes: dict[str, int] = {}

    def drops(self, asking: Asking) -> bool:
        """Return whether the bridge does not forward the request, because the port of the pod that is meant is isolated
        too."""
        self._refresh()
        port, pod = self.ports.get(asking.iif), self.pods.at(asking.packet.destination)
        if port is None or pod is None:
            return False
        others = [self.ports.get(self.indexes.get(link, 0)) for link in pod.links]
        return any(other and other is not port and other.master == port.master for other in others)

    def _refresh(self) -> None:
        if monotonic() < self.until:
            return
        self.until = monotonic() + KEPT_S
        self.ports = {link.index: link for link in find.all_links(self.sock) if link.isolated and link.master}
        self.indexes = {link.name: index for index, link in self.ports.items()}
