"""A store in memory, as the contract has it and nothing more: the reference for tests, quick and without files.

`Memory` is the stored state, with a clock. Each `MemoryStore` is the connection of one process to it.
"""

import copy
import ipaddress
import threading
import time
from collections.abc import Callable

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
    Node,
    Single,
    Taken,
)
from fastcni.kit.ipam.cluster.stores import rules


class Memory:
    """The stored state. nodes: {name: Node}; blocks, singles, uses: {(space, cidr or address): record}.

    now() is the store's clock in seconds. A record in here is never given out: callers get copies."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.revision, self.id, self.lock = now, 0, "memory", threading.Lock()
        self.grids, self.nodes, self.blocks, self.singles, self.uses = {}, {}, {}, {}, {}

    def backup(self):
        return copy.deepcopy((self.revision, self.grids, self.nodes, self.blocks, self.singles, self.uses))

    def restore(self, backup):
        self.revision, self.grids, self.nodes, self.blocks, self.singles, self.uses = copy.deepcopy(backup)

    def put(self, table, key, record):
        """Store a copy of the record with a new revision. Return another copy."""
        self.revision += 1
        table[key] = copy.copy(record)
        table[key].revision = self.revision
        return copy.copy(table[key])


class MemoryStore:
    name = "memory"

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def close(self):
        pass

    def grid(self, space, wanted):
        stored = self.memory.grids.setdefault(space, {})
        for family, prefix in wanted.items():
            stored.setdefault(family, prefix)
        return dict(stored)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def join(self, node, boot_id, address=""):
        found = self.memory.nodes.get(node)
        record = Node(name=node, epoch=found.epoch if found else 1, boot_id=boot_id, address=address, state=ALIVE,
                      seen=self.memory.now())
        return self.memory.put(self.memory.nodes, node, record)

    def join_space(self, node, boot_id, space, wanted, new=False):
        return rules.join_space(self, node, boot_id, space, wanted)

    def keep_alive(self, node):
        found = self._own(node)
        found.seen, found.state = self.memory.now(), ALIVE
        return self.memory.put(self.memory.nodes, node.name, found)

    def nodes(self):
        return [self._seen(node) for _, node in sorted(self.memory.nodes.items())]

    def _seen(self, node):
        node = copy.copy(node)
        if node.state != DEAD:
            node.state = ALIVE if self.memory.now() - node.seen < NODE_TTL_S else LOST
        return node

    def _own(self, me):
        """The node's record as a copy, if it may write."""
        found = self.memory.nodes.get(me.name)
        if found is None:
            raise Changed
        if found.epoch > me.epoch:
            raise Fenced(self._seen(found))
        return copy.copy(found)

    def declare_dead(self, node):
        found = self.memory.nodes.get(node.name)
        repeated = found is not None and (found.state, found.epoch) == (DEAD, node.epoch + 1)
        if found is None or not (repeated or found.epoch == node.epoch) or self._seen(found).state == ALIVE:
            raise Changed
        if found.state != DEAD:
            record = copy.copy(found)
            record.state, record.epoch = DEAD, record.epoch + 1
            found = self.memory.put(self.memory.nodes, node.name, record)
        for key, block in list(self.memory.blocks.items()):
            if block.node == node.name and block.state == ACTIVE:
                changed = copy.copy(block)
                changed.state = QUARANTINE
                self.memory.put(self.memory.blocks, key, changed)
        return copy.copy(found)

    def forget(self, node):
        found = self.memory.nodes.get(node.name)
        if found is None:
            return
        if found.state != DEAD:
            raise Changed
        del self.memory.nodes[node.name]
        for key in [key for key, one in self.memory.singles.items() if one.node == node.name and one.state != KEPT]:
            del self.memory.singles[key]
        for key in [key for key, one in self.memory.blocks.items() if one.node == node.name]:
            self._free(key)

    def node_gone(self, node):
        return False

    def history(self):
        return self.memory.id, self.memory.revision

    # -- blocks --------------------------------------------------------------------------------------------------------

    def blocks(self, space="", node=""):
        return [copy.copy(block) for _, block in sorted(self.memory.blocks.items(), key=place)
                if space in ("", block.space) and node in ("", block.node)]

    def claim(self, me, wanted):
        with self.memory.lock:                  # threads of the contract's tests claim at once
            self._own(me)
            for key in wanted:
                found = self.memory.blocks.get(tuple(key))
                if found and not is_of(found, me):
                    raise Taken(copy.copy(found))
            return [self._claimed(me, tuple(key)) for key in wanted]

    def _claimed(self, me, key):
        if key in self.memory.blocks:
            return copy.copy(self.memory.blocks[key])
        block = Block(space=key[0], cidr=key[1], node=me.name, epoch=me.epoch, state=ACTIVE, since=self.memory.now())
        return self.memory.put(self.memory.blocks, key, block)

    def adopt(self, me, block):
        self._own(me)
        found = self.memory.blocks.get((block.space, block.cidr))
        if found is None or found.node != me.name or found.epoch > me.epoch:
            raise Changed
        if is_of(found, me):
            return copy.copy(found)
        adopted = copy.copy(found)
        adopted.state, adopted.epoch = ACTIVE, me.epoch
        return self.memory.put(self.memory.blocks, (block.space, block.cidr), adopted)

    def _shared(self, space, cidr):
        block = Block(space=space, cidr=cidr, node="", epoch=0, state=SHARED, since=self.memory.now())
        self.memory.revision += 1
        block.revision = self.memory.revision
        return block

    def share(self, space, cidr):
        found = self.memory.blocks.setdefault((space, cidr), self._shared(space, cidr))
        if found.state != SHARED:
            raise Taken(copy.copy(found))
        return copy.copy(found)

    def give_back(self, block):
        key = block.space, block.cidr
        found = self.memory.blocks.get(key)
        if found is None or found.revision != block.revision:
            return found is None
        if found.state == SHARED and self._has_singles(key):
            return False
        self._free(key)
        return True

    def _has_singles(self, key):
        return any((one.space, one.block) == key for one in self.memory.singles.values())

    def _free(self, key):
        """Remove a block with its use. With singles in it, it is SHARED instead."""
        del self.memory.blocks[key]
        self.memory.uses.pop(key, None)
        self.memory.revision += 1
        if self._has_singles(key):
            self.memory.blocks[key] = self._shared(*key)

    # -- singles -------------------------------------------------------------------------------------------------------

    def claim_single(self, me, single):
        self._own(me)
        key = single.space, single.address
        found = self.memory.singles.get(key)
        if found is not None and found.state != REFUSED:
            if not may_replace(found, single):
                raise Taken(copy.copy(found))
            if found.state == single.state == ASKED:
                return copy.copy(found)
        record = copy.copy(single)
        record.node, record.epoch, record.reason = me.name, me.epoch, ""
        if found is not None and found.state in (HELD, KEPT):
            record.state = HELD
        else:
            self._check_block(me, single)
        return self.memory.put(self.memory.singles, key, record)

    def _check_block(self, me, single):
        block = self.memory.blocks.get((single.space, single.block))
        if block is None:
            raise Changed
        own = is_of(block, me)
        if not (block.state == ACTIVE and not own if single.state == ASKED else own or block.state == SHARED):
            raise Taken(copy.copy(block))

    def change_single(self, single, **fields):
        key = single.space, single.address
        found = self.memory.singles.get(key)
        if found is None or found.revision != single.revision:
            raise Changed
        changed = copy.copy(found)
        for name, value in fields.items():
            setattr(changed, name, value)
        return self.memory.put(self.memory.singles, key, changed)

    def release_single(self, single):
        key = single.space, single.address
        found = self.memory.singles.get(key)
        if found is None or found.revision != single.revision:
            return found is None
        del self.memory.singles[key]
        self.memory.revision += 1
        return True

    def single(self, space, address):
        return copy.copy(self.memory.singles.get((space, address)))

    def singles(self, space="", node="", pod=""):
        return [copy.copy(one) for _, one in sorted(self.memory.singles.items(), key=place)
                if space in ("", one.space) and node in ("", one.node) and pod in ("", one.pod)]

    # -- after the fact ------------------------------------------------------------------------------------------------

    def write_uses(self, me, uses):
        self._own(me)
        for use in uses:
            block = self.memory.blocks.get((use.space, use.cidr))
            if block and is_of(block, me):
                self.memory.put(self.memory.uses, (use.space, use.cidr), use)

    def uses(self, space=""):
        return [copy.copy(use) for _, use in sorted(self.memory.uses.items(), key=place) if space in ("", use.space)]

    def watch(self, changed, stop):
        seen = {}
        while not stop():
            now = {key: record for table in (self.memory.nodes, self.memory.blocks, self.memory.singles)
                   for key, record in list(table.items())}
            for key, record in now.items():
                if key not in seen or seen[key].revision != record.revision:
                    changed(Event(copy.copy(record), False))
            for key in set(seen) - set(now):
                changed(Event(copy.copy(seen[key]), True))
            seen = now
            time.sleep(0.01)


def is_of(block: Block, me: Node) -> bool:
    """Return whether it is an active block of this node in its present epoch."""
    return block.state == ACTIVE and block.node == me.name and block.epoch == me.epoch


def may_replace(found: Single, single: Single) -> bool:
    """Return whether it is the attachment's own, or kept for its pod."""
    if found.state == KEPT:
        return bool(found.pod) and found.pod == single.pod
    return (found.container, found.ifname) == (single.container, single.ifname)


def place(item):
    """The order of records: by space, family and address."""
    (space, text), _ = item
    network = ipaddress.ip_network(text)
    return space, network.version, network


