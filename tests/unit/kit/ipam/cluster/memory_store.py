"""A store in memory, for quick tests without files. It does only what the contract of stores requires.

`Memory` is the stored state with a clock. Each `MemoryStore` is one process's connection to a Memory.
"""

import copy
import ipaddress
import threading
import time
from collections.abc import Callable

from fastcni.kit.ipam.cluster import states
from fastcni.kit.ipam.cluster.contract import KEPT, NODE_TTL_S, SHARED, Changed, Event, log_restored
from fastcni.kit.ipam.cluster.stores import rules


class Memory:
    """The stored state. nodes: {name: Node}; blocks, ip_claims, uses: {(space, cidr or address): record}.

    now() is the store's clock in seconds. unrevised: the number of log entries whose changes did not increment
    `revision`. Callers get copies of the records."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.revision, self.unrevised, self.id, self.lock = now, 0, 1, "memory", threading.Lock()
        self.logged = None                      # the History that settle() recorded last
        self.grids, self.nodes, self.blocks, self.ip_claims, self.uses = {}, {}, {}, {}, {}

    def backup(self):
        return copy.deepcopy((self.revision, self.logged, self.grids, self.nodes, self.blocks, self.ip_claims,
                              self.uses))

    def restore(self, backup):
        (self.revision, self.logged, self.grids, self.nodes, self.blocks, self.ip_claims,
         self.uses) = copy.deepcopy(backup)
        self.unrevised = 1 - self.revision      # a restored etcd begins a new log

    def put(self, table, key, record):
        """Store a copy of a record with a new revision. Return another copy."""
        self.revision += 1
        table[key] = copy.copy(record)
        table[key].revision = self.revision
        return copy.copy(table[key])


class MemoryStore:
    name = "memory"

    def __init__(self, memory: Memory) -> None:
        self.memory, self.index = memory, 0

    def close(self):
        pass

    def grid(self, space, wanted):
        stored = self.memory.grids.setdefault(space, {})
        for family, prefix in wanted.items():
            stored.setdefault(family, prefix)
        return dict(stored)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def join(self, node, boot_id, address=""):
        record = states.join(self._node(node), boot_id, address, self.memory.now())
        return self.memory.put(self.memory.nodes, node, record)

    def join_space(self, node, boot_id, space, wanted, new=False):
        log, former = self.log(), self.memory.logged
        joined = rules.join_space(self, node, boot_id, space, wanted)
        if former is None:
            self.settle()
        joined.log, joined.restored = log, former is not None and log_restored(former, log)
        return joined

    def settle(self):
        self.memory.revision += 1
        self.memory.logged = "memory", self.memory.revision, self.index - self.memory.revision

    def keep_alive(self, node):
        return self.memory.put(self.memory.nodes, node.name, self._own(node).copy(seen=self.memory.now()))

    def nodes(self):
        return [self._node(name) for name in sorted(self.memory.nodes)]

    def _node(self, name):
        node = copy.copy(self.memory.nodes.get(name)) or states.unknown(name)
        return node if self.memory.now() - node.seen < NODE_TTL_S else states.silence(node)

    def _own(self, me):
        """Return a copy of the node's record. Raises Fenced or Changed if the node may not write."""
        return states.heartbeat(self._node(me.name), me)

    def declare_dead(self, node):
        found = self._node(node.name)
        dead = states.declare_dead(found, node)
        if dead is not found:
            dead = self.memory.put(self.memory.nodes, node.name, dead)
        for block in self.blocks(node=node.name):
            self._write(block, states.expire(block, dead))
        return dead

    def forget(self, node):
        found = self._node(node.name)
        if states.forget(found) is found:
            return
        del self.memory.nodes[node.name]
        for key in [key for key, one in self.memory.ip_claims.items() if one.node == node.name and one.state != KEPT]:
            del self.memory.ip_claims[key]
        for block in self.blocks(node=node.name):
            self._write(block, states.give_back(block, self._has_ip_claims(block)))

    def node_gone(self, node):
        return False

    def history(self):
        return self.memory.id, self.memory.revision, self.index - self.memory.revision

    def log(self):
        self.index = self.memory.revision + self.memory.unrevised
        return self.index, self.memory.revision

    # -- blocks --------------------------------------------------------------------------------------------------------

    def blocks(self, space="", node=""):
        return [copy.copy(block) for _, block in sorted(self.memory.blocks.items(), key=place)
                if space in ("", block.space) and node in ("", block.node)]

    def claim(self, me, wanted):
        with self.memory.lock:                  # in some tests of the contract, several threads claim at the same time
            self._own(me)
            found = [self._block(*key) for key in wanted]
            claimed = [states.claim(block, me) for block in found]
            return [self._write(*pair) for pair in zip(found, claimed, strict=True)]

    def _block(self, space, cidr):
        return copy.copy(self.memory.blocks.get((space, cidr))) or states.free(space, cidr, self.memory.now())

    def _write(self, before, block):
        """Write a block after an event. before: the block before the event."""
        key = block.space, block.cidr
        if before is block:
            return block
        if block.state in (states.FREE, SHARED):
            self.memory.uses.pop(key, None)
        if block.state != states.FREE:
            return self.memory.put(self.memory.blocks, key, block)
        del self.memory.blocks[key]
        self.memory.revision += 1
        return block

    def adopt(self, me, block):
        self._own(me)
        found = self._block(block.space, block.cidr)
        return self._write(found, states.adopt(found, me))

    def share(self, space, cidr):
        found = self._block(space, cidr)
        return self._write(found, states.share(found))

    def give_back(self, block):
        found = self._block(block.space, block.cidr)
        if found.state == states.FREE or found.revision != block.revision:
            return found.state == states.FREE
        return self._write(found, states.give_back(found, self._has_ip_claims(found))) is not found

    def _has_ip_claims(self, block):
        return any((one.space, one.block) == (block.space, block.cidr) for one in self.memory.ip_claims.values())

    # -- IP claims ----------------------------------------------------------------------------------------------------

    def claim_address(self, me, ip_claim):
        self._own(me)
        key = ip_claim.space, ip_claim.address
        found = self.ip_claim(*key)
        new, needs_block = rules.claim_address(found, me, ip_claim)
        if needs_block:
            states.check_hold(self._block(ip_claim.space, ip_claim.block), me, ip_claim)
        return found if new is found else self.memory.put(self.memory.ip_claims, key, new)

    def change_ip_claim(self, ip_claim, **fields):
        key = ip_claim.space, ip_claim.address
        found = self.memory.ip_claims.get(key)
        if found is None or found.revision != ip_claim.revision:
            raise Changed
        return self.memory.put(self.memory.ip_claims, key, found.copy(**fields))

    def release_ip_claim(self, ip_claim):
        key = ip_claim.space, ip_claim.address
        found = self.memory.ip_claims.get(key)
        if found is None or found.revision != ip_claim.revision:
            return found is None
        del self.memory.ip_claims[key]
        self.memory.revision += 1
        return True

    def ip_claim(self, space, address):
        return copy.copy(self.memory.ip_claims.get((space, address)))

    def ip_claims(self, space="", node="", pod=""):
        return [copy.copy(one) for _, one in sorted(self.memory.ip_claims.items(), key=place)
                if space in ("", one.space) and node in ("", one.node) and pod in ("", one.pod)]

    # -- records of ended pods ----------------------------------------------------------------------------------------

    def write_uses(self, me, uses):
        self._own(me)
        for use in uses:
            if self._block(use.space, use.cidr).node == me.name:
                self.memory.put(self.memory.uses, (use.space, use.cidr), use)

    def uses(self, space=""):
        return [copy.copy(use) for _, use in sorted(self.memory.uses.items(), key=place) if space in ("", use.space)]

    def watch(self, changed, stop):
        seen = {}
        while not stop():
            now = {key: record for table in (self.memory.nodes, self.memory.blocks, self.memory.ip_claims)
                   for key, record in list(table.items())}
            for key, record in now.items():
                if key not in seen or seen[key].revision != record.revision:
                    changed(Event(copy.copy(record), False))
            for key in set(seen) - set(now):
                changed(Event(copy.copy(seen[key]), True))
            seen = now
            time.sleep(0.01)


def place(item):
    """Return the sort key of a record: space, family and address."""
    (space, text), _ = item
    network = ipaddress.ip_network(text)
    return space, network.version, network


