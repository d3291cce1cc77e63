"""Nodes in the etcd store: epoch, sign of life, and the comparisons that keep a dead node from writing.

    join            value(epoch) = as read                      -> put record, alive with the lease
    keep_alive      the lease can be renewed: one request; else as join, value(epoch) = mine
    declare_dead    epoch and record as read, no alive key      -> put epoch + 1, record dead (then its blocks)

A node's `alive` key hangs on a lease whose id is made of its name and epoch. So if the lease could be renewed, the key
has been there since it was put, declare_dead() was not possible, and the epoch is still the node's.
"""

from __future__ import annotations

from fastcni.kit.ipam.cluster.contract import ALIVE, DEAD, NODE_TTL_S, Changed, Fenced, Node, StoreAway
from fastcni.kit.ipam.cluster.etcd_client import Client, Refused, away, below, exists, get, put, revision_is, value_is
from fastcni.kit.ipam.cluster.etcd_keys import Keys, read_nodes
from fastcni.kit.ipam.cluster.etcd_watch import Watch
from fastcni.spec import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

    from fastcni.kit.ipam.cluster.etcd_client import Outcome

MAX_RACES = 50                  # lost in a row, each to a write that succeeded


class EtcdNodes:
    """The nodes of an EtcdStore. settings: those of etcd_client.Client, {"prefix": "/fastcni/v1"}, and node_ttl."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.etcd = Client(settings)
        self.keys = Keys(settings.get("prefix", "/fastcni/v1"))
        self.watched = Watch(self.etcd, self.keys)
        self.node_ttl = int(settings.get("node_ttl", NODE_TTL_S))

    def history(self) -> tuple[str, int]:
        if self.etcd.history is None:
            self.etcd.read(self.keys.nodes())
        assert self.etcd.history is not None
        return self.etcd.history

    def join(self, node: str, boot_id: str, address: str = "") -> Node:
        key = self.keys.node(node, "epoch")
        record = put(self.keys.node(node, "record"), text({"boot_id": boot_id, "address": address}))
        for _ in races(f"node {node}"):
            epoch = self.etcd.read(key)[0]
            me = Node(node, int(epoch.value) if epoch else 1, boot_id, address, ALIVE, 0)
            compare = revision_is(key, epoch.revision if epoch else 0)
            if self._put_alive(me, [compare], [record] if epoch else [put(key, "1"), record]):
                break
        return me

    def keep_alive(self, node: Node) -> Node:
        me = Node(node.name, node.epoch, node.boot_id, node.address, ALIVE, 0, node.revision)
        if self.etcd.renew(self.keys.lease(node)):
            return me
        if not self._put_alive(me, [self._epoch_is(node), exists(self.keys.node(node.name, "record"))], []):
            self._refuse(node)
        return me

    def nodes(self) -> list[Node]:
        return read_nodes(self.etcd.read_range(*below(self.keys.nodes()))[0])

    def node_gone(self, node: str) -> bool:
        return False

    def _node(self, name: str) -> Node | None:
        found = read_nodes(self.etcd.read_range(*below(self.keys.node(name)))[0])
        return found[0] if found else None

    def _epoch_is(self, me: Node) -> dict[str, Any]:
        return value_is(self.keys.node(me.name, "epoch"), str(me.epoch))

    def _get_epoch(self, me: Node) -> dict[str, Any]:
        return get(self.keys.node(me.name, "epoch"))

    def _check_epoch(self, me: Node, outcome: Outcome) -> None:
        """Raise Fenced or Changed if the first answer, to _get_epoch(), is not this node's epoch."""
        answer = outcome.answers[0]
        if not answer or answer[0].value != str(me.epoch):
            self._refuse(me)

    def _refuse(self, me: Node) -> NoReturn:
        """Raise Fenced if this node was declared dead, Changed if it was forgotten."""
        found = self._node(me.name)
        if found is not None and found.epoch > me.epoch:
            raise Fenced(found)
        raise Changed(f"node {me.name} with epoch {me.epoch} is not in the store")

    def _put_alive(self, me: Node, compare: list[dict[str, Any]], puts: list[dict[str, Any]]) -> bool:
        """Put the key that hangs on the node's lease. Return False if a comparison did not hold."""
        lease = self.keys.lease(me)
        alive = put(self.keys.node(me.name, "alive"), me.boot_id, lease)
        for _ in races(f"the lease of node {me.name}"):
            try:
                self.etcd.grant(lease, self.node_ttl)
                outcome = self.etcd.txn(compare, [alive, *puts])
                break
            except Refused as e:        # the lease that was there has just ended
                lost = e
        else:
            raise away(lost)
        me.revision = outcome.revision
        return outcome.done

    def _raise_epoch(self, node: Node) -> bool:
        """Declare a node dead. Return False if it has changed."""
        record = {"boot_id": node.boot_id, "address": node.address, "dead": True}
        outcome = self.etcd.txn(
            [self._epoch_is(node), revision_is(self.keys.node(node.name, "record"), node.revision),
             revision_is(self.keys.node(node.name, "alive"), 0)],
            [put(self.keys.node(node.name, "epoch"), str(node.epoch + 1)),
             put(self.keys.node(node.name, "record"), text(record))])
        if outcome.done:
            node.epoch, node.state, node.revision = node.epoch + 1, DEAD, outcome.revision
        return outcome.done


def races(what: str) -> Iterator[int]:
    """Tries of a transaction that another client's writes can make fail. Raises StoreAway after too many."""
    yield from range(MAX_RACES)
    raise StoreAway(f"etcd: {what}: changed by others {MAX_RACES} times while it was being written")


def text(document: dict[str, Any]) -> str:
    return json.write(document).decode()
