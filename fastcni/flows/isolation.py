"""Find packets that a bridge drops because of the key portIsolation of the plugin bridge. No nftables hook sees them.

A bridge forwards nothing between isolated ports. A pod first requests the MAC of the other pod (ARP or neighbour
solicitation), and the bridge drops this request. Without an answer, the pod usually sends no other packet.
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

KEPT_S = 1.0                    # seconds after which drops() reads the node's ports again


class Isolation:
    """The isolated bridge ports of the node. drops() reads them again after KEPT_S. sock: an rtnetlink socket. ports:
    {interface index: link}. indexes: {link name: interface index}."""

    def __init__(self, pods: Pods) -> None:
        self.pods, self.until, self.sock = pods, 0.0, wire.open_socket()
        self.ports: dict[int, Link] = {}
        self.indexes: dict[str, int] = {}

    def drops(self, asking: Asking) -> bool:
        """Return whether the bridge drops a request for a MAC: the port where it arrives and the port of the pod with
        the requested address are both isolated ports of one bridge."""
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
