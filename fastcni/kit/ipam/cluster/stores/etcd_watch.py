"""Keep a copy of etcd's blocks, claims and nodes up to date, by one watch of a range of keys.

A lost watch continues from the last seen revision, at the next endpoint. If etcd has compacted this revision, or has a
lower revision because it was restored from a backup, the Watch reads all keys again, and compares them with the copy.
"""

from __future__ import annotations

from time import monotonic

from fastcni.clients.away import Away
from fastcni.clients.etcd import Pair, read_pair
from fastcni.kit.ipam.cluster.contract import Block, Event, Node, Single
from fastcni.kit.ipam.cluster.stores.etcd_keys import read_nodes, record_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from fastcni.clients.etcd import Client
    from fastcni.kit.ipam.cluster.stores.etcd_keys import Keys

REOPEN_S = 1.0                  # a watch that is lost sooner than that is not opened again
IDLE_S = 1500.0                 # etcd sends a progress notification each 10 minutes


class Copy:
    """The keys of a range with their records. `changed` is called for each record that changes.

    revision: of the last change that the records contain.
    """

    def __init__(self, keys: Keys, changed: Callable[[Event], object]) -> None:
        self.keys, self.changed, self.revision = keys, changed, 0
        self.records: dict[str, Block | Single] = {}
        self.parts: dict[str, dict[str, Pair]] = {}     # of nodes: {".../node/NAME/": {key: Pair}}
        self.nodes: dict[str, Node] = {}

    def load(self, etcd: Client) -> None:
        """Read all anew."""
        pairs, revision = etcd.read_range(*self.keys.watched())
        there = {pair.key for pair in pairs}
        known = [*self.records, *(key for part in self.parts.values() for key in part)]
        self.update(pairs, [key for key in known if key not in there])
        self.revision = revision

    def follow(self, message: dict[str, Any]) -> None:
        """Apply a message of a watch from `revision` + 1.

        The header of a message has etcd's revision. Changes up to this revision may come in later messages, unless the
        message reports progress: it has no events then, and is not the answer to the request for the watch.
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
        """Note pairs that were put and keys that were deleted."""
        touched = {}                    # nodes, once each: a transaction changes several of their keys
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
        if key.startswith(self.keys.blocks()):
            return Block
        return Single if key.startswith(self.keys.singles()) else None

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


class Watch:
    """The watch of a store. The Watch keeps the records of a call, so that the next call reports deleted records."""

    def __init__(self, etcd: Client, keys: Keys) -> None:
        self.etcd, self.keys = etcd, keys
        self.last = Copy(keys, lambda event: None)

    def run(self, changed: Callable[[Event], object], stop: Callable[[], bool]) -> None:
        """See contract.Store."""
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
        """Watch from the revision after the copy's until stop(), or until requests use another endpoint. Raises Away if
        the watch is lost."""
        endpoint, http = "", self.etcd.http

        def leave() -> bool:        # requests have left the endpoint of the watch, which may be silent because it hangs
            return stop() or bool(endpoint and http.endpoints[http.good] != endpoint)

        with self.etcd.watch(*self.keys.watched(), copy.revision + 1, leave, IDLE_S) as stream:
            endpoint = stream.endpoint
            for document in stream:
                result = document.get("result", {})
                compacted = bool(result.get("compact_revision"))
                if not result or (result.get("canceled") and not compacted):
                    self.etcd.token = None      # an expired token may be the reason
                    raise Away(f"etcd at {endpoint} ended the watch: {document.get('error') or result}"[:300])
                if compacted or int(result["header"].get("revision", 0)) < copy.revision:
                    copy.load(self.etcd)
                    return
                copy.follow(result)
        if not leave():
            raise Away(f"etcd at {endpoint} ended the watch")
