"""Changes of the Kubernetes store that take several requests, with each order in which two clients can send them."""

import time

import pytest
from cluster.kubernetes.interleaving import Actor, Stopped, explore, run

from fastcni.kit.ipam.cluster.contract import (
    ACTIVE,
    ASKED,
    DEAD,
    HELD,
    KEPT,
    NODE_TTL_S,
    QUARANTINE,
    SHARED,
    Changed,
    Fenced,
    IPClaim,
    Taken,
)
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.kit.ipam.cluster.stores.kubernetes_blocks import is_draining
from fastcni.kit.ipam.cluster.stores.kubernetes_objects import BASE, NODES, node_name, to_time

CIDR, CIDR2 = "10.0.0.64/26", "10.0.0.128/26"


def ip_claim(space, container, address="10.0.0.70", block=CIDR, state=HELD, pod="", sticky=False):
    return IPClaim(space, address, block, state, container=container, ifname="eth0", pod=pod, since=1.0, sticky=sticky)


@pytest.fixture
def third(kubernetes):
    store = open_store(kubernetes)
    yield store
    store.close()


def lose(store, node):
    store.api.patch(f"{BASE}/{NODES}/{node_name(node)}/status",
                    {"status": {"heartbeat": to_time(time.time() - NODE_TTL_S - 1)}})


def dead_node(store, name, space):
    """Return the node `name`, which was declared dead and has a block of the space."""
    me = store.join(name, "boot")
    store.claim(me, [(space, CIDR)])
    lose(store, name)
    return store.declare_dead(next(node for node in store.nodes() if node.name == name))


def test_a_claim_while_the_node_is_declared_dead_is_quarantined_or_undone(store, other, third):
    def story(number):
        name, space = f"n{number}", f"s{number}"
        me = third.join(name, "boot")
        third.claim(me, [(space, CIDR2)])
        lose(third, name)
        lost = next(node for node in third.nodes() if node.name == name)
        return [Actor("claim", store, lambda it: it.claim(me, [(space, "10.1.0.0/26"), (space, CIDR)])),
                Actor("declare", other, lambda it: it.declare_dead(lost))], check

    def check(claim, declare):
        assert declare.error is None and declare.result.state == DEAD
        space = f"s{declare.result.name[1:]}"
        states = {block.cidr: (block.state, block.epoch) for block in third.blocks(space)}
        assert set(states.values()) == {(QUARANTINE, 1)}
        if claim.error:
            assert isinstance(claim.error, Fenced) and claim.error.node.epoch == 2
        else:
            assert states.keys() == {CIDR, CIDR2, "10.1.0.0/26"}

    assert explore(story) > 20


def test_an_adopted_block_of_a_node_that_dies_again_is_quarantined(store, other, third):
    def story(number):
        name, space = f"n{number}", f"s{number}"
        dead_node(third, name, space)
        me = third.join(name, "boot 2")
        lose(third, name)
        lost = next(node for node in third.nodes() if node.name == name)
        (block,) = third.blocks(space)
        return [Actor("adopt", store, lambda it: it.adopt(me, block)),
                Actor("declare", other, lambda it: it.declare_dead(lost))], check

    def check(adopt, declare):
        assert declare.error is None and declare.result.epoch == 3
        (block,) = third.blocks(f"s{declare.result.name[1:]}")
        assert block.state == QUARANTINE
        assert adopt.error is None or isinstance(adopt.error, Fenced)

    assert explore(story) > 10


def test_a_node_that_comes_back_keeps_what_it_adopts_from_a_slow_declaration(store, other, third):
    def story(number):
        name, space = f"n{number}", f"s{number}"
        me = third.join(name, "boot")
        third.claim(me, [(space, CIDR)])
        lose(third, name)
        lost = next(node for node in third.nodes() if node.name == name)

        def come_back(it):
            me = it.join(name, "boot 2")
            return it.adopt(me, it.blocks(space)[0]), space

        return [Actor("declare", other, lambda it: it.declare_dead(lost)), Actor("come back", store, come_back)], check

    def check(declare, back):
        if declare.error:                       # the node returned before the declaration
            assert isinstance(declare.error, Changed)
        if back.error:                          # the node was declared dead after its return
            assert isinstance(back.error, Fenced)
        else:
            block, space = back.result
            if block.epoch == 2 or declare.error:
                assert third.blocks(space) == [block]
            else:
                assert [one.state for one in third.blocks(space)] == [QUARANTINE]

    assert explore(story, most_switches=1) > 8


