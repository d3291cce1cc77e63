"""The watch of the etcd store: a copy of what decides, kept up to date by one watch of a range of keys.

A watch that is lost goes on at the revision that was seen last, at the next endpoint. If etcd has compacted that, or
has a lower revision because it was restored from a backup, everything is read anew, and compared with the copy.
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
IDLE_S = 1500.0                 # etcd tells its progress each 10 minutes


class Copy:
    """The keys of a range with their records. `changed` is called for each record that changes."""

    def __init__(self, keys: Keys, changed: Callable[[Event], object]) -> None:
        self.keys, self.changed = keys, changed
        self.records: dict[str, Block | Single] = {}
        self.parts: dict[str, dict[str, Pair]] = {}     # of nodes: {".../node/NAME/": {key: Pair}}
        self.nodes: dict[str, Node] = {}

    def load(self, etcd: Client) -> int:
        """Read all anew. Return the revision."""
        pairs, revision = etcd.read_range(*self.keys.watched())
        there = {pair.key for pair in pairs}
        known = [*self.records, *(key for part in self.parts.values() for key in part)]
        self.update(pairs, [key for key in known if key not in there])
        return revision

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
    """The watch of a store. What one call has seen is kept, so that the next one reports what is gone."""

    def __init__(self, etcd: Client, keys: Keys) -> None:
        self.etcd, self.keys = etcd, keys
        self.last = Copy(keys, lambda event: None)

    def run(self, changed: Callable[[Event], object], stop: Callable[[], bool]) -> None:
        """See contract.Store."""
        copy = Copy(self.keys, changed)
        revision = copy.load(self.etcd)
        before, self.last = self.last, copy
        for gone in [record for key, record in before.records.items() if key not in copy.records] + [
                node for name, node in before.nodes.items() if name not in copy.nodes]:
            changed(Event(gone, True))
        while not stop():
            opened = monotonic()
            try:
                revision = self._follow(copy, revision, stop)
            except Away:
                if monotonic() - opened < REOPEN_S:
                    raise

    def _follow(self, copy: Copy, revision: int, stop: Callable[[], bool]) -> int:
        """Watch from behind a revision until stop(), or until another endpoint should be asked. Return the revision of
        the last change. Raises Away if the watch is lost."""
        endpoint, http = "", self.etcd.http

        def leave() -> bool:        # requests have left the endpoint of the watch: it may be silent because it hangs
            return stop() or bool(endpoint and http.endpoints[http.good] != endpoint)

        with self.etcd.watch(*self.keys.watched(), revision + 1, leave, IDLE_S) as stream:
            endpoint = stream.endpoint
            for document in stream:
                result = document.get("result", {})
                compacted = bool(result.get("compact_revision"))
                if not result or (result.get("canceled") and not compacted):
                    self.etcd.token = None      # its age may be why
                    raise Away(f"etcd at {endpoint} ended the watch: {document.get('error') or result}"[:300])
                now = int(result["header"].get("revision", 0))
                if compacted or now < revision:
                    return copy.load(self.etcd)
                events = result.get("events", ())
                copy.update([read_pair(each["kv"]) for each in events if each.get("type") != "DELETE"],
                            [read_pair(each["kv"]).key for each in events if each.get("type") == "DELETE"])
                revision = now
        if not leave():
            raise Away(f"etcd at {endpoint} ended the watch")
        return revision
