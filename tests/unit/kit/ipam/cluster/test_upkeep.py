"""Functions by which the server maintains an address space of its node."""

import ipaddress
import threading

import pytest
from unit.kit.ipam.cluster.node import Node, pod

from fastcni.clients.errors import Away
from fastcni.kit.ipam.cluster import claims, conf, upkeep
from fastcni.kit.ipam.cluster.contract import ASKED, HELD, REFUSED, IPClaim
from fastcni.kit.ipam.cluster.grid import block_of
from fastcni.kit.ipam.cluster.node_state import Space, state_of
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.spec import address

NET = {"range": "10.0.0.0/24"}          # blocks of 16 addresses


@pytest.fixture
def a(tmp_path):
    return Node(tmp_path, "a")


@pytest.fixture
def b(tmp_path):
    return Node(tmp_path, "b")


@pytest.fixture
def store(a):
    return open_store(a.store)


def keys_of(node, ipam=NET):
    return conf.keys_for(node.request("ADD", ipam))


def own_blocks(keys):
    """Return the cidrs of the blocks that the node has, by its own files."""
    return set(state_of(keys, print).blocks)


def fill(node, count, ipam=NET, start=0):
    return [node.add(ipam, f"p{i}")[0] for i in range(start, start + count)]


def test_a_block_is_claimed_ahead_below_a_quarter(a, store):
    keys = keys_of(a)
    assert upkeep.claim_ahead(store, keys, a.warnings.append) == []     # no pod uses the space
    fill(a, 11)
    assert upkeep.claim_ahead(store, keys, a.warnings.append) == []
    fill(a, 1, start=11)
    (cidr,) = upkeep.claim_ahead(store, keys, a.warnings.append)
    assert upkeep.claim_ahead(store, keys, a.warnings.append) == []
    assert {block.cidr for block in store.blocks(node="a")} == own_blocks(keys)
    assert cidr in own_blocks(keys)


def test_the_room_of_a_range_is_what_it_may_give(a):
    fill(a, 3)
    ((one, size, free),) = upkeep.room(keys_of(a), print)
    assert (str(one), size - free) == ("10.0.0.0/24", 3)
    with Space(keys_of(a), print) as space:
        assert [upkeep.held_in(space, own) for own in space.state.blocks.values()] == [3]


def test_idle_blocks_are_given_back_but_two(a, b, store):
    keys = keys_of(a)
    fill(a, 50)
    for i in range(50):
        a.delete(NET, f"p{i}")
    assert len(own_blocks(keys)) == 4
    assert upkeep.give_back_idle(store, keys, print, 600) == []
    gone = upkeep.give_back_idle(store, keys, print, 0)
    assert len(gone) == 2 and len(store.blocks(node="a")) == 2
    assert own_blocks(keys) == {block.cidr for block in store.blocks()}
    assert not set(gone) & {block.cidr for block in store.blocks()}
    fill(a, 40)                             # ADDs use the released addresses' places in the table again


def test_the_blocks_that_were_empty_longest_are_given_back(a, store, monkeypatch):
    keys = keys_of(a)
    fill(a, 50)
    for i in range(50):
        a.delete(NET, f"p{i}")
    blocks = sorted(own_blocks(keys))
    seconds = dict(zip(blocks, (30.0, 10.0, 40.0, 20.0), strict=True))
    monkeypatch.setattr(upkeep, "empty_for", lambda space, own: seconds[own.cidr])
    assert upkeep.give_back_idle(store, keys, print, 0) == [blocks[0], blocks[2]]


def test_a_full_range_stops_no_claim_ahead_for_another_range(a, store):
    both = {"ipRanges": [{"range": "10.0.0.0/27"}, {"range": "fd00::/120"}], "block_size": 29, "block_size6": 125}
    a.add(both, "p0")
    (own,) = (block.cidr for block in store.blocks() if ":" not in block.cidr)
    other = {f"10.0.0.{at}/29" for at in (0, 8, 16, 24)} - {own}
    store.claim(store.join("b", "boot"), [("default", cidr) for cidr in other])
    for i in range(1, 7):
        a.add(both, f"p{i}")
    (cidr,) = upkeep.claim_ahead(store, keys_of(a, both), print)
    assert ":" in cidr


def test_idle_blocks_of_each_family_are_given_back(a, store):
    dual = {"ipRanges": [{"range": "10.0.0.0/24"}, {"range": "fd00::/120"}]}
    a.add(dual, "p")
    a.delete(dual, "p")
    gone = upkeep.give_back_idle(store, keys_of(a, dual), print, 0, spare=0)
    assert sorted(":" in cidr for cidr in gone) == [False, True]
    assert store.blocks() == []


def test_a_block_with_a_pod_is_not_given_back(a, store):
    fill(a, 1)
    assert upkeep.give_back_idle(store, keys_of(a), print, 0, spare=0) == []
    a.delete(NET, "p0")
    assert len(upkeep.give_back_idle(store, keys_of(a), print, 0, spare=0)) == 1
    assert store.blocks() == []


