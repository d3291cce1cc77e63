"""Keep a copy of etcd's Blocks, IPClaims and Nodes up to date, by one watch of a range of keys.

After a lost connection, the watch continues from the last seen revision, at the next endpoint. If etcd has compacted
this revision, or has a lower revision because etcd was restored from a backup, the EtcdWatch reads all keys again, and
compares them with the copy.
"""

from __future__ import annotations

from time import monotonic

from fastcni.clients.errors import Away
from fastcni.clients.etcd import Pair, read_pair
from fastcni.kit.ipam.cluster.contract import Block, Event, IPClaim, Node
from fastcni.kit.ipam.cluster.stores.etcd_keys import read_nodes, record_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from fastcni.clients.etcd import Client
    from fastcni.kit.ipam.cluster.stores.etcd_keys import Keys

REOPEN_S = 1.0                  # run() opens a watch again only if it has lasted so long


class Copy:
    """A copy of the watched keys, as records. The copy calls `changed` for each record that changes.

    revision: the etcd revision of the last change in the copy.
    """

    def __init__(self, keys: Keys, changed: Callable[[Event], object]) -> None:
        self.keys, self.changed, self.revision = keys, changed, 0
        self.records: dict[str, Block | IPClaim] = {}
        self.parts: dict[str, dict[str, Pair]] = {}     # the nodes' keys: {".../node/NAME": {key: Pair}}
        self.nodes: dict[str, Node] = {}

    def load(self, etcd: Client) -> None:
        """Read all watched keys, and report the differences from the copy."""
        pairs, revision = etcd.read_range(*self.keys.watched())
        there = {pair.key for pair in pairs}
        known = [*self.records, *(key for part in self.parts.values() for key in part)]
        self.update(pairs, [key for key in known if key not in there])
        self.revision = revision

    def follow(self, message: dict[str, Any]) -> None:
        """Apply a message of a watch from `revision` + 1.

        A message's header has etcd's current revision. Changes up to this revision may follow in later messages, except
        after a progress notification. Such a message has no events, and no "created", which marks the answer to the
        watch request.
        """
        pairs: list[Pair] = []
        gone: list[Pair] = []
        for event in message.get("events", ()):
            pair = read_pair(event["kv"])
            (gone if event.get("type") == "DELETE" else pairs).append(pair)
        self.update(pairs, [pair.key for pair in gone])
        if pairs or gone:
            self.revision = max(pair.revision for pair in [*pairs, *gone])
        elif not message.get("created"):
            self.revision = int(message["header"]["revision"])

    def update(self, pairs: Iterable[Pair], gone: Iterable[str]) -> None:
        """Apply changes to the copy, and report them. pairs: keys that were put. gone: keys that were deleted."""
        touched = {}                    # each changed node once: a transaction changes several of a node's keys
        for pair in pairs:
            if pair.key.startswith(self.keys.nodes()):
                name = pair.key.rpartition("/")[0]
                self.parts.setdefault(name, {})[pair.key] = pair
                touched[name] = True
            elif kind := self._kind(pair.key):
                before, record = self.records.get(pair.key), record_of(kind, pair)
                self.records[pair.key] = record
                if before is None or before.revision != record.revision:
                    self.changed(Event(record, False))
        for key in gone:
            name = key.rpartition("/")[0]
            if self.parts.get(name, {}).pop(key, None):
                touched[name] = True
            elif old := self.records.pop(key, None):
                self.changed(Event(old, True))
        for name in touched:
            self._update_node(name)

    def _kind(self, key: str) -> Any:
        if key.startswith(self.keys.block()):
            return Block
        return IPClaim if key.startswith(self.keys.ip_claim()) else None

    def _update_node(self, name: str) -> None:
        old = self.nodes.pop(name, None)
        found = read_nodes(self.parts[name].values())
        if found:
            self.nodes[name] = found[0]
            if found[0] != old:
                self.changed(Event(found[0], False))
        elif old:
            self.changed(Event(old, True))
        if not self.parts[name]:
            del self.parts[name]


class EtcdWatch:
    """The watch of a store. The EtcdWatch keeps the last copy, so that the next run() reports the records that were
    deleted between two runs."""

    def __init__(self, etcd: Client, keys: Keys) -> None:
        self.etcd, self.keys = etcd, keys
        self.last = Copy(keys, lambda event: None)

    def run(self, changed: Callable[[Event], object], stop: Callable[[], bool]) -> None:
        """Do Store.watch() of contract.py: call changed() for each record, then for each change, until stop() returns
        true."""
        copy = Copy(self.keys, changed)
        copy.load(self.etcd)
        before, self.last = self.last, copy
        for gone in [record for key, record in before.records.items() if key not in copy.records] + [
                node for name, node in before.nodes.items() if name not in copy.nodes]:
            changed(Event(gone, True))
        while not stop():
            opened = monotonic()
            try:
                self._follow(copy, stop)
            except Away:
                if monotonic() - opened < REOPEN_S:
                    raise

    def _follow(self, copy: Copy, stop: Callable[[], bool]) -> None:
        """Watch from the revision that follows the copy's, until stop() returns true or until the client's requests use
        another endpoint. Raises Away if the connection is lost."""
        with self.etcd.watch(*self.keys.watched(), copy.revision + 1, stop) as stream:
            for document in stream:
                result = document.get("result", {})
                compacted = bool(result.get("compact_revision"))
                if not result or (result.get("canceled") and not compacted):
                    self.etcd.token = None      # an expired token may be the reason
                    raise Away(f"etcd at {stream.endpoint} ended the watch: {document.get('error') or result}"[:300])
                if compacted or int(result["header"].get("revision", 0)) < copy.revision:
                    copy.load(self.etcd)
                    return
                copy.follow(result)
        if not stream.over():
            raise Away(f"etcd at {stream.endpoint} ended the watch")
