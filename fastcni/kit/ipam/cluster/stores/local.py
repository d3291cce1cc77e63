"""Keep cluster-wide addresses in one file, for one node, or for several test nodes on one machine that share a
directory. Other machines must not use the directory, because the store relies on flock(2) and one clock.

    <path>/              0700
        lock             flock(2) LOCK_EX around every call
        store.json       {"id", "revision", "grids", "nodes", "blocks", "singles", "uses"}, replaced by rename(2)

Each call reads the file, and writes it if a record has changed. Each record has the revision of its last change.
"""

from __future__ import annotations

import posix
import time

from fastcni._system import read_file, unlock, write_file
from fastcni.clients.errors import Away
from fastcni.kernel import waiting
from fastcni.kit.call.files import open_lock
from fastcni.kit.ipam.cluster import states
from fastcni.kit.ipam.cluster.contract import KEPT, NODE_TTL_S, Block, Changed, Event, IPClaim, Joined, Node, Use
from fastcni.kit.ipam.cluster.stores.rules import claim_address, join_space, place
from fastcni.spec import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Any

    from fastcni.kit.ipam.cluster.contract import History

    Table = dict[str, dict[str, Any]]

MAX_BYTES = 256 << 20
LOCK_TIMEOUT_S = 5.0
POLL_S = 0.1                    # interval at which watch() reads the file
IP_CLAIMS = "singles"           # the key in store.json, which other versions of fastcni read
TABLES = ("grids", "nodes", "blocks", IP_CLAIMS, "uses")


class Document:
    """The file's content, locked inside `with`. After changed(), the end of `with` writes the file, unless an exception
    was raised."""

    __slots__ = ("data", "fd", "directory", "node_ttl", "old")

    def __init__(self, directory: str, node_ttl: float) -> None:
        self.directory, self.node_ttl, self.fd = directory, node_ttl, -1

    def __enter__(self) -> Document:
        try:
            self._lock()
            self.data = read_document(self.directory)
        except OSError as e:
            self._close()
            raise Away(f"store {self.directory}: {e.strerror} (errno {e.errno})") from None
        except BaseException:
            self._close()
            raise
        self.old = self.data["revision"]
        return self

    def _lock(self) -> None:
        self.fd = open_lock(f"{self.directory}/lock")
        if not waiting.lock(self.fd, LOCK_TIMEOUT_S):
            raise Away(f"store {self.directory}: its lock is not free within {LOCK_TIMEOUT_S:g} s")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            if kind is None and self.data["revision"] != self.old:
                write_document(self.directory, self.data)
        except OSError as e:
            raise Away(f"store {self.directory}: {e.strerror} (errno {e.errno})") from None
        finally:
            self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            unlock(self.fd)
            posix.close(self.fd)
            self.fd = -1

    # -- records --------------------------------------------------------------------------------------

    def put(self, table: str, key: str, record: Any) -> Any:
        """Write a record. Return the record with its new revision."""
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
        """Return the records of a table with these fields, sorted by space and address; "" matches any value."""
        found = [KINDS[table].from_dict(one, one["revision"]) for one in self.data[table].values()
                 if space in ("", one["space"]) and node in ("", one.get("node", ""))
                 and pod in ("", one.get("pod", ""))]
        return sorted(found, key=place)

    def node(self, name: str) -> Node:
        node: Node = self.get("nodes", name) or states.unknown(name)
        return node if time.time() - node.seen < self.node_ttl else states.silence(node)

    def block(self, space: str, cidr: str) -> Block:
        block: Block = self.get("blocks", f"{space} {cidr}") or states.free(space, cidr, time.time())
        return block

    def check_epoch(self, me: Node) -> Node:
        """Raise Fenced or Changed if the node may not write, see states.heartbeat()."""
        return states.heartbeat(self.node(me.name), me)

    def write(self, before: Block, block: Block) -> Block:
        """Write `block`, the result of an event on `before`."""
        if block.state == states.FREE:
            self.drop("blocks", key_of(block))
        elif block is not before:
            self.put("blocks", key_of(block), block)
        return block

    def unchanged(self, table: str, key: str, record: Any) -> bool:
        now = self.data[table].get(key)
        return now is not None and now["revision"] == record.revision


