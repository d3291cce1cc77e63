"""Keep the records of all nodes as one watch of etcd has reported them. Each record is decoded once, when it
changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.registries import records
from fastcni.clients.etcd import read_pair

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from fastcni.agent.contract import Node
    from fastcni.clients.etcd import Pair
    from fastcni.daemon.log import Logger


class View:
    """The records below `directory`, from a list and the changes after the list's revision.

    revision: that of the list, later that of the last change. last: (key, revision) of the last change, with revision 0
    if the key was deleted; None before the first change. watched: whether a watch has followed the list.
    """

    def __init__(self, directory: str, pairs: Collection[Pair], revision: int) -> None:
        self.directory, self.revision = directory, revision
        self.last: tuple[str, int] | None = None
        self.watched = False
        self._nodes: dict[str, Node] = {}
        self._unread = {pair.key: pair for pair in pairs}

    def __len__(self) -> int:
        return len(self._nodes) + len(self._unread)

    def update(self, events: Collection[dict[str, Any]]) -> None:
        """Apply the changes of a watch's message."""
        for event in events:
            pair = read_pair(event["kv"])
            gone = event.get("type") == "DELETE"
            self._nodes.pop(pair.key, None)
            if gone:
                self._unread.pop(pair.key, None)
            else:
                self._unread[pair.key] = pair
            self.revision, self.last = pair.revision, (pair.key, 0 if gone else pair.revision)

    def nodes(self, log: Logger, unreadable: set[str]) -> list[Node]:
        """Return the Nodes of all records. A record that cannot be read is logged and left out. unreadable: the keys of
        records that were logged before."""
        for key, pair in self._unread.items():
            try:
                self._nodes[key] = records.read(key.removeprefix(self.directory), pair.value)
                unreadable.discard(key)
            except ValueError as e:
                if key not in unreadable:
                    log.warning("record_unreadable", key=key, error=str(e))
                unreadable.add(key)
        self._unread.clear()
        return list(self._nodes.values())
