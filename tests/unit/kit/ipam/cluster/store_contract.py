"""Tests of the contract of stores for cluster-wide addresses (kit/ipam/cluster/contract.py).

The tests of each store are a class TestX(StoreContract) with three fixtures. `store` is a new and empty store. `lose`
is a function after which a node's heartbeats have stopped for NODE_TTL_S. `put` is a function that writes a block
without a check. A class may override the fixture `other`, a second client of the same store.
"""

import threading

import pytest
from unit.kit.ipam.cluster.history_contract import HistoryContract
from unit.kit.ipam.cluster.states_contract import StatesContract

from fastcni.kit.ipam.cluster.claims import assert_block
from fastcni.kit.ipam.cluster.contract import (
    ACTIVE,
    ALIVE,
    ASKED,
    DEAD,
    HELD,
    KEPT,
    LOST,
    QUARANTINE,
    REFUSED,
    SHARED,
    Block,
    Changed,
    Fenced,
    IPClaim,
    Node,
    Taken,
    Use,
)

CIDR, CIDR2, CIDR6 = "10.0.0.64/26", "10.0.0.128/26", "fd00:9::40/122"


def ip_claim(address="10.0.0.70", block=CIDR, state=HELD, container="c1", **more):
    fields = {"space": "s", "ifname": "eth0", "pod": "", "network": "net", "since": 1.0, "sticky": False}
    return IPClaim(address=address, block=block, state=state, container=container, **fields | more)


