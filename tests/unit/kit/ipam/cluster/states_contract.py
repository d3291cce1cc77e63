"""Tests of a store by the table in states.py: each event in each state, under each guard."""

import itertools

from fastcni.kit.ipam.cluster import states
from fastcni.kit.ipam.cluster.contract import (
    ACTIVE,
    ALIVE,
    ASKED,
    DEAD,
    HELD,
    LOST,
    QUARANTINE,
    SHARED,
    Changed,
    Fenced,
    IPClaim,
    Taken,
)

# how much lower the caller's epoch is than the record's
GROWN = {states.SAME: 0, states.RAISED: 1, states.OLDER: 2, states.NEWER: -1}
OF_NODES = {
    states.JOIN: lambda store, node: store.join(node.name, "boot"),
    states.HEARTBEAT: lambda store, node: store.keep_alive(node),
    states.DECLARE: lambda store, node: store.declare_dead(node),
    states.FORGET: lambda store, node: store.forget(node),
}
OF_BLOCKS = {
    states.CLAIM: lambda store, me, block: store.claim(me, [(block.space, block.cidr)]),
    states.ADOPT: lambda store, me, block: store.adopt(me, block),
    states.SHARE: lambda store, me, block: store.share(block.space, block.cidr),
    states.RETURN: lambda store, me, block: store.give_back(block),
    states.HOLD: lambda store, me, block: store.claim_address(me, address_in(block, HELD, "pod")),
    states.ASK: lambda store, me, block: store.claim_address(me, address_in(block, ASKED, "pod")),
}
EPOCHS = {states.OWN: ("a", 2), states.FORMER: ("a", 1), states.LATER: ("a", 3), states.OTHER: ("b", 1)}
RECORDS = [(states.FREE, ""), (SHARED, ""), *itertools.product((ACTIVE, QUARANTINE), EPOCHS)]


def address_in(block, state, container):
    address = block.cidr.replace(".0/26", ".7")
    return IPClaim("s", address, block.cidr, state, container=container, ifname="eth0", network="net", since=1.0)


def find_node(store, name):
    return next((node for node in store.nodes() if node.name == name), states.unknown(name))


def find_block(store, cidr):
    return next((block for block in store.blocks("s") if block.cidr == cidr), states.free("s", cidr))


def node_in(store, lose, name, state):
    """Bring a new node into a state. Return the store's record of the node."""
    if state != states.UNKNOWN:
        store.join(name, "boot")
    if state in (LOST, DEAD):
        lose(name)
    if state == DEAD:
        store.declare_dead(find_node(store, name))
    return find_node(store, name)


def with_epoch_2(store, lose, name):
    node_in(store, lose, name, DEAD)
    return store.join(name, "boot")


class StatesContract:
    """Tests of StoreContract that go through the table of states.py. They use the fixtures of StoreContract."""

    def test_each_event_of_a_node_changes_what_the_table_says_or_is_refused(self, store, lose):
        asked = list(itertools.product((states.UNKNOWN, ALIVE, LOST, DEAD), OF_NODES, GROWN))
        for number, (state, event, age) in enumerate(asked):
            before = node_in(store, lose, f"n{number}", state)
            guard = states.ANY if event in (states.JOIN, states.FORGET) else age
            wanted = states.after(before, event, guard)
            try:
                OF_NODES[event](store, before.copy(epoch=before.epoch - GROWN[age]))
                assert wanted, f"{event} of a node in {state}, {age}: not refused"
            except (Fenced, Changed):
                assert not wanted, f"{event} of a node in {state}, {age}: refused"
            now = find_node(store, before.name)
            assert now.state == (wanted or before).state, f"{event} of a node in {state}, {age}: now {now}"
            assert now.state == states.UNKNOWN or now.epoch == (wanted or before).epoch, f"{event}, {state}: {now}"

    def test_each_event_of_a_block_changes_what_the_table_says_or_is_refused(self, store, lose, put):
        me = with_epoch_2(store, lose, "a")
        store.join("b", "boot")
        asked = list(itertools.product(RECORDS, OF_BLOCKS, (states.EMPTY, states.USED)))
        for number, ((state, whose), event, use) in enumerate(asked):
            if use == states.USED and (event != states.RETURN or state == states.FREE):
                continue                        # only the event RETURN depends on addresses in the block
            what = f"{event} of a block in {state} {whose}, {use}"
            block = states.free("s", f"10.{number // 250}.{number % 250}.0/26", 1.0)
            if use == states.USED:
                store.share("s", block.cidr)
                store.claim_address(me, address_in(block, HELD, "other"))
            if state != states.FREE:
                node, epoch = EPOCHS.get(whose, ("", 0))
                put(block.copy(node=node, epoch=epoch, state=state))
            before = find_block(store, block.cidr)
            assert (before.state, states.whose(before, me)) == (state, whose), what
            wanted = states.after(before, event, use if event == states.RETURN else whose, me)
            try:
                done = OF_BLOCKS[event](store, me, before)
                assert wanted or (event == states.RETURN and done == (state == states.FREE)), f"{what}: not refused"
            except (Taken, Changed):
                assert not wanted, f"{what}: refused"
            now, wanted = find_block(store, block.cidr), wanted or before
            assert now.state == wanted.state, f"{what}: now {now}"
            assert now.state == states.FREE or (now.node, now.epoch) == (wanted.node, wanted.epoch), f"{what}: {now}"

    def test_each_block_of_a_dead_node_changes_as_the_table_says(self, store, lose, put):
        with_epoch_2(store, lose, "a")
        before = [states.free("s", f"10.{number}.0.0/26", 1.0).copy(node=node, epoch=epoch, state=state)
                  for number, (state, (node, epoch)) in enumerate(itertools.product(
                      (ACTIVE, QUARANTINE), (*EPOCHS.values(), ("a", 4))))]
        for block in before:
            put(block)
        put(states.free("s", "10.99.0.0/26", 1.0).copy(state=SHARED))
        assert find_node(store, "a").state == ALIVE
        lose("a")
        dead = store.declare_dead(find_node(store, "a"))
        assert dead.epoch == 3
        for block in before:
            wanted = states.after(block, states.EXPIRE, states.whose(block, dead)) or block
            now = find_block(store, block.cidr)
            assert (now.state, now.epoch) == (wanted.state, wanted.epoch), f"{block}: now {now}"
        assert find_block(store, "10.99.0.0/26").state == SHARED
