"""Keep a copy of all nodes' records in etcd up to date by lists and one watch. A record is decoded when it changes."""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING

from fastcni.agent.registries import flannel_records
from fastcni.clients.etcd import Pair, below, read_pair

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Any

    from fastcni.agent.contract import Node
    from fastcni.clients.etcd import Client
    from fastcni.daemon.log import Logger

    Fields = tuple[str, str, int, int, int]     # the fields of a Pair

# The timeout of a list in seconds. If 5,000 agents list 5,000 records at the same time, etcd needs minutes: 58 ms each.
LIST_WAIT_S = 60.0


class View:
    """A copy of the records below `directory`, from refresh() and the later changes of a watch.

    stored: the result of stored() of the previous agent's view. pairs: {key: record}. revision: etcd's revision of the
    last refresh() or change; 0 before. last: (key, revision) of the last change, with revision 0 if the key was
    deleted; None before the first change. watched: whether a watch was opened after the refresh.
    """

    def __init__(self, directory: str, stored: Iterable[Fields]) -> None:
        self.directory, self.revision = directory, 0
        self.last: tuple[str, int] | None = None
        self.watched = False
        self.pairs = {pair.key: pair for pair in starmap(Pair, stored)}
        self._nodes: dict[str, Node] = {}
        self._unread = set(self.pairs)

    def stored(self) -> list[Fields]:
        """Return the fields of all records, for the file of record_file.py."""
        return [pair.fields() for pair in self.pairs.values()]

    def refresh(self, client: Client) -> None:
        """Make the view equal to etcd's records. Raises Away.

        Read only the records that have changed since the newest record of the view. Read all records if a record was
        deleted, or if the newest record has changed, because etcd may have been restored from a backup.
        """
        first, end = below(self.directory)
        newest = max(self.pairs.values(), key=lambda pair: pair.revision, default=None)
        if newest:
            changed, count, revision = client.read_changes(first, end, newest.revision, LIST_WAIT_S)
            found = {pair.key: pair for pair in changed}
            same = newest.key in found and found[newest.key].fields() == newest.fields()
            complete = same and len(self.pairs.keys() | found.keys()) == count
        if newest is None or not complete:
            changed, _, revision = client.read_changes(first, end, 0, LIST_WAIT_S)
            self.pairs.clear()
            self._nodes.clear()
        for pair in changed:
            self._put(pair)
        self.revision, self.last, self.watched = revision, None, False

    def update(self, events: Collection[dict[str, Any]]) -> None:
        """Apply the changes in a message of the watch."""
        for event in events:
            pair = read_pair(event["kv"])
            gone = event.get("type") == "DELETE"
            if gone:
                self.pairs.pop(pair.key, None)
                self._nodes.pop(pair.key, None)
            else:
                self._put(pair)
            self.revision, self.last = pair.revision, (pair.key, 0 if gone else pair.revision)

    def nodes(self, log: Logger, unreadable: set[str]) -> list[Node]:
        """Return the Nodes of all readable records. Log each unreadable record once. unreadable: the keys of logged
        records; nodes() updates this set."""
        for key in self._unread & self.pairs.keys():
            try:
                self._nodes[key] = flannel_records.read(key.removeprefix(self.directory), self.pairs[key].value)
                unreadable.discard(key)
            except ValueError as e:
                if key not in unreadable:
                    log.warning("record_unreadable", key=key, error=str(e))
                unreadable.add(key)
        self._unread.clear()
        return list(self._nodes.values())

    def _put(self, pair: Pair) -> None:
        self.pairs[pair.key] = pair
        self._nodes.pop(pair.key, None)
        self._unread.add(pair.key)