KINDS: dict[str, Any] = {"nodes": Node, "blocks": Block, IP_CLAIMS: IPClaim, "uses": Use}


def read_document(directory: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.read(read_file(f"{directory}/store.json", posix.O_RDONLY, MAX_BYTES, regular=True))
    except FileNotFoundError:
        return {"id": f"{time.time_ns():x}", "revision": 0} | {table: {} for table in TABLES}
    except json.JsonError as e:
        raise Away(f"store {directory}/store.json is damaged: {e}") from None
    return data


def write_document(directory: str, data: dict[str, Any]) -> None:
    path = f"{directory}/store.json"
    write_file(f"{path}.new", json.write(data), posix.O_CREAT | posix.O_TRUNC | posix.O_NOFOLLOW, sync=True,
               regular=True)
    posix.rename(f"{path}.new", path)


def key_of(record: Block | IPClaim | Use) -> str:
    return f"{record.space} {record.address if isinstance(record, IPClaim) else record.cidr}"


class LocalStore:
    """A store in one file, see contract.Store. settings: {"path": directory}, and node_ttl."""

    name = "local"

    def __init__(self, settings: dict[str, Any]) -> None:
        self.directory: str = settings["path"]
        self.node_ttl: float = settings.get("node_ttl", NODE_TTL_S)

    def open(self) -> Document:
        return Document(self.directory, self.node_ttl)

    def grid(self, space: str, wanted: dict[str, int]) -> dict[str, int]:
        with self.open() as doc:
            grid: dict[str, int] = doc.data["grids"].setdefault(space, {})
            for family, prefix in wanted.items():
                if family not in grid:
                    grid[family] = prefix
                    doc.data["revision"] += 1
            return grid

    def history(self) -> History:
        with self.open() as doc:
            if not doc.data["revision"]:
                doc.data["revision"] = 1            # write the store's new id
            return doc.data["id"], doc.data["revision"], 0

    def log(self) -> None:
        """Implement Store.log() of contract.py: the file has no log."""

    def settle(self) -> None:
        """Implement Store.settle() of contract.py: without a log, there is nothing to record."""

    # -- nodes ----------------------------------------------------------------------------------------

    def join(self, node: str, boot_id: str, address: str = "") -> Node:
        with self.open() as doc:
            return doc.put("nodes", node, states.join(doc.node(node), boot_id, address, time.time()))

    def join_space(self, node: str, boot_id: str, space: str, wanted: dict[str, int], new: bool = False) -> Joined:
        return join_space(self, node, boot_id, space, wanted)

    def keep_alive(self, node: Node) -> Node:
        with self.open() as doc:
            return doc.put("nodes", node.name, doc.check_epoch(node).copy(seen=time.time()))

    def nodes(self) -> list[Node]:
        with self.open() as doc:
            return [doc.node(name) for name in sorted(doc.data["nodes"])]

    def declare_dead(self, node: Node) -> Node:
        with self.open() as doc:
            found = doc.node(node.name)
            dead = states.declare_dead(found, node)
            if dead is not found:
                doc.put("nodes", dead.name, dead)
            for block in doc.all("blocks", node=dead.name):
                doc.write(block, states.expire(block, dead))
            return dead

    def forget(self, node: Node) -> None:
        with self.open() as doc:
            found = doc.node(node.name)
            if states.forget(found) is found:
                return
            ip_claims = [one for one in doc.all(IP_CLAIMS, node=node.name) if one.state != KEPT]
            for table, records in ((IP_CLAIMS, ip_claims), ("uses", doc.all("uses", node=node.name))):
                for record in records:
                    doc.drop(table, key_of(record))
            for block in doc.all("blocks", node=node.name):
                give_back(doc, block)
            doc.drop("nodes", node.name)

    def node_gone(self, node: str) -> bool:
        return False

    # -- blocks ---------------------------------------------------------------------------------------

    def blocks(self, space: str = "", node: str = "") -> list[Block]:
        with self.open() as doc:
            return doc.all("blocks", space, node)

    def claim(self, me: Node, wanted: Sequence[tuple[str, str]]) -> list[Block]:
        with self.open() as doc:
            doc.check_epoch(me)
            found = [doc.block(space, cidr) for space, cidr in wanted]
            return [doc.write(block, states.claim(block, me)) for block in found]

    def adopt(self, me: Node, block: Block) -> Block:
        with self.open() as doc:
            doc.check_epoch(me)
            now = doc.block(block.space, block.cidr)
            return doc.write(now, states.adopt(now, me))

    def share(self, space: str, cidr: str) -> Block:
        with self.open() as doc:
            block = doc.block(space, cidr)
            return doc.write(block, states.share(block))

    def give_back(self, block: Block) -> bool:
        with self.open() as doc:
            key = key_of(block)
            if not doc.unchanged("blocks", key, block):
                return key not in doc.data["blocks"]
            return give_back(doc, block)

    # -- IP claims -----------------------------------------------------------------------------

    def claim_address(self, me: Node, ip_claim: IPClaim) -> IPClaim:
        with self.open() as doc:
            doc.check_epoch(me)
            now = doc.get(IP_CLAIMS, key_of(ip_claim))
            new, needs_block = claim_address(now, me, ip_claim)
            if needs_block:
                states.check_hold(doc.block(ip_claim.space, ip_claim.block), me, ip_claim)
            return now if new is now else doc.put(IP_CLAIMS, key_of(new), new)

    def change_ip_claim(self, ip_claim: IPClaim, **fields: Any) -> IPClaim:
        with self.open() as doc:
            if not doc.unchanged(IP_CLAIMS, key_of(ip_claim), ip_claim):
                raise Changed(f"{ip_claim.address} has changed")
            return doc.put(IP_CLAIMS, key_of(ip_claim), doc.get(IP_CLAIMS, key_of(ip_claim)).copy(**fields))

    def release_ip_claim(self, ip_claim: IPClaim) -> bool:
        with self.open() as doc:
            if not doc.unchanged(IP_CLAIMS, key_of(ip_claim), ip_claim):
                return key_of(ip_claim) not in doc.data[IP_CLAIMS]
            doc.drop(IP_CLAIMS, key_of(ip_claim))
            return True

    def ip_claim(self, space: str, address: str) -> IPClaim | None:
        with self.open() as doc:
            return doc.get(IP_CLAIMS, f"{space} {address}")

    def ip_claims(self, space: str = "", node: str = "", pod: str = "") -> list[IPClaim]:
        with self.open() as doc:
            return doc.all(IP_CLAIMS, space, node, pod)

    # -- records for people and tools -----------------------------------------------------------------

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
                data = read_document(self.directory)   # rename(2) replaces the file, so the read needs no lock
            except OSError as e:
                raise Away(f"store {self.directory}: {e.strerror} (errno {e.errno})") from None
            if data["revision"] != at:
                at = data["revision"]
                now = {(table, key): one for table in ("nodes", "blocks", IP_CLAIMS)
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
        """Do nothing: no file stays open between calls."""


def give_back(doc: Document, block: Block) -> bool:
    """Remove a block or make it SHARED, see states.give_back(). Return whether the block has changed."""
    used = any(one.block == block.cidr for one in doc.all(IP_CLAIMS, block.space))
    after = states.give_back(block, used)
    if after is not block:
        doc.drop("uses", key_of(block))
    return doc.write(block, after) is not block
