"""Claim all egress addresses for a node that is alone in its network file (`--nodes`)."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.contract import ConfigurationError
from fastcni.agent.egress.claims.contract import LEASE_S
from fastcni.agent.registries.static import Static
from fastcni.clients.errors import Away

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any


class Local:
    """The claims of a single node (contract.Claims). With several nodes in the file, a node cannot know whether another
    node is dead. So no node holds an address, and renew() and claim() raise Away."""

    def __init__(self, settings: Mapping[str, Any], node: str) -> None:
        self.node, self._held = node, set[bytes]()
        self._file = Static(settings["path"], settings["name"], None, None)     # type: ignore[arg-type]

    def renew(self, held: Collection[bytes]) -> Mapping[bytes, float]:
        self._check()
        return dict.fromkeys(held, monotonic() + LEASE_S)

    def claim(self, address: bytes) -> float:
        self._check()
        self._held.add(address)
        return monotonic() + LEASE_S

    def release(self, addresses: Collection[bytes]) -> None:
        self._held.difference_update(addresses)

    def holders(self) -> Mapping[bytes, str]:
        return dict.fromkeys(self._held, self.node)

    def free_at(self, address: bytes) -> float:
        return 0.0

    def watch(self, changed: Callable[[], object], stop: Callable[[], bool]) -> None:
        changed()

    def close(self) -> None:
        """Do nothing, because nothing is open."""

    def _check(self) -> None:
        try:
            nodes = self._file.nodes()
        except ConfigurationError as e:
            raise Away(str(e)) from None
        if len(nodes) != 1:
            raise Away(f"egress addresses need etcd or Kubernetes, because {self._file.path} has {len(nodes)} nodes: "
                       "by a file no node knows which other one is dead")
