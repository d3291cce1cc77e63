"""Read and write the nodes of the etcd store: their epochs and heartbeats, and the comparisons that keep a dead node
from writing.

    join            value(epoch) = as read                      -> put record; put alive if it does not exist
    join_space      as join; the transaction also reads the grid, the node's own/ keys and the space's IPClaims
    keep_alive      renew the lease of the alive key: one request, if the process knows this lease. Else as join, with
                    value(epoch) = mine
    declare_dead    epoch and record as read, no alive key      -> put epoch + 1, record dead; then the node's blocks

A node's `alive` key is put once, with a new lease, and not again while the key exists. So a process that can renew the
key's lease knows that the key has existed without a break: declare_dead() was not possible, and the epoch is unchanged.
etcd must choose the lease's id: if clients chose ids, a lease with the same id could be granted again, without the key.

join_space() reads in the transaction that joins, so its result is the state at the join. After the join no other node
removes keys of this node. A new node does not read its keys first: its transaction compares that they do not exist. If
they exist, the transaction writes nothing, the node reads its keys and tries again, and the unused lease expires.
"""

from __future__ import annotations

from fastcni.clients.errors import Away
from fastcni.clients.etcd import Client, Refused, below, exists, get, lease_is, put, revision_is, value_is
from fastcni.kit.ipam.cluster.contract import ALIVE, NODE_TTL_S, Node
from fastcni.kit.ipam.cluster.states import heartbeat, refusal, unknown
from fastcni.kit.ipam.cluster.stores.etcd_keys import Keys, read_node, read_nodes
from fastcni.kit.ipam.cluster.stores.etcd_watch import EtcdWatch
from fastcni.spec import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from fastcni.clients.etcd import Outcome, Pair
    from fastcni.kit.ipam.cluster.contract import History

MAX_RACES = 50                  # attempts; each fails only because another write has succeeded


