"""etcd as the registry, in flannel's own layout: flanneld and fastcni's agent can run in one cluster.

    <prefix>/config               the network's configuration
    <prefix>/subnets/<subnets>    a node's record (records.py), with a lease of a day

Differences from flanneld: the lease is kept alive instead of being replaced, and a record is written only if it is as
this node has seen it. So a node that was away for longer than its lease never overwrites what another node has taken.
A record without a lease is a reservation, made by an operator: it stays without one.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from fastcni.agent import conf as confs
from fastcni.agent import subnets
from fastcni.agent.contract import ConfigurationError, Node, SubnetLost
from fastcni.agent.registries import records
from fastcni.kit.ipam.cluster.contract import StoreAway
from fastcni.kit.ipam.cluster.stores import etcd_client
from fastcni.kit.ipam.cluster.stores.etcd_client import Client, Refused, put, read_pair, revision_is

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from fastcni.agent.contract import NetworkConf
    from fastcni.kit.ipam.cluster.stores.etcd_client import Pair
    from fastcni.server.log import Logger

PREFIX = "/coreos.com/network"
LEASE_S = 86400
KEEP_S = 600.0                  # between two renewals: a deleted record is noticed by the watch, so they are rare
TRIES = 10                      # for a subnet that others win
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0       # before a lost watch is opened again
MADE_HERE = ("VtepMAC", "PublicKey")        # of a node's data
IDLE_S = 1500.0                 # etcd tells its progress each 10 minutes


class Etcd:
    """See contract.Registry. settings: of etcd_client.Client, and "prefix"."""

    publishes = True

    def __init__(self, settings: dict[str, Any], log: Logger, wait: Callable[[float], object]) -> None:
        self.client, self.log, self.wait = Client(settings), log, wait
        self.prefix = settings.get("prefix", PREFIX).rstrip("/")
        self.folder = f"{self.prefix}/subnets/"
        self.unreadable: set[str] = set()

    def close(self) -> None:
        self.client.close()

    def conf(self) -> NetworkConf:
        (pair,) = self.client.read(f"{self.prefix}/config")
        if pair is None:
            raise ConfigurationError(f"etcd has no key {self.prefix}/config: write the network's configuration there")
        return confs.read(pair.value)

    # -- the record of this node ---------------------------------------------------------------------------------------

    def join(self, conf: NetworkConf, me: Node) -> Node:
        for _ in range(TRIES):
            pairs, _ = self.client.read_range(*etcd_client.below(self.folder))
            found = self._read(pairs)
            own = next((node for node in found if is_own(node, me) and
                        all(family in node.subnets and subnets.fits(conf.families[family], node.subnets[family])
                            for family in conf.families)), None)
            if own is not None:
                pair = next(each for each in pairs if each.key == self.folder + own.name)
                joined = Node(own.name, own.subnets, me.public, me.backend, me.data)
                if self._write(joined, pair):
                    return joined
                continue
            chosen = subnets.choose(conf, me.subnets, found)
            joined = Node(records.key_of(chosen), chosen, me.public, me.backend, me.data)
            if self._write(joined, None) and self._is_alone(joined):
                return joined
        raise SubnetLost(f"other nodes have taken {TRIES} subnets before this one could")

    def _write(self, me: Node, seen: Pair | None) -> bool:
        """Write the record, if it is as seen (None: not there). Return whether it was written."""
        key, value = self.folder + me.name, records.value_of(me)
        lease = seen.lease if seen else self.client.grant(LEASE_S)
        if seen and lease and not self.client.renew(lease, key):
            return False                        # it is about to vanish
        if seen and seen.value == value:
            return True
        try:
            return self.client.txn([revision_is(key, seen.revision if seen else 0)], [put(key, value, lease)]).done
        except Refused:                         # the lease has ended meanwhile
            return False

    def _is_alone(self, me: Node) -> bool:
        """Whether no other record overlaps. Keys of both families differ if one of the two subnets does, so that two
        nodes may have written one each; both look here, and the later one yields."""
        pairs, _ = self.client.read_range(*etcd_client.below(self.folder))
        mine = next((pair for pair in pairs if pair.key == self.folder + me.name), None)
        if mine is None:
            return False
        for node in self._read(pairs):
            if node.name != me.name and subnets.overlap(node, me):
                other = next(pair for pair in pairs if pair.key == self.folder + node.name)
                if other.revision < mine.revision:
                    self._delete(mine)
                    return False
        return True

    def keep(self, me: Node) -> float:
        (pair,) = self.client.read(self.folder + me.name)
        if pair is not None:
            try:
                if not is_own(records.read(me.name, pair.value), me):
                    raise SubnetLost(f"another node has {me.name}: {pair.value}")
            except ValueError:
                raise SubnetLost(f"the record of {me.name} was overwritten: {pair.value}") from None
        if not self._write(me, pair):
            raise SubnetLost(f"the record of {me.name} has ended")
        if pair is None and not self._is_alone(me):
            raise SubnetLost(f"while the record of {me.name} was gone, another node has taken an address of it")
        return KEEP_S

    def leave(self, me: Node) -> None:
        (pair,) = self.client.read(self.folder + me.name)
        if pair is not None and is_own(records.read(me.name, pair.value), me):
            self._delete(pair)

    def _delete(self, pair: Pair) -> None:
        self.client.txn([revision_is(pair.key, pair.revision)], [etcd_client.delete(pair.key)])

    def ready(self, me: Node) -> None:
        """etcd has nothing that waits for it."""

    # -- the others ----------------------------------------------------------------------------------------------------

    def watch(self, changed: Callable[[Collection[Node]], object], stop: Callable[[], bool]) -> None:
        pause = FIRST_PAUSE_S
        while not stop():
            opened = monotonic()
            try:
                self._follow(changed, stop)
            except StoreAway as e:
                self.log.warning("registry_away", error=str(e), retry_in=pause)
            if monotonic() - opened > MAX_PAUSE_S:
                pause = FIRST_PAUSE_S
            if not stop():
                self.wait(pause)
                pause = min(2 * pause, MAX_PAUSE_S)

    def _follow(self, changed: Callable[[Collection[Node]], object], stop: Callable[[], bool]) -> None:
        """List, then follow the changes, until stop() or until the watch has to begin anew. Raises StoreAway."""
        first, end = etcd_client.below(self.folder)
        pairs, revision = self.client.read_range(first, end)
        known = {pair.key: pair for pair in pairs}
        changed(self._read(known.values()))
        endpoint, http = "", self.client.http

        def leave() -> bool:        # requests have left the endpoint of the watch: it may be silent because it hangs
            return stop() or bool(endpoint and http.endpoints[http.good] != endpoint)

        with self.client.watch(first, end, revision + 1, leave, IDLE_S) as stream:
            endpoint = stream.endpoint
            for document in stream:
                result = document.get("result", {})
                if not result or result.get("canceled") or result.get("compact_revision"):
                    self.client.token = None    # its age may be why
                    return
                if not (events := result.get("events", ())):
                    continue
                for event in events:
                    pair = read_pair(event["kv"])
                    if event.get("type") == "DELETE":
                        known.pop(pair.key, None)
                    else:
                        known[pair.key] = pair
                changed(self._read(known.values()))

    def _read(self, pairs: Collection[Pair]) -> list[Node]:
        """The Nodes of records. One that cannot be read is logged once, and left out."""
        found = []
        for pair in pairs:
            try:
                found.append(records.read(pair.key.removeprefix(self.folder), pair.value))
                self.unreadable.discard(pair.key)
            except (ValueError, KeyError) as e:
                if pair.key not in self.unreadable:
                    self.log.warning("record_unreadable", key=pair.key, error=str(e))
                self.unreadable.add(pair.key)
        return found


def is_own(node: Node, me: Node) -> bool:
    """Whether a record is this node's: it has one of its public addresses, or the MAC or key that this node has made.
    So a node with a new address takes over its record. Otherwise the other nodes would see one MAC in two records."""
    if any(me.public.get(family) == address for family, address in node.public.items()):
        return True
    return any(data.get(name) and data[name] == node.data.get(family, {}).get(name)
               for family, data in me.data.items() for name in MADE_HERE)