class StoreContract(StatesContract, HistoryContract):
    @pytest.fixture
    def other(self, store):
        return store

    @pytest.fixture
    def a(self, store):
        return store.join("a", "boot-a", "192.0.2.1")

    @pytest.fixture
    def b(self, store):
        return store.join("b", "boot-b")

    # -- the grid -------------------------------------------------------------------------------------

    def test_the_first_user_of_a_space_decides_its_grid(self, store, other):
        assert store.grid("s", {"4": 26}) == {"4": 26}
        assert other.grid("s", {"4": 28, "6": 122}) == {"4": 26, "6": 122}
        assert store.grid("other", {"4": 28}) == {"4": 28}

    # -- nodes ----------------------------------------------------------------------------------------

    def test_a_node_joins_with_epoch_1_and_is_alive(self, store, other):
        me = store.join("a", "boot", "192.0.2.1")
        assert (me.name, me.epoch, me.boot_id, me.address, me.state) == ("a", 1, "boot", "192.0.2.1", ALIVE)
        (seen,) = other.nodes()
        assert (seen.name, seen.epoch, seen.state) == ("a", 1, ALIVE)

    def test_a_node_that_joins_again_keeps_its_epoch(self, store, a):
        assert store.join("a", "another boot").epoch == 1
        assert [(node.name, node.boot_id) for node in store.nodes()] == [("a", "another boot")]

    @pytest.mark.parametrize("new", [False, True])
    def test_a_node_that_joins_for_a_space_finds_what_it_has_there(self, store, other, a, b, new):
        """This also holds if the node assumes that the store does not know it (`new`)."""
        store.grid("s", {"4": 26})
        mine, _ = store.claim(a, [("s", CIDR), ("t", CIDR)])
        other.claim(b, [("s", CIDR2)])
        held = store.claim_address(a, ip_claim())
        other.claim_address(b, ip_claim("10.0.0.130", CIDR2))
        joined = store.join_space("a", "boot 2", "s", {"4": 28, "6": 122}, new)
        assert (joined.node.name, joined.node.epoch, joined.node.boot_id) == ("a", 1, "boot 2")
        assert joined.grid == {"4": 26, "6": 122} == other.grid("s", {})
        assert (joined.blocks, joined.ip_claims) == ([mine], [held])
        # the records have their revisions, so the store accepts these changes
        assert store.give_back(joined.blocks[0]) and store.release_ip_claim(joined.ip_claims[0])

    def test_a_new_node_that_joins_for_a_space_decides_its_grid(self, store):
        joined = store.join_space("a", "boot", "s", {"4": 26}, new=True)
        assert (joined.node.epoch, joined.grid, joined.blocks, joined.ip_claims) == (1, {"4": 26}, [], [])
        assert [(node.name, node.state) for node in store.nodes()] == [("a", ALIVE)]
        (block,) = store.claim(joined.node, [("s", "10.0.0.0/26")])
        assert store.blocks("s") == [block]

    def test_a_node_that_joins_for_a_space_has_the_epoch_to_which_it_was_raised(self, store, other, a, lose):
        lose("a")
        other.declare_dead(other.nodes()[0])
        joined = store.join_space("a", "boot 2", "s", {}, new=True)
        assert joined.node.epoch == 2
        with pytest.raises(Fenced):
            store.claim(a, [("s", "10.0.0.0/26")])

    def test_nodes_come_by_name(self, store):
        for name in ("c", "a", "b"):
            store.join(name, "boot")
        assert [node.name for node in store.nodes()] == ["a", "b", "c"]

    def test_a_node_without_a_sign_of_life_is_lost_until_it_gives_one(self, store, a, lose):
        lose("a")
        assert [node.state for node in store.nodes()] == [LOST]
        assert store.keep_alive(a).state == ALIVE
        assert [node.state for node in store.nodes()] == [ALIVE]

    def test_a_node_that_was_forgotten_cannot_keep_alive(self, store):
        with pytest.raises(Changed):
            store.keep_alive(Node("nobody", 1, "boot"))

    def test_a_live_node_cannot_be_declared_dead(self, store, a):
        with pytest.raises(Changed):
            store.declare_dead(a)

    def test_declaring_a_node_dead_raises_its_epoch_and_quarantines_its_blocks(self, store, other, a, lose):
        store.claim(a, [("s", CIDR), ("t", CIDR)])
        lose("a")
        (lost,) = other.nodes()
        dead = other.declare_dead(lost)
        assert (dead.epoch, dead.state) == (2, DEAD)
        assert {(one.node, one.epoch, one.state) for one in store.blocks()} == {("a", 1, QUARANTINE)}
        # the caller repeats declare_dead(), because the first answer was lost
        assert other.declare_dead(lost).epoch == 2
        assert other.declare_dead(dead).epoch == 2
        assert [node.state for node in store.nodes()] == [DEAD]

    def test_a_dead_node_cannot_write(self, store, a, lose):
        (block,) = store.claim(a, [("s", CIDR)])
        lose("a")
        store.declare_dead(store.nodes()[0])
        for write in (lambda: store.keep_alive(a), lambda: store.claim(a, [("s", CIDR2)]),
                      lambda: store.adopt(a, block), lambda: store.claim_address(a, ip_claim()),
                      lambda: store.write_uses(a, [Use("s", CIDR, "a", 1, "boot-a", [], 1.0)])):
            with pytest.raises(Fenced) as caught:
                write()
            assert caught.value.node.epoch == 2
        assert [one.cidr for one in store.blocks()] == [CIDR]

    def test_a_dead_node_comes_back_and_adopts_its_blocks(self, store, a, lose):
        store.claim(a, [("s", CIDR)])
        lose("a")
        store.declare_dead(store.nodes()[0])
        back = store.join("a", "boot 2")
        assert (back.epoch, back.state) == (2, ALIVE)
        assert store.blocks()[0].state == QUARANTINE
        block = store.adopt(back, store.blocks()[0])
        assert (block.node, block.epoch, block.state) == ("a", 2, ACTIVE)
        assert store.adopt(back, block) == block
        assert store.claim(back, [("s", CIDR)]) == [block]

    def test_a_block_that_is_active_with_an_old_epoch_is_adopted_before_it_is_used(self, store, a, lose, put):
        """declare_dead() first raises the epoch, then changes the node's blocks. If its process is killed in between,
        the blocks stay ACTIVE."""
        store.claim(a, [("s", CIDR)])
        lose("a")
        store.declare_dead(store.nodes()[0])
        back = store.join("a", "boot 2")
        put(store.blocks()[0].copy(state=ACTIVE))
        (seen,) = store.blocks()
        assert (seen.epoch, seen.state) == (1, ACTIVE)
        for use in (lambda: store.claim(back, [("s", CIDR)]), lambda: store.claim_address(back, ip_claim())):
            with pytest.raises(Taken):
                use()
        block = assert_block(store, back, "s", CIDR, seen)          # a node that joins calls assert_block(), too
        assert (block.node, block.epoch, block.state) == ("a", 2, ACTIVE)
        assert store.blocks() == [block] == store.claim(back, [("s", CIDR)])

    @pytest.mark.parametrize("state", [ACTIVE, QUARANTINE])
    def test_a_node_whose_record_was_deleted_adopts_its_blocks_of_any_epoch(self, store, a, put, state):
        """The node has joined again, and its epoch is 1."""
        for number, epoch in enumerate((1, 3)):
            block = Block("s", f"10.0.{number}.64/26", "a", epoch, state, 1.0)
            put(block)
            mine = store.adopt(a, next(one for one in store.blocks("s") if one.cidr == block.cidr))
            assert (mine.node, mine.epoch, mine.state) == ("a", 1, ACTIVE)
            assert store.claim(a, [("s", block.cidr)]) == [mine]

    def test_a_node_cannot_adopt_what_is_not_its_own(self, store, a, b):
        (block,) = store.claim(a, [("s", CIDR)])
        with pytest.raises(Changed):
            store.adopt(b, block)
        store.give_back(block)
        with pytest.raises(Changed):
            store.adopt(a, block)

    def test_only_a_dead_node_can_be_forgotten(self, store, a, lose):
        with pytest.raises(Changed):
            store.forget(a)
        lose("a")
        with pytest.raises(Changed):
            store.forget(store.nodes()[0])
        assert [node.name for node in store.nodes()] == ["a"]

    def test_forgetting_a_node_frees_all_but_what_is_kept_for_pods(self, store, a, b, lose):
        store.claim(a, [("s", CIDR), ("s", CIDR2)])
        store.claim_address(a, ip_claim(pod="ns/db-0", sticky=True))
        store.change_ip_claim(store.ip_claim("s", "10.0.0.70"), state=KEPT)
        store.claim_address(a, ip_claim("10.0.0.130", CIDR2))
        store.write_uses(a, [Use("s", CIDR2, "a", 1, "boot-a", [], 1.0)])
        lose("a")
        dead = store.declare_dead(store.nodes()[0])
        store.forget(dead)
        store.forget(dead)
        assert [node.name for node in store.nodes()] == ["b"]
        assert [(one.cidr, one.state, one.node) for one in store.blocks()] == [(CIDR, SHARED, "")]
        assert [(one.address, one.state) for one in store.ip_claims()] == [("10.0.0.70", KEPT)]
        assert store.uses() == []
        assert [one.cidr for one in store.claim(b, [("s", CIDR2)])] == [CIDR2]

    def test_a_store_of_its_own_knows_no_node_that_is_gone(self, store, a):
        assert store.node_gone("a") is False

    # -- blocks ---------------------------------------------------------------------------------------

    def test_a_claimed_block_is_one_nodes(self, store, other, a, b):
        (block,) = store.claim(a, [("s", CIDR)])
        assert (block.space, block.cidr, block.node, block.epoch, block.state) == ("s", CIDR, "a", 1, ACTIVE)
        assert block.since > 0
        with pytest.raises(Taken) as caught:
            other.claim(b, [("s", CIDR)])
        assert (caught.value.by.node, caught.value.by.cidr) == ("a", CIDR)
        assert other.blocks() == [block]

    def test_a_repeated_claim_gives_the_same_block(self, store, a):
        (block,) = store.claim(a, [("s", CIDR)])
        assert store.claim(a, [("s", CIDR)]) == [block]

    def test_the_same_block_of_another_space_is_another_block(self, store, a, b):
        store.claim(a, [("s", CIDR)])
        assert [one.node for one in store.claim(b, [("t", CIDR)])] == ["b"]

    def test_several_blocks_are_claimed_all_or_none(self, store, a, b):
        store.claim(a, [("s", CIDR)])
        with pytest.raises(Taken):
            store.claim(b, [("s", CIDR6), ("s", CIDR)])
        assert store.blocks(node="b") == []
        assert [one.cidr for one in store.claim(b, [("s", CIDR6), ("s", CIDR2)])] == [CIDR6, CIDR2]

    def test_blocks_come_by_space_and_address(self, store, a, b):
        store.claim(a, [("t", CIDR), ("s", "10.0.0.192/26"), ("s", CIDR), ("s", "9.0.0.0/26")])
        store.claim(b, [("s", CIDR2)])
        assert [one.cidr for one in store.blocks("s")] == ["9.0.0.0/26", CIDR, CIDR2, "10.0.0.192/26"]
        assert [(one.space, one.cidr) for one in store.blocks(node="b")] == [("s", CIDR2)]
        assert [(one.space, one.cidr) for one in store.blocks("t", "a")] == [("t", CIDR)]
        assert len(store.blocks()) == 5

    def test_many_nodes_that_want_one_block_get_it_once(self, store):
        """Six threads start at the same time. One thread gets the block."""
        nodes = [store.join(f"n{i}", "boot") for i in range(6)]
        start, won = threading.Barrier(len(nodes)), []

        def want(me):
            start.wait()
            try:
                won.append(store.claim(me, [("s", CIDR)])[0].node)
            except Taken as e:
                assert e.by.node

        threads = [threading.Thread(target=want, args=(me,)) for me in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1 and [one.node for one in store.blocks()] == won

    def test_a_block_that_is_given_back_is_free_with_its_use(self, store, a, b):
        (block,) = store.claim(a, [("s", CIDR)])
        store.write_uses(a, [Use("s", CIDR, "a", 1, "boot-a", [], 1.0)])
        assert store.give_back(block) is True
        assert store.blocks() == [] and store.uses() == []
        assert [one.node for one in store.claim(b, [("s", CIDR)])] == ["b"]

    def test_a_block_that_has_changed_is_not_given_back(self, store, a, b):
        (block,) = store.claim(a, [("s", CIDR)])
        store.give_back(block)
        store.claim(b, [("s", CIDR)])
        assert store.give_back(block) is False
        assert [one.node for one in store.blocks()] == ["b"]

    def test_a_shared_block_is_no_nodes(self, store, a, b):
        block = store.share("s", CIDR)
        assert (block.node, block.epoch, block.state) == ("", 0, SHARED)
        assert store.share("s", CIDR) == block
        with pytest.raises(Taken):
            store.claim(a, [("s", CIDR)])
        store.claim(a, [("s", CIDR2)])
        with pytest.raises(Taken) as caught:
            store.share("s", CIDR2)
        assert caught.value.by.node == "a"

    def test_a_shared_block_is_given_back_when_it_is_empty(self, store, a):
        block = store.share("s", CIDR)
        held = store.claim_address(a, ip_claim())
        assert store.give_back(store.blocks()[0]) is False
        store.release_ip_claim(held)
        (now,) = store.blocks()
        assert now == block and store.give_back(now) is True
        assert store.blocks() == []

    def test_a_nodes_block_with_kept_addresses_becomes_shared(self, store, a):
        store.claim(a, [("s", CIDR)])
        store.claim_address(a, ip_claim(pod="ns/db-0", sticky=True))
        store.change_ip_claim(store.ip_claim("s", "10.0.0.70"), state=KEPT)
        assert store.give_back(store.blocks()[0]) is True
        assert [(one.cidr, one.state, one.node) for one in store.blocks()] == [(CIDR, SHARED, "")]
        assert [one.address for one in store.ip_claims()] == ["10.0.0.70"]

    # -- IP claims -----------------------------------------------------------------------------

    def test_an_address_of_a_shared_block_is_claimed_once(self, store, other, a, b):
        store.share("s", CIDR)
        mine = store.claim_address(a, ip_claim(pod="ns/p", sticky=True))
        assert (mine.node, mine.epoch, mine.state, mine.container, mine.pod) == ("a", 1, HELD, "c1", "ns/p")
        with pytest.raises(Taken) as caught:
            other.claim_address(b, ip_claim(container="c2"))
        assert (caught.value.by.node, caught.value.by.container, caught.value.by.since) == ("a", "c1", 1.0)
        assert store.claim_address(a, ip_claim(pod="ns/p", sticky=True)) == mine
        assert other.ip_claim("s", "10.0.0.70") == mine
        assert other.ip_claim("s", "10.0.0.71") is None and other.ip_claim("t", "10.0.0.70") is None

    def test_an_address_needs_a_block(self, store, a):
        with pytest.raises(Changed):
            store.claim_address(a, ip_claim())

    def test_only_the_owner_of_a_block_claims_an_address_in_it(self, store, a, b):
        store.claim(a, [("s", CIDR)])
        assert store.claim_address(a, ip_claim()).state == HELD
        with pytest.raises(Taken) as caught:
            store.claim_address(b, ip_claim("10.0.0.71"))
        assert isinstance(caught.value.by, Block) and caught.value.by.node == "a"

    def test_another_node_asks_the_owner_of_a_block(self, store, a, b):
        store.claim(a, [("s", CIDR)])
        asked = store.claim_address(b, ip_claim(state=ASKED))
        assert (asked.node, asked.state) == ("b", ASKED)
        assert store.claim_address(b, ip_claim(state=ASKED)) == asked
        given = store.change_ip_claim(asked, state=HELD)
        assert store.ip_claim("s", "10.0.0.70") == given
        assert store.claim_address(b, ip_claim(state=ASKED)).state == HELD
        with pytest.raises(Changed):
            store.change_ip_claim(asked, state=REFUSED, reason="too late")

    def test_nobody_is_asked_for_an_address_of_a_shared_or_own_block(self, store, a):
        store.claim(a, [("s", CIDR)])
        store.share("s", CIDR2)
        for address, block in (("10.0.0.70", CIDR), ("10.0.0.130", CIDR2)):
            with pytest.raises(Taken):
                store.claim_address(a, ip_claim(address, block, ASKED))

    def test_a_refused_address_can_be_asked_for_again(self, store, a, b):
        store.claim(a, [("s", CIDR)])
        store.change_ip_claim(store.claim_address(b, ip_claim(state=ASKED)), state=REFUSED, reason="pod ns/p has it")
        assert store.ip_claim("s", "10.0.0.70").reason == "pod ns/p has it"
        again = store.claim_address(b, ip_claim(state=ASKED, container="c2"))
        assert (again.state, again.container, again.reason) == (ASKED, "c2", "")

    def test_a_kept_address_is_taken_over_by_its_pod_on_another_node(self, store, a, b):
        store.claim(a, [("s", CIDR)])
        store.claim_address(a, ip_claim(pod="ns/db-0", sticky=True))
        with pytest.raises(Taken):
            store.claim_address(b, ip_claim(container="c2", pod="ns/db-0", sticky=True))
        store.change_ip_claim(store.ip_claim("s", "10.0.0.70"), state=KEPT)
        with pytest.raises(Taken):
            store.claim_address(b, ip_claim(container="c3", pod="ns/db-1"))
        with pytest.raises(Taken):
            store.claim_address(a, ip_claim(container="c3"))
        mine = store.claim_address(b, ip_claim(container="c2", pod="ns/db-0", sticky=True))
        assert (mine.node, mine.state, mine.container) == ("b", HELD, "c2")
        assert store.ip_claims(node="b") == [mine] == store.ip_claims(pod="ns/db-0")

    def test_ip_claims_come_by_space_and_address(self, store, a, b):
        store.share("s", CIDR)
        store.share("t", CIDR)
        for space, address, me in (("t", "10.0.0.70", a), ("s", "10.0.0.100", b), ("s", "10.0.0.70", a)):
            store.claim_address(me, ip_claim(address, space=space, container=f"{space}{address}"))
        assert [(one.space, one.address) for one in store.ip_claims()] == [
            ("s", "10.0.0.70"), ("s", "10.0.0.100"), ("t", "10.0.0.70")]
        assert [one.address for one in store.ip_claims("s")] == ["10.0.0.70", "10.0.0.100"]
        assert [one.space for one in store.ip_claims(node="a")] == ["s", "t"]

    def test_only_what_was_seen_is_released(self, store, a):
        store.share("s", CIDR)
        old = store.claim_address(a, ip_claim())
        new = store.change_ip_claim(old, container="c2")
        assert store.release_ip_claim(old) is False
        assert store.ip_claim("s", "10.0.0.70") == new
        assert store.release_ip_claim(new) is True
        assert store.ip_claims() == []

    # -- records of ended pods ----------------------------------------------------------------------------------------

    def test_uses_are_written_for_own_blocks_only(self, store, other, a, b):
        store.claim(a, [("s", CIDR), ("t", CIDR)])
        holders = [{"address": "10.0.0.70", "container": "c1", "ifname": "eth0", "pod": "ns/p", "network": "net",
                    "since": 1.5}]
        mine = Use("s", CIDR, "a", 1, "boot-a", holders, 2.5)
        store.write_uses(a, [mine, Use("t", CIDR, "a", 1, "boot-a", [], 2.5)])
        store.write_uses(b, [Use("s", CIDR, "b", 1, "boot-b", [], 3.5)])
        assert other.uses("s") == [mine]
        assert [one.space for one in other.uses()] == ["s", "t"]

    def test_many_uses_are_written_at_once(self, store, a):
        cidrs = [f"10.{i}.0.0/26" for i in range(150)]
        for i in range(0, 150, 50):
            store.claim(a, [("s", cidr) for cidr in cidrs[i:i + 50]])
        store.write_uses(a, [Use("s", cidr, "a", 1, "boot-a", [], 1.0) for cidr in cidrs])
        assert len(store.uses("s")) == 150

    def test_a_watch_tells_what_is_there_and_what_changes(self, store, other, a):
        store.claim(a, [("s", CIDR)])
        came, first, second, done = [], threading.Event(), threading.Event(), threading.Event()

        def changed(event):
            came.append(event)
            if isinstance(event.record, Block):
                (second if event.gone else first).set()

        watcher = threading.Thread(target=other.watch, args=(changed, done.is_set))
        watcher.start()
        try:
            assert first.wait(20)
            store.give_back(store.blocks()[0])
            assert second.wait(20)
        finally:
            done.set()
            watcher.join(20)
        assert not watcher.is_alive()
        blocks = [(event.record.cidr, bool(event.gone)) for event in came if isinstance(event.record, Block)]
        assert blocks[0] == (CIDR, False) and blocks[-1] == (CIDR, True)
        assert any(isinstance(event.record, Node) and event.record.name == "a" for event in came)

    def test_a_closed_store_can_be_used_again(self, store, a):
        store.close()
        assert [node.name for node in store.nodes()] == ["a"]
