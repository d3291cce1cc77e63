"""Store claims in etcd: the value of the key <prefix>/egress/<address> is the name of the node that holds the address.

All keys of a node have one lease of LEASE_S. So a node renews only one lease, and etcd deletes all keys of a node that
no longer renews its lease.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from ipaddress import ip_address
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent.egress.claims.contract import ENDPOINT_S, FIRST_PAUSE_S, LEASE_S, MAX_PAUSE_S, REQUEST_S
from fastcni.agent.registries.etcd import PREFIX
from fastcni.agent.tries import tries
from fastcni.clients import etcd as etcd_client
from fastcni.clients.errors import Away
from fastcni.clients.etcd import Client, Refused, delete, put, revision_is, value_is

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    from fastcni.clients.etcd import Pair



class Etcd:
    """The store of claims in etcd (contract.Claims). settings: the settings of etcd_client.Client, and "prefix"."""

    def __init__(self, settings: Mapping[str, Any], node: str) -> None:
        self.client, self.node = Client(dict(settings)), node
        self.client.http.timeout, self.client.http.endpoint_timeout = REQUEST_S, ENDPOINT_S
        self.directory = f"{settings.get('prefix', PREFIX).rstrip('/')}/egress/"
        self._lease = 0                 # the id of this node's lease; 0: no lease
        self._until = 0.0               # when the lease ends, monotonic
        self._holders: dict[bytes, str] = {}
        self._listed = False
        self._pause = threading.Event()

    def close(self) -> None:
        self._pause.set()
        self.client.close()

    def renew(self, held: Collection[bytes]) -> Mapping[bytes, float]:
        if not held:
            return {}
        began = monotonic()
        if not self.client.renew(self._lease, self.directory):
            self._lease = 0
            return {}
        self._until = began + LEASE_S
        lost = {packed for packed, node in self._holders.items() if node != self.node}
        return {packed: self._until for packed in held if packed not in lost}

    def claim(self, address: bytes) -> float:
        began, key = monotonic(), self._key(address)
        if not (self._lease and began < self._until):
            self._lease, self._until = self.client.grant(LEASE_S), began + LEASE_S
        for condition in (revision_is(key, 0), value_is(key, self.node)):     # no claim exists; this node has the claim
            try:
                if self.client.txn([condition], [put(key, self.node, self._lease)]).done:
                    self._holders[address] = self.node
                    return self._until
            except Refused:             # the lease has just ended
                self._lease = 0
                return 0.0
        return 0.0

    def release(self, addresses: Collection[bytes]) -> None:
        for address in addresses:
            key = self._key(address)
            self.client.txn([value_is(key, self.node)], [delete(key)])

    def holders(self) -> Mapping[bytes, str]:
        return dict(self._holders)

    def free_at(self, address: bytes) -> float:
        return 0.0 if self._listed and self._holders.get(address, self.node) == self.node else inf

    def watch(self, changed: Callable[[], object], stop: Callable[[], bool]) -> None:
        for _ in tries(stop, self._pause.wait, FIRST_PAUSE_S, MAX_PAUSE_S):
            with suppress(Away):        # the thread that renews claims logs this error
                self._follow(changed, stop)

    def _follow(self, changed: Callable[[], object], stop: Callable[[], bool]) -> None:
        """List all claims, then follow the changes until stop() is true, or until requests use another endpoint than
        the watch."""
        pairs, revision = self.client.read_range(*etcd_client.below(self.directory))
        self._holders = {packed: pair.value for pair in pairs if (packed := self._address(pair))}
        self._listed = True
        changed()
        with self.client.watch(*etcd_client.below(self.directory), revision + 1, stop) as stream:
            for document in stream:
                result = document.get("result", {})
                if not result or result.get("canceled") or result.get("compact_revision"):
                    self.client.token = None            # an expired token may be the reason
                    return
                for event in result.get("events", ()):
                    pair = etcd_client.read_pair(event["kv"])
                    if packed := self._address(pair):
                        if event.get("type") == "DELETE":
                            self._holders.pop(packed, None)
                        else:
                            self._holders[packed] = pair.value
                if result.get("events"):
                    changed()

    def _key(self, address: bytes) -> str:
        return f"{self.directory}{ip_address(address)}"

    def _address(self, pair: Pair) -> bytes:
        """Return the packed address in a key's name; b"" if the name is no address."""
        try:
            return ip_address(pair.key.removeprefix(self.directory)).packed
        except ValueError:
            return b""
