"""A store in one file, for one node, or for several "nodes" on one machine that share a folder. No other machine may
use the folder: flock(2) and the clock are the machine's.

    <path>/              0700
        lock             flock(2) LOCK_EX around every call
        store.json       {"id", "revision", "grids", "nodes", "blocks", "singles", "uses"}, replaced by rename(2)

Each call reads the file, and writes it if it has changed something. Records carry the revision of their last change.
"""

from __future__ import annotations

import posix
import time

from fastcni._system import open_regular, read_file, unlock, write_file
from fastcni.clients.away import Away
from fastcni.kernel import waiting
from fastcni.kit.call.files import make_folders
from fastcni.kit.ipam.cluster.contract import (
    ACTIVE,
    ALIVE,
    ASKED,
    DEAD,
    HELD,
    KEPT,
    LOST,
    NODE_TTL_S,
    QUARANTINE,
    REFUSED,
    SHARED,
    Block,
    Changed,
    Event,
    Fenced,
    Joined,
    Node,
    Single,
    Taken,
    Use,
)
from fastcni.kit.ipam.cluster.stores.rules import check_block, join_space, may_take_over, place
from fastcni.spec import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Any

    Table = dict[str, dict[str, Any]]

MAX_BYTES = 256 << 20
LOCK_TIMEOUT_S = 5.0
POLL_S = 0.1                    # of watch()
TABLES = ("grids", "nodes", "blocks", "singles", "uses")


class Document:
    """The file's content, locked inside `with`. changed(): it is written at the end, if there is no exception."""

    __slots__ = ("data", "fd", "folder", "node_ttl", "old")

    def __init__(self, folder: str, node_ttl: float) -> None:
        self.folder, self.node_ttl, self.fd = folder, node_ttl, -1

    def __enter__(self) -> Document:
        try:
            self._lock()
            self.data = read_document(self.folder)
        except OSError as e:
            self._close()
            raise Away(f"store {self.folder}: {e.strerror} (errno {e.errno})") from None
        except BaseException:
            self._close()
            raise
        self.old = self.data["revision"]
        return self

    def _lock(self) -> None:
        flags = posix.O_RDONLY | posix.O_CREAT | posix.O_NOFOLLOW
        try:
            self.fd = open_regular(f"{self.folder}/lock", flags, 0o600)
        except FileNotFoundError:
            make_folders(self.folder, 0o700)
            self.fd = open_regular(f"{self.folder}/lock", flags, 0o600)
        if not waiting.lock(self.fd, LOCK_TIMEOUT_S):
            raise Away(f"store {self.folder}: its lock is not free within {LOCK_TIMEOUT_S:g} s")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            if kind is None and self.data["revision"] != self.old:
                write_document(self.folder, self.data)
        except OSError as e:
            raise Away(f"store {self.folder}: {e.strerror} (errno {e.errno})") from None
        finally:
            self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            unlock(self.fd)
            posix.close(self.fd)
            self.fd = -1

    # -- records --------------------------------------------------------------------------------------

    def put(self, table: str, key: str, record: Any) -> Any:
        """Write a record. Return it with its new revision."""
        self.data["revision"] += 1
        self.data[table][key] = record.to_dict() | {"revision": self.data["revision"]}
        record.revision = self.data["revision"]
        return record

    def drop(self, table: str, key: str) -> None:
        if self.data[table].pop(key, None) is not None:
            self.data["revision"] += 1

    def get(self, table: str, key: str) -> Any:
        document = self.data[table].get(key)
        return None if document is None else KINDS[table].from_dict(document, document["revision"])

    def all(self, table: str, space: str = "", node: str = "", pod: str = "") -> list[Any]:
        """The records of a table that have these fields, by space and address."""
        found = [KINDS[table].from_dict(one, one["revision"]) for one in self.data[table].values()
                 if space in ("", one["space"]) and node in ("", one.get("node", ""))
                 and pod in ("", one.get("pod", ""))]
        return sorted(found, key=place)

    def node(self, name: str) -> Node | None:
        node: Node | None = self.get("nodes", name)
        if node is not None and node.state != DEAD:
            node.state = ALIVE if time.time() - node.seen < self.node_ttl else LOST
        return node

    def check_epoch(self, me: Node) -> None:
        """Raise Fenced if this node was declared dead, or Changed if it was forgotten."""
        node = self.node(me.name)
        if node is None:
            raise Changed(f"node {me.name} is not in the store")
        if node.epoch > me.epoch:
            raise Fenced(node)

    def unchanged(self, table: str, key: str, record: Any) -> bool:
        now = self.data[table].get(key)
        return now is not None and now["revision"] == record.revision


KINDS: dict[str, Any] = {"nodes": Node, "blocks": Block, "singles": Single, "uses": Use}


