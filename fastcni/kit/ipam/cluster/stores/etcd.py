"""Keep cluster-wide addresses in etcd v3. etcd_keys.py has the keys, etcd_nodes.py the nodes, clients/etcd.py the form
of requests.

Each method that decides the owner of an address sends one transaction, which compares the keys on which the decision
depends. Some methods read keys first; if a key has changed, they repeat the reads and the transaction:

    claim           value(epoch) = mine, no blk key yet         -> put blk, own     else: read the owner; one round trip
    adopt           value(epoch) = mine, blk is as read         -> put blk, own
    share           no blk key yet                              -> put blk
    give_back       blk is as read, no ip key in its range      -> delete blk, own, use; else put blk SHARED
    claim_address   value(epoch) = mine, blk and ip as read     -> put ip, pod
    change_ip_claim ip is as read                               -> put ip, pod
    forget          record as read (dead), each key as read     -> delete the node's keys, its record last
"""

from __future__ import annotations

import time

from fastcni.clients.etcd import MAX_BYTES, MAX_OPERATIONS, below, delete, exists, get, none_in, put, revision_is
from fastcni.kit.ipam.cluster import states
from fastcni.kit.ipam.cluster.contract import KEPT, SHARED, Block, Changed, IPClaim, Joined, Taken, Use, log_restored
from fastcni.kit.ipam.cluster.stores.etcd_keys import record_of, use_value, value_of
from fastcni.kit.ipam.cluster.stores.etcd_nodes import EtcdNodes, races, text
from fastcni.kit.ipam.cluster.stores.rules import claim_address, place
from fastcni.spec import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from fastcni.clients.etcd import Outcome, Pair
    from fastcni.kit.ipam.cluster.contract import Event, Node

CLAIM_BLOCKS = MAX_OPERATIONS // 2 - 1          # blocks in one transaction, with two puts each