class EtcdNodes:
    """The nodes of an EtcdStore. settings: those of etcd_client.Client, {"prefix": "/fastcni/v1"}, and node_ttl."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.etcd = Client(settings)
        self.keys = Keys(settings.get("prefix", "/fastcni/v1"))
        self.watched = EtcdWatch(self.etcd, self.keys)
        self.leases: dict[tuple[str, int], int] = {}    # leases of the alive keys: {(node, epoch): lease}
        self.index = 0                                  # index of the log's last entry at the last log()
        self.node_ttl = int(settings.get("node_ttl", NODE_TTL_S))

    def history(self) -> History:
        if self.etcd.history is None:
            self.etcd.read(self.keys.nodes())
        assert self.etcd.history is not None
        name, revision = self.etcd.history
        return name, revision, self.index - revision        # the log may have grown since log() read its index

    def log(self) -> tuple[int, int] | None:
        if (found := self.etcd.log()) is not None:
            self.index = found[0]
        return found

    def settle(self) -> None:
        if self.index:
            self.etcd.txn([], [put(self.keys.log(), str(self.index))])

    def join(self, node: str, boot_id: str, address: str = "") -> Node:
        return self._join(node, boot_id, address, [])[0]

    def _join(self, node: str, boot_id: str, address: str, reads: list[dict[str, Any]],
              new: bool = False) -> tuple[Node, list[list[Pair]]]:
        """Join. The transaction that joins also runs the operations `reads`. Return the Node, and the answers to
        `reads`. new: the store probably has no key of the node."""
        record = put(self.keys.node(node, "record"), text({"boot_id": boot_id, "address": address}))
        for attempt in races(f"node {node}"):
            epoch, alive = (None, None) if new and not attempt else self._epoch_alive_record(node)[:2]
            me = Node(node, int(epoch.value) if epoch else 1, boot_id, address, ALIVE, 0)
            compare = revision_is(self.keys.node(node, "epoch"), epoch.revision if epoch else 0)
            puts = [record] if epoch else [record, put(self.keys.node(node, "epoch"), "1")]
            outcome = self._sign(me, alive, [compare], [*reads, *puts])
            if outcome:
                break
        assert outcome
        return me, outcome.answers[:len(reads)]

    def keep_alive(self, node: Node) -> Node:
        me = Node(node.name, node.epoch, node.boot_id, node.address, ALIVE, 0, node.revision)
        known = self.leases.get((node.name, node.epoch))
        if known and self.etcd.renew(known, self.keys.node(node.name, "epoch")):
            return me
        compare = [self._epoch_is(node), exists(self.keys.node(node.name, "record"))]
        for _ in races(f"node {node.name}"):
            epoch, alive, record = self._epoch_alive_record(node.name)
            found = read_node(node.name, {"epoch": epoch, "record": record}) if epoch and record else unknown(node.name)
            heartbeat(found, node)              # raises if the node is dead or forgotten
            if alive and self.etcd.renew(alive.lease, self.keys.node(me.name, "alive")):
                self.leases[me.name, me.epoch] = alive.lease        # the epoch was read together with this key
                break
            if self._sign(me, None, compare, []):
                break
        return me

    def nodes(self) -> list[Node]:
        return read_nodes(self.etcd.read_range(*below(self.keys.nodes()))[0])

    def node_gone(self, node: str) -> bool:
        return False

    def _node(self, name: str) -> Node:
        found = read_nodes(self.etcd.read_range(*below(self.keys.node(name)))[0])
        return found[0] if found else unknown(name)

    def _epoch_alive_record(self, name: str) -> list[Pair | None]:
        return self.etcd.read(*(self.keys.node(name, what) for what in ("epoch", "alive", "record")))

    def _epoch_is(self, me: Node) -> dict[str, Any]:
        return value_is(self.keys.node(me.name, "epoch"), str(me.epoch))

    def _get_epoch(self, me: Node) -> dict[str, Any]:
        return get(self.keys.node(me.name, "epoch"))

    def _check_epoch(self, me: Node, outcome: Outcome) -> None:
        """Raise Fenced or Changed if the first answer, to _get_epoch(), is not this node's epoch."""
        answer = outcome.answers[0]
        if not answer or answer[0].value != str(me.epoch):
            raise refusal(self._node(me.name), me)

    def _sign(self, me: Node, alive: Pair | None, compare: list[dict[str, Any]],
              operations: list[dict[str, Any]]) -> Outcome | None:
        """Send a heartbeat, and run `operations` in the same transaction. alive: the alive key as read, or None. Return
        None if a comparison failed, or the lease ended before the transaction."""
        key = self.keys.node(me.name, "alive")
        if alive and self.etcd.renew(alive.lease, key):
            lease, compare = alive.lease, [*compare, lease_is(key, alive.lease)]
        else:
            lease = self.etcd.grant(self.node_ttl)
            compare, operations = [*compare, revision_is(key, 0)], [*operations, put(key, "", lease)]
        try:
            outcome = self.etcd.txn(compare, operations)
        except Refused:
            return None
        if not outcome.done:
            return None
        self.leases[me.name, me.epoch] = lease
        me.revision = outcome.revision
        return outcome

    def _write_dead(self, node: Node, dead: Node) -> bool:
        """Replace the record `node` by `dead`. Return False if the record has changed since `node` was read."""
        record = {"boot_id": node.boot_id, "address": node.address, "dead": True}
        outcome = self.etcd.txn(
            [self._epoch_is(node), revision_is(self.keys.node(node.name, "record"), node.revision),
             revision_is(self.keys.node(node.name, "alive"), 0)],
            [put(self.keys.node(node.name, "epoch"), str(dead.epoch)),
             put(self.keys.node(node.name, "record"), text(record))])
        dead.revision = outcome.revision
        return outcome.done


def races(what: str) -> Iterator[int]:
    """Yield the number of each attempt at a transaction, which fails if another client writes the same keys. Raises
    Away after MAX_RACES attempts."""
    yield from range(MAX_RACES)
    raise Away(f"etcd: {what}: changed by others {MAX_RACES} times while it was being written")


def text(document: dict[str, Any]) -> str:
    return json.write(document).decode()