@pytest.mark.parametrize("state", [HELD, ASKED])
def test_a_block_is_not_given_back_with_an_address_in_it(store, other, third, state):
    """HELD: the address is in a shared block. ASKED: it is in another node's block."""
    me, owner = third.join("me", "boot"), third.join("owner", "boot")

    def story(number):
        space = f"s{number}"
        block = third.share(space, CIDR) if state == HELD else third.claim(owner, [(space, CIDR)])[0]
        return [Actor("claim", store, lambda it: it.claim_address(me, ip_claim(space, "c", state=state))),
                Actor("give back", other, lambda it: (it.give_back(block), space))], check

    def check(claim, give_back):
        assert give_back.error is None
        gone, space = give_back.result
        blocks, ip_claims = third.blocks(space), third.ip_claims(space)
        assert [one.block for one in ip_claims] == ([] if claim.error else [CIDR])
        if claim.error:
            assert isinstance(claim.error, Changed | Taken) and gone
            assert [one.state for one in blocks] in ([], [SHARED])
        else:
            assert [one.state for one in blocks] == ([SHARED] if gone or state == HELD else [ACTIVE])
            assert not is_draining(third.get_block(space, CIDR))

    assert explore(story) > 20


def test_of_two_nodes_that_want_the_same_blocks_one_gets_all(store, other, third):
    a, b = third.join("a", "boot"), third.join("b", "boot")

    def story(number):
        space = f"s{number}"
        return [Actor("a", store, lambda it: it.claim(a, [(space, CIDR), (space, CIDR2)])),
                Actor("b", other, lambda it: it.claim(b, [(space, CIDR2), (space, CIDR)]))], check

    def check(first, second):
        winner, loser = (first, second) if second.error else (second, first)
        assert winner.error is None and isinstance(loser.error, Taken)
        assert {block.node for block in third.blocks(winner.result[0].space)} == {winner.name}
        assert len(third.blocks(winner.result[0].space)) == 2

    assert explore(story) >= 10


def test_an_address_is_held_by_one_of_two_claims(store, other, third):
    a, b = third.join("a", "boot"), third.join("b", "boot")

    def story(number):
        space = f"s{number}"
        third.share(space, CIDR)
        kept = third.claim_address(a, ip_claim(space, "old", pod="ns/p", sticky=True))
        third.change_ip_claim(kept, state=KEPT)
        return [Actor(me.name, client, lambda it, me=me: it.claim_address(
                    me, ip_claim(space, f"new-{me.name}", pod="ns/p", sticky=True)))
                for me, client in ((a, store), (b, other))], check

    def check(first, second):
        winner, loser = (first, second) if second.error else (second, first)
        assert winner.error is None and isinstance(loser.error, Taken)
        assert loser.error.by.container == winner.result.container
        assert third.ip_claims(winner.result.space) == [winner.result]

    assert explore(story) > 10


def test_a_block_is_shared_or_one_nodes(store, other, third):
    a, b = third.join("a", "boot"), third.join("b", "boot")

    def story(number):
        space = f"s{number}"
        left = third.share(space, CIDR)
        third.set_draining(third.get_block(space, CIDR), True)          # as a killed give_back() leaves the block
        assert third.blocks(space) == [left]
        return [Actor("share and claim", store, lambda it: (
                    it.share(space, CIDR), it.claim_address(a, ip_claim(space, "c")))),
                Actor("give back and claim", other, lambda it: (
                    it.give_back(left), it.claim(b, [(space, CIDR)])))], check

    def check(shared, claimed):
        space = (shared.result or claimed.result)[0 if shared.result else 1]
        space = space.space if shared.result else space[0].space
        (block,) = third.blocks(space)
        if claimed.error is None:
            assert block.state == ACTIVE and third.ip_claims(space) == []
            assert isinstance(shared.error, Taken | Changed)
        else:
            assert block.state == SHARED and isinstance(claimed.error, Taken)

    assert explore(story) > 20