def read_document(folder: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.read(read_file(f"{folder}/store.json", posix.O_RDONLY, MAX_BYTES, regular=True))
    except FileNotFoundError:
        return {"id": f"{time.time_ns():x}", "revision": 0} | {table: {} for table in TABLES}
    except json.JsonError as e:
        raise Away(f"store {folder}/store.json is damaged: {e}") from None
    return data


def write_document(folder: str, data: dict[str, Any]) -> None:
    path = f"{folder}/store.json"
    write_file(f"{path}.new", json.write(data), posix.O_CREAT | posix.O_TRUNC | posix.O_NOFOLLOW, sync=True,
               regular=True)
    posix.rename(f"{path}.new", path)


def key_of(record: Block | Single | Use) -> str:
    return f"{record.space} {record.address if isinstance(record, Single) else record.cidr}"


class LocalStore:
    """See contract.Store. settings: {"path": folder}, and node_ttl."""

    name = "local"

    def __init__(self, settings: dict[str, Any]) -> None:
        self.folder: str = settings["path"]
        self.node_ttl: float = settings.get("node_ttl", NODE_TTL_S)

    def open(self) -> Document:
        return Document(self.folder, self.node_ttl)

    def grid(self, space: str, wanted: dict[str, int]) -> dict[str, int]:
        with self.open() as doc:
            grid: dict[str, int] = doc.data["grids"].setdefault(space, {})
            for family, prefix in wanted.items():
                if family not in grid:
                    grid[family] = prefix
                    doc.data["revision"] += 1
            return grid

    def history(self) -> tuple[str, int]:
        with self.open() as doc:
            if not doc.data["revision"]:
                doc.data["revision"] = 1            # so that the id is written
            return doc.data["id"], doc.data["revision"]

    # -- nodes ----------------------------------------------------------------------------------------

    def join(self, node: str, boot_id: str, address: str = "") -> Node:
        with self.open() as doc:
            before = doc.node(node)
            me = Node(node, before.epoch if before else 1, boot_id, address, ALIVE, time.time())
            return doc.put("nodes", node, me)

    def join_space(self, node: str, boot_id: str, space: str, wanted: dict[str, int], new: bool = False) -> Joined:
        return join_space(self, node, boot_id, space, wanted)

    def keep_alive(self, node: Node) -> Node:
        with self.open() as doc:
            doc.check_epoch(node)
            me = doc.node(node.name)
            assert me is not None
            me.seen, me.state = time.time(), ALIVE
            return doc.put("nodes", me.name, me)

    def nodes(self) -> list[Node]:
        with self.open() as doc:
            return [node for name in sorted(doc.data["nodes"]) if (node := doc.node(name))]

    def declare_dead(self, node: Node) -> Node:
        with self.open() as doc:
            now = doc.node(node.name)
            raised = now is not None and now.state == DEAD and now.epoch == node.epoch + 1      # by an earlier call
            if now is None or now.state == ALIVE or not (raised or now.epoch == node.epoch):
                raise Changed(f"node {node.name} has changed")
            if now.state != DEAD:
                now.epoch, now.state = now.epoch + 1, DEAD
                doc.put("nodes", now.name, now)
            for block in doc.all("blocks", node=now.name):
                if block.state == ACTIVE and block.epoch < now.epoch:
                    block.state = QUARANTINE
                    doc.put("blocks", key_of(block), block)
            return now

    def forget(self, node: Node) -> None:
        with self.open() as doc:
            now = doc.node(node.name)
            if now is None:
                return
            if now.state != DEAD:
                raise Changed(f"node {node.name} is not dead any more")
            singles = [one for one in doc.all("singles", node=now.name) if one.state != KEPT]
            for table, records in (("singles", singles), ("uses", doc.all("uses", node=now.name))):
                for record in records:
                    doc.drop(table, key_of(record))
            for block in doc.all("blocks", node=now.name):
                free_block(doc, block)
            doc.drop("nodes", now.name)

    def node_gone(self, node: str) -> bool:
        return False

    # -- blocks ---------------------------------------------------------------------------------------

    def blocks(self, space: str = "", node: str = "") -> list[Block]:
        with self.open() as doc:
            return doc.all("blocks", space, node)

    def claim(self, me: Node, wanted: Sequence[tuple[str, str]]) -> list[Block]:
        with self.open() as doc:
            doc.check_epoch(me)
            found = [(space, cidr, doc.get("blocks", f"{space} {cidr}")) for space, cidr in wanted]
            for _, _, block in found:
                if block and (block.node, block.epoch, block.state) != (me.name, me.epoch, ACTIVE):
                    raise Taken(block)
            return [block or doc.put("blocks", f"{space} {cidr}",
                                     Block(space, cidr, me.name, me.epoch, ACTIVE, time.time()))
                    for space, cidr, block in found]

    def adopt(self, me: Node, block: Block) -> Block:
        with self.open() as doc:
            doc.check_epoch(me)
            now = doc.get("blocks", key_of(block))
            if now is None or now.node != me.name:
                raise Changed(f"block {block.cidr} is not of node {me.name} any more")
            if (now.epoch, now.state) == (me.epoch, ACTIVE):
                return now
            now.epoch, now.state = me.epoch, ACTIVE
            return doc.put("blocks", key_of(now), now)

    def share(self, space: str, cidr: str) -> Block:
        with self.open() as doc:
            block = doc.get("blocks", f"{space} {cidr}")
            if block and block.state != SHARED:
                raise Taken(block)
            return block or doc.put("blocks", f"{space} {cidr}",
                                    Block(space, cidr, "", 0, SHARED, time.time()))

    def give_back(self, block: Block) -> bool:
        with self.open() as doc:
            key = key_of(block)
            if not doc.unchanged("blocks", key, block):
                return key not in doc.data["blocks"]
            if block.state == SHARED and singles_in(doc, block):
                return False
            free_block(doc, block)
            return True

    # -- single addresses -----------------------------------------------------------------------------

    def claim_single(self, me: Node, single: Single) -> Single:
        with self.open() as doc:
            doc.check_epoch(me)
            now = doc.get("singles", key_of(single))
            if now and now.state != REFUSED and not may_take_over(now, single):
                raise Taken(now)
            if now and now.container == single.container and single.state == ASKED and now.state != REFUSED:
                return now  # an earlier call has asked
            new = Single(*(getattr(single, name) for name in Single.__slots__[:-1]))
            new.node, new.epoch, new.reason = me.name, me.epoch, ""
            if now and now.state in (HELD, KEPT):
                new.state = HELD
            else:
                check_block(doc.get("blocks", f"{single.space} {single.block}"), me, single)
            return doc.put("singles", key_of(new), new)

    def change_single(self, single: Single, **fields: Any) -> Single:
        with self.open() as doc:
            if not doc.unchanged("singles", key_of(single), single):
                raise Changed(f"{single.address} has changed")
            now = doc.get("singles", key_of(single))
            for name, value in fields.items():
                setattr(now, name, value)
            return doc.put("singles", key_of(now), now)

    def release_single(self, single: Single) -> bool:
        with self.open() as doc:
            if not doc.unchanged("singles", key_of(single), single):
                return key_of(single) not in doc.data["singles"]
            doc.drop("singles", key_of(single))
            return True

    def single(self, space: str, address: str) -> Single | None:
        with self.open() as doc:
            return doc.get("singles", f"{space} {address}")

    def singles(self, space: str = "", node: str = "", pod: str = "") -> list[Single]:
        with self.open() as doc:
            return doc.all("singles", space, node, pod)

    # -- after the fact -------------------------------------------------------------------------------

    def write_uses(self, me: Node, uses: Sequence[Use]) -> None:
        with self.open() as doc:
            doc.check_epoch(me)
            for use in uses:
                block = doc.get("blocks", key_of(use))
                if block and block.node == me.name:
                    doc.put("uses", key_of(use), use)

    def uses(self, space: str = "") -> list[Use]:
        with self.open() as doc:
            return doc.all("uses", space)

    def watch(self, changed: Callable[[Event], object], stop: Callable[[], bool]) -> None:
        seen: dict[tuple[str, str], Any] = {}
        at = -1
        while not stop():
            try:
                data = read_document(self.folder)   # replaced by rename, so it is complete without the lock
            except OSError as e:
                raise Away(f"store {self.folder}: {e.strerror} (errno {e.errno})") from None
            if data["revision"] != at:
                at = data["revision"]
                now = {(table, key): one for table in ("nodes", "blocks", "singles")
                       for key, one in data[table].items()}
                for key, one in now.items():
                    if key not in seen or seen[key]["revision"] != one["revision"]:
                        changed(Event(KINDS[key[0]].from_dict(one, one["revision"]), False))
                for key, one in seen.items():
                    if key not in now:
                        changed(Event(KINDS[key[0]].from_dict(one, one["revision"]), True))
                seen = now
            waiting.readable(-1, POLL_S, waiting.LOCK)

    def close(self) -> None:
        """Nothing stays open between calls."""


def singles_in(doc: Document, block: Block) -> list[Single]:
    return [one for one in doc.all("singles", block.space) if one.block == block.cidr]


def free_block(doc: Document, block: Block) -> None:
    """Remove a block with its use. If Singles are left in it, it is SHARED instead."""
    doc.drop("uses", key_of(block))
    if singles_in(doc, block):
        block.node, block.epoch, block.state = "", 0, SHARED
        doc.put("blocks", key_of(block), block)
    else:
        doc.drop("blocks", key_of(block))