@pytest.mark.parametrize("done", [False, True])
def test_no_address_of_a_block_is_given_if_it_may_have_been_returned(a, b, store, monkeypatch, done):
    """The answer to the return of the block was lost. Another node may have the block now."""
    fill(a, 1)
    a.delete(NET, "p0")
    (block,) = store.blocks()
    give_back = store.give_back

    def away(block):
        if done:
            give_back(block)
        raise Away("no route")

    monkeypatch.setattr(store, "give_back", away)
    with pytest.raises(Away):
        upkeep.give_back_idle(store, keys_of(a), print, 0, spare=0)
    assert not own_blocks(keys_of(a))
    if done:
        store.claim(store.join("b", "boot"), [("default", block.cidr)])
    (given,) = a.add(NET, "p1")
    assert (block_of(address.read_ip(given), 28) == block.cidr) is not done


def after(name):
    """Return the address after `name`."""
    return str(ipaddress.ip_address(name) + 1)


def ask(store, node, name):
    me = store.join(node, "boot")
    block = str(ipaddress.ip_network(f"{name}/28", strict=False))
    return store.claim_address(me, IPClaim(space="default", address=name, block=block, state=ASKED, container="x",
                                           ifname="eth0", pod="ns/fixed", network="net", since=1.0, sticky=False))


def test_a_free_address_is_given_to_the_node_that_asks(a, store):
    (first,) = fill(a, 1)
    wanted = after(first)
    ip_claim = ask(store, "b", wanted)
    assert upkeep.answer_asked(store, keys_of(a), print, ip_claim).state == HELD
    assert store.ip_claim("default", wanted).state == HELD
    assert wanted not in fill(a, 9, start=1)
    assert upkeep.forget_ip_claim(keys_of(a), print, ip_claim) is True
    assert upkeep.forget_ip_claim(keys_of(a), print, ip_claim) is False
    assert wanted not in a.files()


def test_a_question_that_comes_twice_leaves_the_address_held(a, store):
    """The server reads a request in a list, answers it, and reads it again from the watch. Once, the second answer
    removed the file, and another pod got the address."""
    (first,) = fill(a, 1)
    wanted = after(first)
    ip_claim = ask(store, "b", wanted)
    assert upkeep.answer_asked(store, keys_of(a), print, ip_claim).state == HELD
    assert upkeep.answer_asked(store, keys_of(a), print, ip_claim) is None
    assert wanted in a.files()
    assert wanted not in fill(a, 9, start=1)


def test_an_answer_to_a_question_that_was_taken_back_leaves_nothing(a, store):
    (first,) = fill(a, 1)
    wanted = after(first)
    ip_claim = ask(store, "b", wanted)
    assert store.release_ip_claim(ip_claim)
    assert upkeep.answer_asked(store, keys_of(a), print, ip_claim) is None
    assert wanted not in a.files()


def test_an_address_that_a_pod_has_is_refused_with_its_name(a, store):
    (first,) = a.add(NET, "c1", args=pod("web-0"))
    answer = upkeep.answer_asked(store, keys_of(a), print, ask(store, "b", first))
    assert answer.state == REFUSED
    assert answer.reason.startswith('pod ns/web-0 (container c1 eth0) on node "a" has it since 20')


def test_another_nodes_pod_gets_a_fixed_address_when_the_server_answers(a, b, store):
    (first,) = a.add(NET, "c1")
    wanted = after(first)
    ended = threading.Event()

    def serve():
        store.watch(lambda event: upkeep.answer_asked(store, keys_of(a), print, event.record)
                    if isinstance(event.record, IPClaim) and not event.gone else None, ended.is_set)

    server = threading.Thread(target=serve)
    server.start()
    try:
        assert b.add(NET, "c2", args=f"IP={wanted}") == [wanted]
        e = b.refused("ADD", NET, "c3", args=f"IP={first}")
        assert e.code == 11 and 'container c1 eth0 on node "a" has it since' in e.msg
        b.delete(NET, "c2")
        assert store.ip_claim("default", wanted) is None
    finally:
        ended.set()
        server.join()


@pytest.mark.parametrize("restored", [False, True])
def test_a_block_that_only_the_store_has_is_the_nodes_own_unless_the_store_was_restored(a, store, restored):
    """A killed process may have claimed the block without recording it. If the store was restored, the claim may come
    from the backup, and another node may have had the block since."""
    a.add(NET, "c1")
    keys, cidr = keys_of(a), "10.0.0.128/28"
    (me,) = store.nodes()
    store.claim(me, [(keys.space, cidr)])
    claims.rejoin(store, keys, a.warnings.append, suspect=restored)
    own = own_blocks(keys)
    assert own == {block.cidr for block in store.blocks(node="a")}
    assert (cidr in own) != restored