class EtcdStore(EtcdNodes):
    """A store in etcd, see contract.Store. settings: see EtcdNodes."""

    name = "etcd"

    def grid(self, space: str, wanted: dict[str, int]) -> dict[str, int]:
        key, revision = self.keys.grid(space), 0
        seen: dict[str, int] = {}
        for _ in races(f"the grid of {space}"):
            grid: dict[str, int] = wanted | seen
            if revision and grid == seen:
                break
            outcome = self.etcd.txn([revision_is(key, revision)], [put(key, text(grid))], [get(key)])
            if outcome.done:
                break
            pair = outcome.answers[0][0] if outcome.answers[0] else None
            seen, revision = (json.read(pair.value.encode()), pair.revision) if pair else ({}, 0)
        return grid

    # -- nodes ----------------------------------------------------------------------------------------

    def join_space(self, node: str, boot_id: str, space: str, wanted: dict[str, int], new: bool = False) -> Joined:
        log = self.log()
        reads = [get(self.keys.grid(space)), get(*below(self.keys.own(node, space))),
                 get(*below(self.keys.ip_claim(space))), get(self.keys.log())]
        me, (grids, own, ip_claims, logs) = self._join(node, boot_id, "", reads, new)
        complete = ("etcd", logs[0].revision, int(logs[0].value) - logs[0].revision) if logs else None
        if complete is None and log is not None:
            self.etcd.txn([revision_is(self.keys.log(), 0)], [put(self.keys.log(), str(log[0]))])
        grid = json.read(grids[0].value.encode()) if grids else {}
        if not wanted.keys() <= grid.keys():
            grid = self.grid(space, wanted)
        found = [record_of(IPClaim, pair) for pair in ip_claims]
        return Joined(me, grid, self._indexed(Block, own, "blk"),
                      sorted((ip_claim for ip_claim in found if ip_claim.node == node), key=place), log,
                      restored=complete is not None and log_restored(complete, log))

    def declare_dead(self, node: Node) -> Node:
        for _ in races(f"node {node.name}"):
            found = self._node(node.name)
            dead = states.declare_dead(found, node)
            if dead is found or self._write_dead(found, dead):
                break
        for _ in races(f"blocks of node {node.name}"):
            changes = [(block, after) for block in self.blocks(node=dead.name)
                       if (after := states.expire(block, dead)) is not block]
            for block, after in changes:
                key = self.keys.block(block.space, block.cidr)
                self.etcd.txn([revision_is(key, block.revision)], [put(key, value_of(after))])
            if not changes:
                break
        return dead

    def forget(self, node: Node) -> None:
        for _ in races(f"node {node.name}"):
            now = self._node(node.name)
            if states.forget(now) is now:
                return
            dead = revision_is(self.keys.node(now.name, "record"), now.revision)
            ip_claims = [ip_claim for ip_claim in self.ip_claims(node=now.name) if ip_claim.state != KEPT]
            blocks = self.blocks(node=now.name)
            for ip_claim in ip_claims:
                self._drop_ip_claim(ip_claim, dead)
            for block in blocks:
                self._free_block(block, dead)
            if not ip_claims and not blocks:
                self.etcd.txn([dead], [delete(self.keys.node(now.name, "record"))])

    # -- blocks ---------------------------------------------------------------------------------------

    def blocks(self, space: str = "", node: str = "") -> list[Block]:
        if node:
            found = self._indexed(Block, self.etcd.read_range(*below(self.keys.own(node)))[0], "blk")
        else:
            found = self._all(Block, self.keys.block(space))
        return [block for block in found if space in ("", block.space) and node in ("", block.node)]

    def claim(self, me: Node, wanted: Sequence[tuple[str, str]]) -> list[Block]:
        if len(wanted) > CLAIM_BLOCKS:
            return self._claim_many(me, wanted)
        new = {self.keys.block(space, cidr): states.claim(states.free(space, cidr, now()), me)
               for space, cidr in wanted}
        mine: dict[str, Block] = {}
        for _ in races("blocks"):
            compare = [revision_is(key, mine[key].revision if key in mine else 0) for key in new]
            puts = [operation for key, block in new.items() if key not in mine for operation in self._put_block(block)]
            outcome = self.etcd.txn([self._epoch_is(me), *compare], puts, [self._get_epoch(me), *map(get, new)])
            if outcome.done:
                break
            self._check_epoch(me, outcome)
            mine = {key: states.claim(record_of(Block, answer[0]), me)
                    for key, answer in zip(new, outcome.answers[1:], strict=True) if answer}
        return [mine.get(key) or at_revision(block, outcome) for key, block in new.items()]

    def adopt(self, me: Node, block: Block) -> Block:
        key = self.keys.block(block.space, block.cidr)
        before = block
        for attempt in races(f"block {block.cidr}"):
            new = states.adopt(before, me)
            if new is before and attempt:
                return before                   # the block as etcd has it
            outcome = self.etcd.txn([self._epoch_is(me), is_as_seen(key, before)], self._put_block(new),
                                    [self._get_epoch(me), get(key)])
            if outcome.done:
                break
            self._check_epoch(me, outcome)
            before = block_of(outcome.answers[1], block.space, block.cidr)
        return at_revision(new, outcome)

    def share(self, space: str, cidr: str) -> Block:
        key, new = self.keys.block(space, cidr), states.share(states.free(space, cidr, now()))
        outcome = self.etcd.txn([revision_is(key, 0)], [put(key, value_of(new))], [get(key)])
        block: Block = at_revision(new, outcome) if outcome.done else record_of(Block, outcome.answers[0][0])
        return states.share(block)

    def give_back(self, block: Block) -> bool:
        left = self._free_block(block)
        # an earlier call may have made the block SHARED
        return left is None or (left is not block and left.state == SHARED != block.state)

    # -- IP claims -----------------------------------------------------------------------------

    def claim_address(self, me: Node, ip_claim: IPClaim) -> IPClaim:
        key = self.keys.ip_claim(ip_claim.space, ip_claim.address)
        block_key = self.keys.block(ip_claim.space, ip_claim.block)
        for _ in races(f"address {ip_claim.address}"):
            outcome = self.etcd.txn([], [self._get_epoch(me), get(block_key), get(key)])
            self._check_epoch(me, outcome)
            _, blocks, found = outcome.answers
            before = record_of(IPClaim, found[0]) if found else None
            new, needs_block = claim_address(before, me, ip_claim)
            if new is before:
                return new                      # an earlier call has asked for the address
            if needs_block:
                states.check_hold(block_of(blocks, ip_claim.space, ip_claim.block), me, ip_claim)
            compare = [self._epoch_is(me), revision_is(block_key, blocks[0].revision if blocks else 0),
                       revision_is(key, before.revision if before else 0)]
            outcome = self.etcd.txn(compare, self._put_ip_claim(new, before))
            if outcome.done:
                break
        return at_revision(new, outcome)

    def change_ip_claim(self, ip_claim: IPClaim, **fields: Any) -> IPClaim:
        key = self.keys.ip_claim(ip_claim.space, ip_claim.address)
        new: IPClaim = ip_claim.copy(**fields)
        outcome = self.etcd.txn([is_as_seen(key, ip_claim)], self._put_ip_claim(new, ip_claim), [get(key)])
        if outcome.done:
            return at_revision(new, outcome)
        left: IPClaim | None = record_of(IPClaim, outcome.answers[0][0]) if outcome.answers[0] else None
        if left is None or left != new:         # otherwise an earlier call has written the fields
            raise Changed(f"{ip_claim.address} has changed")
        return left

    def release_ip_claim(self, ip_claim: IPClaim) -> bool:
        outcome = self._drop_ip_claim(ip_claim)
        return outcome.done or not outcome.answers[0]

    def ip_claim(self, space: str, address: str) -> IPClaim | None:
        pair = self.etcd.read(self.keys.ip_claim(space, address))[0]
        return record_of(IPClaim, pair) if pair else None

    def ip_claims(self, space: str = "", node: str = "", pod: str = "") -> list[IPClaim]:
        if pod:
            found = self._indexed(IPClaim, self.etcd.read_range(*below(self.keys.pod(pod)))[0], "ip")
        else:
            found = self._all(IPClaim, self.keys.ip_claim(space))
        return [one for one in found
                if space in ("", one.space) and node in ("", one.node) and pod in ("", one.pod)]

    # -- records for people and tools -----------------------------------------------------------------

    def write_uses(self, me: Node, uses: Sequence[Use]) -> None:
        for left in batches([(use, use_value(use, MAX_BYTES)) for use in uses]):
            while left:
                own = [self.keys.own(me.name, use.space, use.cidr) for use, _ in left]
                outcome = self.etcd.txn([self._epoch_is(me), *map(exists, own)],
                                        [put(self.keys.use(use.space, use.cidr), value) for use, value in left],
                                        [self._get_epoch(me), *map(get, own)])
                if outcome.done:
                    break
                self._check_epoch(me, outcome)
                left = [each for each, answer in zip(left, outcome.answers[1:], strict=True) if answer]

    def uses(self, space: str = "") -> list[Use]:
        return self._all(Use, self.keys.use(space))

    def watch(self, changed: Callable[[Event], object], stop: Callable[[], bool]) -> None:
        self.watched.run(changed, stop)

    def close(self) -> None:
        self.etcd.close()

    # -- internal -------------------------------------------------------------------------------------

    def _all(self, kind: Any, prefix: str) -> list[Any]:
        """Return the records of all keys below a prefix, sorted by space and address."""
        return sorted((record_of(kind, pair) for pair in self.etcd.read_range(*below(prefix))[0]), key=place)

    def _indexed(self, kind: Any, pairs: Sequence[Pair], name: str) -> list[Any]:
        """Return the records that index keys of own/ or pod/ point to, sorted by space and address."""
        keys = [self.keys.indexed(pair.key, name) for pair in pairs]
        return sorted((record_of(kind, pair) for pair in self.etcd.read(*keys) if pair), key=place)

    def _put_block(self, block: Block) -> list[dict[str, Any]]:
        return [put(self.keys.block(block.space, block.cidr), value_of(block)),
                put(self.keys.own(block.node, block.space, block.cidr), "")]

    def _free_block(self, block: Block, *more: dict[str, Any]) -> Block | None:
        """Remove a block with its Use. If the block has IPClaims, a node's block becomes SHARED. Return None if the
        block was removed, else the remaining block: another object if it has changed, or if the comparisons `more`
        fail."""
        key = self.keys.block(block.space, block.cidr)
        rest = [delete(self.keys.use(block.space, block.cidr))]
        if block.node:
            rest.append(delete(self.keys.own(block.node, block.space, block.cidr)))
        empty = none_in(*self.keys.ip_claims_in(block.space, block.cidr))
        for _ in races(f"block {block.cidr}"):
            outcome = self.etcd.txn([is_as_seen(key, block), empty, *more], [delete(key), *rest], [get(key)])
            if outcome.done or not outcome.answers[0]:
                break
            left: Block = record_of(Block, outcome.answers[0][0])
            if left.revision != block.revision:
                return left
            shared = states.give_back(block, used=True)
            if shared is block:
                return block
            outcome = self.etcd.txn([is_as_seen(key, block), *more], [put(key, value_of(shared)), *rest])
            if outcome.done:
                break
            if more:
                return left
        return None

    def _put_ip_claim(self, new: IPClaim, before: IPClaim | None) -> list[dict[str, Any]]:
        puts = [put(self.keys.ip_claim(new.space, new.address), value_of(new))]
        if new.pod:
            puts.append(put(self.keys.pod(new.pod, new), ""))
        if before and before.pod not in ("", new.pod):
            puts.append(delete(self.keys.pod(before.pod, before)))
        return puts

    def _drop_ip_claim(self, ip_claim: IPClaim, *more: dict[str, Any]) -> Outcome:
        key = self.keys.ip_claim(ip_claim.space, ip_claim.address)
        drops = [delete(key)] + ([delete(self.keys.pod(ip_claim.pod, ip_claim))] if ip_claim.pod else [])
        return self.etcd.txn([is_as_seen(key, ip_claim), *more], drops, [get(key)])

    def _claim_many(self, me: Node, wanted: Sequence[tuple[str, str]]) -> list[Block]:
        """Do claim() by several transactions. If a later transaction finds a block taken, give back the blocks of the
        earlier transactions."""
        before, found = self.blocks(node=me.name), []
        try:
            for at in range(0, len(wanted), CLAIM_BLOCKS):
                found += self.claim(me, wanted[at:at + CLAIM_BLOCKS])
        except Taken:
            for block in found:
                if block not in before:
                    self.give_back(block)
            raise
        return found


def at_revision(record: Any, outcome: Outcome) -> Any:
    record.revision = outcome.revision
    return record


def block_of(pairs: Sequence[Pair], space: str, cidr: str) -> Block:
    """Return the block in the answer to a get()."""
    block: Block = record_of(Block, pairs[0]) if pairs else states.free(space, cidr)
    return block


def is_as_seen(key: str, record: Block | IPClaim) -> dict[str, Any]:
    """Return the comparison that etcd still has the record's revision. It fails for a record without a revision."""
    return revision_is(key, record.revision if isinstance(record.revision, int) else -1)


def batches(uses: list[tuple[Use, str]]) -> Iterator[list[tuple[Use, str]]]:
    """Yield (Use, value) pairs in lists that fit into one transaction each."""
    batch: list[tuple[Use, str]] = []
    size = 0
    for use, value in uses:
        if batch and (len(batch) == MAX_OPERATIONS - 1 or size + len(value) > MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((use, value))
        size += len(value)
    yield batch


def now() -> float:
    return round(time.time(), 3)