def test_a_node_that_joins_while_it_is_forgotten_keeps_what_it_claims(store, other, third):
    def story(number):
        name, space = f"n{number}", f"s{number}"
        dead = dead_node(third, name, space)

        def come_back(it):
            me = it.join(name, "boot 2")
            adopted = []
            for block in it.blocks(space, name):
                try:
                    adopted.append(it.adopt(me, block))
                except Changed:         # the node was forgotten
                    continue
            return me, it.claim(me, [(space, CIDR2)]), space, adopted

        return [Actor("join", store, come_back), Actor("forget", other, lambda it: it.forget(dead))], check

    def check(join, forget):
        assert join.error is None
        me, (block,), space, adopted = join.result
        (now,) = [node for node in third.nodes() if node.name == me.name]
        assert (now.state, now.epoch) == ("alive", me.epoch)
        there = {one.cidr: one for one in third.blocks(space)}
        assert there.pop(CIDR2) == block
        assert list(there.values()) == adopted
        assert isinstance(forget.error, Changed) or not there

    assert explore(story, most_switches=1) > 10


def test_two_that_forget_a_node_remove_nothing_of_its_next_life(store, other, third, kubernetes):
    fourth = open_store(kubernetes)

    def story(number):
        name, space = f"n{number}", f"s{number}"
        dead = dead_node(fourth, name, space)

        def forget_and_come_back(it):
            it.forget(dead)
            me = it.join(name, "boot 2")
            return me, it.claim(me, [(space, CIDR)]), space

        return [Actor("forget and join", store, forget_and_come_back),
                Actor("forget", other, lambda it: it.forget(dead))], check

    def check(back, forget):
        assert forget.error is None or isinstance(forget.error, Changed)
        if isinstance(back.error, Taken):       # the other call had not removed the block yet
            return
        assert back.error is None
        me, (block,), space = back.result
        assert fourth.blocks(space) == [block] and fourth.keep_alive(me).epoch == me.epoch

    try:
        assert explore(story, most_switches=1) > 10
    finally:
        fourth.close()


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_a_claim_that_is_killed_at_any_request_can_be_repeated(store, other, after):
    me, b = other.join("a", "boot"), other.join("b", "boot")
    wanted = ["10.1.0.0/26", CIDR]
    for number in range(1, 10):
        space = f"s{number}"
        killed = Actor("killed", store, lambda it, space=space: it.claim(me, [(space, cidr) for cidr in wanted]),
                       crash=number, after=after)
        run([killed], [], 0)
        for block in other.blocks(space):
            with pytest.raises(Taken):
                other.claim(b, [(space, block.cidr)])
        assert [block.cidr for block in other.claim(me, [(space, cidr) for cidr in wanted])] == wanted
        if not isinstance(killed.error, Stopped):
            break
    assert number > 3


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_what_is_killed_at_any_request_is_done_by_the_next_call(store, other, after):
    """Kill declare_dead() and forget() at each request, for a node that has blocks, a claimed address and a kept
    address."""
    for number in range(1, 40):
        name, space = f"n{number}", f"s{number}"
        me = other.join(name, "boot")
        other.claim(me, [(space, CIDR), (space, CIDR2)])
        other.claim_address(me, ip_claim(space, "c"))
        kept = other.claim_address(me, ip_claim(space, "k", "10.0.0.130", CIDR2, pod="ns/p", sticky=True))
        other.change_ip_claim(kept, state=KEPT)
        lose(other, name)
        lost = next(node for node in other.nodes() if node.name == name)
        killed = Actor("killed", store, lambda it, lost=lost: it.forget(it.declare_dead(lost)), crash=number,
                       after=after)
        run([killed], [], 0)
        left = [node for node in other.nodes() if node.name == name]
        if left:
            other.forget(other.declare_dead(left[0]))
        assert name not in {node.name for node in other.nodes()}
        assert [(block.cidr, block.state) for block in other.blocks(space)] == [(CIDR2, SHARED)]
        assert [one.state for one in other.ip_claims(space)] == [KEPT]
        if not isinstance(killed.error, Stopped):
            break
    assert number > 10


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_a_give_back_that_is_killed_at_any_request_blocks_nobody(store, other, after):
    a = other.join("a", "boot")
    for number in range(1, 20):
        space = f"s{number}"
        block = other.share(space, CIDR)
        killed = Actor("killed", store, lambda it, block=block: it.give_back(block), crash=number, after=after)
        run([killed], [], 0)
        other.share(space, CIDR)
        assert other.claim_address(a, ip_claim(space, "c")).state == HELD
        assert not is_draining(other.get_block(space, CIDR))
        if not isinstance(killed.error, Stopped):
            break
    assert number > 3
